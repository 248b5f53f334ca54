"""Compare runs on unequal machines with the lower bound.  python -m benchmarks.machines [--only SECTION ...]

hosts   three emulated hosts of speeds 0.8, 0.4, 0.2 with 1 ms between them (launch/cluster): a walled maze of 8192 x 8192
        cells, the tree T1L, and the weather on 256 x 480 and on 128 x 240 columns, in 30 steps
slots   the same with two ranks on each host, at half those speeds; and with hosts that are slow for some seconds
moving  the hosts again, each slow for some seconds: heat on 150 x 200 in 400 steps, and particles in 60 steps, without
        and with --rebalance
one     one machine, four ranks of emulated speeds: a walled maze of 12000 x 12000, the weather on 128 x 240, in 30 steps
room    the same with half those speeds, for which two cores are enough: no two ranks share a core

Each row is the time / the lower bound, which is the CPU seconds of the work in the same run / the sum of the speeds, as they
were at that time.  The rows run in turn (A B A B); they are medians of --repeat rounds, with the minimum and the maximum.  A
* means that other programs used more than 5 % of the machine meanwhile, so that the row says little.  The processes that
carry the messages of the emulated hosts count as others.  With Open MPI the ranks there also do, since its daemons leave the
program that has started them.

"First step": the time of the first step / its lower bound, in the same runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from benchmarks.measuring import Answer, Row, command, hosts, in_turn, run, table

HOSTS, SLOTS, ONE, ROOM = "0.8,0.4,0.2", "0.4,0.2,0.1", "0.8,0.4,0.2,0.2", "0.4,0.2,0.1,0.1"
SMALL = ["-m", "apps.weather", "--shape", "128x240", "--steps", "30"]
LARGE = ["-m", "apps.weather", "--shape", "256x480", "--steps", "30"]
MAZE = ["-m", "apps.maze", "--walled", "--dim"]
TREE = ["-m", "apps.uts", "--tree", "T1L"]
# Two ranks on each host: the fast one is slow from 2 to 4 s, the slow one from 5 to 7 s.
CHANGES = ["--speed-changes", "0:2:4:0.33,1:2:4:0.33,4:5:7:0.33,5:5:7:0.33"]

# Each of three hosts is slow for some seconds.
DRIFT = ["--speed-changes", "0:2:5:0.33,1:4:7:0.33,2:6:9:0.5"]
HEAT = ["-m", "apps.heat", "mesh:150x200", "--steps", "400", *DRIFT]
PARTICLES = ["-m", "apps.particles", "--steps", "60", *DRIFT]


class Case(NamedTuple):
    """A program, and what is wanted."""

    name: str
    wanted: str
    argv: list[str]


CLUSTERS = {"hosts": (HOSTS, 1), "slots": (SLOTS, 2), "moving": (HOSTS, 1)}
CASES: dict[str, list[Case]] = {
    "hosts": [
        Case(f"maze 8192, hosts {HOSTS}", "<= 1.15", [*MAZE, "8192"]),
        Case(f"UTS T1L, hosts {HOSTS}", "<= 1.06", TREE),
        Case(f"weather 256x480, hosts {HOSTS}", "<= 1.10", LARGE),
        Case(f"weather 128x240, hosts {HOSTS}", "<= 1.10", SMALL),
    ],
    "slots": [
        Case(f"weather 128x240, hosts {SLOTS}, 2 ranks each", "<= 1.15", SMALL),
        Case(f"weather 128x240, hosts {SLOTS}, 2 ranks each, slow at times", "<= 1.15", [*SMALL, *CHANGES]),
    ],
    "moving": [
        Case(f"heat 150x200, hosts {HOSTS}, slow at times", "", HEAT),
        Case(f"heat 150x200, hosts {HOSTS}, slow at times, --rebalance", "<= 1.10", [*HEAT, "--rebalance"]),
        Case(f"particles, hosts {HOSTS}, slow at times", "", PARTICLES),
        Case(f"particles, hosts {HOSTS}, slow at times, --rebalance", "", [*PARTICLES, "--rebalance"]),
    ],
    "one": [
        Case(f"maze 12000, speeds {ONE}", "<= 1.10", [*MAZE, "12000", "--speeds", ONE]),
        Case(f"weather 128x240, speeds {ONE}", "<= 1.05", [*SMALL, "--speeds", ONE]),
    ],
    "room": [
        Case(f"maze 12000, speeds {ROOM}", "<= 1.10", [*MAZE, "12000", "--speeds", ROOM]),
        Case(f"weather 128x240, speeds {ROOM}", "<= 1.05", [*SMALL, "--speeds", ROOM]),
    ],
}


def section(name: str, repeat: int) -> Iterator[Row]:
    """Measure a section of the table."""
    if name in CLUSTERS:
        speeds, slots = CLUSTERS[name]
        with hosts(speeds, slots) as answer:
            yield from measure(CASES[name], repeat, answer)
    else:
        yield from measure(CASES[name], repeat, lambda argv: run(4, argv))


def measure(cases: Sequence[Case], repeat: int, answer: Answer) -> Iterator[Row]:
    """Run the cases in turn; a row for each, and for the first step if the program has steps."""
    found, others = in_turn({case.name: partial(answer, [*case.argv, "--json"]) for case in cases}, repeat)
    for case in cases:
        runs = found[case.name]
        ratios = [one["seconds"] / one["lower_bound_seconds"] for one in runs]
        yield Row(case.name, ratios, "", case.wanted, others)
        if "step_seconds" in runs[0]:
            firsts = [one["step_seconds"][0] / one["step_lower_bound_seconds"][0] for one in runs]
            yield Row(f"{case.name}, first step", firsts, "", "", others)


def main() -> None:
    """Measure, print the table (or JSON)."""
    parser = command("machines", __doc__, repeat=(5, "rounds of each measurement"))
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="run only these sections")
    options = parser.parse_args()
    table(options.only, lambda name: section(name, options.repeat), options.json)


if __name__ == "__main__":
    main()
