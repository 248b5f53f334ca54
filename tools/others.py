"""What other programs take of this machine while ours run.

It comes from /proc/stat: what all processes used of all cores, less what this process and its children used.  What the
hypervisor gave to other machines (steal) counts as others'.  Where there is no such file it is NaN.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

MUCH = 0.05  # above which a figure says less
STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6, 7)  # of the columns: user, nice, system, (idle, iowait,) irq, softirq, steal


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
    """Looks at the machine from now on."""

    def __init__(self) -> None:
        """Look for the first time."""
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
        return all_s, own_cpu_s(), time.perf_counter()
