"""The records of a run: a separate process that shows its progress from them, and how old ones are removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

END_S = 3.0  # for the process to exit and restore the terminal


@contextlib.contextmanager
def followed(folder: str) -> Iterator[None]:
    """Show the progress of the run recorded in `folder` on standard error, while the block runs.

    The process that shows it exits at the end of its standard input, which comes even if this process is killed.
    """
    argv = [sys.executable, "-P", "-m", "lb_mpi.cli.report.live", folder]
    package = str(Path(__file__).resolve().parents[3])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env) as process:
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.terminate()


@contextlib.contextmanager
def recorded(folder: str) -> Iterator[None]:
    """Make the folder of a run's records, in which no other run may record meanwhile; BlockingIOError if one does."""
    os.makedirs(folder, exist_ok=True)
    file = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, "another run is recorded there", folder) from None
        except OSError:  # the file server locks no folders
            pass
        yield
    finally:
        os.close(file)


def remove_records(folder: str) -> None:
    """Remove the records of an earlier start, which would look like those of the next one.

    A link in their place is removed, too; what it leads to stays.
    """
    for old in Path(folder).glob("rank*.lbrec"):
        old.unlink()
