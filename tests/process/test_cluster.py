"""launch/cluster: three hosts on this machine, real names, addresses and TCP; programs on them with the MPI that is here."""

import os
import re
import subprocess
import sys

import pytest

from lb_mpi.cli import run as commands
from lb_mpi.cli.cluster import cluster as cluster_commands
from lb_mpi.cli.cluster.cluster import EmulatedCluster, wanted_hosts
from lb_mpi.cli.cluster.network import Switch
from lb_mpi.cli.run import processes
from lb_mpi.cli.run.hosts import Host
from lb_mpi.errors import ClusterError
from tests.process.emulation import (
    HERE,
    NAME,
    PING,
    ROOT,
    cluster,
    kill_host,
    leftovers,
    needs_mpiexec,
    needs_root,
    seen,
    status,
)
from tests.process.lab import until
from tests.process.started import LIMIT_S, started

OTHER = f"u{os.getpid()}"  # made and removed within a test


# --- without a network -----------------------------------------------------------------------------------------------

A, B, ALL = b"\x02aaaaa", b"\x02bbbbb", b"\xff" * 6


@pytest.mark.one_mpi
def test_the_switch_holds_every_frame_back_and_learns():
    switch = Switch(3, 1e-3)
    assert switch.due(0.0) is None
    switch.receive(0.0, 0, ALL + A + b"who is B?")
    switch.receive(0.4e-3, 1, A + B + b"I am")
    assert switch.due(0.5e-3) == pytest.approx(0.5e-3)
    assert switch.send(0.9e-3) == []
    assert switch.send(1.0e-3) == [(1, ALL + A + b"who is B?"), (2, ALL + A + b"who is B?")]
    assert switch.send(5.0e-3) == [(0, A + B + b"I am")]
    switch.receive(6e-3, 2, B + b"\x02ccccc" + b"first")
    switch.receive(6e-3, 2, b"\x02ddddd" + b"\x02ccccc" + b"to nobody known")
    assert [port for port, _ in switch.send(1.0)] == [1, 0, 1]
    assert switch.due(1.0) is None


@pytest.mark.one_mpi
def test_hosts_are_numbered():
    assert wanted_hosts(2, 4, "0.5,1") == [Host("h1", 4, 0.5), Host("h2", 4, 1.0)]
    assert wanted_hosts(1, 1, None) == [Host("h1")]
    for arguments in ((0, 1, None), (65, 1, None), (2, 1, "1"), (1, 1, "0"), (1, 1, "1.5"), (1, 0, None)):
        with pytest.raises(ValueError, match="expected"):
            wanted_hosts(*arguments)


@pytest.mark.one_mpi
@pytest.mark.parametrize("name", ["", "../x", "a b", "A", "-x", "h" * 21])
def test_names_that_will_not_do(name, capsys):
    assert commands.main("cluster", [f"--name={name}", "down"], "cluster") == 2
    assert "--name" in capsys.readouterr().err


@pytest.mark.one_mpi
def test_of_two_starts_at_once_one_is_refused_and_leaves_the_other_alone(monkeypatch, tmp_path):
    def other_start(cluster):
        cluster.folder.mkdir()
        return []

    monkeypatch.setattr(cluster_commands, "RUN", tmp_path)
    monkeypatch.setattr(EmulatedCluster, "namespaces", other_start)
    with pytest.raises(ClusterError, match="there is a cluster lab already"):
        EmulatedCluster("lab").up(wanted_hosts(2, 1, None), 0.0)
    assert EmulatedCluster("lab").folder.exists()


# --- the cluster -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["0", "1"], ids=["no delay", "1 ms"])
def delay_ms(request):
    """A cluster of three hosts with that delay between them."""
    try:
        if request.param != "0" and not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            pytest.skip("no /dev/net/tun")
        up = cluster("up", "--hosts", "3", "--delay-ms", request.param)
        assert (up.returncode, up.stderr) == (0, "")
        yield float(request.param)
    finally:
        assert cluster("down").returncode == 0
    assert leftovers() == []


