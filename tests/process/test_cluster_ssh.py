"""launch/run over OpenSSH: real servers on emulated hosts, one of which is then cut off."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lb_mpi.cli.cluster.cluster import EmulatedCluster
from tests.process.emulation import PING, cluster, leftovers, missing_ssh, needs_mpiexec, seen, status
from tests.process.lab import until
from tests.process.test_cluster import COUNTING
from tools import openssh

NAME = f"s{os.getpid()}"
FOLDER = EmulatedCluster(NAME).folder / "ssh"


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


def logins(host):
    return (FOLDER / host / "log").read_text().count("Accepted publickey")


@needs_mpiexec
def test_the_hosts_are_reached_by_ssh_alone(lab):
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


@needs_mpiexec
def test_a_run_whose_host_is_cut_off_goes_on_without_it(lab, tmp_path):
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


def others():
    """Files of ssh that are not the cluster's, and when they were written."""
    folders = (Path("/etc/ssh"), Path.home() / ".ssh", Path("/run/sshd"))
    return [(path, path.stat().st_mtime_ns) for one in folders if one.is_dir() for path in [one, *one.rglob("*")]]
