"""Compare the predictions of a report with runs.  python -m benchmarks.advise

An app runs on four ranks with emulated speeds in one variant, with a record; `report` predicts another variant; then that
variant runs, too.  All of this is repeated --runs times, in turn.  The table has the seconds of each variant, and the ratio
predicted / measured, which is to be within 0.1 of 1: medians of the rounds, with the minimum and the maximum.  Use an
otherwise idle machine with at least two cores: the ranks need 1.6 of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.measuring import LIMIT_S, Row, command, in_turn, table
from tools.environment import here

APPS = ("weather", "heat", "sweep")
UNPLAYED = "weather none"  # without a Balancer there is nothing to play
SPEEDS = "0.8,0.4,0.2,0.2"
WEATHER, HEAT, SWEEP = ["--steps", "30"], ["--steps", "150"], ["--tasks", "2000"]
WAYS = {
    "weather none": ("weather", [*WEATHER, "--balance", "none"]),
    "weather fos": ("weather", [*WEATHER, "--balance", "fos"]),
    "weather direct": ("weather", [*WEATHER, "--balance", "direct"]),
    "heat block": ("heat", [*HEAT, "--balance", "block"]),
    "heat static": ("heat", [*HEAT, "--balance", "static"]),
    "sweep pool": ("sweep", SWEEP),
    "sweep costs": ("sweep", [*SWEEP, "--costs"]),
}


class Claim(NamedTuple):
    """A prediction of one variant from a record of another."""

    recorded: str  # of WAYS
    says: str  # the line of the report
    of: str  # of WAYS


CLAIMS = [
    Claim("weather fos", "no balancing", "weather none"),
    Claim("weather direct", "no balancing", "weather none"),
    Claim("weather direct", "fos", "weather fos"),
    Claim("weather fos", "direct", "weather direct"),
    Claim("heat static", "equal blocks", "heat block"),
    Claim("heat block", "dealt by speed (static)", "heat static"),
    Claim("sweep costs", "pool", "sweep pool"),
    Claim("sweep pool", "pool with costs", "sweep costs"),
]


def run(way: str, speeds: str, folder: Path) -> float:
    """Run an app in this variant, with a record in the folder; return its seconds.  RuntimeError if it fails."""
    app, arguments = WAYS[way]
    argv = ["-m", f"apps.{app}", *arguments, "--speeds", speeds, "--json"]
    answer = here().answer(len(speeds.split(",")), argv, LIMIT_S, {"LB_MPI_RECORD": str(folder)})
    return float(answer["seconds"])


def advice(folder: Path) -> dict[str, float]:
    """Return the predictions of the command, line by line; RuntimeError if it fails."""
    argv = [sys.executable, "-m", "lb_mpi", "report", str(folder), "--json", "-o", str(folder / "page.html")]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return {way["what"]: way["predicted_s"] for of in json.loads(done.stdout)["settings"] for way in of["ways"]}


class Run(NamedTuple):
    """The figures of one run."""

    seconds: float
    predicted: dict[str, float]  # seconds by line of the report


def measured(way: str, speeds: str) -> Run:
    """Run a variant, and read the report of its record."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = run(way, speeds, Path(folder))
        return Run(seconds, {} if way == UNPLAYED else advice(Path(folder)))


def measure(app: str, speeds: str, runs: int) -> Iterator[Row]:
    """Run all variants of an app in turn; yield the seconds, and predicted / measured, round by round."""
    ways = {way: partial(measured, way, speeds) for way, (of, _) in WAYS.items() if of == app}
    found, others = in_turn(ways, runs)
    for way, some in found.items():
        yield Row(way, [one.seconds for one in some], "s", others=others)
    for claim in CLAIMS:
        pairs = zip(found.get(claim.recorded, []), found.get(claim.of, []), strict=True)
        ratios = [by.predicted[claim.says] / of.seconds for by, of in pairs if claim.says in by.predicted]
        if ratios:
            yield Row(f"{claim.of} from {claim.recorded}: predicted / measured", ratios, "times", "~ 0.1", others)


def main() -> None:
    """Measure, print the table (or JSON)."""
    parser = command("advise", __doc__, runs=(3, "of each way"))
    parser.add_argument("--speeds", default=SPEEDS, metavar="F,F,...", help="speeds of the ranks (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=APPS, default=APPS, help="run only these apps")
    options = parser.parse_args()
    table(options.only, lambda app: measure(app, options.speeds, options.runs), options.json)


if __name__ == "__main__":
    main()
