"""Permanent moves of rows between ranks: `Balancer.migrate` after its arguments have been checked."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike

from lb_mpi.balancing.deciding import Trigger
from lb_mpi.balancing.knowledge import Knowledge, pick
from lb_mpi.balancing.record import Balanced
from lb_mpi.graph import Floats, Ints
from lb_mpi.metrics import check_loads
from lb_mpi.mpi.common.collective import agree, raise_on_all
from lb_mpi.mpi.common.communicator import presence_of, wait
from lb_mpi.mpi.common.failure import Failed, of_rows
from lb_mpi.mpi.common.parcels import Buffer, Parcels
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import interrupts
from lb_mpi.mpi.rows.plans import Neighbours, Root
from lb_mpi.mpi.rows.rows import Rows, columns_of, concatenate, empty_parcel, head, in_form

_KIND = 0
_BROKEN = 1


def migrate(
    comm: MPI.Intracomm, knowledge: Knowledge, plans: Root | Neighbours, trigger: Trigger, rows: Rows, costs: Floats | None
) -> tuple[Balanced, Any]:
    """Collective: decide by the given (n,) costs; if None, by those that `knowledge` has measured, or by the number of rows.

    Returns the record, and this rank's new rows in the user's form (None: unchanged).  As many calls of map_rows are
    expected to follow as have computed these rows since they last moved.  `comm` is a duplicate of the user's.
    """
    began = time.perf_counter()
    work = knowledge.measured(rows.n)
    timed = bool(_allreduce(comm, int(work is not None), MPI.MIN))
    if work is None or not timed:
        work = np.ones(rows.n)
    table = np.column_stack([work if costs is None else costs, work])
    load = float(table[:, 0].sum())
    before = plans.levels(load)
    if not math.isfinite(before.balanced_s):
        raise presence_of(comm).on_all(ValueError("costs: expected numbers whose sum over all ranks is finite"))
    seconds = timed and costs is None  # otherwise the unit of the costs is not time
    chances, cost_s = (max(1, knowledge.n_rounds), None) if seconds else (1, 0.0)
    decision = trigger.decide(before.imbalance, chances * before.now_s, chances * before.balanced_s, cost_s=cost_s)
    after, value = before, None
    steps = n_rows = n_bytes = 0
    if decision.act:
        transfers, steps = plans.plan(load)
        items = agree(comm, lambda: pick(table[:, 0], transfers.of(comm.rank)).items)
        leaving = dict(zip(transfers.of(comm.rank).destinations.tolist(), items, strict=True))
        value, table, given, sent = _move(comm, rows, table, leaving, transfers.to(comm.rank))
        n_rows, n_bytes = (int(_allreduce(comm, n, MPI.SUM)) for n in (given, sent))
        after = plans.levels(float(table[:, 0].sum()))
        trigger.cost_s = _allreduce(comm, time.perf_counter() - began, MPI.MAX)
        knowledge.own(table[:, 1] if timed else None)
        plans.changed(None)
    gain_s = decision.gain_s if seconds else math.nan
    last = Balanced(
        decision.act, decision.words, before.imbalance, after.imbalance, n_rows, n_bytes, steps,
        time.perf_counter() - began, gain_s,
    )  # fmt: skip
    return last, value


def _move(
    comm: MPI.Intracomm, rows: Rows, table: Floats, leaving: Mapping[int, Ints], sources: Sequence[int]
) -> tuple[Any, Floats, int, int]:
    """Collective: send each rank `leaving[rank]`, rows with their part of the (n, c) table; receive from each source.

    Returns this rank's new rows, their (n', c) table, and the numbers of rows and bytes sent.  If packing or unpacking
    fails on a rank, that rank completes all transfers first, and then all ranks raise.
    """
    failed: Failed | None = None
    numbers = Rows(table)
    parcels = Parcels(comm, Tag.MIGRATION)
    for target, index in leaving.items():
        buffers = (empty_parcel(_BROKEN), empty_parcel(_BROKEN))
        if failed is None:
            try:
                with interrupts().allowed():
                    buffers = (rows.parcel(index, kind=_KIND), numbers.parcel(index, kind=_KIND))
            except BaseException as caught:
                failed = of_rows(caught, comm.rank, f"rows for rank {target}")
        for buffer in buffers:
            parcels.send(target, Tag.MIGRATION, buffer)
    arrived = _receive(comm, parcels, sources)
    kept = np.delete(np.arange(rows.n), np.concatenate([np.zeros(0, dtype=np.int64), *leaving.values()]))
    blocks, tables = [rows.block(kept)], [numbers.block(kept)]
    for source in sources:
        parcel, beside = arrived[source]
        if failed is None and head(parcel).kind != _BROKEN:
            try:
                with interrupts().allowed():
                    blocks.append(columns_of(parcel, rows.spec, rows.unpack))
                    tables.append(columns_of(beside, numbers.spec, None))
            except BaseException as caught:
                failed = of_rows(caught, comm.rank, f"rows of rank {source}")
    value = in_form(rows.spec, concatenate(rows.spec, blocks, rows.axes))
    raise_on_all(comm, failed)
    return value, concatenate(numbers.spec, tables)[0], rows.n - len(kept), parcels.sent_bytes


def _receive(comm: MPI.Intracomm, parcels: Parcels, sources: Sequence[int]) -> dict[int, list[Buffer]]:
    """Receive two parcels from each source, rows and table; all sends are complete afterwards."""
    arrived: dict[int, list[Buffer]] = {source: [] for source in sources}

    def done() -> bool:
        while new := parcels.take():
            for source, _, buffer in new:
                arrived[source].append(buffer)
        return all(len(pair) == 2 for pair in arrived.values()) and not parcels.under_way

    presence_of(comm).wait(done, parcels)
    return arrived


def _allreduce(comm: MPI.Intracomm, value: float, operation: MPI.Op) -> float:
    mine, result = np.array([float(value)]), np.zeros(1)
    wait(comm, comm.Iallreduce(mine, result, operation), (mine, result))
    return float(result[0])


def check_costs(costs: ArrayLike, n: int) -> Floats:
    """Check the costs of n rows: finite numbers >= 0, with a finite sum."""
    found = check_loads(costs, n, name="costs") if n or np.size(costs) else np.zeros(0)
    with np.errstate(over="ignore"):
        if not np.isfinite(found.sum()):
            raise ValueError(f"costs with sum {found.sum()}: expected numbers whose sum is finite")
    return found
