"""Check that balancing does not make a run slower.  python -m benchmarks.busy [--only CASE ...] [--quick]

two      two equal ranks, which balancing can hardly help
four     four equal ranks
unequal  four ranks of emulated speeds 0.8, 0.4, 0.2, 0.2

Each row is seconds with balancing / seconds without, while 0, 1, 2 or 8 other processes use the cores all the time.  The two
run in turn (A B A B); the row has the median of the pairs' ratios, with the minimum and the maximum.  On equal ranks run:

steps    `map_rows` of 60 equal rows on each rank, in steps of 5, 20 and 100 ms, beside a plain loop that ends with a barrier
stencil  the same in steps of 20 ms, which begin with the program's own exchange of edges; without balancing, nothing else
         makes ranks wait for each other

and in all cases the apps weather, UTS, maze and heat, whole runs with their first steps.  A * means that further programs
used more than 5 % of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.grain import ratios, steps
from benchmarks.measuring import Row, command, run, table

CASES: dict[str, tuple[int, list[str]]] = {
    "two": (2, []),
    "four": (4, []),
    "unequal": (4, ["--speeds", "0.8,0.4,0.2,0.2"]),
}
BESIDE = (0, 1, 2, 8)  # other processes
LENGTHS = {"steps": (5e-3, 20e-3, 100e-3), "stencil": (20e-3,)}  # seconds
WANTED = "<= 1.05"


class App(NamedTuple):
    """An app: its arguments, and those that turn balancing off."""

    argv: list[str]
    plain: list[str]


APPS = {
    "weather": App(["apps.weather", "--shape", "64x128", "--steps", "30"], ["--balance", "none"]),
    "UTS": App(["apps.uts", "--tree", "T1L"], ["--no-balance"]),
    "maze": App(["apps.maze", "--dim", "7000", "--walled"], ["--no-balance"]),
    "heat": App(["apps.heat", "mesh:200x300", "--steps", "30"], ["--balance", "block"]),
}


@contextlib.contextmanager
def beside(n: int) -> Iterator[None]:
    """Keep n processes busy meanwhile."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def case(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Measure a section of the table."""
    n_ranks, more = CASES[name]
    for n in options.beside:
        for program in options.run:
            where = f"{name}, {n} beside, {program}"
            if program in APPS:
                with beside(n):
                    found = pairs(n_ranks, APPS[program], more, options.repeat)
                yield Row(where, found, "times", WANTED)
            elif not more:
                door = "rows" if program == "steps" else program
                with beside(n):
                    seconds = steps(door, LENGTHS[program], options, lambda argv: run(n_ranks, argv))
                for length_s, at in zip(LENGTHS[program], seconds, strict=True):
                    found = ratios(at["map_rows"], at["equal rows"])
                    yield Row(f"{where} of {1e3 * length_s:g} ms", found, "times", WANTED)


def pairs(n_ranks: int, app: App, more: Sequence[str], repeat: int) -> list[float]:
    """Seconds of an app with balancing / without, of each pair."""
    found = []
    for _ in range(repeat):
        plain = run(n_ranks, ["-m", *app.argv, *more, *app.plain, "--json"])["seconds"]
        found.append(run(n_ranks, ["-m", *app.argv, *more, "--json"])["seconds"] / plain)
    return found


def main() -> None:
    """Measure, print the table (or JSON)."""
    programs = [*LENGTHS, *APPS]
    parser = command("busy", __doc__, repeat=(9, "pairs of each measurement"))
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="run only these cases")
    parser.add_argument("--run", nargs="+", choices=programs, default=programs, help="run only these programs")
    parser.add_argument("--beside", nargs="+", type=int, default=list(BESIDE), help="numbers of other processes")
    parser.add_argument("--quick", action="store_true",
        help="two pairs of steps and stencil, with 2 others, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.repeat, options.run, options.beside = 2, list(LENGTHS), [2]
    table(options.only, lambda name: case(name, options), options.json)


if __name__ == "__main__":
    main()
