"""The aims that an arrangement is judged by: a cost to be made small, and what changes of a layout would do to it.   (pure)

A layout is the (P,) speeds in the order of the vertices.  Two aims (Jin & Wang 2003, and what its section on tau asks for):

uniform   one tau on all edges, at its best value 2/(lambda_2 + lambda_P): the error falls by (p - 1)/(p + 1) a step,
          p = lambda_P / lambda_2 of S^-1 A A^T.  The cost is p.
paper     the tau of `diffusion.spectral.paper_tau`: the error falls by 1 - lambda_2 of S^-1 A W A^T.  Cost: 1 / lambda_2.

Changes are judged in two grades.  `swap_bounds` are quick, and never above the true cost, by Rayleigh's quotient: the mode
of lambda_2, put into the quotient of the changed matrices, gives an upper bound of the new lambda_2, and that of lambda_P a
lower bound of the new lambda_P.  So a swap whose bound is too high needs no second look.  `first_below` and `place` are
sharp: uniform by the secular equation, exact while all modes are known; paper by Rayleigh and Ritz in the span of some low
modes.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from lb_mpi.arranging.modes import DENSE, find_modes
from lb_mpi.arranging.secular import ends_after_place, first_swap_below, see
from lb_mpi.diffusion.spectral import laplacian, paper_tau
from lb_mpi.graph import Floats, Graph, Ints

N_LOW, N_HIGH = 4, 48  # modes of large graphs; the upper end is crowded
N_RITZ = 6  # modes of the aim paper
_CHUNK = 1 << 21  # numbers in an intermediate array
_AT_A_TIME = 64  # swaps, where the first that is good ends the look
TIE = 1e-9  # costs that are nearer to each other, relatively, count as equal: graphs have symmetries


class Changes(Protocol):
    """One layout, and what would become of its cost."""

    cost: float  # of the layout itself

    def place(self, vertices: Ints, speed: float) -> Floats:
        """(n,) costs if one of the (n,) vertices gets the speed.

        Where it is no more than an estimate, the least is nevertheless exact up to DENSE vertices.
        """

    def swap_bounds(self, first: Ints, second: Ints) -> Floats:
        """(n,) lower bounds of the costs if the speeds at first[k] and second[k] are swapped."""

    def first_below(self, first: Ints, second: Ints, limit: float) -> int:
        """The first k for which a sharper estimate of the same cost is below the limit; n for none."""


class Aim(Protocol):
    """A graph and what its layouts are judged by."""

    graph: Graph

    def tau(self, speeds: Floats) -> Floats:
        """(E,) conductances, for a layout (P,), or (B, E) for layouts (B, P)."""

    def cost(self, low: Floats, high: Floats) -> Floats:
        """The cost from lambda_2 and lambda_P."""

    def changes(self, speeds: Floats) -> Changes:
        """The changes of a layout, judged."""


def costs(aim: Aim, layouts: Floats) -> Floats:
    """(B,) costs of the (B, P) layouts, by all eigenvalues: for small graphs, and to check all else."""
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
    """x S x of the mode (1 before) after swaps, its part along the mode of 0 taken off."""
    change = speeds[second] - speeds[first]
    one, other = x[first], x[second]
    return np.asarray(1.0 + change * (one**2 - other**2) - (change * (one - other)) ** 2 / speeds.sum())


class PaperAim:
    """1 / lambda_2 of S^-1 A W A^T, W the paper's tau, which depends on the speeds at both ends of an edge."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        # Neighbours as a (P, D) table; 0 is the factor of those that aren't there.
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
        """(n, size, size) growth of X A W A^T X when a vertex gets the speed; its edge to `but` stays as it is."""
        near, factors = self._aim.neighbours[vertex], self._aim.factors[vertex]
        theirs = self._speeds[near]
        rise = np.minimum(np.reshape(speed, (-1, 1)), theirs) - np.minimum(self._speeds[vertex][:, None], theirs)
        rise = factors * rise
        if but is not None:
            rise[near == but[:, None]] = 0.0
        steep = self._vectors[vertex, None, :size] - self._vectors[near, :size]
        return np.asarray((steep * rise[:, :, None]).transpose(0, 2, 1) @ steep)


def _ritz(stiffness: Floats, mass: Floats) -> Floats:
    """1 / the least eigenvalue of each pencil: the greatest of its inverse."""
    lower = np.linalg.cholesky(stiffness)
    half = np.linalg.solve(lower, mass)
    return np.asarray(np.linalg.eigvalsh(np.linalg.solve(lower, half.transpose(0, 2, 1)))[:, -1])


def _chunks(n: int, width: int, most: int = _CHUNK) -> list[slice]:
    step = min(max(1, _CHUNK // max(1, width)), most)
    return [slice(k, k + step) for k in range(0, n, step)]


AIMS: dict[str, Any] = {"uniform": UniformAim, "paper": PaperAim}