def on_hosts(delay_ms):
    """On the cluster with that delay alone."""
    mark = pytest.mark.parametrize("delay_ms", [delay_ms], indirect=True)
    return lambda test: needs_root(needs_mpiexec(mark(test)))


def run(*program):
    """What the program prints on three hosts, whose network must have carried it."""
    before = status()
    done = cluster("run", "--", *program)
    assert done.returncode == 0, done.stderr
    for host, now in status().items():
        assert now["received_bytes"] > before[host]["received_bytes"] + 1000
        assert now["sent_bytes"] > before[host]["sent_bytes"] + 1000
        assert now["processes"] == 0
    return done.stdout


def running(program, folder, *options, more=""):
    """A program on the cluster, which gets the folder."""
    launch = [sys.executable, str(ROOT / "launch" / "cluster"), "--name", NAME, "run", *options]
    return started([*launch, "--", "python", "-c", program, str(folder), *more.split()], cwd=ROOT, env=HERE)


@needs_root
@needs_mpiexec
def test_hosts_have_names_addresses_and_a_network(delay_ms):
    assert seen(run("python", "-c", PING)) >= 2 * delay_ms * 1e-3


ON_HOSTS = """
import numpy as np
from mpi4py import MPI
import lb_mpi
comm = MPI.COMM_WORLD
tree = lb_mpi.TreeSearch(1, lambda node: [2 * node, 2 * node + 1] if node < 4096 else [])
nodes = lb_mpi.search(comm, tree).value
own = rows = np.arange(40.0).reshape(20, 2) + comm.rank
with lb_mpi.Balancer(comm, when="always") as balancer:
    for _ in range(5):
        own, rows = np.cos(own), balancer.map_rows(np.cos, rows)
same = comm.reduce(own.tobytes() == rows.tobytes(), op=MPI.LAND)
if comm.rank == 0:
    print(comm.size, nodes, same)
"""


@on_hosts("1")
def test_a_search_and_rows_have_on_three_hosts_the_results_of_one(delay_ms):
    assert run("python", "-c", ON_HOSTS) == "3 8191 True\n"


# Each start says that it has saved; the first one never ends by itself.  With a second argument, ranks exchange messages.
COUNTING = """
import os, sys, time
from mpi4py import MPI
import lb_mpi
from lb_mpi import signs
comm, folder = MPI.COMM_WORLD, sys.argv[1]
if comm.rank == 0:
    with open(f"{folder}/starts", "a") as out:
        out.write("*")
    signs.saved(len(open(f"{folder}/starts").read()))
comm.Barrier()
number = len(open(f"{folder}/starts").read())
if sys.argv[2:]:
    pool = lb_mpi.Pool(comm)
    pool.map(abs, range(9))
open(f"{folder}/{number}-{comm.rank}", "w").close()
while number == 1:
    pool.map(abs, range(9)) if sys.argv[2:] else time.sleep(0.01)
if sys.argv[2:]:
    pool.close()
if comm.rank == 0:
    print(f"start {number}, {comm.size} ranks")
"""


@on_hosts("0")
def test_a_run_whose_host_dies_goes_on(delay_ms, tmp_path):
    with running(COUNTING, tmp_path, "--restarts", "1") as process:
        until(lambda: len(list(tmp_path.glob("1-*"))) == 3)
        kill_host("h3")
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert out.splitlines()[-1] == "start 2, 3 ranks"  # it answers again
    assert re.findall("host (h[0-9]) is gone", err) == ["h3"]
    assert re.search("^run: restart 1 of 1, after .* s, from save 1$", err, re.MULTILINE)
    until(lambda: [host["processes"] for host in status().values()] == [0, 0, 0])


