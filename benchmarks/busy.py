"""Check that balancing does not make a run slower.  python -m benchmarks.busy [--only CASE ...] [--repeat N]

equal    two equal ranks, which balancing can hardly help
unequal  four ranks of emulated speeds 0.8, 0.4, 0.2, 0.2

Each row is seconds with balancing / seconds without, of an app, while 0, 2 or 8 other processes use the cores all the time.
The two run in turn (A B A B); the row has the ratio of the medians, with the minimum and maximum of the rounds.  "Others"
are further programs.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.measuring import command, known, ratio, run
from tools.others import Watch

CASES: dict[str, tuple[int, list[str]]] = {
    "equal": (2, []),
    "unequal": (4, ["--speeds", "0.8,0.4,0.2,0.2"]),
}
BESIDE = (0, 2, 8)  # other processes


class App(NamedTuple):
    """An app: its arguments, and those that turn balancing off."""

    name: str
    argv: list[str]
    plain: list[str]


APPS = (
    App("weather", ["apps.weather", "--shape", "64x128", "--steps", "30"], ["--balance", "none"]),
    App("UTS", ["apps.uts", "--tree", "T1L"], ["--no-balance"]),
    App("maze", ["apps.maze", "--dim", "7000", "--walled"], ["--no-balance"]),
    App("heat", ["apps.heat", "mesh:200x300", "--steps", "30"], ["--balance", "block"]),
)


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


def main() -> None:
    """Measure, print a row for each app and number of processes (or JSON)."""
    parser = command("busy", __doc__, repeat=(3, "rounds of each measurement"))
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="run only these cases")
    parser.add_argument("--apps", nargs="+", choices=[app.name for app in APPS], help="run only these apps")
    parser.add_argument("--beside", nargs="+", type=int, default=list(BESIDE), help="numbers of other processes")
    options = parser.parse_args()
    rows = []
    for case in options.only:
        n_ranks, more = CASES[case]
        for n in options.beside:
            for app in APPS:
                if options.apps and app.name not in options.apps:
                    continue
                watch, balanced, plain = Watch(), [], []
                with beside(n):
                    for _ in range(options.repeat):
                        plain.append(run(n_ranks, ["-m", *app.argv, *more, *app.plain, "--json"])["seconds"])
                        balanced.append(run(n_ranks, ["-m", *app.argv, *more, "--json"])["seconds"])
                seen, others = ratio(balanced, plain), watch.others()
                rows.append({"case": case, "beside": n, "app": app.name, **seen._asdict(), "others": known(others)})
                if not options.json:
                    spread = f"({seen.low:.3f} .. {seen.high:.3f})"
                    print(f"{case:8} {n} beside  {app.name:8} {seen.median:.3f}  {spread}  others {others:.0%}", flush=True)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
