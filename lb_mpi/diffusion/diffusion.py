"""Diffusion: each rank levels its time with its neighbours' times; loads in, net flow per edge out.   (pure)

Law (Jin & Wang, diffusion for heterogeneous systems).  Rank i has speed s_i, load w_i and time l_i = w_i / s_i.  In one
step tau_ij (l_i - l_j) units of work flow over the edge ij, so l' = M l with M = I - S^-1 A W A^T.
- Every step conserves the work, sum(s l).  M's rows sum to 1.  Its eigenvalues are real and, if sum_j tau_ij <= s_i, in
  [-1, 1]; 1 is simple on a connected graph; -1 occurs exactly if M's diagonal is zero and the graph is bipartite.
- Only the net flow tau_ij (d_i - d_j) is moved, once, at the end.  It runs from higher to lower d, so it has no cycles.
- Stop when the imbalance max(l) / lbar - 1 is within the tolerance, and no rank has to give more than it has.

    setup = prepare(graph, speeds, "sos")            # independent of loads: once
    diffusion = Diffusion(setup, loads)              # a whole graph at once
    while not diffusion.converged(0.05):
        diffusion.step()
    diffusion.flow()                                 # (E,)

On ranks that know their neighbours only: see `lb_mpi.balancing.neighbours`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from lb_mpi.checks import integer, number
from lb_mpi.diffusion.setup import (
    ConjugateGradient,
    DimensionExchange,
    Ends,
    Scheme,
    Setup,
    ThreeTerm,
    Value,
    WholeGraph,
    coefficients,
    prepare,
    solve_potentials,
)
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.graph_files import as_graph
from lb_mpi.metrics import check_comparable, check_loads, check_sum, scaled, usual_arithmetic

# --- Net flow over the edges of a graph: what it does to the loads, and its cycles ------------------------------------
#
# A flow is (E,) in the order of `Graph.edges`, in units of work, positive from tail to head.


def outflow(graph: Graph, flow: Floats) -> Floats:
    """(P,) outgoing minus incoming flow of each vertex; loads after the flow = loads - outflow."""
    tails, heads = graph.edges()
    return np.asarray(np.bincount(tails, flow, graph.n) - np.bincount(heads, flow, graph.n), dtype=float)


def cancel_cycles(graph: Graph, flow: Floats) -> Floats:
    """Remove the cycles of a flow: the outflow stays the same, no |flow| grows, and no sign changes.

    A walk follows the flow; where it meets itself, the smallest flow on the loop is subtracted along the loop.
    """
    tails, heads = graph.edges()
    source, target = np.where(flow > 0, tails, heads), np.where(flow > 0, heads, tails)
    moving = np.flatnonzero(flow)
    arcs = scipy.sparse.coo_array((np.ones(len(moving)), (source[moving], target[moving])), shape=(graph.n, graph.n))
    label = scipy.sparse.csgraph.connected_components(arcs.tocsr(), directed=True, connection="strong")[1]
    circling = moving[label[source[moving]] == label[target[moving]]]
    if not len(circling):
        return flow.copy()
    amount = dict(zip(circling.tolist(), np.abs(flow[circling]).tolist(), strict=True))
    to = dict(zip(circling.tolist(), target[circling].tolist(), strict=True))
    leaving: dict[int, list[int]] = {}
    for edge, vertex in zip(circling.tolist(), source[circling].tolist(), strict=True):
        leaving.setdefault(vertex, []).append(edge)
    for start in sorted(leaving):
        _walk(start, leaving, to, amount)
    result = flow.copy()
    result[circling] = np.copysign([amount[edge] for edge in circling.tolist()], flow[circling])
    return result


def _walk(start: int, leaving: dict[int, list[int]], to: dict[int, int], amount: dict[int, float]) -> None:
    """Cancel all cycles that can be reached from `start`; edges on no cycle are removed from `leaving`."""
    path, edges, at = [start], list[int](), {start: 0}
    while True:
        choice = leaving.get(path[-1], [])
        while choice and amount[choice[-1]] == 0.0:
            choice.pop()
        if not choice:
            if not edges:
                return
            edges.pop()
            del at[path.pop()]
            leaving[path[-1]].pop()
            continue
        edge = choice[-1]
        vertex = to[edge]
        if vertex not in at:
            at[vertex] = len(path)
            path.append(vertex)
            edges.append(edge)
            continue
        loop = [*edges[at[vertex] :], edge]
        least = min(amount[edge] for edge in loop)
        for edge in loop:
            amount[edge] -= least
        for left in path[at[vertex] + 1 :]:
            del at[left]
        del path[at[vertex] + 1 :], edges[at[vertex] :]


# --- Steps of a whole graph -------------------------------------------------------------------------------------------

MAX_STEPS = 10_000  # for the Balancer's rows: a scheme that needs more is unsuitable


class Diffusion:
    """A scheme on a whole graph; (P,) loads in units of work, >= 0."""

    def __init__(self, setup: Setup, loads: ArrayLike) -> None:
        self.setup = setup
        self.steps = 0
        self._loads = check_loads(loads, setup.graph.n)
        self._mean = setup.mean_times(self._loads)
        ends = WholeGraph(setup.graph, setup.tau)
        self._scheme = scheme_of(setup, ends, self._loads / setup.speeds, self._mean)

    @property
    def times(self) -> Floats:
        """(P,) times after the steps so far."""
        return np.asarray(self._scheme.time)

    @property
    def imbalance(self) -> float:
        """max(l / lbar) - 1, with lbar of each rank's component."""
        excess = float((self.times / np.where(self._mean > 0, self._mean, 1.0)).max()) - 1.0
        return 0.0 if excess < 0.0 else excess

    def converged(self, tolerance: float) -> bool:
        """True when the imbalance is within the tolerance, and no rank has to give more than it has."""
        return self.imbalance <= tolerance and float(self.times.min()) >= 0.0

    def step(self) -> None:
        """Make one exchange between neighbours (direct: one collective)."""
        self._scheme.step()
        self.steps += 1

    def flow(self) -> Floats:
        """(E,) net flow of all steps so far, work from tail to head; without cycles."""
        flow = self._scheme.flow()
        return cancel_cycles(self.setup.graph, flow) if self.setup.scheme == "dimension_exchange" else flow


