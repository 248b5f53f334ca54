"""The least time on a machine: a partition whose slowest part finishes computing and communicating earlier.   (pure)

A partition by cut gives every rank its share of the work, regardless of its links.  Here a rank behind a slow link may get
less or no work, and ranks connected by slow links need not be neighbours.  Several starts are tried: permutations of the
hosts, so that other ranks become neighbours; shares that compensate for communication time; then cycles as in `multilevel`
that refine by time (below) instead of by cut.  The objective is max_j (C_j + K_j), see `quality`: the result is never worse
than the given partition, nor than all work on the fastest rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.kernels import borrowing, constant, inlined, njit
from lb_mpi.machine import Machine
from lb_mpi.partitioning.coarsen import Csr, coarsen, csr, go_through
from lb_mpi.partitioning.compiled import State, random_state, shuffle
from lb_mpi.partitioning.multilevel import multilevel
from lb_mpi.partitioning.quality import mapping_cost, rank_speeds
from lb_mpi.partitioning.refine import Connections, Parts, find_connections, find_parts, move

# --- Refinement by time: moves of vertices after which the slower ranks finish earlier --------------------------------
#
# Part p needs C_p + K_p seconds for computing and communicating (see `quality`).  A move from p to q changes the seconds of
# both, and of every part in which the vertex has neighbours, since the links to p and q may differ.  The objective is the
# sum over parts of (seconds / the longest)^16, later ^256.  It follows the longest time, but unlike that, it decreases with
# any move that takes time from a slow part, even if several parts are the slowest together.

NOTHING = 1e-12  # of all traffic: rounding error where nothing is exchanged
SQUARINGS = (4, 8)  # in this order: the 16th power lets many parts gain, the 256th follows the longest closely
ENOUGH = 1e-4  # of the sum, which is 1 or a little more: a sweep with a smaller gain is the last
LEAST = 1e-9  # of the sum: a smaller gain moves nothing


class MachineCosts(NamedTuple):
    """The seconds that the ranks of a machine need: part j is on rank j."""

    s_per_work: Floats  # (k,) seconds for vertex weight 1
    latency_s: Floats  # (k, k) for a message
    s_per_byte: Floats  # (k, k) for edge weight 1


class Scale(NamedTuple):
    """The minimised quantity: the sum over parts of (seconds / longest)^(2^squarings)."""

    longest: float
    squarings: int


class PartTimes(NamedTuple):
    """The seconds of all parts, updated while vertices move."""

    seconds: Floats  # (k,) C_p + K_p
    traffic: Floats  # (k, k) weight of the edges between two parts
    nothing: float  # traffic up to here is a rounding error
    change: Floats  # (k,) of the seconds, by the move under consideration; otherwise 0


@njit(cache=True)
def find_times(graph: Csr, parts: Parts, costs: MachineCosts) -> PartTimes:
    """Add up the seconds of all parts."""
    k = len(parts.weights)
    traffic = np.zeros((k, k))
    for v in range(len(parts.of)):
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            traffic[parts.of[v], parts.of[graph.indices[e]]] += graph.weights[e]
    seconds = parts.weights * costs.s_per_work
    for p in range(k):
        for q in range(k):
            if p != q and traffic[p, q] > 0.0:
                seconds[p] += costs.latency_s[p, q] + costs.s_per_byte[p, q] * traffic[p, q]
    return PartTimes(seconds, traffic, NOTHING * graph.weights.sum(), np.zeros(k))


@inlined
def exchange(costs: MachineCosts, times: PartTimes, p: int, q: int, more: float, keep: bool) -> None:
    """Add the effect of `more` traffic between p and q to their changes; `keep` it."""
    before, after = times.traffic[p, q], times.traffic[p, q] + more
    messages = (1.0 if after > times.nothing else 0.0) - (1.0 if before > times.nothing else 0.0)
    times.change[p] += messages * costs.latency_s[p, q] + more * costs.s_per_byte[p, q]
    times.change[q] += messages * costs.latency_s[q, p] + more * costs.s_per_byte[q, p]
    if keep:
        times.traffic[p, q] = times.traffic[q, p] = after


@inlined
def power(x: float, squarings: int) -> float:
    """Return x^(2^squarings)."""
    for _ in range(squarings):
        x *= x
    return x


@inlined
def settle(times: PartTimes, p: int, scale: Scale, keep: bool) -> float:
    """Return how a change of p's seconds changes the sum; `keep` or discard it."""
    before = times.seconds[p] / scale.longest
    after = max(0.0, times.seconds[p] + times.change[p]) / scale.longest
    if keep:
        times.seconds[p] += times.change[p]
    times.change[p] = 0.0
    return power(after, scale.squarings) - power(before, scale.squarings)


