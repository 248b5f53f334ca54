"""The objectives of an arrangement: a cost to be minimised, and how changes of a layout affect it.   (pure)

A layout is the (P,) speeds in the order of the vertices.  There are two objectives (Jin & Wang 2003):

uniform   one tau on all edges, at its best value 2/(lambda_2 + lambda_P): the error falls by (p - 1)/(p + 1) per step,
          p = lambda_P / lambda_2 of S^-1 A A^T.  The cost is p.
paper     the tau of `diffusion.setup.paper_tau`: the error falls by 1 - lambda_2 of S^-1 A W A^T.  Cost: 1 / lambda_2.

Changes are estimated at two levels.  `swap_bounds` is fast, and never above the true cost: by Rayleigh's quotient, the
mode of lambda_2 gives an upper bound of the new lambda_2, and the mode of lambda_P a lower bound of the new lambda_P.
A swap with too high a bound is discarded.  `first_below` and `placement_costs` are sharper: for uniform by the secular
equation, which is exact if all modes are known; for paper by Rayleigh-Ritz in the span of some low modes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy

from lb_mpi.diffusion.setup import laplacian, paper_tau
from lb_mpi.graph import Floats, Graph, Ints, highest, lowest
from lb_mpi.kernels import borrowing, constant, njit

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
ONE = constant(1)  # the count of the mode of eigenvalue 0
_NONE = constant(-1)  # in place of j: only one speed changes


class LayoutModes(NamedTuple):
    """One layout for the secular equation."""

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


@borrowing
def count_below(seen: LayoutModes, point: float, i: int, change: float, j: int, other_change: float) -> int:
    """Count the known eigenvalues, without the 0, below the point after the change."""
    values, vectors, total = seen.values, seen.vectors, seen.total
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
        ii += seen.weights[i] / (seen.poles[i] - point)
        if two:
            jj += seen.weights[j] / (seen.poles[j] - point)
            rest = -1.0 / total
            for k in range(len(values)):
                rest -= vectors[i, k] * vectors[j, k]
            ij += rest / (0.5 * (seen.poles[i] + seen.poles[j]) - point)
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


@borrowing
def bisect(
    seen: LayoutModes, wanted: int, bottom: float, top: float, i: int, change: float, j: int, other_change: float
) -> float:
    """Find where the count reaches `wanted`, between bottom and top."""
    while top - bottom > RELATIVE * top:
        middle = 0.5 * (bottom + top)
        if count_below(seen, middle, i, change, j, other_change) >= wanted:
            top = middle
        else:
            bottom = middle
    return 0.5 * (bottom + top)


@njit(cache=True, error_model="numpy")
def ends_after_placement(seen: LayoutModes, vertices: Ints, speed: float) -> tuple[Floats, Floats]:
    """Return (n,) lambda_2 and (n,) lambda_P if one of the (n,) vertices gets the speed."""
    values, speeds, m = seen.values, seen.speeds, len(seen.values)
    low, high = np.full(len(vertices), values[0]), np.full(len(vertices), values[m - 1])
    for c in range(len(vertices)):
        i = vertices[c]
        change = speed - speeds[i]
        if change == 0.0:
            continue
        # lambda_2 stays below the old lambda_3, lambda_P above the old lambda_P-1 (interlacing), and neither rises by
        # more than the trace of S^-1 A A^T.
        rise = max(0.0, seen.degrees[i] * (1.0 / speed - 1.0 / speeds[i]))
        top = values[1] if m > 1 else values[0] + rise
        low[c] = bisect(seen, ONE, 0.0, top, i, change, _NONE, 0.0)
        bottom = values[m - 2] if m > 1 else 0.0
        high[c] = bisect(seen, m, bottom, values[m - 1] + rise, i, change, _NONE, 0.0)
    return low, high


def grown_mass(one: Any, other: Any, change: Any, total: float) -> Any:
    """Return x S x of a mode (1 before) after a swap, without its part along the mode of eigenvalue 0.

    one, other : the mode at the two vertices; change : of the speed at the first; numbers, or arrays of them.
    """
    drift = change * (one - other)
    return 1.0 + change * (one * one - other * other) - drift * drift / total


_grown_mass = njit(cache=True)(grown_mass)


@njit(cache=True, error_model="numpy")
def first_swap_below(seen: LayoutModes, firsts: Ints, seconds: Ints, limit: float) -> int:
    """Return the first k for which swapping the speeds at firsts[k] and seconds[k] makes p < limit; n if there is none."""
    values, vectors, total = seen.values, seen.vectors, seen.total
    n, m = len(firsts), len(values)
    for c in range(n):
        i, j = firsts[c], seconds[c]
        change = seen.speeds[j] - seen.speeds[i]
        if change == 0.0:
            continue
        # Rayleigh's quotients of the previous modes bound the ends; most swaps need only one or two counts.
        top = values[0] / _grown_mass(vectors[i, 0], vectors[j, 0], change, total)
        if m > 1:
            top = min(top, values[1])
        bottom = values[m - 1] / _grown_mass(vectors[i, m - 1], vectors[j, m - 1], change, total)
        if bottom >= limit * top:
            continue
        if count_below(seen, bottom / limit, i, change, j, -change) >= 1:
            continue
        if count_below(seen, limit * top, i, change, j, -change) < m:
            continue
        low = bisect(seen, ONE, bottom / limit, top, i, change, j, -change)
        if count_below(seen, limit * low, i, change, j, -change) >= m:
            return c
    return n


# --- The objectives ---------------------------------------------------------------------------------------------------
#
# The changes of a layout have its `cost`, and three methods:
#
# placement_costs(vertices, speed)  (n,) costs if one of the (n,) vertices gets the speed: estimates, but up to DENSE
#                                    vertices the smallest is exact
# swap_bounds(first, second)         (n,) lower bounds of the costs if the speeds at first[k] and second[k] are swapped
# first_below(first, second, limit)  the first k for which a sharper estimate of that cost is below the limit, or n

N_LOW, N_HIGH = 4, 48  # modes of large graphs; the upper end is crowded
N_RITZ = 6  # modes of the objective "paper"
_CHUNK = 1 << 21  # numbers in an intermediate array
_AT_A_TIME = 64  # swaps, when looking for the first good one
TIE = 1e-9  # relative difference up to which costs count as equal: graphs have symmetries


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

    def tau(self, speeds: Floats) -> Floats:
        """(E,) conductances, the same for all layouts."""
        return np.ones(self.graph.n_edges)

    def cost(self, low: Floats, high: Floats) -> Floats:
        """The cost from lambda_2 and lambda_P."""
        return high / low

    def changes(self, speeds: Floats) -> Changes:
        """The possible changes of a layout."""
        return _UniformChanges(self, speeds)


class _UniformChanges:
    def __init__(self, aim: UniformAim, speeds: Floats) -> None:
        modes = find_modes(aim.laplacian, speeds, N_LOW, N_HIGH)
        self._speeds, self._seen = speeds, see(modes, speeds, aim.degrees)
        self.cost = float(modes.values[-1] / modes.values[0])

    def placement_costs(self, vertices: Ints, speed: float) -> Floats:
        low, high = ends_after_placement(self._seen, vertices, speed)
        return high / low

    def swap_bounds(self, first: Ints, second: Ints) -> Floats:
        values, vectors, change = self._seen.values, self._seen.vectors, self._speeds[second] - self._speeds[first]
        slow, fast = (grown_mass(vectors[first, k], vectors[second, k], change, self._seen.total) for k in (0, -1))
        return np.asarray(values[-1] / fast / (values[0] / slow))

    def first_below(self, first: Ints, second: Ints, limit: float) -> int:
        return first_swap_below(self._seen, first, second, limit)


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

    def tau(self, speeds: Floats) -> Floats:
        """(E,) conductances of a layout (P,), or (B, E) of layouts (B, P)."""
        return paper_tau(self.graph, speeds)

    def cost(self, low: Floats, high: Floats) -> Floats:
        """The cost from lambda_2 and lambda_P."""
        return 1.0 / low

    def changes(self, speeds: Floats) -> Changes:
        """The possible changes of a layout."""
        return _PaperChanges(self, speeds)


_Change = tuple[Ints, Floats, Ints | None]  # (n,) vertices, their new speeds; the edges to these vertices stay as they are


class _PaperChanges:
    def __init__(self, aim: PaperAim, speeds: Floats) -> None:
        self._aim, self._speeds = aim, speeds
        modes = find_modes(laplacian(aim.graph, aim.tau(speeds)), speeds, N_RITZ, 1)
        self._low: Floats = modes.values[: min(N_RITZ, modes.n_low)]
        self._vectors: Floats = modes.vectors[:, : len(self._low)]
        self.cost = float(1.0 / self._low[0])

    def placement_costs(self, vertices: Ints, speed: float) -> Floats:
        found = self._estimates([(vertices, np.full(len(vertices), speed), None)], len(self._low))
        return self._confirm(found, vertices, speed) if len(self._speeds) <= DENSE else found

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
        return self._estimates(self._swaps(first, second), 1)

    def first_below(self, first: Ints, second: Ints, limit: float) -> int:
        for begin in range(0, len(first), _AT_A_TIME):
            some = slice(begin, begin + _AT_A_TIME)
            below = np.flatnonzero(self._estimates(self._swaps(first[some], second[some]), len(self._low)) < limit)
            if len(below):
                return int(begin + below[0])
        return len(first)

    def _swaps(self, first: Ints, second: Ints) -> list[_Change]:
        return [(first, self._speeds[second], second), (second, self._speeds[first], first)]

    def _estimates(self, changes: list[_Change], size: int) -> Floats:
        """(n,) lower bounds of the costs after n changes, by Rayleigh-Ritz in the span of the `size` lowest modes."""
        result = np.empty(len(changes[0][0]))
        step = max(1, _CHUNK // (self._aim.factors.shape[1] * size**2))
        for some in (slice(begin, begin + step) for begin in range(0, len(result), step)):
            stiffness, mass = np.diag(self._low[:size]), np.eye(size)
            drift: Floats = np.zeros(size)
            total: Any = self._speeds.sum()  # then of each change
            for vertices, speeds, but in changes:
                where, new = vertices[some], speeds[some]
                x, change = self._vectors[where, :size], new - self._speeds[where]
                stiffness = stiffness + self._bend(where, new, None if but is None else but[some], size)
                mass = mass + change[:, None, None] * x[:, :, None] * x[:, None, :]
                drift, total = drift + change[:, None] * x, total + change
            mass -= drift[:, :, None] * drift[:, None, :] / total[:, None, None]
            result[some] = _ritz(stiffness, mass)
        return result

    def _bend(self, vertex: Ints, speed: Floats, but: Ints | None, size: int) -> Floats:
        """(n, size, size) growth of X A W A^T X when a vertex gets the speed; its edge to `but` is unchanged."""
        near = self._aim.neighbours[vertex]
        theirs = self._speeds[near]
        rise = np.minimum(speed[:, None], theirs) - np.minimum(self._speeds[vertex][:, None], theirs)
        rise = self._aim.factors[vertex] * rise
        if but is not None:
            rise[near == but[:, None]] = 0.0
        steep = self._vectors[vertex, None, :size] - self._vectors[near, :size]
        return np.asarray((steep * rise[:, :, None]).transpose(0, 2, 1) @ steep)


def _ritz(stiffness: Floats, mass: Floats) -> Floats:
    """1 / the smallest eigenvalue of each pencil: the largest of its inverse."""
    if mass.shape[-1] == 1:
        return np.asarray(mass / stiffness)[:, 0, 0]
    lower = np.linalg.cholesky(stiffness)
    half = np.linalg.solve(lower, mass)
    return np.asarray(np.linalg.eigvalsh(np.linalg.solve(lower, half.transpose(0, 2, 1)))[:, -1])


Aim = UniformAim | PaperAim
Changes = _UniformChanges | _PaperChanges
AIMS: dict[str, Callable[[Graph], Aim]] = {"uniform": UniformAim, "paper": PaperAim}