@dataclass(frozen=True)
class Balance:
    """The flow of work that `balance` has found, and how it was found; P vertices, E edges."""

    steps: int  # number of exchanges between neighbours
    converged: bool  # True if the imbalance is within the tolerance
    imbalance: list[float]  # (steps+1,) before each step and after the last one
    flow: Floats  # (E,) work from the tail to the head of each edge
    loads: Floats  # (P,) loads after the flow


@usual_arithmetic
def balance(
    graph: Any,
    loads: ArrayLike,
    speeds: ArrayLike,
    *,
    scheme: str = "fos",
    tau: str | None = None,
    tolerance: float = 0.05,
    max_steps: int = 100_000,
) -> Balance:
    """Compute the net flow that balances loads on ranks of given speeds, by diffusion along the edges of a graph.

    Parameters
    ----------
    graph : a graph of P vertices in any form that `lb_mpi.as_graph` accepts; vertex k is rank k.
    loads : (P,) work of each rank, >= 0, in any unit.
    speeds : (P,) speed of each rank, above 0 and at least 1e-12 of the largest, in any unit.
    scheme : "fos", "sos", "chebyshev", "ops", "cg", "dimension_exchange", "direct" or "auto" (see `lb_mpi.Balancer`).
    tau : the edge weights of the diffusion: "paper", "scaled" or "uniform"; None: the usual ones of the scheme (see
        `lb_mpi.diffusion.setup.prepare`).
    tolerance : the steps end when the imbalance is at most this, above 0; 0.05 means 5 %.
    max_steps : the largest number of steps, >= 0.

    Returns a `Balance`.  The parts of a disconnected graph are balanced each by itself, with a UserWarning.

    Raises ValueError for arguments out of range.

    Examples
    --------
        >>> found = lb_mpi.balance("mesh:1x3", loads=[30, 0, 0], speeds=[1, 1, 1], scheme="direct")
        >>> found.flow.round(6), found.loads.round(6)
        (array([20., 10.]), array([10., 10., 10.]))
    """
    tolerance = number("tolerance", tolerance, above=0.0)
    max_steps = integer("max_steps", max_steps, 0)
    graph = as_graph(graph)
    work, exponent = scaled(check_sum("loads", check_loads(loads, graph.n)))
    diffusion = Diffusion(prepare(graph, scaled(check_comparable(speeds, graph.n))[0], scheme, tau), work)
    imbalance = [diffusion.imbalance]
    while not diffusion.converged(tolerance) and diffusion.steps < max_steps:
        diffusion.step()
        imbalance.append(diffusion.imbalance)
    flow = diffusion.flow()
    flow, after = (np.ldexp(each, exponent) for each in (flow, work - outflow(graph, flow)))
    return Balance(diffusion.steps, diffusion.converged(tolerance), imbalance, flow, after)


class _Direct(Scheme):
    def __init__(self, ends: Ends, time: Value, setup: Setup, mean: Value) -> None:
        super().__init__(ends, time, setup.speeds)
        self._setup, self._mean = setup, mean

    def step(self) -> None:
        setup = self._setup
        excess = setup.speeds * (self.time - self._mean)
        self.potential = self.potential + solve_potentials(setup.graph, setup.tau, excess)
        self.time = self.time - self._ends.outflow(self._ends.flows(self.potential)) / setup.speeds


def scheme_of(setup: Setup, ends: Ends, time: Value, mean: Value, rank: int | None = None) -> Scheme:
    """Begin the scheme of a setup, on a whole graph or on one rank (not "direct"), with times and balanced times."""
    speeds: Value = setup.speeds if rank is None else float(setup.speeds[rank])
    if setup.scheme == "direct":
        return _Direct(ends, time, setup, mean)
    if setup.scheme == "cg":
        return ConjugateGradient(ends, time, speeds, mean)
    if setup.scheme == "dimension_exchange":
        colours = setup.colours if rank is None else setup.colours[edges_at(setup.graph, rank)]
        return DimensionExchange(ends, time, speeds, colours, setup.n_colours)
    return ThreeTerm(ends, time, speeds, mean, coefficients(setup.scheme, setup.tau_rule, setup.spectrum, setup.points))


def edges_at(graph: Graph, rank: int) -> Ints:
    """(deg,) the indices of a rank's edges in `Graph.edges`, in the order of its neighbours."""
    tails, heads = graph.edges()
    return np.flatnonzero((tails == rank) | (heads == rank))
