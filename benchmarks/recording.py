"""Measure the cost of a record.  python -m benchmarks.recording

Each app runs with LB_MPI_RECORD and without, in turn (A B A B ...), on ranks started by mpiexec from PATH.  Prints the
medians of the seconds that the app itself reports, their ratio, the spread of each (maximum - minimum, in percent of the
median), and the bytes of a rank's file.  Use no more ranks than cores, on an otherwise idle machine.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measuring import command, known, percent, ratio, words
from tools.others import Watch

WANTED = 1.01
APPS = {
    "uts": ["--tree", "T1L"],
    "weather": [],
}


def seconds(mpiexec: str, ranks: int, app: str, folder: str | None) -> float:
    """Run an app once, and return its seconds; RuntimeError if it fails."""
    env = {name: value for name, value in os.environ.items() if name != "LB_MPI_RECORD"}
    if folder is not None:
        env["LB_MPI_RECORD"] = folder
    argv = [mpiexec, "-n", str(ranks), sys.executable, "-m", f"apps.{app}", *APPS[app], "--json"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def measure(mpiexec: str, ranks: int, app: str, runs: int) -> dict[str, Any]:
    """Run an app `runs` times in each way, in turn, after one run of each that doesn't count."""
    taken: dict[str, list[float]] = {"off": [], "on": []}
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        for run in range(runs + 1):
            print(f"{app}: round {run} of {runs}{'' if run else ', which does not count'}", file=sys.stderr, flush=True)
            for way, where in (("off", None), ("on", folder)):
                taken[way].append(seconds(mpiexec, ranks, app, where))
            if not run:
                taken = {"off": [], "on": []}
                watch.others()
        n_bytes = max(path.stat().st_size for path in Path(folder).iterdir())
    medians = {way: statistics.median(values) for way, values in taken.items()}
    spreads = {way: (max(values) - min(values)) / medians[way] for way, values in taken.items()}
    found = {
        "seconds": medians,
        "spread": spreads,
        "ratio": ratio(taken["on"], taken["off"])._asdict(),
        "bytes": n_bytes,
    }
    return {**found, "others": watch.others()}


def main() -> None:
    """Measure, print the table (or JSON)."""
    parser = command("recording", __doc__, ranks=(2, "that run it"), runs=(9, "in each way"))
    parser.add_argument("--only", choices=APPS, help="one program only")
    options = parser.parse_args()
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        parser.error("expected mpiexec in PATH")
    figures = {app: measure(mpiexec, options.ranks, app, options.runs) for app in APPS if options.only in (None, app)}
    if options.json:
        figures = {app: {**one, "others": known(one["others"])} for app, one in figures.items()}
        print(json.dumps({"ranks": options.ranks, "runs": options.runs, **figures}))
        return
    print(f"{options.ranks} ranks, {options.runs} runs in each way")
    print("app         off s   spread     on s   spread   on / off  (rounds)          kB a rank  others")
    for app, one in figures.items():
        off, on = ((one["seconds"][way], one["spread"][way]) for way in ("off", "on"))
        print(
            f"{app:8} {off[0]:8.3f} {off[1]:8.1%} {on[0]:8.3f} {on[1]:8.1%} {one['ratio']['median']:10.4f}  "
            f"({one['ratio']['low']:.3f} to {one['ratio']['high']:.3f}) {one['bytes'] / 1e3:10.1f}  {percent(one['others'])}"
        )
    print(f"wanted: on / off <= {WANTED}")
    print(words(max(one["others"] for one in figures.values())))


if __name__ == "__main__":
    main()
