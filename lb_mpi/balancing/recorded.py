"""The loans of one rank in one round, read from the messages that it sends and serves.   (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lb_mpi.balancing.course import Course
from lb_mpi.balancing.record import Balanced
from lb_mpi.graph import Graph
from lb_mpi.record.events import Driver, Move, Step, Way
from lb_mpi.record.record import OFF, Record


class Loans:
    """What this rank lends; `worlds[r]` is the rank in COMM_WORLD of rank r."""

    def __init__(self, record: Record, worlds: list[int]) -> None:
        self.record, self._worlds = record, worlds
        self._away: dict[int, tuple[float, int, int]] = {}  # by borrower: since when, rows, bytes

    def use(self, graph: Graph, rank: int, settings: Mapping[str, Any]) -> None:
        """A balancer is made: its settings, and its process graph, of which rank 0 keeps all edges."""
        known = self.record.known
        known.use("map_blocks", {**settings, "neighbours": graph.neighbours(rank).tolist()})
        if rank == 0:
            known.graph(*(np.take(self._worlds, ends) for ends in graph.edges()))

    def lent(self, borrower: int, at: float, rows: int, n_bytes: int) -> None:
        """Rows have left."""
        if rows:
            self._away[borrower] = at, rows, n_bytes

    def back(self, borrower: int, at: float, n_bytes: int) -> None:
        """Results have come."""
        since, rows, there = self._away.pop(borrower, (at, 0, 0))
        if rows:
            self.record.move(Move(Way.LOAN, self._worlds[borrower], since, at, rows, there + n_bytes))

    def load(self, took: float, outside_s: float, course: Course) -> None:
        """This rank's rows took so much work in a call, to which it came so long after the one before (NaN: the first)."""
        ranks = course.ranks
        self.record.known.load(took / float(ranks.speeds[course.rank]), outside_s)

    def called(
        self, driver: Driver, began: float, ended: float, last: Balanced, course: Course, busy_s: float = 0.0
    ) -> None:
        """A call is over: what it did, what is known of rows and ranks, and the seconds that this rank computed."""
        record, costs, ranks = self.record, course.costs, course.ranks
        if record is OFF:
            return
        if costs is not None and costs.known:
            record.known.know(ended, lambda: costs.work(ranks.worth))
        n_rows = 0 if costs is None else len(costs)
        speed = float(ranks.speeds[course.rank] / ranks.speeds.mean())
        reason = record.reason(last.reason.partition(";")[0])
        before, after = last.imbalance_before, last.imbalance_after
        step = Step(
            driver, began, ended, busy_s, n_rows, speed, before, after, last.rows_moved, int(last.acted), reason
        )
        record.step(step)
