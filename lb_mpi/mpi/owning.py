"""Rows change their owner: what `Balancer.migrate` does, when its arguments have been checked."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from lb_mpi.balancing.migrate import pick
from lb_mpi.balancing.trigger import Trigger
from lb_mpi.graph import Floats
from lb_mpi.metrics import imbalance, lower_bound
from lb_mpi.mpi.balanced import Balanced
from lb_mpi.mpi.blame import raise_everywhere
from lb_mpi.mpi.flows import Flows
from lb_mpi.mpi.moving import move
from lb_mpi.mpi.rows import Rows


class Owned(NamedTuple):
    """This rank's rows now; both None when nothing was done."""

    last: Balanced
    value: Any = None  # in the user's form
    work: Floats | None = None  # (n,) of each row, if it has been measured


class Owners:
    """Decides when rows are to have other owners, and gives them away, on `comm` (not the user's: a duplicate)."""

    def __init__(self, comm: MPI.Intracomm, flows: Flows, trigger: Trigger) -> None:
        self._comm, self._flows, self._trigger = comm, flows, trigger
        self._last_s = 0.0  # what it took the last time

    def move(self, rows: Rows, costs: Floats | None, work: Floats | None, speeds: Floats, calls: int) -> Owned:
        """Collective: by the given (n,) costs; otherwise by the measured (n,) work, or else by the number of rows.

        `calls` of map have computed these rows since they changed their owner: as many are expected to follow.
        """
        comm, began = self._comm, time.perf_counter()
        timed = bool(comm.allreduce(work is not None, MPI.LAND))
        if work is None or not timed:
            work = np.ones(rows.n)
        table = np.column_stack([work if costs is None else costs, work])
        before, most_s, balanced_s = self._levels(table, speeds)
        seconds = timed and costs is None  # otherwise the costs are in a unit of their own, not to be set against time
        chances = calls if seconds else 1
        self._trigger.cost_s = self._last_s if seconds else 0.0
        decision = self._trigger.decide(before, chances * most_s, chances * balanced_s)
        after, value = before, None
        steps = n_rows = n_bytes = 0
        if decision.act:
            transfers, steps = self._flows.plan(float(table[:, 0].sum()), speeds)
            items = pick(table[:, 0], transfers.of(comm.rank)).items
            targets = transfers.destinations[transfers.sources == comm.rank].tolist()
            sources = transfers.sources[transfers.destinations == comm.rank].tolist()
            moved = move(comm, rows, table, dict(zip(targets, items, strict=True)), sources)
            if comm.allreduce(moved.error is not None, MPI.LOR):
                raise_everywhere(comm, moved.error, rows)
            n_rows, n_bytes = comm.allreduce(np.array([moved.rows, moved.bytes])).tolist()
            value, table = moved.value, moved.table
            after = self._levels(table, speeds)[0]
            self._last_s = comm.allreduce(time.perf_counter() - began, MPI.MAX)
        last = Balanced(
            acted=decision.act,
            reason=decision.words,
            imbalance_before=before,
            imbalance_after=after,
            rows_moved=n_rows,
            bytes_moved=n_bytes,
            steps=steps,
            seconds=time.perf_counter() - began,
            predicted_gain_s=decision.gain_s if seconds else math.nan,
        )
        return Owned(last, value, table[:, 1] if decision.act and timed else None)

    def _levels(self, table: Floats, speeds: Floats) -> tuple[float, float, float]:
        """Imbalance, seconds of the slowest rank, balanced seconds: the same on all ranks to the last bit; collective."""
        loads = np.zeros(self._comm.size)
        self._comm.Gather(np.array([table[:, 0].sum()]), loads, 0)
        levels = np.zeros(3)
        if self._comm.rank == 0:
            levels[:] = [imbalance(loads, speeds), (loads / speeds).max(), lower_bound(loads, speeds)]
        self._comm.Bcast(levels, 0)
        before, most_s, balanced_s = levels.tolist()
        return before, most_s, balanced_s
