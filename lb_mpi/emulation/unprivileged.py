"""launch/cluster for an ordinary user: the cluster lies in a user namespace, where this user is root.

A process called keeper holds that namespace, and one of mounts with a /run of its own.  What root would do on the machine
is done there, by the same command.  The keeper is found by its command line and its user: nothing has to be noted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lb_mpi.errors import ClusterError
from lb_mpi.launching import commands, limit

_PROC = Path("/proc")
# By setting of the kernel: the value with which ordinary users can't make user namespaces, and one with which they can.
SETTINGS = {
    "kernel.unprivileged_userns_clone": (0, 1),  # Debian
    "kernel.apparmor_restrict_unprivileged_userns": (1, 0),  # Ubuntu
    "user.max_user_namespaces": (0, 10000),
}


def act(name: str, command: str, arguments: Sequence[str]) -> int:
    """Do launch/cluster with `arguments`, of which `command` is one, in the namespaces of the cluster `name`."""
    keeper = find(name)
    if command == "run" and keeper is not None:
        argv = inside(keeper, arguments)
        os.execvp(argv[0], argv)
    if command == "up" and keeper is None:
        keeper = start(name)
        try:
            code = _call(inside(keeper, arguments))
        except BaseException:
            end(keeper)
            raise
        if code:
            end(keeper)
        return code
    if keeper is None:
        if command == "down":
            return 0
        raise ClusterError(f"no cluster {name}: start one with `cluster up`")
    code = _call(inside(keeper, arguments))
    if command == "down" and code == 0:
        end(keeper)
    return code


def inside(keeper: int, arguments: Sequence[str]) -> list[str]:
    """Return a command line that runs launch/cluster with `arguments` in the keeper's namespaces, in this folder."""
    enter = ["nsenter", "--preserve-credentials", "--user", "--mount", "--net", "--target", str(keeper)]
    here = ["sh", "-c", 'cd "$0" && exec "$@"', os.getcwd()]  # mounts are others: the way there is gone again
    return [*enter, *here, *commands.argv(sys.executable, "cluster", *arguments)]


def _call(argv: Sequence[str]) -> int:
    """Run `argv` to its end; what ends this process ends it, too, and in good order."""
    with subprocess.Popen(argv) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise


def find(name: str) -> int | None:
    """Return the process number of the keeper of the cluster `name` of this user."""
    wanted = [part.encode() for part in commands.argv(sys.executable, "keeper", name)[-3:]]
    for path in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile
            if path.stat().st_uid == os.geteuid() and (path / "cmdline").read_bytes().split(b"\0")[-4:-1] == wanted:
                return int(path.name)
    return None


def start(name: str) -> int:
    """Start the keeper and return its process number; ClusterError, with what is missing, when it can't be."""
    own = commands.argv(sys.executable, "keeper", name)
    process = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--mount", "--net", *own],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # it stays when this command has ended
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        if process.stdout.readline() == "ready\n":
            return process.pid
        said = process.stderr.read().strip()
    process.wait()
    raise ClusterError(f"needs root, or user namespaces, which are not allowed here: {missing(_PROC / 'sys') or said}")


def missing(settings: Path) -> str:
    """Say which kernel setting below /proc/sys forbids user namespaces, and how to allow them; empty if none does."""
    for name, (forbids, allows) in SETTINGS.items():
        with contextlib.suppress(OSError, ValueError):  # this kernel has no such setting
            if int((settings / name.replace(".", "/")).read_text()) == forbids:
                return f"{name} is {forbids}; to allow them: sudo sysctl -w {name}={allows}"
    return ""


def end(keeper: int) -> None:
    """End the keeper, and with it its namespaces, in which nothing runs any more."""
    deadline = time.monotonic() + limit.LEFT_S
    while (_PROC / str(keeper) / "exe").exists() and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            os.kill(keeper, signal.SIGKILL)
        time.sleep(0.01)


def main(_arguments: Sequence[str], _prog: str) -> NoReturn:
    """Be a keeper."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"], check=True)
    print("ready", flush=True)
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    while True:
        signal.pause()
