"""From the net flow per edge to transfers: which rank gives how much work directly to which.   (pure)

Law.  `plan` follows the flow downwards from rank to rank, and replaces each path by one transfer from its first rank to
its last.  Work that only passes through a rank is never sent there, so it does not matter whether that rank holds enough.
Every rank either gives or receives, and none gives more than it has.  `lb_mpi.balancing.knowledge.pick` then chooses rows.

The loads and the flow are a few numbers per rank: the root makes the plan for all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi.diffusion.diffusion import Diffusion, cancel_cycles, outflow
from lb_mpi.diffusion.setup import assemble
from lb_mpi.graph import Floats, Graph, Ints

Lots = deque[tuple[int, float]]  # work that is passed on: owner, amount


@dataclass(frozen=True, eq=False)
class Plan:
    """R transfers of work, by ascending source, the largest of each source first."""

    sources: Ints  # (R,) ranks
    destinations: Ints  # (R,) ranks
    amounts: Floats  # (R,) > 0, units of work
    margins: Floats  # (R,) work by which the source is planned to end after the destination (< 0: before)
    shares: Floats  # (R,) number of transfers to the destination * speed of source / speed of destination
    seconds: Floats  # (R,) >= 0: time of the destination for the amount, minus that for its own work

    def of(self, rank: int) -> Plan:
        """The transfers from one rank."""
        begin, end = np.searchsorted(self.sources, (rank, rank + 1)).tolist()
        mine = slice(begin, end)
        return Plan(
            self.sources[mine], self.destinations[mine], self.amounts[mine], self.margins[mine], self.shares[mine],
            self.seconds[mine],
        )

    def to(self, rank: int) -> list[int]:
        """The ranks that have transfers to one rank, ascending."""
        order, destinations = self._by_destination
        begin, end = np.searchsorted(destinations, (rank, rank + 1)).tolist()
        return sorted(self.sources[order[begin:end]].tolist())

    def table(self) -> Floats:
        """(6, R) the plan as a message; see `plan_of`."""
        return np.array([getattr(self, field.name) for field in fields(self)], dtype=float)

    @cached_property
    def longest_s(self) -> float:
        """Seconds by which the longest transfer exceeds its destination's own work; 0: by none."""
        return float(self.seconds.max(initial=0.0))

    @cached_property
    def _by_destination(self) -> tuple[Ints, Ints]:
        order = np.argsort(self.destinations, kind="stable")
        return order, self.destinations[order]


def plan_of(table: Floats) -> Plan:
    """Read a plan from the numbers of `Plan.table`, in any shape."""
    sources, destinations, *rest = table.reshape(len(fields(Plan)), -1)
    return Plan(sources.astype(np.int64), destinations.astype(np.int64), *rest)


def plan(graph: Graph, flow: Floats, loads: ArrayLike, speeds: ArrayLike) -> Plan:
    """The transfers that apply the (E,) flow to the (P,) loads, at (P,) speeds; cycles in the flow are cancelled.

    A rank that has to give more than it has gives all it has.
    """
    work, speeds = np.asarray(loads, dtype=float), np.asarray(speeds, dtype=float)
    try:
        amounts = _transfers(graph, flow, work)
    except CycleError:
        flow = cancel_cycles(graph, flow)
        amounts = _transfers(graph, flow, work)
    keys = sorted(amounts, key=lambda ends: (ends[0], -amounts[ends], ends[1]))
    source, destination = np.array(keys, dtype=np.int64).reshape(-1, 2).T
    planned = (work - outflow(graph, flow)) / speeds
    moved = np.array([amounts[ends] for ends in keys])
    return Plan(
        source,
        destination,
        moved,
        margins=speeds[source] * (planned[source] - planned[destination]),
        shares=np.bincount(destination, minlength=graph.n)[destination] * speeds[source] / speeds[destination],
        seconds=np.maximum(moved - work[destination], 0.0) / speeds[destination],
    )


def _transfers(graph: Graph, flow: Floats, work: Floats) -> dict[tuple[int, int], float]:
    """Amount per (source, destination); each rank, from the top of the flow, first passes on what it has received.

    CycleError for a flow with a cycle, however small.
    """
    nothing = 1e-13 * float(work.sum())
    tails, heads = graph.edges()
    leaving: dict[int, list[tuple[float, int]]] = {}
    order: TopologicalSorter[int] = TopologicalSorter()
    for tail, head, amount in zip(tails.tolist(), heads.tolist(), flow.tolist(), strict=True):
        source, target = (tail, head) if amount > 0 else (head, tail)
        if amount:
            order.add(target, source)
        if abs(amount) > nothing:
            leaving.setdefault(source, []).append((abs(amount), target))
    reached: dict[int, Lots] = {}
    transfers: dict[tuple[int, int], float] = {}
    for rank in order.static_order():
        lots = reached.pop(rank, deque())
        wanted = sum(amount for amount, _ in leaving.get(rank, []))
        own = min(float(work[rank]), wanted - sum(amount for _, amount in lots))
        if own > nothing:
            lots.append((rank, own))
        for amount, target in sorted(leaving.get(rank, []), reverse=True):
            reached.setdefault(target, deque()).extend(withdraw(lots, amount, nothing))
        for origin, lot in lots:
            if origin != rank:
                transfers[origin, rank] = transfers.get((origin, rank), 0.0) + lot
    return transfers


def withdraw(lots: Lots, amount: float, nothing: float) -> list[tuple[int, float]]:
    """Withdraw lots of this amount of work in all, or what there is; the last one may be divided."""
    taken = list[tuple[int, float]]()
    while lots and amount > nothing:
        owner, lot = lots.popleft()
        part = min(lot, amount)
        taken.append((owner, part))
        amount -= part
        if lot - part > nothing:
            lots.appendleft((owner, lot - part))
    return taken


def direct_plan(graph: Graph, loads: Floats, speeds: Floats) -> Plan:
    """The transfers that level (P,) loads at (P,) speeds, from the exact flow on `graph`."""
    diffusion = Diffusion(assemble(graph, speeds, "direct", "uniform"), loads)
    diffusion.step()
    return plan(graph, diffusion.flow(), loads, speeds)
