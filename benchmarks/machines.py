"""Compare runs on unequal machines with the lower bound.  python -m benchmarks.machines [--only SECTION ...]

hosts   three emulated hosts of speeds 0.8, 0.4, 0.2 with 1 ms between them (launch/cluster): a walled maze of 8192 x 8192
        cells, and the weather on 256 x 480 and on 128 x 240 columns, in 30 steps
one     one machine, four ranks of emulated speeds: a walled maze of 12000 x 12000, the weather on 128 x 240, in 30 steps
room    the same with half those speeds, for which two cores are enough: no two ranks share a core

Each row is the time / the lower bound, which is the CPU seconds of the work in the same run / the sum of the speeds.  The
rows run in turn (A B A B); they are medians of --repeat rounds, with the minimum and the maximum.  A * means that other
programs used more than 5 % of the machine meanwhile, so that the row says little.  The processes that carry the messages of
the emulated hosts count as others.  With Open MPI the ranks there also do, since its daemons leave the program that has
started them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.measuring import Answer, Row, command, hosts, run, table
from tools.others import Watch

HOSTS, ONE, ROOM = "0.8,0.4,0.2", "0.8,0.4,0.2,0.2", "0.4,0.2,0.1,0.1"
SMALL = ["apps.weather", "--shape", "128x240", "--steps", "30"]
LARGE = ["apps.weather", "--shape", "256x480", "--steps", "30"]
Case = tuple[str, str, list[str]]  # its name, what is wanted, the app and its options

CASES: dict[str, list[Case]] = {
    "hosts": [
        (f"maze 8192, hosts {HOSTS}", "<= 1.50", ["apps.maze", "--dim", "8192", "--walled"]),
        (f"weather 256x480, hosts {HOSTS}", "<= 1.10", LARGE),
        (f"weather 128x240, hosts {HOSTS}", "<= 1.10", SMALL),
    ],
    "one": [
        (f"maze 12000, speeds {ONE}", "<= 1.10", ["apps.maze", "--dim", "12000", "--walled", "--speeds", ONE]),
        (f"weather 128x240, speeds {ONE}", "<= 1.05", [*SMALL, "--speeds", ONE]),
    ],
    "room": [
        (f"maze 12000, speeds {ROOM}", "<= 1.10", ["apps.maze", "--dim", "12000", "--walled", "--speeds", ROOM]),
        (f"weather 128x240, speeds {ROOM}", "<= 1.05", [*SMALL, "--speeds", ROOM]),
    ],
}


def section(name: str, repeat: int) -> Iterator[Row]:
    """Measure a section of the table."""
    if name == "hosts":
        with hosts(HOSTS) as answer:
            yield from measure(CASES[name], repeat, answer)
    else:
        yield from measure(CASES[name], repeat, lambda argv: run(4, argv))


def measure(cases: Sequence[Case], repeat: int, answer: Answer) -> Iterator[Row]:
    """Run the cases in turn; a row for each."""
    ratios: dict[str, list[float]] = {name: [] for name, _, _ in cases}
    shares: dict[str, list[float]] = {name: [] for name, _, _ in cases}
    for _ in range(repeat):
        for name, _, argv in cases:
            watch = Watch()
            told = answer(["-m", *argv, "--json"])
            ratios[name].append(told["seconds"] / told["lower_bound_seconds"])
            shares[name].append(watch.others())
    for name, wanted, _ in cases:
        yield Row(name, ratios[name], "", wanted, max(shares[name]))


def main() -> None:
    """Measure, print the table (or JSON)."""
    parser = command("machines", __doc__, repeat=(5, "rounds of each measurement"))
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="run only these sections")
    options = parser.parse_args()
    table(options.only, lambda name: section(name, options.repeat), options.json)


if __name__ == "__main__":
    main()
