"""The jobs of a rebalancing: what a rank computes between its messages.   (pure)

`run` does them.  On MPI, the caller's values travel with the rows of `Pack`, and arrive with those of `Build`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lb_mpi.distributing.halo import GraphPart, part_of
from lb_mpi.graph import Floats, Ints
from lb_mpi.rebalancing.moving import Owners, joined, owners_now, rows_of

if TYPE_CHECKING:  # it imports numba
    from lb_mpi.rebalancing.choose import Home


class Repair(NamedTuple):
    """Find stray pieces, if the graph is `connected`; its outcome: the `Shard` of the part, and (n_local,) new owners."""

    rank: int
    part: GraphPart
    costs: Floats
    connected: bool


class Ask(NamedTuple):
    """Ask a neighbour to choose; its outcome: the vertices of the zone, and the message (see `choose.ask`)."""

    home: Home
    work: float
    room: float


class Choose(NamedTuple):
    """Choose for a neighbour and this rank; its outcome: a `Chosen`."""

    home: Home
    message: Ints  # of the neighbour's `Ask`
    stay: float  # see `choose.answer`
    give: float
    room: float
    seed: int


class Chosen(NamedTuple):
    """The choice of a rank for itself and a neighbour."""

    labels: Ints  # (n_local + n_ghosts,)
    reply: Ints
    given: float  # work given to the neighbour
    left: float  # of the flow


class Pack(NamedTuple):
    """Pack the vertices that leave; its outcome: a payload for each rank that gets some, here its `Moving`."""

    part: GraphPart
    costs: Floats
    owners: Owners
    leaving: dict[int, Ints]  # local numbers, ascending; by new owner


class Build(NamedTuple):
    """Make the new part from the rows that stay and those that have arrived; its outcome: a `Built`."""

    rank: int
    part: GraphPart
    costs: Floats
    owners: Owners
    arrived: dict[int, Any]  # payloads by rank; only those with vertices


class Built(NamedTuple):
    """The new part of a rank, not valid yet."""

    part: GraphPart
    costs: Floats  # (n_local,)
    origin: Ints  # (n_local,) the ranks that the vertices came from, or this one
    positions: Ints | None  # (n_local,) among the vertices that stay and those that have arrived, by rank; None: as before
    n_bytes: int = 0  # sent by this rank


Job = Repair | Ask | Choose | Pack | Build


def run(job: Job) -> Any:
    """Do a job; return its outcome."""
    if isinstance(job, Pack):
        return {rank: rows_of(job.part, job.costs, job.owners, index) for rank, index in job.leaving.items()}
    if isinstance(job, Build):
        return _build(job)
    from lb_mpi.partitioning.compiled import random_state  # here, since they import numba
    from lb_mpi.rebalancing.choose import LAYERS, answer, ask, shard_of, stray

    if isinstance(job, Repair):
        shard = shard_of(job.part, job.costs)
        return shard, stray(shard, job.rank) if job.connected else owners_now(job.part, job.rank).local
    if isinstance(job, Ask):
        return ask(job.home, LAYERS, job.work, job.room)
    home = job.home._replace(labels=job.home.labels.copy())
    chosen = answer(home, job.message.copy(), LAYERS, job.stay, job.give, job.room, random_state(job.seed))
    return Chosen(home.labels, *chosen)


def _build(job: Build) -> Built:
    rank, part, costs, owners, arrived = job
    kept = np.flatnonzero(owners.local == rank)
    if len(kept) == part.n_local and not arrived and np.array_equal(owners.ghosts, owners_now(part, rank).ghosts):
        return Built(part, costs, owners.local, None)
    rows = [rows_of(part, costs, owners, kept), *(moving for _, moving in sorted(arrived.items()))]
    origin = np.repeat([rank, *sorted(arrived)], [len(one.costs) for one in rows])
    (piece, new_costs), positions = joined(rows)
    unchanged = len(kept) == part.n_local and not arrived
    return Built(part_of(piece, rank), new_costs, origin[positions], None if unchanged else positions)
