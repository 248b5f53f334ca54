"""What a carrier records of one rank's calls of the Balancer: loans, and a Step for each call.   (pure)"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lb_mpi.balancing.course import Course
from lb_mpi.balancing.record import Balanced
from lb_mpi.graph import Graph
from lb_mpi.record.events import Driver, Move, Step, Way, merged
from lb_mpi.record.record import Record


class Loans:
    """What this rank lends, and its calls; `worlds[r]` is the rank in COMM_WORLD of rank r."""

    def __init__(self, record: Record, worlds: list[int]) -> None:
        self.record, self._worlds = record, worlds
        self.last: Step | None = None  # call of map_rows
        self.total: Step | None = None  # all of them
        self._away: dict[int, tuple[float, int, int]] = {}  # by borrower: since when, rows, bytes

    @property
    def ended(self) -> float:
        """When the last call of map_rows ended; NaN: there was none."""
        return math.nan if self.last is None else self.last.ended

    def use(self, graph: Graph, rank: int, settings: Mapping[str, Any]) -> None:
        """A balancer is made: its settings, and its process graph, of which rank 0 keeps all edges."""
        self.record.use("map_rows", {**settings, "neighbours": graph.neighbours(rank).tolist()})
        if rank == 0:
            self.record.graph(*(np.take(self._worlds, ends) for ends in graph.edges()))

    def lent(self, borrower: int, at: float, rows: int, n_bytes: int) -> None:
        """Rows have left."""
        if rows:
            self._away[borrower] = at, rows, n_bytes

    def back(self, borrower: int, at: float, n_bytes: int) -> None:
        """Results have come."""
        since, rows, there = self._away.pop(borrower, (at, 0, 0))
        if rows:
            self.record.move(Move(Way.LOAN, self._worlds[borrower], since, at, rows, there + n_bytes))

    def mapped(
        self, began: float, ended: float, last: Balanced, course: Course, rows: tuple[int, int], busy_s: float, took: float
    ) -> None:
        """map_rows is over: `rows` of this rank, and computed here; seconds computing; work of its own rows, or NaN."""
        home_s = took / float(course.ranks.speeds[course.rank])
        step = self._step(Driver.ROWS, began, ended, last, course)
        step = step._replace(useful_s=busy_s, home=rows[0], units=rows[1], home_s=home_s)
        self.last, self.total = step, step if self.total is None else merged(self.total, step)
        self.record.step(step)
        costs = course.costs
        if costs is not None and costs.known:
            self.record.know(ended, lambda: costs.work(course.ranks.worth))

    def migrated(self, began: float, ended: float, last: Balanced, course: Course) -> None:
        """Migrate is over."""
        self.record.step(self._step(Driver.MIGRATE, began, ended, last, course))

    def _step(self, driver: Driver, began: float, ended: float, last: Balanced, course: Course) -> Step:
        speeds = course.ranks.speeds
        return Step(
            driver, began, ended, 0.0, 0.0, float(speeds[course.rank] / speeds.mean()), last.imbalance_before,
            last.imbalance_after, last.rows_moved, int(last.acted), self.record.reason(last.reason.partition(";")[0]),
            serving_s=last.seconds,
        )  # fmt: skip
