"""The objectives of an arrangement: a cost to be minimised, and how changes of a layout affect it.   (pure)

A layout is the (P,) speeds in the order of the vertices.  There are two objectives (Jin & Wang 2003):

uniform   one tau on all edges, at its best value 2/(lambda_2 + lambda_P): the error falls by (p - 1)/(p + 1) per step,
          p = lambda_P / lambda_2 of S^-1 A A^T.  The cost is p.
paper     the tau of `diffusion.setup.paper_tau`: the error falls by 1 - lambda_2 of S^-1 A W A^T.  Cost: 1 / lambda_2.

Changes are estimated at two levels.  `swap_bounds` is fast, and never above the true cost: by Rayleigh's quotient, the
mode of lambda_2 gives an upper bound of the new lambda_2, and the mode of lambda_P a lower bound of the new lambda_P.
A swap with too high a bound is discarded.  `first_below` and `place` are sharper: for uniform by the secular equation,
which is exact if all modes are known; for paper by Rayleigh-Ritz in the span of some low modes.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy

from lb_mpi.diffusion.setup import laplacian, paper_tau
from lb_mpi.graph import Floats, Graph, Ints, highest, lowest
from lb_mpi.kernels import njit

# --- The modes of S^-1 A W A^T: all of them, or a few at both ends of the spectrum ------------------------------------
#
# A mode is a pair (lambda, x) with A W A^T x = lambda S x; the vectors are S-orthonormal, x_k S x_l = 1 if k = l and 0
# otherwise.  The mode of the eigenvalue 0, x = 1 / sqrt(sum s) everywhere, is left out.  Graphs are connected here.

DENSE = 400  # vertices: above, finding a few modes by Lanczos is faster than finding all
_TOL = 1e-9  # of Lanczos


class Modes(NamedTuple):
    """m modes in ascending order: all P - 1 of them, or `n_low` at the lower end and the others at the upper end."""

    values: Floats  # (m,)
    vectors: Floats  # (P, m)
    n_low: int

    @property
    def complete(self) -> bool:
        """True when no mode is missing."""
        return len(self.values) == len(self.vectors) - 1


def find_modes(laplacian: Any, speeds: Floats, n_low: int, n_high: int) -> Modes:
    """All modes up to DENSE vertices; above that the `n_low` >= 1 lowest and the `n_high` >= 1 highest.

    `laplacian` is A W A^T, a (P, P) scipy.sparse.csr_array.
    """
    if len(speeds) > max(DENSE, n_low + n_high + 1):
        try:
            return _few(laplacian, speeds, n_low, n_high)
        except scipy.sparse.linalg.ArpackNoConvergence:
            pass
    scale = 1.0 / np.sqrt(speeds)
    values, vectors = np.linalg.eigh(laplacian.toarray() * scale * scale[:, None])
    return Modes(values[1:], vectors[:, 1:] * scale[:, None], len(values) - 1)


def _few(laplacian: Any, speeds: Floats, n_low: int, n_high: int) -> Modes:
    scale = scipy.sparse.diags_array(1.0 / np.sqrt(speeds))
    matrix = (scale @ laplacian @ scale).tocsr()
    kernel = np.sqrt(speeds / speeds.sum())[:, None]
    low, x = lowest(matrix, kernel, n_low, tol=_TOL)
    high, y = highest(matrix, n_high, tol=_TOL)
    return Modes(np.concatenate([low, high]), scale @ np.hstack([x, y]), n_low)


# --- The spectrum after one or two speeds have changed: the secular equation ------------------------------------------
#
# Let speed i change by d_i (and speed j by d_j).  With the previous modes (lambda_k, x_k) and D = diag(d_i, d_j), and
# neg the number of negative eigenvalues of a matrix, Sylvester's law of inertia gives the number of eigenvalues of the
# changed S^-1 A A^T below any lambda > 0:
#
#     1 + #(lambda_k < lambda) + neg(D^-1 - lambda R(lambda)) - neg(D),  R_ab = sum over k of x_ka x_kb / (lambda_k - lambda)
#
# The sum includes the mode of eigenvalue 0; the 1 is its count.  For one changed speed the count steps where
# 1 = lambda d_i R_ii: Golub's secular equation (Golub 1973; Bunch, Nielsen, Sorensen 1978).  Bisection on the count
# needs no care with poles or equal eigenvalues: 10 us for two speeds of 64, where an eigenproblem takes 160 us.
#
# With a few modes only, the missing ones act as one more pole for each vertex.  Its weight and position are known,
# since the sum over all k of x_ka x_kb is (S^-1)_ab, and that of lambda_k x_ka^2 is deg_a / s_a^2.

RELATIVE = 1e-11  # precision at which a bisection ends
_NONE = -1  # in place of j: only one speed changes


class LayoutModes(NamedTuple):
    """One layout for the secular equation; plain arrays, for the compiled loop."""

    values: Floats  # (m,) of the modes
    vectors: Floats  # (P, m)
    weights: Floats  # (P,) of the pole that stands for the missing modes; 0 if none is missing
    poles: Floats  # (P,) position of that pole
    speeds: Floats  # (P,)
    degrees: Floats  # (P,)
    total: float  # of the speeds


def see(modes: Modes, speeds: Floats, degrees: Floats) -> LayoutModes:
    """Compute the poles that stand for missing modes."""
    total = float(speeds.sum())
    weights, poles = np.zeros(len(speeds)), np.ones(len(speeds))
    if not modes.complete:
        squares = modes.vectors**2
        weights = np.maximum(1.0 / speeds - 1.0 / total - squares.sum(axis=1), 1e-300)
        moments = degrees / speeds**2 - squares @ modes.values
        poles = np.clip(moments / weights, modes.values[modes.n_low - 1], modes.values[modes.n_low])
    return LayoutModes(modes.values, modes.vectors, weights, poles, speeds, degrees, total)


def ends_after_place(seen: LayoutModes, vertices: Ints, speed: float) -> tuple[Floats, Floats]:
    """(n,) lambda_2 and (n,) lambda_P if one of the (n,) vertices gets the speed."""
    low, high = _ends(*seen, vertices, speed)
    return low, high


def first_swap_below(seen: LayoutModes, first: Ints, second: Ints, limit: float) -> int:
    """The first k for which swapping the speeds at first[k] and second[k] makes lambda_P / lambda_2 < limit; else n."""
    return int(_first_below(*seen, first, second, limit))


def compile_kernels() -> None:
    """Compile the loops, or load them from numba's cache, before anything is timed."""
    values, vectors, ends = np.ones(1), np.ones((2, 1)), np.zeros(1, dtype=np.int64)
    seen = see(Modes(values, vectors, 1), np.ones(2), np.ones(2))
    ends_after_place(seen, ends, 1.0)
    first_swap_below(seen, ends, ends, 1.0)


