"""The quality of a partition of a task graph: cut, volume, balance, connectivity, seconds on a machine.   (pure)

A partition is an (n,) array of parts 0..k-1, one per vertex.  Its balance against (k,) targets, in any unit, is
`metrics.imbalance(part_weights(graph, parts, k), targets)`: the heaviest part, relative to its target, has 1 + imbalance
times its ideal weight.

On a machine, part j runs on a node with performance w_j; j and l exchange b bytes in alpha_jl + beta_jl b seconds:

    C_j = sum of c_i over the tasks i on j / w_j                                        computing
    K_j = sum of v_ik beta_jl over the edges from i on j to k on l != j                 communication,
          + sum of alpha_jl over the nodes l with which j exchanges any bytes             a message to each
    objective = max_j (C_j + K_j)

Transit and contention are ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from lb_mpi import checks
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.graph_files import as_graph
from lb_mpi.machine import Machine
from lb_mpi.metrics import (
    check_parts,
    check_speeds,
    first_true,
    imbalance,
    scaled,
    usual_arithmetic,
)

MAX_PARTS = 1 << 24  # the data per part would fill the memory


@dataclass(frozen=True, eq=False)
class MappingCost:
    """The time, in seconds, that a partition into k parts needs on a machine.

    No partition needs less than the lower bound.  It is the larger one of two times: that of computing only, with the
    work shared in proportion to the speeds, and that of the heaviest task.
    """

    objective_s: float  # time until the last rank is done: max_j (C_j + K_j)
    lower_bound_s: float  # the lower bound
    computing_s: Floats  # (k,) C_j, the time that each rank computes
    communication_s: Floats  # (k,) K_j, the time that each rank communicates


@dataclass(frozen=True, eq=False)
class PartitionMetrics:
    """The quality of a partition into k parts."""

    cut: float  # weight of the edges between parts, each counted once
    volume: int  # number of values sent in one exchange: each vertex once to every other part with a neighbour of it
    imbalance: float  # against the targets: 0.03 means that some part is 3 % too heavy
    weights: Floats  # (k,) weight of each part
    sizes: Ints  # (k,) number of vertices in each part
    connected: NDArray[np.bool_]  # (k,) True if the part is connected, or empty
    cost: MappingCost | None  # time on the machine; None if no machine was given


@usual_arithmetic
def partition_metrics(
    graph: Any,
    parts: ArrayLike,
    k: int,
    *,
    targets: ArrayLike | None = None,
    machine: Machine | None = None,
    unit_s: float | None = None,
) -> PartitionMetrics:
    """Compute cut, volume, imbalance and connectivity of a partition, and the time that it needs on a machine.

    Parameters
    ----------
    graph : a graph of n vertices in any form that `lb_mpi.as_graph` accepts.  Vertex weights are work, edge weights
        bytes.
    parts : (n,) the part 0..k-1 of each vertex.
    k : the number of parts, >= 1.
    targets : (k,) desired weights of the parts relative to each other, above 0, in any unit; None: the speeds of the
        machine, or equal if there is none.
    machine : an `lb_mpi.Machine` of k ranks (see `lb_mpi.read_machine`), with part j on rank j; if given, the result
        has a `cost`.
    unit_s : seconds, above 0, that work of vertex weight 1 takes on the fastest rank; None: vertex weights are in the
        unit of work of the machine's speeds.

    Returns `PartitionMetrics`.

    Raises ValueError for arguments out of range.

    Examples
    --------
        >>> found = lb_mpi.partition_metrics("mesh:2x4", [0, 0, 1, 1, 0, 0, 1, 1], 2)
        >>> found.cut, found.imbalance
        (2.0, 0.0)
    """
    tasks, k = as_graph(graph), checks.integer("k", k, 1, MAX_PARTS)
    check_machine(machine, k, unit_s)
    shares = check_targets(targets, k, machine)
    cost = None if machine is None else mapping_cost(tasks, parts, machine, unit_s=unit_s)
    if cost is not None and not math.isfinite(cost.objective_s):
        raise ValueError("the time on the machine exceeds the range of floating point: expected less work or data")
    weights = part_weights(tasks, parts, k)
    return PartitionMetrics(
        cut=cut(tasks, parts, k),
        volume=volume(tasks, parts, k),
        imbalance=imbalance(weights, shares),
        weights=weights,
        sizes=np.bincount(np.asarray(parts), minlength=k).astype(np.int64),
        connected=connected(tasks, parts, k),
        cost=cost,
    )


def part_weights(graph: Graph, parts: ArrayLike, k: int) -> Floats:
    """Return (k,) sums of the weights of each part's vertices."""
    return np.bincount(check_parts(parts, graph.n, k), graph.vertex_weights, k).astype(float)