@on_hosts("0")
def test_a_host_that_is_lost_while_a_restart_begins_is_named_and_the_run_goes_on(delay_ms, tmp_path):
    dies = "if number == 1 and comm.rank == 2:\n    time.sleep(2.0)\n    os.kill(os.getpid(), 9)\n"
    program = COUNTING.replace("while number", dies + "while number")
    with running(program, tmp_path, "--restarts", "3") as process:
        said = []
        while sum("run: h1 (1 rank), h2 (1 rank)" in line for line in said) < 2:
            said.append(process.stderr.readline())
            assert said[-1], said
        kill_host("h2")
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert out.splitlines()[-1].endswith(", 3 ranks"), err
    assert "run: host h2 is gone: " in err
    assert re.search("^run: restart 2 of 3, after ", err, re.MULTILINE)
    until(lambda: [host["processes"] for host in status().values()] == [0, 0, 0])


@on_hosts("0")
def test_ranks_that_the_network_of_mpi_does_not_connect_hang(delay_ms, tmp_path):
    link = ["ip", "-n", f"lbmpi-{NAME}-h3", "link", "set", "eth0"]  # what stands for ssh does not use it
    with running(COUNTING, tmp_path, "--hang-s", "4", more="exchange") as process:
        try:
            until(lambda: len(list(tmp_path.glob("1-*"))) == 3)
            subprocess.run([*link, "down"], check=True)
            _, err = process.communicate(timeout=LIMIT_S)
        finally:
            subprocess.run([*link, "up"], check=True)
    assert process.returncode == processes.HUNG, err
    said = "^run: rank [0-9] on host h[0-9] hangs: waiting, as all ranks do, for [0-9]+ s in "
    assert re.search(said, err, re.MULTILINE), err
    until(lambda: [host["processes"] for host in status().values()] == [0, 0, 0])


@pytest.mark.one_mpi
@on_hosts("0")
def test_a_host_that_is_not_there_is_named(delay_ms, tmp_path):
    (tmp_path / "hosts.txt").write_text("h1\nh9\n")
    done = cluster("run", "--hosts", str(tmp_path / "hosts.txt"), "--", "python", "-c", "print('started')")
    assert (done.returncode, done.stdout) == (1, "")
    assert "host h9: ssh: no host h9 in the emulated cluster" in done.stderr


@needs_root
@pytest.mark.one_mpi
def test_down_removes_what_is_its_own_and_nothing_else():
    assert cluster("up", "--hosts", "2", name=OTHER).returncode == 0
    others = [f"{OTHER}-h1", f"lbmpi-{OTHER}-hx", f"lbmpi-{OTHER}x-h1"]
    for other in others:
        subprocess.run(["ip", "netns", "add", other], check=True)
    command = ["ip", "netns", "exec", f"lbmpi-{OTHER}-h1", "sleep", "100"]
    with subprocess.Popen(command) as sleeper:
        until(lambda: status(OTHER)["h1"]["processes"] == 1)
        devices = os.listdir("/sys/class/net")
        for _ in range(2):
            down = cluster("down", name=OTHER)
            assert (down.returncode, down.stderr) == (0, "")
        assert sleeper.wait(LIMIT_S) == -15
    assert os.listdir("/sys/class/net") == devices
    for other in others:
        subprocess.run(["ip", "netns", "delete", other], check=True)
    assert leftovers(OTHER) == []
    said = cluster("run", "--", "true", name=OTHER)
    assert said.returncode == 1
    assert re.search("no cluster .*: start one with", said.stderr)


@needs_root
@pytest.mark.one_mpi
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the switch is ended, but not by its parent
@pytest.mark.parametrize("delay_s", [0.0, 1e-3])
def test_nothing_is_left_of_a_start_that_is_interrupted(monkeypatch, delay_s):
    monkeypatch.chdir(ROOT)
    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if "addr" in arguments and f"lbmpi-{OTHER}-h2" in arguments:
            raise KeyboardInterrupt
        return ip(*arguments)

    ip = cluster_commands._ip
    monkeypatch.setattr(cluster_commands, "_ip", interrupted)
    with pytest.raises(KeyboardInterrupt):
        EmulatedCluster(OTHER).up(wanted_hosts(2, 1, None), delay_s)
    assert len(calls) > 5
    assert leftovers(OTHER) == []
