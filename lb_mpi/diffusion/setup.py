"""Set-up of diffusion, independent of loads: the scheme, tau, its spectrum.   (pure)

It depends on graph and speeds only.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from lb_mpi.checks import choice, show
from lb_mpi.graph import Floats, Graph, Ints, factorise, highest, lowest, lowest_plain
from lb_mpi.metrics import check_comparable, check_loads, check_speeds

# --- The conductances tau of a process graph, its Laplacian, and its spectrum -----------------------------------------
#
# The diffusion matrix is M = I - S^-1 A W A^T with W = diag(tau), S = diag(speeds), A the incidence matrix.  Nothing
# here depends on loads.  Jin & Wang, diffusion for heterogeneous systems; Cybenko 1989 for equal speeds.

DENSE = 1500  # vertices: below, finding all eigenvalues is faster than finding two
FEW = 64  # vertices: up to here, solving a dense matrix is faster than making a sparse one
MAX_DENSE = 8000  # vertices: above, a P x P array is refused


class Spectrum(NamedTuple):
    """The smallest and the largest nonzero eigenvalue of S^-1 A W A^T = I - M."""

    low: float  # lambda_2
    high: float  # lambda_P


def paper_tau(graph: Graph, speeds: Floats) -> Floats:
    """(E,) tau_ij = min(s_i, s_j) min(1/(deg_i + 1), 1/(deg_j + 1)), in the order of `graph.edges` (Jin & Wang).

    Or (B, E) for B layouts of speeds (B, P).
    The sum over a vertex's edges stays below s_i, so M has no negative entry and a positive diagonal: fos converges.
    """
    tails, heads = graph.edges()
    least = np.minimum(speeds[..., tails], speeds[..., heads])
    return np.asarray(least / (np.maximum(graph.degrees[tails], graph.degrees[heads]) + 1.0))


def laplacian(graph: Graph, tau: Floats) -> Any:
    """A W A^T as a (P, P) scipy.sparse.csr_array; tau (E,) in the order of `graph.edges`."""
    tails, heads = graph.edges()
    rows = np.concatenate([tails, heads, tails, heads])
    columns = np.concatenate([heads, tails, tails, heads])
    values = np.concatenate([-tau, -tau, tau, tau])
    return scipy.sparse.coo_array((values, (rows, columns)), shape=(graph.n, graph.n)).tocsr()


def eigenvalues(graph: Graph, speeds: Floats, tau: Floats) -> Floats:
    """All eigenvalues of S^-1 A W A^T except the 0 of each component, ascending: (P - components,).

    ValueError for more than MAX_DENSE vertices.
    """
    if graph.n > MAX_DENSE:
        raise ValueError(f"all eigenvalues of a graph of {graph.n} vertices: expected at most {MAX_DENSE}")
    values = scipy.linalg.eigvalsh(_symmetric(graph, speeds, tau).toarray(), overwrite_a=True, check_finite=False)
    return np.asarray(values[graph.components()[0] :], dtype=float)


def spectrum(graph: Graph, speeds: Floats, tau: Floats) -> Spectrum:
    """The two ends of the nonzero spectrum of S^-1 A W A^T; (1, 1) for a graph without edges.

    Dense up to DENSE vertices, above that by Lanczos to three digits, which is enough for all schemes.
    """
    count, labels = graph.components()
    if count == graph.n:
        return Spectrum(1.0, 1.0)
    if graph.n <= DENSE:
        values = eigenvalues(graph, speeds, tau)
        return Spectrum(float(values[0]), float(values[-1]))
    matrix, tol = _symmetric(graph, speeds, tau), 1e-3
    high = float(highest(matrix, tol=tol)[0][0])
    high *= 1.0 + tol  # Lanczos approaches it from below, and for chebyshev no eigenvalue may lie beyond the end
    norms = np.sqrt(np.bincount(labels, speeds))
    kernel = scipy.sparse.csr_array((np.sqrt(speeds) / norms[labels], (np.arange(graph.n), labels)))
    # Plain Lanczos finds the lower end fast in graphs of small diameter, where a factorisation would need much memory.
    # In long graphs it gives up early; their factors are small.
    try:
        return Spectrum(lowest_plain(matrix, kernel, high, tol=tol, maxiter=20), high)
    except scipy.sparse.linalg.ArpackNoConvergence:
        return Spectrum(float(lowest(matrix, kernel, tol=tol)[0][0]), high)


def _symmetric(graph: Graph, speeds: Floats, tau: Floats) -> Any:
    """S^-1/2 A W A^T S^-1/2, which has the eigenvalues of S^-1 A W A^T."""
    scale = scipy.sparse.diags_array(1.0 / np.sqrt(check_speeds(speeds, graph.n)))
    return (scale @ laplacian(graph, tau) @ scale).tocsr()


def leja_order(points: Floats) -> Floats:
    """Order the (m,) points > 0 so that the partial products of (1 - lambda / point) stay small (Reichel 1990).

    Leja's order starts with the largest point, and each next one has the largest partial product; in ascending or
    descending order the products grow without bound.  In more than a hundred steps rounding errors also grow, even in
    modes that were eliminated before.  So they are modelled here, and such a mode is eliminated again when it is the
    largest.  Points that agree to 1e-9 count once.  The result eliminates all modes, and is used cyclically.
    """
    points = np.sort(points)[::-1]
    points = points[np.diff(points, prepend=np.inf) < -1e-9 * points]
    left = np.ones(len(points))  # of each mode's error, including rounding
    order: list[float] = []
    while left.max(initial=0.0) > 1e-10 and len(order) < 20 * len(points):
        order.append(float(points[left.argmax()]))
        left = left * np.abs(1.0 - points / order[-1])
        left += 1e-14 * (1.0 + left.max())
    return np.array(order)


def solve_potentials(graph: Graph, tau: Floats, excess: Floats) -> Floats:
    """(P,) potentials d with A W A^T d = excess, for a (P,) excess that sums to 0 in each component.

    Factorises with one vertex per component fixed at 0, then one refinement step; sparse beyond FEW vertices.
    """
    labels = graph.components()[1]
    free = np.ones(graph.n, dtype=bool)
    free[np.unique(labels, return_index=True)[1]] = False
    potentials = np.zeros(graph.n)
    if not free.any():
        return potentials
    matrix: Any
    if graph.n <= FEW:
        matrix = _dense_laplacian(graph, tau)
        solve = functools.partial(np.linalg.solve, matrix[np.ix_(free, free)])
    else:
        matrix = laplacian(graph, tau)
        solve = factorise(matrix[free][:, free]).solve
    for _ in range(2):
        potentials[free] += solve((excess - matrix @ potentials)[free])
    return potentials


def _dense_laplacian(graph: Graph, tau: Floats) -> Floats:
    tails, heads = graph.edges()
    matrix = np.zeros((graph.n, graph.n))
    matrix[tails, heads] = matrix[heads, tails] = -tau
    np.fill_diagonal(matrix, -matrix.sum(axis=1))
    return matrix


# --- The recursions of the diffusion schemes, written once for a whole graph and for one rank -------------------------
#
# Every scheme keeps times l and potentials d with l = l(0) - outflow / s and the flow tau_ij (d_i - d_j) over each
# edge.  So the net flow is known at any step without moving anything, and runs from higher to lower d.
#
# `Ends` hides where a scheme runs: a value is an array over the vertices for a whole graph, and a float for one rank.
# Both add up in the same order, so results are bit-identical.

Value = Any  # (P,) array over the vertices of a whole graph, or the float of one rank


class WholeGraph:
    """All edges: flows are (E,), positive from tail to head; values are (P,)."""

    def __init__(self, graph: Graph, tau: Floats) -> None:
        self._tails, self._heads = graph.edges()
        self._n, self._tau = graph.n, tau

    def flows(self, value: Value) -> Floats:
        """tau_ij (value_i - value_j) per edge."""
        difference: Floats = value[self._tails] - value[self._heads]
        return self._tau * difference

    def outflow(self, flows: Floats) -> Value:
        """Work that flows out of each vertex."""
        return np.bincount(self._tails, flows, self._n) - np.bincount(self._heads, flows, self._n)

    def sums(self, *values: Value) -> list[float]:
        """The sum over all vertices of each of the values."""
        found: list[float] = np.array(values).sum(axis=1).tolist()
        return found


class OneRank:
    """The edges of one rank: flows are (deg,), positive outwards; values are floats.

    Set `received` to the neighbours' (deg,) values of `Scheme.shared` before each step, and to their potentials before
    `flow`.
    """

    def __init__(self, rank: int, neighbours: Ints, tau: Floats) -> None:
        self.received: Floats = np.zeros(len(neighbours))
        self._tau = tau
        self._lower = (neighbours < rank).astype(np.int64)

    def flows(self, value: Value) -> Floats:
        """tau_ij (value_i - value_j) per edge."""
        difference: Floats = value - self.received
        return self._tau * difference

    def outflow(self, flows: Floats) -> Value:
        """Work that flows out of the rank."""
        to_higher, to_lower = np.bincount(self._lower, flows, 2).tolist()  # in the same order as in WholeGraph
        return to_higher + to_lower

    def sums(self, *values: Value) -> list[float]:
        """The sum over all ranks of each of the values: needed by cg only, from whoever can add up over ranks."""
        raise NotImplementedError


Ends = WholeGraph | OneRank  # all edges of a graph, or those of one rank


class Scheme:
    """The state of one scheme; a step replaces its arrays, and never writes into them."""

    def __init__(self, ends: Ends, time: Value, speed: Value) -> None:
        self.time = time  # l as if all the flow so far had been moved
        self.potential: Value = 0.0 * time  # d
        self._ends, self._speed = ends, speed

    @property
    def shared(self) -> Value:
        """The value that a step needs of the neighbours."""
        return self.time

    def step(self) -> None:
        """Make one step, after the neighbours' values have been received."""
        raise NotImplementedError

    def flow(self) -> Floats:
        """The net flow per edge so far, after the neighbours' potentials have been received."""
        return self._ends.flows(self.potential)


