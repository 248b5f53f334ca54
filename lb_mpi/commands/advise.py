"""The command `advise`: replay a recorded run in other ways: what would help, and by how much."""

from __future__ import annotations

import argparse
import math
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import Any

from lb_mpi.advising import exchange, profiled, rows, search, tasks
from lb_mpi.advising.advice import Advice
from lb_mpi.profiling.profile import read_profile
from lb_mpi.report.run import gather
from lb_mpi.table import Table

PROGRESS_S = 1.0  # after which a terminal shows what is replayed
DRIVERS = {"map_rows": rows, "exchange": exchange, "pool": tasks, "search": search}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "folder", metavar="FOLDER", help="with a record (--record, LB_MPI_RECORD) or a profile (`profile -o`)"
    )
    parser.add_argument(
        "--quiet-machine",
        action="store_true",
        help="predict for an otherwise idle machine, where each rank has a core whenever it works",
    )


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Advise; ValueError when there is no record or profile that can be read, or none with enough in it.

    A list: `what`, `predicted_s`, `measured_s` (None: it was not run), the `spread_s` of what was predicted (None: not
    known), the `change` to make, the `driver`; the first of each driver is the run as it was, with `notes`.
    """
    folder = Path(options.folder)
    progress = _Progress()
    try:
        found = _advice(folder, progress, quiet=options.quiet_machine)
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith(str(folder)) else f"{folder}: {error}") from None
    finally:
        progress.clear()
    return [
        {
            "driver": advice.driver,
            "what": line.what,
            "predicted_s": _known(line.predicted_s),
            "measured_s": _known(line.measured_s),
            "spread_s": _known(line.spread_s),
            "change": line.change,
            **({"notes": advice.notes} if line is advice.lines[0] else {}),
        }
        for advice in found
        for line in advice.lines
    ]


def summary(answer: list[dict[str, Any]]) -> list[str]:
    """The answer as tables for people."""
    lines: list[str] = []
    for _, group in groupby(answer, key=lambda line: line["driver"]):
        of_driver = list(group)
        first = of_driver[0]
        header = (first["driver"], "predicted", "spread", "measured", "to recorded", "change")
        cells = [
            (line["what"], _seconds(line["predicted_s"], "not known"), _spread(line), _seconds(line["measured_s"]),
             _part(line["predicted_s"], first["measured_s"]), line["change"])
            for line in of_driver
        ]  # fmt: skip
        lines += [""] * bool(lines) + [str(Table(header, cells, words=(0, 5)))]
        lines += [f"note: {note}" for note in first["notes"]]
    return lines


def _advice(folder: Path, progress: _Progress, *, quiet: bool) -> list[Advice]:
    names = sorted(folder.iterdir())
    if any(path.suffix == ".lbrec" for path in names):
        found = gather(folder)
        given = (driver.advise(found, progress, quiet=quiet) for driver in DRIVERS.values())
        advice = [one for one in given if one is not None]
        if not advice:
            raise ValueError(
                "nothing in it can be replayed: expected a search, map_rows, a map of a pool, or exchanges that ended on "
                "all ranks"
            )
        advice[0].notes.extend(found.notes)
        return advice
    if any(path.name.startswith("profile.") for path in names):
        return [profiled.advise(read_profile(folder), progress)]
    raise ValueError("no record in it: expected files rank*.lbrec, or the files of `profile -o`")


def _known(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds


def _seconds(seconds: float | None, unknown: str = "") -> str:
    return unknown if seconds is None else f"{seconds:.3f} s"


def _part(seconds: float | None, whole: float | None) -> str:
    return "" if seconds is None or not whole else f"{seconds / whole:.2f}x"


def _spread(line: dict[str, Any]) -> str:
    if line["predicted_s"] and line["spread_s"] is not None:
        return f"{100.0 * line['spread_s'] / line['predicted_s']:.1f} %"
    return "" if line["predicted_s"] is None or line["spread_s"] is not None else "one run"


class _Progress:
    """What is replayed now, on a terminal."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown = False

    def __call__(self, what: str) -> None:
        if sys.stderr.isatty() and time.monotonic() > self._began + PROGRESS_S:
            self._shown = True
            print(f"\rreplaying {what[:60]}\x1b[K", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave an empty line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
