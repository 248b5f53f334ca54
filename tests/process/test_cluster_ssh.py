"""launch/run over OpenSSH: real servers on emulated hosts, one of which has something wrong with it."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lb_mpi.cli.cluster.cluster import EmulatedCluster
from tests.process.emulation import PING, cluster, kill_host, leftovers, missing_ssh, needs_mpiexec, seen, status
from tests.process.lab import until
from tests.process.test_cluster import COUNTING
from tools import openssh

NAME = f"s{os.getpid()}"
FOLDER = EmulatedCluster(NAME).folder / "ssh"
SECONDS = 30.0  # within which a refusal is printed, on a busy machine; ssh itself gives up after 10


@pytest.fixture(scope="module")
def lab():
    """A cluster of three hosts with servers."""
    if missing_ssh():
        pytest.skip(missing_ssh())
    before = others()
    try:
        up = cluster("up", "--hosts", "3", name=NAME)
        assert (up.returncode, up.stderr) == (0, "")
        openssh.start(EmulatedCluster(NAME))
        yield
    finally:
        assert cluster("down", name=NAME).returncode == 0
    assert leftovers(NAME) == []
    assert others() == before


@pytest.fixture
def servers(lab):
    """The cluster as it was made, again after the test."""
    files = {path: path.read_text() for path in (FOLDER / "known_hosts", *FOLDER.glob("h*/authorized_keys"))}
    yield
    for path, text in files.items():
        path.write_text(text)


def logins(host):
    return (FOLDER / host / "log").read_text().count("Accepted publickey")


@needs_mpiexec
def test_the_hosts_are_reached_by_ssh_alone(servers):
    before = logins("h2"), logins("h3")
    done = cluster("run", "--", "python", "-c", PING, name=NAME)
    assert done.returncode == 0, done.stderr
    assert seen(done.stdout) > 0.0
    assert "launcher-exec" not in done.stderr  # nothing stands for ssh
    assert "plm_ssh_agent" not in done.stderr
    assert logins("h2") >= before[0] + 2  # launch/run's, and mpiexec's
    assert logins("h3") >= before[1] + 1  # Open MPI may reach it through h2
    assert all(host["processes"] == 1 for host in until(lambda: quiet(status(NAME))).values())


def quiet(hosts):
    """The hosts, when nothing but their servers runs on them: a session's end takes sshd a moment."""
    return hosts if all(host["processes"] == 1 for host in hosts.values()) else None


def refusal(*program):
    """What launch/run says when it can't start on h2; it must say so soon."""
    began = time.monotonic()
    done = cluster("run", *(program or ("--check",)), name=NAME)
    assert time.monotonic() < began + SECONDS
    assert (done.returncode, done.stdout) == (1, "")
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 1, done.stderr  # no other host is named, and nothing is asked
    return lines[0]


def log_in_with(host, words):
    """Let a shell at `host` do this at each login before what it's asked for; $SSH_ORIGINAL_COMMAND is that."""
    (FOLDER / host / "authorized_keys").write_text(f'command="{words}" {(FOLDER / "id.pub").read_text()}')


@needs_mpiexec
def test_a_login_shell_that_prints_a_banner(servers):
    log_in_with("h2", 'echo Welcome to h2; exec sh -c \\"$SSH_ORIGINAL_COMMAND\\"')
    script = "from mpi4py import MPI; n = MPI.COMM_WORLD.allreduce(1); MPI.COMM_WORLD.rank or print('ranks:', n)"
    done = cluster("run", "--", "python", "-c", script, name=NAME)
    assert done.returncode == 0, done.stderr
    assert "ranks: 3" in done.stdout.splitlines()


@needs_mpiexec
def test_a_run_whose_host_is_cut_off_goes_on_without_it(servers, tmp_path):
    link = ["ip", "-n", f"lbmpi-{NAME}-h2", "link", "set", "eth0"]
    program = ("python", "-c", COUNTING, str(tmp_path))
    with ThreadPoolExecutor(1) as other:
        run = other.submit(cluster, "run", "--restarts", "1", "--", *program, name=NAME)
        until(lambda: len(list(tmp_path.glob("1-*"))) == 3 or run.done())
        subprocess.run([*link, "down"], check=True)
        done = run.result(120)
    subprocess.run([*link, "up"], check=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "start 2, 2 ranks"
    assert "run: host h2 is gone: no sign of life for " in done.stderr
    assert "run: left out: host h2: ssh: connect to host h2 port 2222: " in done.stderr


# The last that uses these servers: one of them is killed.
@needs_mpiexec
def test_a_host_that_dies_while_a_program_runs(servers, tmp_path):
    script = (
        "import subprocess, sys, time; from mpi4py import MPI; c = MPI.COMM_WORLD; c.Barrier()\n"
        "if c.rank == 2: open(sys.argv[1], 'w').close()\nwhile True: time.sleep(0.01)"
    )
    with ThreadPoolExecutor(1) as other:
        run = other.submit(cluster, "run", "--", "python", "-c", script, str(tmp_path / "up"), name=NAME)
        until(lambda: (tmp_path / "up").exists() or run.done())
        kill_host("h2", NAME)
        done = run.result(60)
    assert done.returncode != 0
    assert "host h2 is gone: " in done.stderr
    assert "host h3 is gone" not in done.stderr
    assert "host h2: ssh: connect to host h2 port 2222: Connection refused" in (said := refusal())
    assert "has no ssh server" in said


def others():
    """Files of ssh that are not the cluster's, and when they were written."""
    folders = (Path("/etc/ssh"), Path.home() / ".ssh", Path("/run/sshd"))
    return [(path, path.stat().st_mtime_ns) for one in folders if one.is_dir() for path in [one, *one.rglob("*")]]
