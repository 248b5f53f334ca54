"""The folder of a run's records, and a separate process that shows its progress from them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from lb_mpi.cli.run import limit

SHOWN = "LB_MPI_SHOWN"  # set for ranks whose progress launch/run shows
PREFIX = ".lb_mpi-progress-"  # of a folder for records that nobody wants to keep
END_S = 3.0  # for the process to exit and restore the terminal


@contextlib.contextmanager
def followed(folder: str, *, after_s: float = 0.0, terminal: str | None = None) -> Iterator[None]:
    """Show the progress of the run recorded in `folder`, while the block runs, from `after_s` seconds on.

    It is shown on standard error, or on the terminal at the path `terminal`.  The process that shows it exits at the end of
    its standard input, which comes even if this process is killed.
    """
    argv = [sys.executable, "-P", "-m", "lb_mpi.cli.report.live", folder]
    package = str(Path(__file__).resolve().parents[3])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        with open(terminal, "wb") if terminal is not None else contextlib.nullcontext() as stderr:
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr, env=env)
        started.append(process)

    timer = threading.Timer(after_s, start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        for process in started:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()


@contextlib.contextmanager
def scratch(place: str | None = None) -> Iterator[str]:
    """Make a folder in `place` (None: that of temporary files) for records that nobody wants to keep, and remove it.

    It disappears at once: a rank that ends meanwhile finds no folder, rather than a folder without its file, and is silent.
    """
    folder = tempfile.mkdtemp(prefix=f"{PREFIX}{socket.gethostname()}-{os.getpid()}-", dir=place)
    try:
        yield folder
    finally:
        gone = f"{folder}.removed"
        with contextlib.suppress(OSError):
            os.rename(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)  # on a host that is gone, a rank may still write there


def remove_scratch() -> None:
    """Remove the folders of `scratch` in the usual place, made by processes of this user and host that have been killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}{socket.gethostname()}-*-*"):
        pid = folder.name.split("-")[-2]
        with contextlib.suppress(OSError, ValueError):
            if folder.lstat().st_uid == os.geteuid() and not limit.is_alive(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)  # follows no link


def remove_records(folder: str) -> None:
    """Remove the records of an earlier start, which would look like those of the next one.

    A link in their place is removed, too; what it leads to stays.
    """
    for old in Path(folder).glob("rank*.lbrec"):
        old.unlink()
