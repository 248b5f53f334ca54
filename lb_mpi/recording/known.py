"""What is known of a rank's work, beside the times of its phases: what `advise` needs to play a run again.   (pure)

    known.settings   of each driver: how it was called
    known.costs      of the rows of this rank, in units of work, in their order; of many, means of neighbours
    known.loads      call by call of `map_blocks`, what the rank's own rows take it, and how late it came
    known.tasks      what the tasks of the last map took that ran here

The bound is that of the record: loads beyond LOADS are added up by twos, then by fours; of tasks beyond TASKS, neighbours
become one.  So sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

COSTS, KNOW_S = 256, 1.0
LOADS, TASKS = 512, 1024
LOAD = np.dtype([("home_s", "<f4"), ("outside_s", "<f4"), ("n", "<u4")])  # n: calls that are added up
TASK = np.dtype([("first", "<u4"), ("n", "<u4"), ("seconds", "<f4")])  # the position of the first, how many, in all

Table = NDArray[np.void]
Settings = dict[str, dict[str, Any]]


class Known:
    """What is known of the work of one rank."""

    def __init__(self, began: float) -> None:
        self.settings: Settings = {}
        self.costs: NDArray[np.float32] = np.zeros(0, dtype=np.float32)
        self._loads: list[tuple[float, float, int]] = []
        self._each = 1  # calls in an entry of loads
        self._tasks: list[tuple[int, int, float]] = []
        self._know_at = began

    def use(self, driver: str, settings: Mapping[str, Any]) -> None:
        """A driver is called so; `settings` are plain numbers, words, and lists of them."""
        self.settings[driver] = dict(settings)

    def know(self, at: float, costs: Callable[[], NDArray[np.float64]]) -> None:
        """Keep what the rows of this rank cost.  Asked once a second."""
        if at < self._know_at:
            return
        self._know_at = at + KNOW_S
        given = costs()
        if len(given) > COSTS:
            edges = np.linspace(0, len(given), COSTS + 1).astype(np.int64)
            given = np.add.reduceat(given, edges[:-1]) / np.diff(edges)
        self.costs = given.astype(np.float32)

    def load(self, home_s: float, outside_s: float) -> None:
        """One more call: alone, the rank needs `home_s` for its rows.

        It came `outside_s` after the call before (NaN: there was none).
        """
        loads = self._loads
        if loads and loads[-1][2] < self._each:
            loads[-1] = _sum(loads[-1], (home_s, outside_s, 1))
            return
        if len(loads) == LOADS:
            loads[:] = [_sum(one, other) for one, other in zip(loads[0::2], loads[1::2], strict=True)]
            self._each *= 2
        loads.append((home_s, outside_s, 1))

    def begin_tasks(self) -> None:
        """A map begins: what is known of the tasks of the one before counts no more."""
        self._tasks.clear()

    def task(self, first: int, n: int, seconds: float) -> None:
        """So many tasks from position `first` on took so long, all together, in the rank's own time."""
        self._tasks.append((first, n, seconds))
        if len(self._tasks) == TASKS:
            self._tasks.sort()
            pairs = zip(self._tasks[0::2], self._tasks[1::2], strict=True)
            self._tasks[:] = [(one[0], one[1] + other[1], one[2] + other[2]) for one, other in pairs]

    def pack(self) -> dict[str, Any]:
        """As it stands in the file."""
        return {
            "settings": self.settings,
            "costs": self.costs.tobytes(),
            "loads": np.array(self._loads, dtype=LOAD).tobytes(),
            "tasks": np.array(sorted(self._tasks), dtype=TASK).tobytes(),
        }


class StoredWork(NamedTuple):
    """What `Known.pack` has told."""

    settings: Settings
    costs: NDArray[np.float64]
    loads: Table  # of LOAD
    tasks: Table  # of TASK, by position


def unpack(found: Mapping[str, Any]) -> StoredWork:
    """Read what was packed; KeyError, TypeError or ValueError for what makes no sense."""
    settings = found["settings"]
    if not isinstance(settings, dict) or not all(isinstance(one, dict) for one in settings.values()):
        raise ValueError("settings")
    costs = np.frombuffer(found["costs"], np.float32).astype(np.float64)
    return StoredWork(settings, costs, np.frombuffer(found["loads"], LOAD), np.frombuffer(found["tasks"], TASK))


def _sum(one: tuple[float, float, int], other: tuple[float, float, int]) -> tuple[float, float, int]:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


class Unknown(Known):
    """What is known when nobody records."""

    def use(self, driver: str, settings: Mapping[str, Any]) -> None:
        """Do nothing."""

    def know(self, at: float, costs: Callable[[], NDArray[np.float64]]) -> None:
        """Do nothing."""

    def load(self, home_s: float, outside_s: float) -> None:
        """Do nothing."""

    def begin_tasks(self) -> None:
        """Do nothing."""

    def task(self, first: int, n: int, seconds: float) -> None:
        """Do nothing."""
