"""What is known of a rank's work, beside the times of its phases: what `advise` needs to play a run again.   (pure)

    known.settings   of each driver: how it was called
    known.costs      of the rows of this rank, in units of work, in their order; of many, means of neighbours
    known.loads      call by call of `map_blocks`, what the rank's own rows take it, and how late it came
    known.tasks      what the tasks of the last map took that ran here
    known.map        which places of the domain this rank computed
    known.edges      of the process graph, on the rank that knows it
    known.under_way  units of work that are done in the call that has not ended
    known.steps      of the program's own steps: when it began with which, how far it is, and how many there are

The bound is that of the record: loads beyond LOADS are added up by twos, then by fours; of tasks beyond TASKS, neighbours
become one.  So sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lb_mpi.checks import show

COSTS, KNOW_S = 256, 1.0
LOADS, TASKS = 512, 1024
MAP, EDGES = 128, 512  # most rows and columns of a map; most edges of a process graph
LOAD = np.dtype([("home_s", "<f4"), ("outside_s", "<f4"), ("n", "<u4")])  # n: calls that are added up
TASK = np.dtype([("first", "<u4"), ("n", "<u4"), ("seconds", "<f4")])  # the position of the first, how many, in all

Table = NDArray[np.void]
Settings = dict[str, dict[str, Any]]


class Steps(NamedTuple):
    """How far a program is that goes by steps; times are the rank's own."""

    began: float = 0.0  # when it did its first one
    first: int = 0  # steps that were done by then, as by a run before
    at: float = 0.0  # when `done` was told
    done: int = 0
    of: int = 0  # 0: nobody knows


class Known:
    """What is known of the work of one rank."""

    def __init__(self, began: float) -> None:
        self.settings: Settings = {}
        self.costs: NDArray[np.float32] = np.zeros(0, dtype=np.float32)
        self._loads: list[tuple[float, float, int]] = []
        self._each = 1  # calls in an entry of loads
        self._tasks: list[tuple[int, int, float]] = []
        self._know_at = began
        self.map: NDArray[np.uint8] = np.zeros((0, 0), dtype=np.uint8)  # in 255ths
        self.edges: NDArray[np.int32] = np.zeros((0, 2), dtype=np.int32)
        self.under_way = self.of = 0.0
        self.steps = Steps()

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

    def doing(self, units: float, of: float = 0.0) -> None:
        """In the call under way this rank has done so many units of work; the rank was dealt `of`, 0: nobody knows."""
        self.under_way, self.of = units, of

    def stepped(self, at: float, done: int, of: int) -> None:
        """The program has done so many of its own steps."""
        began, first = (at, done) if not self.steps.of else (self.steps.began, self.steps.first)
        self.steps = Steps(began, first, at, done, of)

    def draw(self, shares: NDArray[np.float64]) -> None:
        """Keep the part of each place of the domain, (h, w) from 0 to 1, that this rank computed; see `report.maps`."""
        self.map = np.rint(255.0 * np.clip(shares, 0.0, 1.0)).astype(np.uint8)[:MAP, :MAP]

    def graph(self, tails: ArrayLike, heads: ArrayLike) -> None:
        """Keep the edges of the process graph, (E,) ranks of COMM_WORLD; not those of a large one."""
        edges = np.stack([np.asarray(tails), np.asarray(heads)], axis=1)
        if len(edges) <= EDGES:
            self.edges = edges.astype(np.int32)

    def pack(self) -> dict[str, Any]:
        """As it stands in the file."""
        return {
            "settings": self.settings,
            "costs": self.costs.tobytes(),
            "loads": np.array(self._loads, dtype=LOAD).tobytes(),
            "tasks": np.array(sorted(self._tasks), dtype=TASK).tobytes(),
            "map": [*self.map.shape, self.map.tobytes()],
            "edges": self.edges.tobytes(),
            "under_way": [self.under_way, self.of],
            "steps": list(self.steps),
        }


class StoredWork(NamedTuple):
    """What `Known.pack` has told."""

    settings: Settings
    costs: NDArray[np.float64]
    loads: Table  # of LOAD
    tasks: Table  # of TASK, by position
    map: NDArray[np.uint8]  # (h, w) the part of each place that this rank computed, in 255ths
    edges: NDArray[np.int32]  # (E, 2) of the process graph, ranks of COMM_WORLD
    under_way: float  # units done in the call that has not ended
    of: float  # units that this rank was dealt in it; 0: nobody knows
    steps: Steps  # the program's own


def unpack(found: Mapping[str, Any]) -> StoredWork:
    """Read what was packed; KeyError, TypeError or ValueError for what makes no sense."""
    settings = found["settings"]
    if not isinstance(settings, dict) or not all(isinstance(one, dict) for one in settings.values()):
        raise ValueError("settings")
    height, width, shares = found["map"]
    if not 0 <= height <= MAP or not 0 <= width <= MAP:
        raise ValueError(f"a map of {show(height)} x {show(width)}")
    under_way, of = found["under_way"]
    began, first, at, done, n_steps = found["steps"]
    return StoredWork(
        settings,
        np.frombuffer(found["costs"], np.float32).astype(np.float64),
        np.frombuffer(found["loads"], LOAD),
        np.frombuffer(found["tasks"], TASK),
        np.frombuffer(shares, np.uint8).reshape(height, width),
        np.frombuffer(found["edges"], np.int32).reshape(-1, 2),
        float(under_way),
        float(of),
        Steps(float(began), int(first), float(at), int(done), int(n_steps)),
    )


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

    def doing(self, units: float, of: float = 0.0) -> None:
        """Do nothing."""

    def stepped(self, at: float, done: int, of: int) -> None:
        """Do nothing."""

    def draw(self, shares: NDArray[np.float64]) -> None:
        """Do nothing."""

    def graph(self, tails: ArrayLike, heads: ArrayLike) -> None:
        """Do nothing."""
