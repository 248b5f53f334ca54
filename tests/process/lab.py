"""Hosts that are programs of the test: what stands for ssh and for mpiexec, on this machine, and commands to use them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.process.started import LIMIT_S, started

ROOT = Path(__file__).resolve().parents[2]

# What stands for ssh: does on this machine what a host called so would do, and notes its pid.
LAUNCHER = """
import os, sys, time
*_, host, there = sys.argv
if host == "unreachable" or os.path.exists(os.path.join(FOLDER, "..", "dead", host)):
    sys.exit(f"ssh: connect to host {host} port 22: No route to host")
if host == "mute":
    time.sleep(60)
if host == "old":
    print('lb_mpi {"host": "old", "Python": "3.11.0", "mpi4py": "3.0.0"}', flush=True)
    sys.stdin.read()
if host == "elsewhere":
    there = there.replace(ROOT, "/nosuch/folder")
if host == "bare":
    there = there.replace(sys.executable, "/nosuch/python")
if host == "chatty":
    print("Welcome to chatty!", flush=True)
open(os.path.join(FOLDER, host), "w").write(str(os.getpid()))
os.execv("/bin/sh", ["sh", "-c", there])
"""
# What stands for mpiexec: starts the ranks on this machine.
MPIEXEC = """
import os, subprocess, sys, time
assert ":" not in sys.argv
if "--version" in sys.argv:
    print({says!r})
    sys.exit()
k = sys.argv.index("-n")
n, program = int(sys.argv[k + 1]), sys.argv[k + 2 :]
ranks = [subprocess.Popen(program, env={{**os.environ, "PMI_RANK": str(rank)}}) for rank in range(n)]
while "MPI_ENDS_OTHERS" in os.environ and not any([rank.poll() for rank in ranks]):
    time.sleep(0.05)
[rank.terminate() for rank in ranks if "MPI_ENDS_OTHERS" in os.environ]
sys.exit(max([rank.wait() for rank in ranks]))
"""


def script(path, text):
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


def mpi_library():
    """The MPI library of this environment."""
    argv = [sys.executable, "-m", "lb_mpi.mpi.common.facts"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    return str(json.loads(done.stdout)["MPI library"])


class Lab:
    """Host lists, and commands to use them."""

    def __init__(self, folder, library, monkeypatch):
        self.folder = folder
        path = folder / "path"
        path.mkdir()
        monkeypatch.setenv("PATH", f"{path}{os.pathsep}{os.environ['PATH']}")
        self.pids = folder / "pids"
        self.pids.mkdir()
        self.dead = folder / "dead"  # files called as hosts that nobody can reach
        self.dead.mkdir()
        self.ssh = script(path / "ssh", f"ROOT, FOLDER = {str(ROOT)!r}, {str(self.pids)!r}\n{LAUNCHER}")
        name, _, version = library.rpartition(" ")
        says = f"HYDRA build details:\n    Version:   {version}" if name == "MPICH" else f"mpiexec (Open MPI) {version}"
        self.mpiexec = script(path / "mpiexec", MPIEXEC.format(says=says))

    def arguments(self, hosts, *more):
        (self.folder / "hosts.txt").write_text(hosts.replace(" ", "\n"))
        return ["--hosts", str(self.folder / "hosts.txt"), *more]

    def start(self, hosts, *more):
        return started([sys.executable, str(ROOT / "launch" / "run"), *self.arguments(hosts, *more)], cwd=ROOT)

    def run(self, hosts, *more):
        with self.start(hosts, *more) as process:
            out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out, err


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value
