"""The share of this machine's cores that other programs use while ours run, from /proc/stat."""

from __future__ import annotations

import os
import time
from pathlib import Path

MUCH = 0.05  # above which a figure says less
_BUSY = (0, 1, 2, 5, 6, 7)  # of the columns: user, nice, system, (idle, iowait,) irq, softirq, steal (by other machines)


def own_cpu_s() -> float:
    """Return the CPU seconds of this process, and of its children that have ended and were waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Watch:
    """Measures what other programs use, from its creation on."""

    def __init__(self) -> None:
        """Sample for the first time."""
        self._sample = self._measure()

    def others(self) -> float:
        """Return the share of all cores that others have used since the last call, 0 to 1."""
        (others_s, began_s), self._sample = self._sample, self._measure()
        others_s, wall_s = self._sample[0] - others_s, self._sample[1] - began_s
        return min(1.0, max(0.0, others_s) / max(wall_s * (os.cpu_count() or 1), 1e-9))

    def _measure(self) -> tuple[float, float]:
        ticks = Path("/proc/stat").read_text().partition("\n")[0].split()[1:]
        all_s = sum(int(ticks[k]) for k in _BUSY) / os.sysconf("SC_CLK_TCK")
        return all_s - own_cpu_s(), time.perf_counter()
