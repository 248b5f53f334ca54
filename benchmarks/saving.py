"""Measure the cost of saving.  python -m benchmarks.saving

Three programs run in three ways, in turn (A B C A B C ...).  The table has the medians of --repeat rounds of the seconds
that each program reports:

    A  without --save
    B  with --save, at the usual interval of 30 s, which is longer than the run: the cost of being able to save
    C  with many saves: (C - A) / saves is the cost of one save

The cost of a save every 30 s is B / A - 1 + the cost of one save / 30 s.  The disk is that of --folder; each save is flushed
to it.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.measuring import command, known, percent, words
from benchmarks.measuring import run as run_ranks
from tools.others import Watch

EVERY_S = 30.0
WANTED = 0.01


class Program(NamedTuple):
    """A program to run."""

    name: str
    words: str
    rarely: str  # the interval of B, as the option has it
    often: str  # of C


PROGRAMS = (
    Program("uts T1L", "-m apps.uts --tree T1L", f"{EVERY_S:g}", "0.1"),
    Program("maze 9000 x 9000", "-m apps.maze --dim 9000 --walled", f"{EVERY_S:g}", "0.5"),
    Program("weather", "-m apps.weather --steps 30", "0", "3"),
)


class Row(NamedTuple):
    """One line of the table."""

    name: str
    plain_s: float  # medians
    rarely_s: float
    often_s: float
    spread: float  # of A: (greatest - least) / median
    n_saves: float
    mb: float  # of one save, all ranks together
    save_s: float  # what one costs
    cost: float  # of one every 30 s, as a part of the time
    others: float  # took so much of the machine


def run(ranks: int, program: Sequence[str], folder: Path | None, every: str) -> float:
    """Run the program once; return its seconds."""
    saving = [] if folder is None else ["--save", str(folder), "--save-every", every]
    return float(run_ranks(ranks, [*program, *saving, "--json"])["seconds"])


def measure(program: Program, ranks: int, repeat: int, place: Path) -> Row:
    """Run the program in the three ways, in turn, after a round that does not count."""
    taken: dict[str, list[float]] = {"A": [], "B": [], "C": []}
    saves, sizes = [], []
    argv = program.words.split()
    watch = Watch()
    for k in range(repeat + 1):
        if k == 1:
            watch.others()
        took = {"A": run(ranks, argv, None, "")}
        for way, every in (("B", program.rarely), ("C", program.often)):
            folder = place / "saves"
            took[way] = run(ranks, argv, folder, every)
            if way == "C":
                kept = sorted(folder.glob("save-*"))
                saves.append(count(program, kept))
                sizes.append(sum(path.stat().st_size for path in kept[-1].iterdir()) if kept else 0)
            shutil.rmtree(folder)
        for way in taken if k else ():
            taken[way].append(took[way])
    plain, rarely, often = (statistics.median(taken[way]) for way in "ABC")
    n_saves = statistics.median(saves[1:])
    save_s = (often - plain) / n_saves if n_saves else float("nan")
    return Row(
        program.name, plain, rarely, often, (max(taken["A"]) - min(taken["A"])) / plain,
        n_saves, max(sizes) / 1e6, save_s, rarely / plain - 1 + save_s / EVERY_S, watch.others(),
    )  # fmt: skip


def count(program: Program, kept: Sequence[Path]) -> int:
    """Return how many saves there were: those of a search are numbered from 1, those of rows by their step."""
    if not kept:
        return 0
    last = int(kept[-1].name.removeprefix("save-"))
    return -(-last // int(program.often)) if "weather" in program.name else last


def main() -> None:
    """Measure, print the table (or JSON)."""
    parser = command("saving", __doc__, ranks=(2, "that run it"), repeat=(5, "rounds"))
    parser.add_argument("--folder", help="folder for the saves (default: that of temporary files)")
    parser.add_argument("--only", choices=[program.name.split()[0] for program in PROGRAMS], help="one program only")
    options = parser.parse_args()
    rows = []
    for program in PROGRAMS:
        if options.only in (None, program.name.split()[0]):
            print(f"{program.name} ...", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="lb_mpi-", dir=options.folder) as place:
                rows.append(measure(program, options.ranks, options.repeat, Path(place)))
    if options.json:
        figures = [{**row._asdict(), "others": known(row.others)} for row in rows]
        print(json.dumps({"ranks": options.ranks, "repeat": options.repeat, "rows": figures}))
        return
    print(f"{options.ranks} ranks, {options.repeat} rounds")
    print("                        A s  spread      B s      C s  saves     MB   a save  cost at 30 s  others")
    for row in rows:
        print(
            f"{row.name:18} {row.plain_s:8.3f} {row.spread:7.1%} {row.rarely_s:8.3f} {row.often_s:8.3f} {row.n_saves:6.0f} "
            f"{row.mb:6.1f} {row.save_s * 1e3:6.0f} ms {row.cost:13.2%}  {percent(row.others)}"
        )
    print(f"wanted: cost < {WANTED:.0%}; a save of the maze < 500 ms")
    print(words(max(row.others for row in rows)))


if __name__ == "__main__":
    main()