def check_machine(machine: Machine | None, k: int, unit_s: float | None) -> None:
    """ValueError or TypeError unless it has k ranks, and unit_s (which needs a machine) is a number of seconds."""
    if machine is None:
        if unit_s is not None:
            raise ValueError(f"unit_s = {checks.show(unit_s)} without a machine: expected both")
        return
    if not isinstance(machine, Machine):
        raise TypeError(f"machine = {checks.show(machine)}: expected an lb_mpi.machine.Machine")
    if machine.size != k:
        raise ValueError(f"machine of {machine.size} ranks: expected {k}, one for each part")
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        speeds = rank_speeds(machine, None if unit_s is None else checks.number("unit_s", unit_s, above=0.0, unit="seconds"))
        if not (np.isfinite(speeds) & np.isfinite(1.0 / speeds)).all():
            unit = "" if unit_s is None else f" with unit_s = {unit_s}"
            raise ValueError(f"speeds of the machine{unit}: exceed the range of floating point")


def check_targets(targets: ArrayLike | None, k: int, machine: Machine | None) -> Floats:
    """Return (k,) fractions of the whole, all above 0; None: the speeds of the machine, or equal ones."""
    if targets is None:
        targets = np.ones(k) if machine is None else machine.speeds
    wanted = check_speeds(targets, k, name="targets")
    shares: Floats = wanted / wanted.max()
    shares /= shares.sum()
    if (part := first_true(~(shares > 0.0))) is not None:
        raise ValueError(f"targets[{part}] = {wanted[part]}: too small compared with {wanted.max()}")
    return shares


def rank_speeds(machine: Machine, unit_s: float | None) -> Floats:
    """Return (k,) units of vertex weight per second of each rank; unit_s : see `partition_metrics`."""
    return machine.speeds if unit_s is None else machine.speeds / (machine.speeds.max() * unit_s)


def cut(graph: Graph, parts: ArrayLike, k: int) -> float:
    """Return the weight of the edges between parts, each counted once."""
    part = check_parts(parts, graph.n, k)
    tails, heads = graph.edges()
    return float(graph.edge_weights()[part[tails] != part[heads]].sum())


def volume(graph: Graph, parts: ArrayLike, k: int) -> int:
    """Return the number of vertices sent in one exchange along all edges: each once to every other part next to it.

    Hendrickson & Kolda 2000 show that the data sent is proportional to this number, not to the cut.
    """
    part = check_parts(parts, graph.n, k)
    tails = np.repeat(np.arange(graph.n), graph.degrees)
    to = part[graph.indices]
    across = to != part[tails]
    return len(np.unique(tails[across] * k + to[across]))


def connected(graph: Graph, parts: ArrayLike, k: int) -> NDArray[np.bool_]:
    """Return (k,) True for each part that is connected, or empty."""
    part = check_parts(parts, graph.n, k)
    tails, heads = graph.edges()
    inside = part[tails] == part[heads]
    ends = (tails[inside], heads[inside])
    matrix = scipy.sparse.coo_array((np.ones(len(ends[0])), ends), shape=(graph.n, graph.n))
    _, piece = scipy.sparse.csgraph.connected_components(matrix, directed=False)
    _, first = np.unique(piece, return_index=True)
    return np.asarray(np.bincount(part[first], minlength=k) <= 1)


def mapping_cost(graph: Graph, parts: ArrayLike, machine: Machine, *, unit_s: float | None = None) -> MappingCost:
    """Compute the time of an (n,) partition on a machine of k ranks, part j on rank j; see `partition_metrics`."""
    k = machine.size
    part = check_parts(parts, graph.n, k)
    speeds, work = rank_speeds(machine, unit_s), graph.vertex_weights
    ends = (part[np.repeat(np.arange(graph.n), graph.degrees)], part[graph.indices])
    traffic = scipy.sparse.coo_array((graph.weights, ends), shape=(k, k))
    traffic.sum_duplicates()
    across = (traffic.row != traffic.col) & (traffic.data > 0.0)
    here, there, payload_bytes = traffic.row[across], traffic.col[across], traffic.data[across]
    with np.errstate(over="ignore"):
        seconds = machine.latency_s[here, there] + payload_bytes * machine.s_per_byte[here, there]
        computing = part_weights(graph, part, k) / speeds
        communication = np.bincount(here, seconds, k).astype(float)
        together, exponent = scaled(speeds)
        shared = float(np.ldexp(work.sum() / together.sum(), -exponent))
        bound = max(shared, float(work.max() / speeds.max()))
        return MappingCost(float((computing + communication).max()), bound, computing, communication)
