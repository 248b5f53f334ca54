"""Permanent moves of rows between ranks: `Balancer.migrate` after its arguments have been checked.

With order "appended", any rows go to any rank.  With order "kept", the rows of all ranks are one sequence, of which each
rank owns a range, and only the ends of ranges move.  An end that moves is found by the rank that owns the rows around it;
then all ranks know all ends, as whole numbers, and so who sends which rows to whom.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike

from lb_mpi.balancing.decider import Decider
from lb_mpi.balancing.deciding import Decision, Trigger
from lb_mpi.balancing.knowledge import Knowledge, pick
from lb_mpi.balancing.record import Balanced
from lb_mpi.columns import agreed
from lb_mpi.graph import Floats, Ints
from lb_mpi.metrics import check_loads
from lb_mpi.mpi.common.calls import at_work, interrupts
from lb_mpi.mpi.common.collective import agree, allgather, raise_on_all
from lb_mpi.mpi.common.communicator import presence_of, wait
from lb_mpi.mpi.common.failure import Failed, of_rows
from lb_mpi.mpi.common.parcels import Buffer, Parcels
from lb_mpi.mpi.common.reducing import Reducing
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.rows.plans import plan_together
from lb_mpi.mpi.rows.rows import Rows, columns_of, empty_parcel, head
from lb_mpi.rebalancing.slabs import move_cuts
from lb_mpi.reduction import Reduction

ORDERS = ("appended", "kept")
_KIND = 0
_BROKEN = 1


class Migration(NamedTuple):
    """The outcome of a call."""

    last: Balanced
    value: Any  # this rank's new rows, in the user's form; None: unchanged
    counts: Ints | None  # (P,) rows of each rank, if their order is kept


class Moves(NamedTuple):
    """The rows that one rank sends and receives."""

    leaving: dict[int, Ints]  # indices of rows of this rank, by destination
    sources: list[int]  # ranks that send rows to this one, ascending
    steps: int  # exchanges to find this


def migrate(
    comm: MPI.Intracomm, knowledge: Knowledge, decider: Decider, trigger: Trigger, rows: Rows,
    costs: Floats | None, *, order: str,
) -> Migration:  # fmt: skip
    """Collective: decide by the given (n,) costs; if None, by those that `knowledge` has measured, or by the number of rows.

    As many calls of map_rows are expected to follow as have computed these rows since they last moved.  `comm` is a
    duplicate of the user's.
    """
    began, presence = time.perf_counter(), presence_of(comm)
    work = knowledge.measured(rows.n)
    timed = not _reduce(comm, maxima=[work is None]).maxima[0]
    if work is None or not timed:
        work = np.ones(rows.n)
    table = np.column_stack([work if costs is None else costs, work])
    load = float(table[:, 0].sum())
    before = plan_together(presence, decider, decider.levels(load))
    if not math.isfinite(before.balanced_s):
        raise presence.on_all(ValueError("costs: expected numbers whose sum over all ranks is finite"))
    seconds = timed and costs is None  # otherwise the unit of the costs is not time
    n_calls, cost_s = (max(1, knowledge.n_rounds), None) if seconds else (1, 0.0)
    decision = trigger.decide(before.imbalance, n_calls * before.now_s, n_calls * before.balanced_s, cost_s=cost_s)
    after, value = before, None
    steps = n_rows = n_bytes = 0
    counts = _allgather(comm, rows.n).astype(np.int64) if order == "kept" else None
    if decision.act:
        if counts is None:
            moves = _by_plan(comm, decider, load, table[:, 0])
            joined = [comm.rank, *moves.sources]
        else:
            speed = float(knowledge.speeds[knowledge.index])
            loads, speeds = _allgather(comm, load), _allgather(comm, speed)
            ends = _ends(comm, np.cumsum(counts), loads, speeds, table[:, 0], 0.5 * trigger.tolerance)
            moves = between(np.cumsum(counts), ends, comm.rank)
            joined = sorted([comm.rank, *moves.sources])
            counts = np.diff(ends, prepend=0)
        steps = moves.steps
        n_rows = int(_reduce(comm, sums=[sum(map(len, moves.leaving.values()))]).sums[0])
    if n_rows:
        value, table, sent = _move(comm, rows, table, moves, joined)
        with presence.committing():
            after = plan_together(presence, decider, decider.levels(float(table[:, 0].sum())))
            whole = _reduce(comm, sums=[sent], maxima=[time.perf_counter() - began])
        n_bytes, trigger.cost_s = int(whole.sums[0]), float(whole.maxima[0])
        knowledge.own(table[:, 1] if timed else None)
        decider.changed(lending=False)
    gain_s = decision.gain_s if seconds else math.nan
    last = Balanced(
        n_rows > 0, _words(decision, n_rows), before.imbalance, after.imbalance, n_rows, n_bytes, steps,
        time.perf_counter() - began, gain_s,
    )  # fmt: skip
    return Migration(last, value, counts)


def _words(decision: Decision, n_rows: int) -> str:
    """Say why rows have moved, or not."""
    if decision.act and not n_rows:
        return "no rows migrated: moving any would not help"
    return f"{'' if n_rows else 'no '}rows migrated: {decision.reason.words.partition(': ')[2]}"


# --- the moves ----------------------------------------------------------------------------------------------------------


def _by_plan(comm: MPI.Intracomm, decider: Decider, load: float, costs: Floats) -> Moves:
    """Collective: move any rows, few and heavy ones."""
    transfers, steps = plan_together(presence_of(comm), decider, decider.plan(load))
    mine = transfers.of(comm.rank)
    items = agree(comm, lambda: pick(costs, mine).items)
    return Moves(dict(zip(mine.destinations.tolist(), items, strict=True)), transfers.to(comm.rank), steps)


def _ends(
    comm: MPI.Intracomm, ends: Ints, loads: Floats, speeds: Floats, costs: Floats, tolerance: float
) -> Ints:  # fmt: skip
    """Collective: return the (P,) new ends of the ranges, the same on all ranks, for (P,) present ones.

    loads, speeds (P,) : of all ranks.  costs (n,) : of this rank's rows.  An end that need not move stays exactly, and one
    that moves gets next to the row in whose middle its cut lies.
    """
    most = loads.max()
    if not most:
        return ends
    reached = np.cumsum(loads / most)
    cuts = move_cuts(loads / most, speeds, tolerance)
    owner = np.minimum(np.searchsorted(reached, cuts), comm.size - 1)  # of the rows around each cut
    mine = owner == comm.rank
    before = 0.0 if comm.rank == 0 else float(reached[comm.rank - 1])
    middles = before + (np.cumsum(costs) - 0.5 * costs) / most
    found = np.zeros(comm.size - 1)
    found[mine] = ends[comm.rank] - len(costs) + np.searchsorted(middles, cuts[mine])
    inner = np.where(cuts == reached[:-1], ends[:-1], _reduce(comm, maxima=found).maxima.astype(np.int64))
    return np.maximum.accumulate(np.append(inner, ends[-1]))


def between(old: Ints, new: Ints, rank: int) -> Moves:
    """Return the moves of one rank from (P,) old to new ends of the ranges of all ranks."""
    first, end = _range(old, rank)
    leaving = {to: np.arange(a - first, b - first) for to, (a, b) in _overlaps(new, first, end).items() if to != rank}
    sources = [source for source in _overlaps(old, *_range(new, rank)) if source != rank]
    return Moves(leaving, sources, 1)


def _range(ends: Ints, rank: int) -> tuple[int, int]:
    return int(ends[rank - 1]) if rank else 0, int(ends[rank])


def _overlaps(ends: Ints, first: int, end: int) -> dict[int, tuple[int, int]]:
    """Return what each rank has of the rows `first` to `end` - 1, if its range ends at `ends[rank]`; ranks ascend."""
    found, rank = dict[int, tuple[int, int]](), int(np.searchsorted(ends, first, side="right"))
    while first < end:
        upto = min(end, int(ends[rank]))
        if upto > first:
            found[rank] = first, upto
        first, rank = upto, rank + 1
    return found


# --- the move -----------------------------------------------------------------------------------------------------------


def _move(
    comm: MPI.Intracomm, rows: Rows, table: Floats, moves: Moves, joined: Sequence[int]
) -> tuple[Any, Floats, int]:  # fmt: skip
    """Collective: send and receive rows, with their part of the (n, c) table.

    Returns this rank's new rows, those from the ranks in `joined` one after the other; their (n', c) table; and the number
    of bytes sent.  If packing or unpacking fails on a rank, that rank completes all transfers first, and then all ranks
    raise.
    """
    failed: Failed | None = None
    numbers, working = Rows(table), at_work(comm, "in pack or unpack")
    orders = agreed(allgather(comm, (rows.n, rows.orders)), comm.rank)
    parcels = Parcels(comm, Tag.MIGRATION)
    for target, index in moves.leaving.items():
        buffers = (empty_parcel(_BROKEN), empty_parcel(_BROKEN))
        if failed is None:
            try:
                with interrupts(), working:
                    buffers = (rows.parcel(index, kind=_KIND), numbers.parcel(index, kind=_KIND))
            except BaseException as caught:
                failed = of_rows(caught, comm.rank, f"rows for rank {target}")
        for buffer in buffers:
            parcels.send(target, Tag.MIGRATION, buffer)
    arrived = _receive(comm, parcels, moves.sources)
    kept = np.delete(np.arange(rows.n), np.concatenate([np.zeros(0, dtype=np.int64), *moves.leaving.values()]))
    blocks, tables = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for source in joined:
        if source == comm.rank:
            blocks.append(rows.block(kept))
            tables.append(numbers.block(kept))
            continue
        parcel, beside = arrived[source]
        if failed is None and head(parcel).kind != _BROKEN:
            try:
                with interrupts(), working:
                    blocks.append(columns_of(parcel, rows.spec, rows.pack, rows.unpack))
                    tables.append(columns_of(beside, numbers.spec, None, None))
            except BaseException as caught:
                failed = of_rows(caught, comm.rank, f"rows of rank {source}")
    value = rows.joined(blocks, orders)
    raise_on_all(comm, failed)
    return value, numbers.joined(tables, numbers.orders), parcels.sent_bytes


def _receive(comm: MPI.Intracomm, parcels: Parcels, sources: Sequence[int]) -> dict[int, list[Buffer]]:
    """Receive two parcels from each source, rows and table; all sends are complete afterwards."""
    arrived: dict[int, list[Buffer]] = {source: [] for source in sources}

    def done() -> bool:
        while new := parcels.receive():
            for source, _, buffer in new:
                arrived[source].append(buffer)
        return all(len(pair) == 2 for pair in arrived.values()) and not parcels.under_way

    presence_of(comm).wait(done, parcels)
    return arrived


def _allgather(comm: MPI.Intracomm, value: float) -> Floats:
    """Return (P,) the value of each rank."""
    mine, everyone = np.array([float(value)]), np.empty(comm.size)
    wait(comm, comm.Iallgather(mine, everyone), (mine, everyone))
    return everyone


def _reduce(comm: MPI.Intracomm, sums: Sequence[float] = (), maxima: ArrayLike = ()) -> Reduction:
    reducing = Reducing(comm, Reduction(sums, np.array(maxima, dtype=float)))
    presence_of(comm).wait(reducing.done, reducing)
    return reducing.answer


def check_costs(costs: ArrayLike, n: int) -> Floats:
    """Check the costs of n rows: finite numbers >= 0, with a finite sum."""
    found = check_loads(costs, n, name="costs")
    with np.errstate(over="ignore"):
        if not np.isfinite(found.sum()):
            raise ValueError(f"costs with sum {found.sum()}: expected numbers whose sum is finite")
    return found
