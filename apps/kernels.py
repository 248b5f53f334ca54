"""Compile all kernels into their cache: `python -m apps.kernels`.

Otherwise the tests would, some of them at the same time, and seem to hang on a busy machine; and the demo would measure it.
"""

from apps import heat, maze_search, maze_tiles, particles, weather_physics
from lb_mpi.cli.info import warmup

if __name__ == "__main__":
    warmup(None)
    for app in (maze_search, maze_tiles, weather_physics, heat, particles):
        app.compile_kernels()
