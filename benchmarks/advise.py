"""Compare the predictions of a report with runs.  python -m benchmarks.advise

An app runs on four ranks with emulated speeds in one variant, with a record; `report` predicts another variant; then that
variant runs, too.  All of this is repeated --runs times, in turn.  The table has the medians of the predicted and measured
seconds, the spread of the latter (maximum - minimum, in percent of the median), the median of the rounds' ratios with the
least and the greatest, and how much of the machine other programs used meanwhile.  Use an otherwise idle machine with at
least two cores: the ranks need 1.6 of them.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measuring import LIMIT_S, MARK, command, known, percent
from tools.environment import here
from tools.others import MUCH, Watch

WANTED = 0.10
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


class Way(NamedTuple):
    """The measurements of one variant, run by run."""

    seconds: list[float]
    others: list[float]  # took so much of the machine
    said: dict[str, list[float]]  # by line of the report


def measure(ways: list[str], speeds: str, runs: int) -> dict[str, Way]:
    """Run all ways in turn, `runs` times."""
    found = {way: Way([], [], {}) for way in ways}
    for number in range(runs):
        for way in ways:
            print(f"run {number + 1} of {runs}: {way}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as name:
                one, watch = found[way], Watch()
                one.seconds.append(run(way, speeds, Path(name)))
                one.others.append(watch.others())
                if way == UNPLAYED:
                    continue
                for what, predicted_s in advice(Path(name)).items():
                    one.said.setdefault(what, []).append(predicted_s)
    return found


def table(found: dict[str, Way]) -> list[dict[str, Any]]:
    """One entry for each claim of which both sides are known."""
    entries = []
    for claim in CLAIMS:
        if claim.recorded not in found or claim.of not in found:
            continue
        by, of = found[claim.recorded], found[claim.of]
        predicted = by.said.get(claim.says, [])
        if not predicted:
            continue
        rounds = _ratios(predicted, of.seconds)
        entries.append(
            {
                "recorded": claim.recorded,
                "of": claim.of,
                "predicted_s": statistics.median(predicted),
                "measured_s": statistics.median(of.seconds),
                "measured_spread": (max(of.seconds) - min(of.seconds)) / statistics.median(of.seconds),
                "ratio": statistics.median(rounds),
                "ratio_least": min(rounds),
                "ratio_greatest": max(rounds),
                "others": known(statistics.median(by.others + of.others)),
            }
        )
    return entries


def _ratios(predicted: list[float], measured: list[float]) -> list[float]:
    """Round by round, since the machine's speed may drift."""
    return [one / other for one, other in zip(predicted, measured, strict=True)]


def main() -> None:
    """Measure, print the table (or JSON)."""
    parser = command("advise", __doc__, runs=(3, "of each way"))
    parser.add_argument("--speeds", default=SPEEDS, metavar="F,F,...", help="speeds of the ranks (default: %(default)s)")
    parser.add_argument("--app", choices=("weather", "heat", "sweep"), help="only this one (default: all)")
    options = parser.parse_args()
    ways = [way for way, (app, _) in WAYS.items() if options.app in (None, app)]
    entries = table(measure(ways, options.speeds, options.runs))
    if options.json:
        print(json.dumps({"speeds": options.speeds, "runs": options.runs, "claims": entries}))
        return
    print(f"speeds {options.speeds}, {options.runs} runs of each way")
    print("recorded         predicts         predicted  measured   spread   ratio" + 19 * " " + "others")
    for one in entries:
        others = math.nan if one["others"] is None else one["others"]
        rounds = f"({one['ratio_least']:.3f} to {one['ratio_greatest']:.3f})"
        print(
            f"{one['recorded']:16} {one['of']:16} {one['predicted_s']:7.2f} s {one['measured_s']:7.2f} s "
            f"{one['measured_spread']:8.1%} {one['ratio']:7.3f} {rounds:>18}  {percent(others)}"
        )
    print(f"wanted: ratio within {1.0 - WANTED:.2f} to {1.0 + WANTED:.2f}")
    print(f"{MARK}: others took more than {MUCH:.0%} of the machine, the ratio says less")


if __name__ == "__main__":
    main()