def coefficients(scheme: str, tau: str, spectrum: Spectrum, points: Floats) -> Iterator[tuple[float, float]]:
    """The pairs (a, b) of ThreeTerm, one per step, without end; `points`: the eigenvalues in Leja order (ops).

    fos: Jin & Wang, with the optimal factor 2/(lambda_2 + lambda_P) unless tau is the paper's.  sos: Muthukrishnan,
    Ghosh, Schultz 1998.  chebyshev: semi-iteration (Golub & Varga 1961).  ops: Diekmann, Frommer, Monien 1999.
    """
    scale = 2.0 / (spectrum.low + spectrum.high)
    radius = (spectrum.high - spectrum.low) / (spectrum.high + spectrum.low)  # of the optimally scaled M
    if scheme == "fos":
        while True:
            yield (1.0 if tau == "paper" else scale), 0.0
    if scheme == "ops":
        for point in cycle(points.tolist() or [1.0]):
            yield 1.0 / point, 0.0
    yield scale, 0.0
    omega = 2.0
    while True:
        if scheme == "sos":
            omega = 2.0 / (1.0 + math.sqrt(1.0 - radius**2))
        else:
            omega = 1.0 / (1.0 - 0.25 * radius**2 * omega)
        yield omega * scale, omega - 1.0


