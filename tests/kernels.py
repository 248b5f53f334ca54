"""Compile all kernels into their cache: `python -m tests.kernels`.

Otherwise the tests would, some of them at the same time, and seem to hang on a busy machine.
"""

from __future__ import annotations

import lb_mpi
from apps import maze_search, maze_tiles
from lb_mpi.arranging import objectives
from lb_mpi.partitioning.partition import EFFORTS
from lb_mpi.problems import uts


def main() -> None:
    """Compile those of the library."""
    for room in (objectives, maze_search, maze_tiles, uts):
        room.compile_kernels()
    for effort in EFFORTS:
        lb_mpi.partition("mesh:12x12", 4, effort=effort)


if __name__ == "__main__":
    main()
