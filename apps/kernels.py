"""Compile all kernels into their cache: `python -m apps.kernels`.

Otherwise the tests would, some of them at the same time, and seem to hang on a busy machine; and the demo would measure it.
"""

from apps import heat, maze_search, maze_tiles, weather_physics
from lb_mpi.commands.info import compile_all, kernels

APPS = {
    "maze": maze_search.compile_kernels,
    "maze in tiles": maze_tiles.compile_kernels,
    "weather": weather_physics.compile_kernels,
    "heat": heat.compile_kernels,
}

if __name__ == "__main__":
    compile_all(kernels() | APPS)