@njit(cache=True, error_model="numpy")
def _below(  # type: ignore[no-untyped-def]
    point, values, vectors, weights, poles, total, i, change, j, other_change
):
    """The number of known eigenvalues, without the 0, below the point after the change."""
    ii = ij = jj = 0.0
    count = 0
    two = j != _NONE
    for k in range(len(values)):
        pole = 1.0 / (values[k] - point)
        x = vectors[i, k]
        ii += x * x * pole
        if two:
            y = vectors[j, k]
            ij += x * y * pole
            jj += y * y * pole
        count += pole < 0.0
    if len(values) < len(vectors) - 1:
        ii += weights[i] / (poles[i] - point)
        if two:
            jj += weights[j] / (poles[j] - point)
            rest = -1.0 / total
            for k in range(len(values)):
                rest -= vectors[i, k] * vectors[j, k]
            ij += rest / (0.5 * (poles[i] + poles[j]) - point)
    ii = 1.0 / change + 1.0 / total - point * ii
    count -= change < 0.0
    if not two:
        return count + (ii < 0.0)
    ij = 1.0 / total - point * ij
    jj = 1.0 / other_change + 1.0 / total - point * jj
    count -= other_change < 0.0
    determinant = ii * jj - ij * ij
    if determinant < 0.0:
        return count + 1
    return count + (2 if ii + jj < 0.0 else 0)


@njit(cache=True, error_model="numpy")
def _low_end(  # type: ignore[no-untyped-def]
    bottom, top, values, vectors, weights, poles, total, i, change, j, other_change
):
    while top - bottom > RELATIVE * top:
        middle = 0.5 * (bottom + top)
        if _below(middle, values, vectors, weights, poles, total, i, change, j, other_change) >= 1:
            top = middle
        else:
            bottom = middle
    return 0.5 * (bottom + top)


