"""Show the progress of a run from its records, which ranks write about once a second.

On a terminal it is a table, elsewhere a line every ten seconds.  `report --follow` runs it; launch/run and the apps start
`python -m lb_mpi.report.live FOLDER`, which stops at the end of its standard input.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from lb_mpi.graph import Floats
from lb_mpi.record.events import Driver, Progress, Way
from lb_mpi.record.record import Rows
from lb_mpi.report.run import DRIVERS, USEFUL, Run, gather
from lb_mpi.table import Table

LOOK_S = 1.0
LINE_S = 10.0  # where there is no terminal
SILENT_S = 60.0  # a run without new records for this time counts as dead
MOST_LINES = 30  # of a table


class Snapshot(NamedTuple):
    """Totals of the records of a run's P ranks at one time, in the order of `Run.ranks`."""

    names: list[str]  # (P,) displayed name of each rank: its host, or the rank itself if there is one host
    until_s: Floats  # (P,) end of each record, since the start of the run
    useful_s: Floats  # (P,) seconds of work so far, including a slow rank's rests
    done: Floats  # (P,) units, rows or tasks
    left: float  # tasks left in the current map; NaN: unknown
    balances: Floats  # (P,) times that work was received or lent
    unit: str
    steps: Progress  # of the program, on the slowest rank; of = 0: none reported


class RankLine(NamedTuple):
    """One displayed line: a host or a rank."""

    name: str
    ranks: int
    done: float
    per_s: float  # recent units per second
    busy: float  # recent fraction of the time, 0 to 1; NaN: no newer record, or none of work
    balances: int


class View(NamedTuple):
    """A run as displayed."""

    seconds: float  # since it began
    lines: list[RankLine]
    total: RankLine
    unit: str
    step: int  # of the program: steps done
    of: int  # 0: none reported
    left_s: float  # NaN: unknown


def look(run: Run) -> Snapshot:
    """Sum up the current records."""
    by_rank = len(run.hosts) == 1
    of = sum(one.of for one in run.ranks)
    return Snapshot(
        names=[f"rank {one.about.rank}" if by_rank else one.about.host for one in run.ranks],
        until_s=np.array([one.until + offset for one, offset in zip(run.ranks, run.offsets_s, strict=True)]),
        useful_s=run.totals[:, list(USEFUL)].sum(axis=1),
        done=np.array([float(one.steps["units"].sum()) + one.under_way for one in run.ranks]),
        left=of - sum(one.under_way for one in run.ranks) if of else float("nan"),
        balances=np.array([_balances(one.flows) for one in run.ranks]),
        unit=_unit(run),
        steps=min((one.progress for one in run.ranks), key=lambda steps: (steps.of > 0, steps.done)),
    )


def _unit(run: Run) -> str:
    """Return the unit of the current call, or of the last one; "units" before the first one."""
    if any(one.of for one in run.ranks):
        return DRIVERS[Driver.TASKS][1]
    drivers = [int(one.steps["driver"][-1]) for one in run.ranks if len(one.steps)]
    if drivers:
        return DRIVERS[Driver(drivers[0])][1]
    called = [name for one in run.ranks for name in one.settings]
    return next((unit for name, unit, _ in DRIVERS.values() if name in called), "units")


def view(before: Snapshot | None, now: Snapshot) -> View:
    """Compare two snapshots; with one only, or after new ranks, everything since the start counts as recent."""
    if before is None or before.names != now.names or (now.done < before.done).any():
        zeros = np.zeros(len(now.names))
        before = now._replace(until_s=zeros, useful_s=zeros, done=zeros)
    lines = [
        _line(name, np.array([each == name for each in now.names]), before, now) for name in dict.fromkeys(now.names)
    ]
    total = _line("all", np.ones(len(now.names), dtype=bool), before, now)
    left_s = now.left / total.per_s if total.per_s > 0.0 else float("nan")
    steps = now.steps
    if steps.done > steps.first:
        left_s = (steps.of - steps.done) * (steps.at - steps.began) / (steps.done - steps.first)
    return View(float(now.until_s.max()), lines, total, now.unit, steps.done, steps.of, left_s)


