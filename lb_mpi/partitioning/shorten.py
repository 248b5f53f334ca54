"""The least time on a machine: a partition whose slowest part, computing and talking, is done sooner.   (pure)

A partition by cut gives every rank its share of the work, whatever links it has.  Here a rank behind a slow link may get
less, none even, and the ranks between which links are slow be no neighbours.  From several starts: ranks in another order
of their hosts, so that others become neighbours; shares that make up for the seconds of talking; then cycles as in
`multilevel`, that refine by time (`refine_time`) and not by cut.  What counts is max_j (C_j + K_j), see `quality`: the
result is never above what it was for the partition given, nor for all work on the fastest rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.machine import Machine
from lb_mpi.partitioning.chance import State, random_state
from lb_mpi.partitioning.coarsen import Csr, coarsen, csr, go_through
from lb_mpi.partitioning.multilevel import multilevel
from lb_mpi.partitioning.pieces import join_pieces
from lb_mpi.partitioning.quality import mapping_cost
from lb_mpi.partitioning.refine_time import Costs, refine_time, seconds_of

STARTS = {"fast": 1, "good": 4, "best": 12}  # orders of the hosts
CORRECTIONS = 2  # of the shares, from each start
CYCLES = 3  # at most, from one partition
ROUNDS = 30  # sweeps at most, on each level
COARSEST, FEWEST = 20, 200  # vertices of the coarsest graph: for each part, and at least
IMBALANCE = 0.03  # of a start against its shares


def shorten(
    graph: Graph,
    parts: Ints,
    machine: Machine,
    *,
    unit_s: float | None = None,
    effort: str = "good",
    seed: int = 0,
    connected: bool = False,
) -> Ints:
    """Return (n,) part of each vertex, part j on rank j of the machine, with the least max_j (C_j + K_j) that was found.

    parts (n,) : a start, and what the result is never worse than.  unit_s : see `partition_metrics`.  connected : parts
    that are in one piece stay so.  The same arguments give the same partition.
    """
    speeds = machine.speeds if unit_s is None else machine.speeds / (machine.speeds.max() * unit_s)
    costs = Costs(1.0 / speeds, machine.latency_s.copy(), machine.s_per_byte.copy())
    fine, state = csr(graph), random_state(seed)

    def objective(part: Ints) -> float:
        return mapping_cost(graph, part, machine, unit_s=unit_s).objective_s

    best, least = parts, objective(parts)
    for part in _candidates(graph, fine, parts, machine, costs, STARTS[effort], connected, state):
        if (seconds := objective(part)) < least:
            best, least = part, seconds
    return best


def _candidates(
    graph: Graph, fine: Csr, parts: Ints, machine: Machine, costs: Costs, starts: int, connected: bool, state: State
) -> Iterator[Ints]:
    """Partitions (n,) that might be better."""
    yield np.full(graph.n, machine.speeds.argmax(), dtype=np.int64)
    if machine.size == 1:
        return
    yield _cycles(fine, parts, costs, connected, state)
    draw = np.random.default_rng(int(state[0]))
    hosts, host = np.unique(machine.hosts, return_inverse=True)
    for start in range(starts):
        turn = draw.permutation(len(hosts)) if start else np.arange(len(hosts))
        order = np.argsort(turn[host], kind="stable")  # ranks of one host remain together
        shares = machine.speeds / machine.speeds.sum()
        for _ in range(1 + CORRECTIONS):
            used = order[shares[order] > 0.0]
            targets = shares[used] / shares[used].sum()
            part = used[multilevel(graph, targets, IMBALANCE, "fast", int(draw.integers(1 << 30)))]
            if connected:
                join_pieces(fine, part, machine.size)
            part = _cycles(fine, part, costs, connected, state)
            yield part
            shares = _corrected(fine, part, costs)


def _corrected(fine: Csr, part: Ints, costs: Costs) -> Floats:
    """(k,) shares with which all parts would take equally long, if each talked for as long as it does in `part`."""
    speeds, k = 1.0 / costs.s_per_work, len(costs.s_per_work)
    work = np.bincount(part, fine.vertex_weights, minlength=k)
    talking = seconds_of(fine, part, costs) - work * costs.s_per_work
    used = np.ones(k, dtype=bool)
    while work.any():
        all_s = (work.sum() + (talking * speeds)[used].sum()) / speeds[used].sum()
        late = used & (talking >= all_s)
        if not late.any():
            return np.where(used, (all_s - talking) * speeds, 0.0)
        used &= ~late  # that rank would talk for longer than all take
    return speeds


def _cycles(fine: Csr, part: Ints, costs: Costs, connected: bool, state: State) -> Ints:
    """Refine by time, on all levels, until that brings no more than a thousandth."""
    k = len(costs.s_per_work)
    coarsest = max(COARSEST * k, FEWEST)
    largest = 1.5 * float(fine.vertex_weights.sum()) / coarsest

    def improve(graph: Csr, part: Ints) -> None:
        if connected:
            join_pieces(graph, part, k)
        refine_time(graph, part, costs, ROUNDS, connected, state)

    best, least = part, seconds_of(fine, part, costs).max()
    for _ in range(CYCLES):
        levels = coarsen(fine, coarsest, largest, state, best)
        part = go_through(fine, levels, best, improve)
        seconds = seconds_of(fine, part, costs).max()
        enough = seconds > least * (1.0 - 1e-3)
        if seconds < least:
            best, least = part, seconds
        if enough:
            break
    return best