@njit(cache=True, error_model="numpy")
def _ends(values, vectors, weights, poles, speeds, degrees, total, vertices, speed):  # type: ignore[no-untyped-def]
    n, m = len(vertices), len(values)
    low, high = np.empty(n), np.empty(n)
    for c in range(n):
        i = vertices[c]
        change = speed - speeds[i]
        low[c], high[c] = values[0], values[m - 1]
        if change == 0.0:
            continue
        # lambda_2 stays below the old lambda_3, lambda_P above the old lambda_P-1 (interlacing), and neither rises by
        # more than the trace of S^-1 A A^T.
        rise = max(0.0, degrees[i] * (1.0 / speed - 1.0 / speeds[i]))
        top = values[1] if m > 1 else values[0] + rise
        low[c] = _low_end(0.0, top, values, vectors, weights, poles, total, i, change, _NONE, 0.0)
        bottom = values[m - 2] if m > 1 else 0.0
        top = values[m - 1] + rise
        while top - bottom > RELATIVE * top:
            middle = 0.5 * (bottom + top)
            if _below(middle, values, vectors, weights, poles, total, i, change, _NONE, 0.0) >= m:
                top = middle
            else:
                bottom = middle
        high[c] = 0.5 * (bottom + top)
    return low, high


@njit(cache=True, error_model="numpy")
def _first_below(  # type: ignore[no-untyped-def]
    values, vectors, weights, poles, speeds, degrees, total, firsts, seconds, limit
):
    n, m = len(firsts), len(values)
    for c in range(n):
        i, j = firsts[c], seconds[c]
        change = speeds[j] - speeds[i]
        if change == 0.0:
            continue
        # Rayleigh's quotients of the previous modes bound the ends; most swaps need only one or two counts.
        top = values[0] / _mass(vectors[i, 0], vectors[j, 0], change, total)
        if m > 1:
            top = min(top, values[1])
        bottom = values[m - 1] / _mass(vectors[i, m - 1], vectors[j, m - 1], change, total)
        if bottom >= limit * top:
            continue
        if _below(bottom / limit, values, vectors, weights, poles, total, i, change, j, -change) >= 1:
            continue
        if _below(limit * top, values, vectors, weights, poles, total, i, change, j, -change) < m:
            continue
        low = _low_end(bottom / limit, top, values, vectors, weights, poles, total, i, change, j, -change)
        if _below(limit * low, values, vectors, weights, poles, total, i, change, j, -change) >= m:
            return c
    return n


@njit(cache=True)
def _mass(one, other, change, total):  # type: ignore[no-untyped-def]
    """x S x (1 before the change), without the part of x along the mode of eigenvalue 0."""
    drift = change * (one - other)
    return 1.0 + change * (one * one - other * other) - drift * drift / total


# --- The objectives ---------------------------------------------------------------------------------------------------

N_LOW, N_HIGH = 4, 48  # modes of large graphs; the upper end is crowded
N_RITZ = 6  # modes of the objective "paper"
_CHUNK = 1 << 21  # numbers in an intermediate array
_AT_A_TIME = 64  # swaps, when looking for the first good one
TIE = 1e-9  # relative difference up to which costs count as equal: graphs have symmetries


class Changes(Protocol):
    """One layout, and the cost after possible changes."""

    cost: float  # of the layout itself

    def place(self, vertices: Ints, speed: float) -> Floats:
        """(n,) costs if one of the (n,) vertices gets the speed.

        Some may be estimates; the smallest is exact up to DENSE vertices.
        """

    def swap_bounds(self, first: Ints, second: Ints) -> Floats:
        """(n,) lower bounds of the costs if the speeds at first[k] and second[k] are swapped."""

    def first_below(self, first: Ints, second: Ints, limit: float) -> int:
        """The first k for which a sharper estimate of the same cost is below the limit; n if there is none."""


class Aim(Protocol):
    """A graph, and the objective for its layouts."""

    graph: Graph

    def tau(self, speeds: Floats) -> Floats:
        """(E,) conductances, for a layout (P,), or (B, E) for layouts (B, P)."""

    def cost(self, low: Floats, high: Floats) -> Floats:
        """The cost from lambda_2 and lambda_P."""

    def changes(self, speeds: Floats) -> Changes:
        """Return the possible changes of a layout."""