class ThreeTerm(Scheme):
    """fos, sos, chebyshev, ops: l' = l - a S^-1 A W A^T l + b (l - l before), d' = d + a (l - lbar) + b (d - d before).

    The potentials sum l - lbar instead of l (Jin & Wang, eq. 8): the same flow, without loss of digits over many steps.
    """

    def __init__(
        self, ends: Ends, time: Value, speed: Value, mean: Value, pairs: Iterator[tuple[float, float]]
    ) -> None:
        super().__init__(ends, time, speed)
        self._mean, self._pairs = mean, pairs
        self._time_before, self._potential_before = self.time, self.potential

    def step(self) -> None:  # noqa: D102
        a, b = next(self._pairs)
        ends = self._ends
        time = self.time - a * ends.outflow(ends.flows(self.time)) / self._speed
        potential = self.potential + a * (self.time - self._mean)
        if b:
            time = time + b * (self.time - self._time_before)
            potential = potential + b * (self.potential - self._potential_before)
        self._time_before, self._potential_before = self.time, self.potential
        self.time, self.potential = time, potential


class ConjugateGradient(Scheme):
    """cg: solves A W A^T d = w - s lbar (Hu & Blake 1999).

    On ranks, one reduction per step would do for both sums (Chronopoulos & Gear 1989).
    """

    def __init__(self, ends: Ends, time: Value, speed: Value, mean: Value) -> None:
        super().__init__(ends, time, speed)
        self._excess = speed * (time - mean)  # the residual: remaining excess work
        self._mean = mean
        self._direction, self._outflow = 0.0 * time, 0.0 * time  # p and A W A^T p
        self._squared, self._alpha, self._first_squared = 0.0, 0.0, 0.0

    @property
    def shared(self) -> Value:  # noqa: D102
        return self._excess

    def step(self) -> None:  # noqa: D102
        excess = self._excess
        out = self._ends.outflow(self._ends.flows(excess))
        squared, bent = self._ends.sums(excess * excess, excess * out)
        self._first_squared = self._first_squared or squared
        if squared <= 1e-32 * self._first_squared or bent <= 0.0:
            return  # only rounding errors are left
        beta = squared / self._squared if self._squared else 0.0
        curvature = bent - beta * squared / self._alpha if beta else bent
        if curvature <= 0.0:  # only by rounding: restart with the steepest direction
            beta, curvature = 0.0, bent
        self._alpha, self._squared = squared / curvature, squared
        self._direction = excess + beta * self._direction
        self._outflow = out + beta * self._outflow
        self.potential = self.potential + self._alpha * self._direction
        self._excess = excess - self._alpha * self._outflow
        self.time = self._mean + self._excess / self._speed


