"""Show the progress of a run from its records, which ranks write about once a second, in a line on standard error.

launch/run starts `python -m lb_mpi.cli.report.live FOLDER`, which stops at the end of its standard input.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lb_mpi.cli.report.run import DRIVERS, USEFUL, Run, gather
from lb_mpi.graph import Floats
from lb_mpi.record.events import Driver
from lb_mpi.status import StatusLine

POLL_S = 1.0


def totals(run: Run) -> Floats:
    """Return (3, P): when each record ends, seconds of work, with a slow rank's rests, and units, rows or tasks, so far."""
    ends = [one.until + offset for one, offset in zip(run.ranks, run.offsets_s, strict=True)]
    done = [float(one.steps["units"].sum()) + one.under_way for one in run.ranks]
    return np.array([ends, run.totals[:, list(USEFUL)].sum(axis=1), done])


def words(run: Run, before: Floats | None = None) -> str:
    """Return a line about a run: steps of the program, if it counts them, work done, and how busy ranks were since `before`.

    Without an earlier poll of the same ranks, everything since the start counts.
    """
    now = totals(run)
    if before is None or before.shape != now.shape or (now[2] < before[2]).any():
        before = np.zeros_like(now)
    seconds, useful_s, done = now - before
    fresh = seconds > 0.0  # ranks with a newer record
    per_s = float((done[fresh] / seconds[fresh]).sum())
    steps = min((one.progress for one in run.ranks), key=lambda steps: (steps.of > 0, steps.done))  # of the slowest rank
    text = f"{now[0].max():,.0f} s"
    text += f", {steps.done:,} of {steps.of:,} steps" if steps.of else ""
    text += f": {now[2].sum():,.0f} {_unit(run)}, {format(per_s, ',.0f' if per_s >= 100.0 else '.3g')} a second"
    text += _bounded(run)
    if fresh.any() and now[1].any():
        by_rank = len(run.hosts) == 1
        names = np.array([f"rank {one.about.rank}" if by_rank else one.about.host for one in run.ranks])
        busy = {name: _busy(useful_s, seconds, fresh & (names == name)) for name in names[fresh].tolist()}
        least = min(busy, key=lambda name: busy[name])
        text += f"; busy {_busy(useful_s, seconds, fresh):.0%}, least on {least}: {busy[least]:.0%}"
    dealt = sum(one.of for one in run.ranks)
    if steps.done > steps.first:
        text += _left((steps.of - steps.done) * (steps.at - steps.began) / (steps.done - steps.first))
    elif dealt and per_s > 0.0:
        text += _left((dealt - sum(one.under_way for one in run.ranks)) / per_s)
    return text


def _bounded(run: Run) -> str:
    """Return the best value of a branch and bound, which the newest record has, and the load of all ranks."""
    newest = max(run.ranks, key=lambda one: one.until)
    if math.isnan(newest.best):
        return ""
    best = f"best {newest.best:,.10g}" if math.isfinite(newest.best) else "no solution yet"
    return f"; {best}, {sum(one.open for one in run.ranks):,.0f} open"


def _busy(useful_s: Floats, seconds: Floats, some: NDArray[np.bool_]) -> float:
    return float(useful_s[some].sum() / seconds[some].sum())


def _left(seconds: float) -> str:
    return f"; about {seconds:,.0f} s left"


def _unit(run: Run) -> str:
    """Return the unit of the current call, or of the last one that has any; "units" before the first one."""
    if any(one.of for one in run.ranks):
        return DRIVERS[Driver.TASKS][1]
    drivers = [one.steps["driver"][one.steps["units"] > 0.0] for one in run.ranks]  # not of a move between exchanges
    last = next((int(of_rank[-1]) for of_rank in drivers if len(of_rank)), None)
    if last is not None:
        return DRIVERS[Driver(last)][1]
    called = [name for one in run.ranks for name in one.settings]
    return next((unit for name, unit, _ in DRIVERS.values() if name in called), "units")


def follow(folder: Path) -> None:
    """Show the progress of the run recorded in `folder` until it is over, or standard input ends."""
    line = StatusLine()
    shown: Floats | None = None  # in the last line
    while True:
        with contextlib.suppress(ValueError, FileNotFoundError):  # no record, or an incomplete one
            run = gather(folder)
            found = totals(run)
            over = len(run.ranks) == run.size and all(one.ended for one in run.ranks)
            fresh = shown is None or found[0].tolist() != shown[0].tolist()
            if (fresh or over) and line.show(words(run, shown), last=over):
                shown = found
            if over:
                return
        if wait_for_eof(POLL_S):
            line.clear()
            return


def wait_for_eof(seconds: float) -> bool:
    """Wait for the end of standard input, at most `seconds`; return whether it came."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and not os.read(sys.stdin.fileno(), 1024)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        follow(Path(sys.argv[1]))