def costs(aim: Aim, layouts: Floats) -> Floats:
    """(B,) costs of the (B, P) layouts, from all eigenvalues: for small graphs, and for checks."""
    tails, heads = aim.graph.edges()
    tau = np.broadcast_to(aim.tau(layouts), (len(layouts), len(tails)))
    n = aim.graph.n
    matrix = np.zeros((len(layouts), n, n))
    matrix[:, tails, heads] = matrix[:, heads, tails] = -tau / np.sqrt(layouts[:, tails] * layouts[:, heads])
    touches = np.zeros((len(tails), n))
    touches[np.arange(len(tails)), tails] = touches[np.arange(len(tails)), heads] = 1.0
    matrix[:, np.arange(n), np.arange(n)] = tau @ touches / layouts
    values = np.linalg.eigvalsh(matrix).astype(float, copy=False)
    return aim.cost(values[:, 1], values[:, -1])


class UniformAim:
    """p = lambda_P / lambda_2 of S^-1 A A^T."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.laplacian = laplacian(graph, np.ones(graph.n_edges))
        self.degrees = graph.degrees.astype(float)

    def tau(self, speeds: Floats) -> Floats:  # noqa: D102
        return np.ones(self.graph.n_edges)

    def cost(self, low: Floats, high: Floats) -> Floats:  # noqa: D102
        return high / low

    def changes(self, speeds: Floats) -> Changes:  # noqa: D102
        return _UniformChanges(self, speeds)


class _UniformChanges:
    def __init__(self, aim: UniformAim, speeds: Floats) -> None:
        self._modes = modes = find_modes(aim.laplacian, speeds, N_LOW, N_HIGH)
        self._speeds = speeds
        self._seen = see(modes, speeds, aim.degrees)
        self.cost = float(modes.values[-1] / modes.values[0])

    def place(self, vertices: Ints, speed: float) -> Floats:
        low, high = ends_after_place(self._seen, vertices, speed)
        return high / low

    def swap_bounds(self, first: Ints, second: Ints) -> Floats:
        values, vectors = self._modes.values, self._modes.vectors
        grown = [_grown_mass(vectors[:, k], self._speeds, first, second) for k in (0, -1)]
        return np.asarray(values[-1] / grown[1] / (values[0] / grown[0]))

    def first_below(self, first: Ints, second: Ints, limit: float) -> int:
        return first_swap_below(self._seen, first, second, limit)


def _grown_mass(x: Floats, speeds: Floats, first: Ints, second: Ints) -> Floats:
    """x S x of the mode (1 before) after swaps, without its part along the mode of 0."""
    change = speeds[second] - speeds[first]
    one, other = x[first], x[second]
    return np.asarray(1.0 + change * (one**2 - other**2) - (change * (one - other)) ** 2 / speeds.sum())


class PaperAim:
    """1 / lambda_2 of S^-1 A W A^T, W the paper's tau, which depends on the speeds at both ends of an edge."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        # Neighbours as a (P, D) table; missing ones have factor 0.
        degrees, n = graph.degrees, graph.n
        width = int(degrees.max(initial=1))
        there = np.arange(width) < degrees[:, None]
        self.neighbours = np.zeros((n, width), dtype=np.int64)
        self.neighbours[there] = graph.indices
        self.factors = there / (np.maximum(degrees[:, None], degrees[self.neighbours]) + 1.0)

    def tau(self, speeds: Floats) -> Floats:  # noqa: D102
        if speeds.ndim == 1:
            return paper_tau(self.graph, speeds)
        return np.array([paper_tau(self.graph, one) for one in speeds])

    def cost(self, low: Floats, high: Floats) -> Floats:  # noqa: D102
        return 1.0 / low

    def changes(self, speeds: Floats) -> Changes:  # noqa: D102
        return _PaperChanges(self, speeds)