class DimensionExchange(Scheme):
    """dimension_exchange: each step uses the edges of one colour; their two ends level each other (Cybenko 1989).

    This needs tau_ij = s_i s_j / (s_i + s_j) in `ends`; `colours` are those of its edges, of `n_colours` in all.
    """

    def __init__(self, ends: Ends, time: Value, speed: Value, colours: Ints, n_colours: int) -> None:
        super().__init__(ends, time, speed)
        self._colours, self._n_colours = colours, n_colours
        self._flow = np.zeros(len(colours))
        self._steps = 0

    def step(self) -> None:  # noqa: D102
        if self._n_colours:
            flows = self._ends.flows(self.time)
            flows[self._colours != self._steps % self._n_colours] = 0.0
            self._flow = self._flow + flows
            self.time = self.time - self._ends.outflow(flows) / self._speed
        self._steps += 1

    def flow(self) -> Floats:  # noqa: D102
        return self._flow.copy()


def colour_edges(graph: Graph) -> Ints:
    """(E,) colours 0, 1, ... of the edges, all different at each vertex; greedy: each edge gets the first free one."""
    used = [0] * graph.n  # bit masks
    tails, heads = graph.edges()
    colours = np.empty(len(tails), dtype=np.int64)
    for k, (tail, head) in enumerate(zip(tails.tolist(), heads.tolist(), strict=True)):
        taken = used[tail] | used[head]
        free = ~taken & (taken + 1)
        used[tail] |= free
        used[head] |= free
        colours[k] = free.bit_length() - 1
    return colours


# --- The set-up -------------------------------------------------------------------------------------------------------

SCHEMES = ("fos", "sos", "chebyshev", "ops", "cg", "dimension_exchange", "direct")
ROWS_SCHEMES = ("direct", "fos", "sos")  # of a Balancer: the root's, and two that need neighbours only
AUTO = "auto"  # the scheme that `usual_scheme` names
MOST_DIRECT = 512  # ranks up to which "auto" solves for the flow directly, on the root; see docs/scale.md
SHORT, LONG = 2, 8  # a graph is short up to SHORT log2 P hops from rank 0, long from P / LONG hops on
TAU_RULES = ("paper", "scaled", "uniform")


@dataclass(frozen=True, eq=False)
class Setup:
    """All that is independent of the loads; made by `prepare`."""

    scheme: str
    tau_rule: str
    graph: Graph
    speeds: Floats  # (P,)
    tau: Floats  # (E,) without the scheme's own factor
    colours: Ints  # (E,) for dimension_exchange, otherwise 0
    spectrum: Spectrum  # of sos, chebyshev, and fos unless tau is the paper's
    points: Floats  # of ops: eigenvalues in Leja order

    @property
    def n_colours(self) -> int:
        """The number of steps in which dimension_exchange uses every edge once."""
        return int(self.colours.max(initial=-1)) + 1

    def mean_times(self, loads: ArrayLike) -> Floats:
        """(P,) the time lbar = sum w / sum s of each rank's component."""
        n, labels = self.graph.components()
        work = np.bincount(labels, check_loads(loads, self.graph.n), n)
        return (work / np.bincount(labels, self.speeds, n))[labels]


