"""Show the progress of a run from its records, which ranks write about once a second.

On a terminal it is a table, elsewhere a line every ten seconds.  `report --follow` runs it; launch/run and the apps start
`python -m lb_mpi.report.live FOLDER`, which stops at the end of its standard input.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.live import Live
from rich.text import Text

from lb_mpi.graph import Floats
from lb_mpi.record.events import Driver, Way
from lb_mpi.record.record import Rows
from lb_mpi.report.run import DRIVERS, USEFUL, Run, gather
from lb_mpi.table import Table

LOOK_S = 1.0
LINE_S = 10.0  # where there is no terminal
SILENT_S = 60.0  # a run without new records for this time counts as dead
MOST_LINES = 30  # of a table


class Totals(NamedTuple):
    """Totals of some ranks' records, at one time or of the time between two looks."""

    seconds: Floats  # (P,) end of each record, since the start of the run
    useful_s: Floats  # (P,) seconds of work so far, including a slow rank's rests
    done: Floats  # (P,) units, rows or tasks


class RankLine(NamedTuple):
    """One displayed line: a host or a rank."""

    name: str
    done: float
    per_s: float  # recent units per second
    busy: float  # recent fraction of the time, 0 to 1; NaN: no newer record, or none of work
    balances: int


class View(NamedTuple):
    """A run as displayed."""

    title: str  # seconds since it began, and steps of the program, if it counts them
    lines: list[RankLine]  # of each host, or of each rank if there is one host
    total: RankLine
    unit: str
    left_s: float  # NaN: unknown


def totals(run: Run) -> Totals:
    """Sum up the current records."""
    return Totals(
        np.array([one.until + offset for one, offset in zip(run.ranks, run.offsets_s, strict=True)]),
        run.totals[:, list(USEFUL)].sum(axis=1),
        np.array([float(one.steps["units"].sum()) + one.under_way for one in run.ranks]),
    )


def view(before: Totals | None, run: Run) -> View:
    """Show a run; without an earlier look at the same ranks, everything since the start counts as recent."""
    now = totals(run)
    if before is None or len(before.done) != len(now.done) or (now.done < before.done).any():
        before = Totals(*(np.zeros(len(now.done)) for _ in Totals._fields))
    since = Totals(*(new - old for new, old in zip(now, before, strict=True)))
    balances = np.array([_balances(one.flows) for one in run.ranks])
    by_rank = len(run.hosts) == 1
    names = np.array([f"rank {one.about.rank}" if by_rank else one.about.host for one in run.ranks])

    def line(name: str, mine: NDArray[np.bool_]) -> RankLine:
        new = mine & (since.seconds > 0.0)  # with a newer record
        per_s = (since.done[new] / since.seconds[new]).sum()
        busy = since.useful_s[new].sum() / since.seconds[new].sum() if new.any() and now.useful_s.any() else math.nan
        return RankLine(name, float(now.done[mine].sum()), float(per_s), float(busy), int(balances[mine].sum()))

    lines = [line(name, names == name) for name in dict.fromkeys(names.tolist())]
    total = line("all", np.ones(len(names), dtype=bool))
    title, left_s = f"{now.seconds.max():,.0f} s", math.nan
    steps = min((one.progress for one in run.ranks), key=lambda steps: (steps.of > 0, steps.done))  # of the slowest rank
    dealt = sum(one.of for one in run.ranks)
    if steps.done > steps.first:
        left_s = (steps.of - steps.done) * (steps.at - steps.began) / (steps.done - steps.first)
    elif dealt and total.per_s > 0.0:
        left_s = (dealt - sum(one.under_way for one in run.ranks)) / total.per_s
    if steps.of:
        title += f", {steps.done:,} of {steps.of:,} steps"
    return View(title, lines, total, _unit(run), left_s)


def _unit(run: Run) -> str:
    """Return the unit of the current call, or of the last one; "units" before the first one."""
    if any(one.of for one in run.ranks):
        return DRIVERS[Driver.TASKS][1]
    drivers = [int(one.steps["driver"][-1]) for one in run.ranks if len(one.steps)]
    if drivers:
        return DRIVERS[Driver(drivers[0])][1]
    called = [name for one in run.ranks for name in one.settings]
    return next((unit for name, unit, _ in DRIVERS.values() if name in called), "units")


def _balances(flows: Rows) -> float:
    """Count how often work has moved; drafts without work don't count."""
    return float(np.where(flows["way"] == Way.DRAFT, flows["amount"], flows["n"]).sum())


def words(shown: View) -> str:
    """Return one line, for a log."""
    total = shown.total
    text = f"{shown.title}: {total.done:,.0f} {shown.unit}, {total.per_s:,.3g} a second"
    if not math.isnan(total.busy):
        least = min(shown.lines, key=lambda line: line.busy if line.busy == line.busy else math.inf)
        text += f"; busy {total.busy:.0%}, least on {least.name}: {least.busy:.0%}"
    return f"{text}; {total.balances:,} balances{_left('; ', shown)}"


def table(shown: View) -> str:
    """Return a table; of many hosts or ranks, the least busy ones come first."""
    lines = shown.lines
    if len(lines) > MOST_LINES:
        lines = sorted(lines, key=lambda line: line.busy)[:MOST_LINES]
    cells = [
        (line.name, f"{line.done:,.0f}", f"{line.per_s:,.3g}", f"{line.busy:.0%}" if line.busy == line.busy else "-",
         f"{line.balances:,}")
        for line in [*lines, shown.total]
    ]  # fmt: skip
    made = Table(("", shown.unit, "a second", "busy", "balances"), cells, words=(0,))
    return f"{shown.title}{_left(', ', shown)}\n{made}"


def _left(comma: str, shown: View) -> str:
    return "" if math.isnan(shown.left_s) else f"{comma}about {shown.left_s:,.0f} s left"


def follow(read: Callable[[], Run], wait: Callable[[float], bool] | None = None) -> None:
    """Show the progress until the run is over or silent for `SILENT_S`; `read` raises ValueError before the run starts.

    `wait` : waits for some seconds between two looks, and returns whether to stop; None: never stop.
    """
    console = Console(stderr=True)
    before: Totals | None = None
    shown = changed = time.monotonic()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            now = time.monotonic()
            with contextlib.suppress(ValueError, FileNotFoundError):  # no record, or an incomplete one
                run = read()
                found = totals(run)
                fresh = before is None or found.seconds.tolist() != before.seconds.tolist()
                changed = now if fresh else changed
                over = len(run.ranks) == run.size and all(one.ended for one in run.ranks)
                if fresh and console.is_terminal:
                    live.update(Text(table(view(before, run))), refresh=True)
                    before = found
                elif not console.is_terminal and (over or now >= shown + LINE_S):
                    sys.stderr.write(words(view(before, run)) + "\n")
                    sys.stderr.flush()
                    shown, before = now, found
                if over:
                    return
            if now > changed + SILENT_S:
                console.print(f"no new record for {SILENT_S:g} s: the run has not started to record, or has died")
                return
            if wait is None:
                time.sleep(LOOK_S)
            elif wait(LOOK_S):
                return


def wait_for_eof(seconds: float) -> bool:
    """Wait for the end of standard input, at most `seconds`; return whether it came."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and not os.read(sys.stdin.fileno(), 1024)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        follow(lambda: gather(Path(sys.argv[1])), wait_for_eof)
