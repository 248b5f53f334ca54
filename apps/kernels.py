"""Compile all kernels into their cache, in two processes: `python -m apps.kernels`.

Otherwise the tests would, some of them at the same time, and seem to hang on a busy machine; and the demo would measure it.
"""

import math
from concurrent.futures import ProcessPoolExecutor

from apps import heat, maze_search, maze_tiles, particles, weather_physics
from lb_mpi import compiling
from lb_mpi.cli import info, uts
from lb_mpi.rebalancing import rebalance


def of_apps() -> None:
    """Compile those of the apps; then, when the others have what they share, those of a rebalancing, without a line."""
    compiling.SHOWN_S = math.inf
    for app in (maze_search, maze_tiles, weather_physics, heat, particles, uts, rebalance):
        app.compile_kernels()


if __name__ == "__main__":
    with ProcessPoolExecutor(1) as another:
        done = another.submit(of_apps)
        info.compile_all()
        done.result()