TRY, KEEP, NOWHERE = constant(False), constant(True), constant(-1)


@borrowing
def change_by_move(
    graph: Csr, parts: Parts, others: Connections, costs: MachineCosts, times: PartTimes, v: int, to: int, scale: Scale,
    keep: bool,
) -> float:
    """Return how a move of v to part `to`, connected to v, changes the sum; if `keep`, store the seconds and the traffic."""
    source, work = parts.of[v], graph.vertex_weights[v]
    begin, end = graph.indptr[v], graph.indptr[v] + others.n_others[v]
    times.change[source] -= work * costs.s_per_work[source]
    times.change[to] += work * costs.s_per_work[to]
    for i in range(begin, end):
        p, weight = others.part[i], others.weight[i]
        if p == to:
            exchange(costs, times, source, to, others.inner[v] - weight, keep)
        else:
            exchange(costs, times, source, p, -weight, keep)
            exchange(costs, times, to, p, weight, keep)
    total = settle(times, source, scale, keep) + settle(times, to, scale, keep)
    for i in range(begin, end):
        if others.part[i] != to:
            total += settle(times, others.part[i], scale, keep)
    return total


@borrowing
def sweep(
    graph: Csr, parts: Parts, others: Connections, costs: MachineCosts, times: PartTimes, order: Ints, scale: Scale
) -> float:
    """Move each vertex of the boundary, in `order`, to where it reduces the sum most, if anywhere; return the reduction."""
    gained = 0.0
    for v in order:
        best, to = -LEAST, NOWHERE
        for i in range(graph.indptr[v], graph.indptr[v] + others.n_others[v]):
            change = change_by_move(graph, parts, others, costs, times, v, others.part[i], scale, TRY)
            if change < best:
                best, to = change, others.part[i]
        if to >= 0:
            change_by_move(graph, parts, others, costs, times, v, to, scale, KEEP)
            move(graph, parts, others, v, to)
            gained -= best
    return gained


@njit(cache=True)
def refine_time(graph: Csr, part: Ints, costs: MachineCosts, rounds: int, state: State) -> None:
    """Move vertices of part (n,), in place, in up to `rounds` sweeps over the boundary for each of the powers."""
    k = len(costs.s_per_work)
    parts = find_parts(graph, part, np.zeros(k))
    others = find_connections(graph, part, k)
    for squarings in SQUARINGS:
        for _ in range(rounds):
            times = find_times(graph, parts, costs)  # anew: rounding errors accumulate
            scale = Scale(times.seconds.max(), squarings)
            if scale.longest <= 0.0:
                return
            order = np.nonzero(others.n_others)[0]
            shuffle(order, len(order), state)
            if sweep(graph, parts, others, costs, times, order, scale) < ENOUGH:
                break


@njit(cache=True)
def seconds_of(graph: Csr, part: Ints, costs: MachineCosts) -> Floats:
    """Return (k,) C_p + K_p of part (n,)."""
    return find_times(graph, find_parts(graph, part, np.zeros(len(costs.s_per_work))), costs).seconds


# --- From several starts to the least time ----------------------------------------------------------------------------