class _PaperChanges:
    def __init__(self, aim: PaperAim, speeds: Floats) -> None:
        self._aim, self._speeds = aim, speeds
        modes = find_modes(laplacian(aim.graph, aim.tau(speeds)), speeds, N_RITZ, 1)
        self._low: Floats = modes.values[: min(N_RITZ, modes.n_low)]
        self._vectors: Floats = modes.vectors[:, : len(self._low)]
        self.cost = float(1.0 / self._low[0])

    def place(self, vertices: Ints, speed: float) -> Floats:
        n = len(self._speeds)
        size = self._vectors.shape[1]
        change = speed - self._speeds[vertices]
        result = np.empty(len(vertices))
        for some in _chunks(len(vertices), self._aim.factors.shape[1] * size**2):
            where = vertices[some]
            x = self._vectors[where]
            stiffness = np.diag(self._low) + self._bend(where, speed, None, size)
            weight = change[some] - change[some] ** 2 / (self._speeds.sum() + change[some])
            mass = np.eye(size) + weight[:, None, None] * x[:, :, None] * x[:, None, :]
            result[some] = _ritz(stiffness, mass)
        return self._confirm(result, vertices, speed) if n <= DENSE else result

    def _confirm(self, bounds: Floats, vertices: Ints, speed: float) -> Floats:
        """Replace bounds by exact costs, the lowest first, until the least cost is known."""
        result, best = bounds.copy(), np.inf
        for k in np.argsort(bounds, kind="stable").tolist():
            if bounds[k] > best * (1.0 + TIE):
                break
            layout = self._speeds.copy()
            layout[vertices[k]] = speed
            result[k] = costs(self._aim, layout[None])[0]
            best = min(best, result[k])
        return result

    def swap_bounds(self, first: Ints, second: Ints) -> Floats:
        result = np.empty(len(first))
        for some in _chunks(len(first), self._aim.factors.shape[1]):
            i, j = first[some], second[some]
            grown = _grown_mass(self._vectors[:, 0], self._speeds, i, j)
            bend = self._bend(i, self._speeds[j], j, 1) + self._bend(j, self._speeds[i], i, 1)
            result[some] = grown / (self._low[0] + bend[:, 0, 0])
        return result

    def first_below(self, first: Ints, second: Ints, limit: float) -> int:
        size = self._vectors.shape[1]
        for some in _chunks(len(first), self._aim.factors.shape[1] * size**2, _AT_A_TIME):
            i, j = first[some], second[some]
            change = self._speeds[j] - self._speeds[i]
            x, y = self._vectors[i], self._vectors[j]
            stiffness = np.diag(self._low) + self._bend(i, self._speeds[j], j, size)
            stiffness += self._bend(j, self._speeds[i], i, size)
            drift = change[:, None] * (x - y)
            mass = np.eye(size) + change[:, None, None] * (
                x[:, :, None] * x[:, None, :] - y[:, :, None] * y[:, None, :]
            )
            mass -= drift[:, :, None] * drift[:, None, :] / self._speeds.sum()
            below = np.flatnonzero(_ritz(stiffness, mass) < limit)
            if len(below):
                return int(some.start + below[0])
        return len(first)

    def _bend(self, vertex: Ints, speed: Floats | float, but: Ints | None, size: int) -> Floats:
        """(n, size, size) growth of X A W A^T X when a vertex gets the speed; its edge to `but` is unchanged."""
        near, factors = self._aim.neighbours[vertex], self._aim.factors[vertex]
        theirs = self._speeds[near]
        rise = np.minimum(np.reshape(speed, (-1, 1)), theirs) - np.minimum(self._speeds[vertex][:, None], theirs)
        rise = factors * rise
        if but is not None:
            rise[near == but[:, None]] = 0.0
        steep = self._vectors[vertex, None, :size] - self._vectors[near, :size]
        return np.asarray((steep * rise[:, :, None]).transpose(0, 2, 1) @ steep)


def _ritz(stiffness: Floats, mass: Floats) -> Floats:
    """1 / the smallest eigenvalue of each pencil: the largest of its inverse."""
    lower = np.linalg.cholesky(stiffness)
    half = np.linalg.solve(lower, mass)
    return np.asarray(np.linalg.eigvalsh(np.linalg.solve(lower, half.transpose(0, 2, 1)))[:, -1])


def _chunks(n: int, width: int, most: int = _CHUNK) -> list[slice]:
    step = min(max(1, _CHUNK // max(1, width)), most)
    return [slice(k, k + step) for k in range(0, n, step)]


AIMS: dict[str, Any] = {"uniform": UniformAim, "paper": PaperAim}
