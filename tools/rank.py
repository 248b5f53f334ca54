"""One rank of an MPI test stage: `python -m mpi4py -m tools.rank FOLDER [pytest arguments]`.

Copies of pytest that all print to one pipe can't be read: each rank has its own log and report in FOLDER.
"""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tools.stages import LIMIT_S, WITHOUT_HYPOTHESIS, ended_after

GRACE_S = 10.0  # after a failure: for the reports of the other ranks, which may wait for this one for ever


def main(folder: Path, arguments: list[str]) -> int:
    """Run pytest on this rank; return its exit code, which if not 0 makes mpi4py end all ranks."""
    rank, size = (int(_variable(name)) for name in ("RANK", "SIZE"))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a script starts in the background
    log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    code = int(
        pytest.main(
            [
                "--with-mpi",
                f"--junitxml={folder / f'{rank}.xml'}",
                *("-p", "no:cacheprovider"),  # one folder for all ranks
                *WITHOUT_HYPOTHESIS,
                f"--basetemp={folder / f'tmp{rank}'}",  # or all ranks clean up one folder at the same time
                "--maxfail=1",  # after a failure on one rank, the ranks are out of step
                # Rank 0 ends all ranks of a test that hangs, when the others have printed where they are.
                *ended_after(LIMIT_S if rank else LIMIT_S + GRACE_S, ends=rank == 0),
                *arguments,
            ]
        )
    )
    sys.stdout.flush()
    (folder / f"{rank}.done").touch()
    deadline = time.monotonic() + GRACE_S
    while code and len(list(folder.glob("*.done"))) < size and time.monotonic() < deadline:
        time.sleep(0.1)
    return code


def _variable(what: str) -> str:
    """PMI_RANK or OMPI_COMM_WORLD_RANK, ..._SIZE."""
    return os.environ.get(f"OMPI_COMM_WORLD_{what}") or os.environ[f"PMI_{what}"]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
