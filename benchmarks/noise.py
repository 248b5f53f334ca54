"""How much of the machine others took while something was measured, to be printed beside each ratio of times.

    watch = Watch()
    run()                     # as a child process that is waited for, or here
    others = watch.others()   # part of the cores' time that went to none of ours, 0 to 1

From /proc/stat, what all processes used of all cores, less what this process and its children used.  What the hypervisor
gave to other machines (steal) counts as others'.  Where there is no such file it is NaN, and the words say so.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MUCH = 0.05  # above which a figure says less
MARK = "*"
STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6, 7)  # of the columns: user, nice, system, (idle, iowait,) irq, softirq, steal


class Ratio(NamedTuple):
    """Of two ways that were measured in turn, A B A B: each round's ratio."""

    median: float
    low: float
    high: float


def ratio(ours: Sequence[float], peers: Sequence[float]) -> Ratio:
    """Ratio of the medians, with the least and the greatest of the rounds; ValueError for unequal numbers of rounds."""
    rounds = [mine / other for mine, other in zip(ours, peers, strict=True)]
    return Ratio(statistics.median(ours) / statistics.median(peers), min(rounds), max(rounds))


def busy_s(stat: str, ticks_per_s: float) -> float:
    """Seconds that all cores have computed since the machine was started, from the text of /proc/stat."""
    name, _, rest = stat.partition("\n")[0].partition(" ")
    columns = rest.split()
    if name != "cpu" or len(columns) <= max(_BUSY):
        raise ValueError(f"/proc/stat begins with {stat[:40]!r}: expected cpu and 8 numbers")
    return sum(int(columns[k]) for k in _BUSY) / ticks_per_s


def share(all_s: float, own_s: float, wall_s: float, cores: int) -> float:
    """What others took of the cores' time, 0 to 1; NaN for no time, or when it isn't known what all took."""
    if math.isnan(all_s) or not wall_s > 0.0:
        return math.nan
    return min(1.0, max(0.0, all_s - own_s) / (wall_s * cores))


def own_cpu_s() -> float:
    """CPU seconds of this process, and of its children that have ended and were waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Watch:
    """Looks at the machine from now on.

    `own_s` : CPU seconds so far of all that is ours; on ranks `of_ranks(comm)`, and then all of them make and ask it.
    """

    def __init__(self, own_s: Callable[[], float] = own_cpu_s) -> None:
        """Look for the first time."""
        self._own_s = own_s
        self._look = self._see()

    def others(self) -> float:
        """What others took of the machine since the last time this was asked, 0 to 1; NaN: it can't be known."""
        before, self._look = self._look, self._see()
        all_s, own_s, wall_s = (now - then for now, then in zip(self._look, before, strict=True))
        return share(all_s, own_s, wall_s, os.cpu_count() or 1)

    def _see(self) -> tuple[float, float, float]:
        try:
            all_s = busy_s(STAT.read_text(), os.sysconf("SC_CLK_TCK"))
        except (OSError, ValueError):
            all_s = math.nan
        return all_s, self._own_s(), time.perf_counter()


def of_ranks(comm: Any) -> Callable[[], float]:
    """CPU seconds of all ranks of a communicator on one machine; collective."""
    return lambda: float(comm.allreduce(own_cpu_s()))


def percent(others: float) -> str:
    """Six letters for a table: "  3 % ", with a mark where it is much; a dash where it isn't known."""
    return f"{'-':>5} " if math.isnan(others) else f"{100.0 * others:3.0f} %{MARK if others > MUCH else ' '}"


def known(others: float) -> float | None:
    """For JSON, which has no NaN."""
    return None if math.isnan(others) else others


def words(others: float) -> str:
    """Say it in a line below a table."""
    if math.isnan(others):
        return "others: what they took of this machine isn't known, there is no /proc/stat"
    much = f"  {MARK} above {MUCH:.0%}: figures say less" if others > MUCH else ""
    return f"others took {others:.0%} of this machine's cores{much}"
