"""The records of a run: a separate process that shows its progress from them, and how old ones are removed."""

from __future__ import annotations

import contextlib
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


def remove_records(folder: str) -> None:
    """Remove the records of an earlier start, which would look like those of the next one.

    A link in their place is removed, too; what it leads to stays.
    """
    for old in Path(folder).glob("rank*.lbrec"):
        old.unlink()