def _line(name: str, mine: np.ndarray[tuple[int], np.dtype[np.bool_]], before: Snapshot, now: Snapshot) -> RankLine:
    spans = (now.until_s - before.until_s)[mine]
    known = spans > 0.0
    per_s = ((now.done - before.done)[mine][known] / spans[known]).sum() if known.any() else 0.0
    useful = (now.useful_s - before.useful_s)[mine][known].sum()
    busy = float(useful / spans[known].sum()) if known.any() and now.useful_s.any() else float("nan")
    return RankLine(name, int(mine.sum()), float(now.done[mine].sum()), float(per_s), busy, int(now.balances[mine].sum()))


def _balances(flows: Rows) -> float:
    """Count how often work has moved; drafts without work don't count."""
    return float(np.where(flows["way"] == Way.DRAFT, flows["amount"], flows["n"]).sum())


def words(shown: View) -> str:
    """Return one line, for a log."""
    total = shown.total
    text = f"{shown.seconds:,.0f} s{step(shown)}: {total.done:,.0f} {shown.unit}, {total.per_s:,.3g} a second"
    if (known := [line for line in shown.lines if line.busy == line.busy]) and total.busy == total.busy:
        least = min(known, key=lambda line: line.busy)
        text += f"; busy {total.busy:.0%}, least on {least.name}: {least.busy:.0%}"
    text += f"; {total.balances:,} balances"
    return text + (f"; about {shown.left_s:,.0f} s left" if shown.left_s == shown.left_s else "")


def step(shown: View) -> str:
    """Return the program's progress; "" if it has reported no steps."""
    return f", {shown.step:,} of {shown.of:,} steps" if shown.of else ""

def table(shown: View) -> str:
    """Return a table; of many hosts or ranks, the least busy ones come first."""
    left = f", about {shown.left_s:,.0f} s left" if shown.left_s == shown.left_s else ""
    many = len(shown.lines) > MOST_LINES
    lines = sorted(shown.lines, key=lambda line: line.busy)[:MOST_LINES] if many else shown.lines
    cells = [
        (line.name, f"{line.done:,.0f}", f"{line.per_s:,.3g}", f"{line.busy:.0%}" if line.busy == line.busy else "-",
         f"{line.balances:,}")
        for line in [*lines, shown.total]
    ]  # fmt: skip
    made = Table(("", shown.unit, "a second", "busy", "balances"), cells, words=(0,))
    return f"{shown.seconds:,.0f} s{step(shown)}{left}\n{made}"


def follow(read: Callable[[], Run], wait: Callable[[float], bool] | None = None) -> None:
    """Show the progress until the run is over or silent for `SILENT_S`; `read` raises ValueError before the run starts.

    `wait` : waits for some seconds between two looks, and returns whether to stop; None: never stop.
    """
    console = Console(stderr=True)
    before: Snapshot | None = None
    shown = changed = time.monotonic()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            run = _try(read)
            now = time.monotonic()
            if run is not None:
                seen = look(run)
                fresh = before is None or seen.until_s.tolist() != before.until_s.tolist()
                changed = now if fresh else changed
                over = len(run.ranks) == run.size and all(one.ended for one in run.ranks)
                if fresh and console.is_terminal:
                    live.update(Text(table(view(before, seen))), refresh=True)
                    before = seen
                elif not console.is_terminal and (over or now >= shown + LINE_S):
                    sys.stderr.write(words(view(before, seen)) + "\n")
                    sys.stderr.flush()
                    shown, before = now, seen
                if over:
                    return
            if now > changed + SILENT_S:
                console.print(f"no new record for {SILENT_S:g} s: the run has not begun to record, or has died")
                return
            if wait is None:
                time.sleep(LOOK_S)
            elif wait(LOOK_S):
                return


def wait_for_eof(seconds: float) -> bool:
    """Wait for the end of standard input, at most `seconds`; return whether it came."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and not os.read(sys.stdin.fileno(), 1024)


def _try(read: Callable[[], Run]) -> Run | None:
    """Read a record; None if it is missing or incomplete."""
    try:
        return read()
    except (ValueError, FileNotFoundError):
        return None


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        follow(lambda: gather(Path(sys.argv[1])), wait_for_eof)
