"""Measure the cost of saving.  python -m benchmarks.saving

Three programs run in three ways, in turn (A B C A B C ...), after a round that does not count; each reports its seconds:

    A  without --save
    B  with --save, at the usual interval of 30 s, which is longer than the run: the cost of being able to save
    C  with many saves: (C - A) / saves is the cost of one save

The cost of a save every 30 s is B / A - 1 + the cost of one save / 30 s.  The disk is that of --folder; each save is flushed
to it.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.measuring import Row, command, in_turn, run, table

EVERY_S = 30.0


class Program(NamedTuple):
    """A program to run."""

    argv: str
    rarely: str  # the interval of B, as the option has it
    often: str  # of C
    goal_ms: str = ""  # of one save


PROGRAMS = {
    "uts": Program("-m apps.uts --tree T1L", f"{EVERY_S:g}", "0.1"),
    "maze": Program("-m apps.maze --dim 9000 --walled", f"{EVERY_S:g}", "0.5", "<= 500"),
    "weather": Program("-m apps.weather --steps 30", "0", "3"),
}


class Run(NamedTuple):
    """The figures of one run."""

    seconds: float
    n_saves: int = 0
    mb: float = 0.0  # of the last save, all ranks together


def plain(ranks: int, program: Program) -> Run:
    """Run a program without saves."""
    return Run(run(ranks, [*program.argv.split(), "--json"])["seconds"])


def saved(ranks: int, program: Program, every: str, place: str | None) -> Run:
    """Run a program with saves at an interval; those of a search are numbered from 1, those of rows by their step."""
    with tempfile.TemporaryDirectory(prefix="lb_mpi-", dir=place) as folder:
        words = [*program.argv.split(), "--save", f"{folder}/saves", "--save-every", every, "--json"]
        seconds = run(ranks, words)["seconds"]
        saves = sorted(Path(folder).glob("saves/save-*"))
        if not saves:
            return Run(seconds)
        last = int(saves[-1].name.removeprefix("save-"))
        n_saves = -(-last // (int(every) or last)) if "weather" in program.argv else last  # every 0: one, at the end
        return Run(seconds, n_saves, sum(path.stat().st_size for path in saves[-1].iterdir()) / 1e6)


def measure(program: Program, ranks: int, repeat: int, place: str | None) -> Iterator[Row]:
    """Run the program in the three ways; yield the rows of the table."""
    ways = {
        "A, without --save": lambda: plain(ranks, program),
        "B, with --save": lambda: saved(ranks, program, program.rarely, place),
        "C, with many saves": lambda: saved(ranks, program, program.often, place),
    }
    in_turn(ways, 1)
    found, others = in_turn(ways, repeat)
    seconds = {way: [one.seconds for one in runs] for way, runs in found.items()}
    for way, values in seconds.items():
        yield Row(way, values, "s", others=others)
    without, rarely, often = map(statistics.median, seconds.values())
    saves = [one for one in found["C, with many saves"] if one.n_saves]
    if saves:
        n_saves = statistics.median(one.n_saves for one in saves)
        save_s = (often - without) / n_saves
        yield Row("saves in C", [float(one.n_saves) for one in saves])
        yield Row("size of a save", [max(one.mb for one in saves)], "MB")
        yield Row("cost of one save", [1e3 * save_s], "ms", program.goal_ms, others)
        yield Row("cost of a save every 30 s", [100.0 * (rarely / without - 1.0 + save_s / EVERY_S)], "%", "<= 1", others)


def main() -> None:
    """Measure, print the table (or JSON)."""
    parser = command("saving", __doc__, ranks=(2, "that run it"), repeat=(5, "rounds"))
    parser.add_argument("--folder", help="folder for the saves (default: that of temporary files)")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), help="run only these programs")
    options = parser.parse_args()
    table(options.only, lambda name: measure(PROGRAMS[name], options.ranks, options.repeat, options.folder), options.json)


if __name__ == "__main__":
    main()