STARTS = {"fast": 1, "good": 4, "best": 12}  # orders of the hosts
CORRECTIONS = 2  # of the shares, from each start
CYCLES = 3  # at most, from one partition
ROUNDS = 30  # sweeps at most, on each level
COARSEST, FEWEST = 20, 200  # vertices of the coarsest graph: per part, and at least
IMBALANCE = 0.03  # of a start against its shares


def shorten(
    graph: Graph,
    parts: Ints,
    machine: Machine,
    *,
    unit_s: float | None = None,
    effort: str = "good",
    seed: int = 0,
) -> Ints:
    """Return (n,) part of each vertex, part j on rank j of the machine, with the least max_j (C_j + K_j) found.

    parts (n,) : a start, and an upper bound of the result.  unit_s : see `partition_metrics`.  The same
    arguments give the same partition.
    """
    costs = MachineCosts(1.0 / rank_speeds(machine, unit_s), machine.latency_s.copy(), machine.s_per_byte.copy())
    fine, state = csr(graph), random_state(seed)

    def objective(part: Ints) -> float:
        return mapping_cost(graph, part, machine, unit_s=unit_s).objective_s

    best, least = parts, objective(parts)
    for part in _candidates(graph, fine, parts, machine, costs, STARTS[effort], state):
        if (seconds := objective(part)) < least:
            best, least = part, seconds
    return best


def _candidates(
    graph: Graph, fine: Csr, parts: Ints, machine: Machine, costs: MachineCosts, starts: int, state: State
) -> Iterator[Ints]:
    """Yield partitions (n,) that might be better."""
    yield np.full(graph.n, machine.speeds.argmax(), dtype=np.int64)
    if machine.size == 1:
        return
    yield _cycles(fine, parts, costs, state)
    draw = np.random.default_rng(int(state[0]))
    hosts, host = np.unique(machine.hosts, return_inverse=True)
    for start in range(starts):
        turn = draw.permutation(len(hosts)) if start else np.arange(len(hosts))
        order = np.argsort(turn[host], kind="stable")  # keeps the ranks of one host together
        shares = machine.speeds / machine.speeds.sum()
        for _ in range(1 + CORRECTIONS):
            used = order[shares[order] > 0.0]
            targets = shares[used] / shares[used].sum()
            part = used[multilevel(graph, targets, IMBALANCE, "fast", int(draw.integers(1 << 30)))]
            part = _cycles(fine, part, costs, state)
            yield part
            with np.errstate(all="ignore"):
                corrected = _corrected(fine, part, costs)
            if corrected is None:
                break
            shares = corrected


def _corrected(fine: Csr, part: Ints, costs: MachineCosts) -> Floats | None:
    """Return (k,) shares by which all parts would take equally long, with each part's communication as in `part`.

    None: their times exceed the range of floating point.
    """
    speeds, k = 1.0 / costs.s_per_work, len(costs.s_per_work)
    work = np.bincount(part, fine.vertex_weights, minlength=k)
    talking = seconds_of(fine, part, costs) - work * costs.s_per_work
    used = np.ones(k, dtype=bool)
    while work.any():
        all_s = (work.sum() + (talking * speeds)[used].sum()) / speeds[used].sum()
        late = used & (talking >= all_s)
        if not late.any():
            shares = np.where(used, (all_s - talking) * speeds, 0.0)
            return shares if np.isfinite(shares.sum()) else None
        used &= ~late  # that rank would communicate for longer than the common time
    return speeds


def _cycles(fine: Csr, part: Ints, costs: MachineCosts, state: State) -> Ints:
    """Refine by time, on all levels, until a cycle gains no more than a thousandth."""
    k = len(costs.s_per_work)
    coarsest = max(COARSEST * k, FEWEST)
    largest = 1.5 * float(fine.vertex_weights.sum()) / coarsest

    def improve(graph: Csr, part: Ints) -> None:
        refine_time(graph, part, costs, ROUNDS, state)

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