def prepare(graph: Graph, speeds: ArrayLike, scheme: str = "fos", tau: str | None = None) -> Setup:
    """Prepare a scheme for a graph and (P,) speeds; the scheme "auto" depends on the graph (see `usual_scheme`).

    `tau`, the weight of an edge between i and j, is "paper" (min(s_i, s_j) min(1/(deg_i + 1), 1/(deg_j + 1))), "scaled"
    (the same times the optimal factor 2/(lambda_2 + lambda_P)) or "uniform" (the same on all edges, with the optimal
    value).  None: "uniform" for cg and direct, "paper" for the other schemes.  sos, chebyshev and ops always scale; cg
    and direct do not depend on a factor; dimension_exchange uses a separate tau.

    In a graph that is not connected, each component is balanced separately, and a UserWarning names the components.
    Raises ValueError for unknown words and invalid speeds, TypeError for anything that is not a graph.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"graph = {show(graph)}: expected an lb_mpi.graph.Graph")
    scheme = chosen_scheme(graph, scheme)
    rule = tau_rule(scheme, tau)
    speeds = check_comparable(speeds, graph.n)
    count, labels = graph.components()
    if count > 1:
        warnings.warn(_name_components(count, labels), UserWarning, stacklevel=2)
    return assemble(graph, speeds, scheme, rule)


def usual_scheme(graph: Graph) -> str:
    """The scheme of "auto" on a process graph: depends only on its size and hops, so it is the same on all ranks.

    direct              up to MOST_DIRECT ranks: one gather, an exact solution on the root, one scatter; and on long
                        graphs (a ring, a narrow mesh) of any size, where solving costs almost nothing and every other
                        scheme needs about as many steps as ranks
    fos                 on larger short graphs (a hypercube, a random regular graph): about as many steps as hops, and
                        neither a sum over all ranks nor a spectrum
    cg                  on all others (tori, meshes): about as many steps as hops, with a sum of two numbers in each

    sos and chebyshev need as few steps as cg, without its sums.  But they need a spectrum from an eigensolver, again
    after each change of speeds, which takes longer than all sums of cg: use them if speeds are constant.
    """
    if graph.n <= MOST_DIRECT or (hops := graph.hops()) * LONG >= graph.n:
        return "direct"
    return "fos" if hops <= SHORT * math.log2(graph.n) else "cg"


def chosen_scheme(graph: Graph, scheme: str) -> str:
    """Return the scheme, or for "auto" the usual one of the graph; ValueError for other words."""
    return usual_scheme(graph) if scheme == AUTO else choice("scheme", scheme, (*SCHEMES, AUTO))


def rows_scheme(graph: Graph, scheme: str) -> str:
    """Return the scheme of a Balancer; for "auto" the usual one of the graph, but sos instead of cg, which needs sums.

    Its sos needs only one spectrum, that of equal speeds (see `lb_mpi.balancing.neighbours.momentum`).
    """
    if choice("scheme", scheme, (*ROWS_SCHEMES, AUTO)) != AUTO:
        return scheme
    usual = usual_scheme(graph)
    return usual if usual in ROWS_SCHEMES else "sos"


def tau_rule(scheme: str, tau: str | None) -> str:
    """Return the rule for tau, checked; None: the usual one of the scheme."""
    choice("scheme", scheme, SCHEMES)
    usual = "uniform" if scheme in ("cg", "direct") else "paper"
    return usual if tau is None else choice("tau", tau, TAU_RULES)


def assemble(graph: Graph, speeds: Floats, scheme: str, rule: str) -> Setup:
    """Build the setup from checked arguments; ValueError for a graph that is too large."""
    weights = np.ones(graph.n_edges) if rule == "uniform" else paper_tau(graph, speeds)
    ends, points, colours = Spectrum(1.0, 1.0), np.zeros(0), np.zeros(graph.n_edges, dtype=np.int64)
    if scheme in ("sos", "chebyshev") or (scheme == "fos" and rule != "paper"):
        ends = spectrum(graph, speeds, weights)
    if scheme == "ops":
        points = leja_order(eigenvalues(graph, speeds, weights))
    if scheme == "dimension_exchange":
        tails, heads = graph.edges()
        weights = speeds[tails] * speeds[heads] / (speeds[tails] + speeds[heads])
        colours = colour_edges(graph)
    return Setup(scheme, rule, graph, speeds, weights, colours, ends, points)


def _name_components(count: int, labels: Ints) -> str:
    sizes, first = np.bincount(labels), np.unique(labels, return_index=True)[1]
    named = [f"{size} with rank {rank}" for size, rank in zip(sizes[:10].tolist(), first[:10].tolist(), strict=True)]
    more = f", and {count - 10} more" if count > 10 else ""
    return f"the graph has {count} components ({', '.join(named)}{more}): each is balanced by itself"
