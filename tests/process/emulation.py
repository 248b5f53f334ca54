"""Emulated clusters for tests: whether there can be one here, and launch/cluster as a command."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lb_mpi.cli.cluster.cluster import NETNS, RUN, check
from lb_mpi.errors import ClusterError
from tests.process.lab import ROOT
from tools import openssh

HERE = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
NAME = f"t{os.getpid()}"


def missing():
    """Why root can have no emulated cluster here."""
    try:
        check()
    except ClusterError as error:
        return str(error)
    if os.geteuid() != 0:
        return "needs root"
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"no network namespaces here: {done.stderr.strip()}"


def missing_ssh():
    """Why its hosts can have no OpenSSH server here."""
    try:
        openssh.check()
    except ClusterError as error:
        return str(error)
    return missing()


def no_mpiexec():
    return "" if shutil.which("mpiexec", path=HERE["PATH"]) else "no mpiexec"


PING = """
import json, socket, time
from mpi4py import MPI
comm, name, times = MPI.COMM_WORLD, socket.gethostname(), []
for _ in range(20):
    began = time.perf_counter()
    if comm.rank == 0:
        comm.ssend(None, 1)  # there, and that it has been received back
    elif comm.rank == 1:
        comm.recv(source=0)
    times.append(time.perf_counter() - began)
found = comm.gather((name, socket.gethostbyname(name), comm.Split_type(MPI.COMM_TYPE_SHARED).size, min(times)))
if found:
    print(json.dumps(found))
"""


def seen(said):
    """Check what PING prints on three hosts, which share no memory; return the least seconds of a message and its answer."""
    found = json.loads(said)
    assert [one[:3] for one in found] == [[f"h{k}", f"10.77.0.{k}", 1] for k in (1, 2, 3)]
    return float(found[0][3])


needs_root = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
needs_mpiexec = pytest.mark.skipif(bool(no_mpiexec()), reason=no_mpiexec() or "-")


def cluster(*arguments, name=NAME):
    """Run launch/cluster."""
    command = [sys.executable, str(ROOT / "launch" / "cluster"), "--name", name, *arguments]
    return subprocess.run(command, cwd=ROOT, env=HERE, capture_output=True, text=True, timeout=120)


def status(name=NAME):
    """The bytes that the network device of each host has carried, and the number of its processes."""
    found = {}
    for path in sorted(NETNS.glob(f"lbmpi-{name}-h[0-9]*")):
        show = ["ip", "-j", "-s", "-n", path.name, "link", "show", "dev", "eth0"]
        device = json.loads(subprocess.run(show, capture_output=True, check=True).stdout)[0]["stats64"]
        pids = subprocess.run(["ip", "netns", "pids", path.name], capture_output=True, check=True).stdout.split()
        found[path.name.rpartition("-")[2]] = {
            "received_bytes": device["rx"]["bytes"],
            "sent_bytes": device["tx"]["bytes"],
            "processes": len(pids),
        }
    return found


def leftovers(name=NAME):
    return [path for folder in (NETNS, RUN) for path in folder.glob(f"lbmpi-{name}*")]


def kill_host(host, name=NAME):
    """Kill all that runs on a host, at once, as when it loses its power."""
    command = ["ip", "netns", "pids", f"lbmpi-{name}-{host}"]
    for pid in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), 9)
