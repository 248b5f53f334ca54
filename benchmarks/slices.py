"""Measure what caches that are cold after a rest cost under launch/throttle.  python -m benchmarks.slices [--quick]

A slow program runs for a slice and is then stopped, and others use the caches.  The longer the slices, the less CPU time it
needs, but the longer the stops, in which a rank answers no message; a machine that is really slow answers after a few
milliseconds.  The programs:

python   a loop over a dictionary of 1,024 numbers
solves   systems of 60 equations, by numpy
arrays   elementwise arithmetic on 32,000 numbers
memory   the same on 4,000,000 numbers

Each row is the CPU time of the same work under throttle / without it, which run in turn (A B A B); medians of the rounds,
with the minimum and the maximum.  CPU times say something on a busy machine, too; but others then fill the caches.
"Stops" are the milliseconds for which the program is stopped, without what the scheduler adds.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.measuring import Row, command, table
from lb_mpi.cli import throttle
from tools.environment import here

SLICES_S = (0.5e-3, 1e-3, 2e-3, 4e-3)
WORK_S = 0.3  # CPU seconds of a program without throttle, about
NUMBERS = np.random.default_rng(1).normal(size=4_000_000)
SYSTEM = NUMBERS[:3600].reshape(60, 60) + 60.0 * np.eye(60)
PLACE = np.empty_like(NUMBERS)


def python() -> None:
    """A loop."""
    seen: dict[int, int] = {}
    for k in range(40_000):
        seen[k & 1023] = seen.get(k & 1023, 0) + k


def solves() -> None:
    """Small systems of equations."""
    for _ in range(60):
        np.linalg.solve(SYSTEM, NUMBERS[:60])


def arrays() -> None:
    """Arrays that fit into a cache."""
    for _ in range(60):
        np.multiply(NUMBERS[:32_000], NUMBERS[:32_000], out=PLACE[:32_000])


def memory() -> None:
    """Arrays that do not."""
    np.multiply(NUMBERS, NUMBERS, out=PLACE)


PROGRAMS: dict[str, Callable[[], None]] = {program.__name__: program for program in (python, solves, arrays, memory)}


def work(name: str, times: int) -> float:
    """CPU seconds of a program, `times` in a row."""
    PROGRAMS[name]()
    began = time.process_time()
    for _ in range(times):
        PROGRAMS[name]()
    return time.process_time() - began


def start(name: str, times: int, code: str = "", *argv: str) -> float:
    """CPU seconds of a program in a process of its own; `code` runs another one, its words `argv`, around it."""
    program = [sys.executable, "-c", f"from benchmarks.slices import work; print(work({name!r}, {times}))"]
    around = [sys.executable, "-c", code, *argv] if code else []
    done = subprocess.run([*around, *program], env=variables(), capture_output=True, text=True, check=True)
    return float(done.stdout)


def variables() -> dict[str, str]:
    """One thread, as for ranks."""
    return {**here().variables(), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}


def measure(name: str, speed: float, repeat: int) -> Iterator[Row]:
    """A row for each length of slices."""
    times = max(round(10 * WORK_S / work(name, 10)), 1)
    alone: list[float] = []
    slow: dict[float, list[float]] = {slice_s: [] for slice_s in SLICES_S}
    for _ in range(repeat):
        alone.append(start(name, times))
        for slice_s, taken in slow.items():
            code = f"import sys; from lb_mpi.cli import throttle; throttle.slice_s = lambda speed: {slice_s}; "
            taken.append(start(name, times, code + "throttle.main(sys.argv[1:], 'throttle')", "--speed", str(speed)))
    for slice_s, taken in slow.items():
        used = " (used)" if math.isclose(slice_s, throttle.slice_s(speed)) else ""
        stop_s = slice_s / speed - slice_s
        what = f"{name}, speed {speed:g}: slices of {1e3 * slice_s:g} ms, stops of {1e3 * stop_s:g} ms{used}"
        yield Row(what, [one / other for one, other in zip(taken, alone, strict=True)], "times")


def main() -> None:
    """Measure, print the table (or JSON)."""
    parser = command("slices", __doc__, repeat=(5, "rounds of each measurement"))
    parser.add_argument("--speed", type=float, default=0.1, help="of the program (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one round, to see that it works")
    options = parser.parse_args()
    repeat = 1 if options.quick else options.repeat
    table(list(PROGRAMS), lambda name: measure(name, options.speed, repeat), options.json)


if __name__ == "__main__":
    main()
