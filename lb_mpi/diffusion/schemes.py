"""The recursions of the diffusion schemes, written once for a whole graph and for one rank.   (pure)

Every scheme works on times l and potentials d that stay tied by l = l(0) - (what flows out of the rank) / s with the flow
tau_ij (d_i - d_j) over each edge; so the net flow is known at any step without moving anything, and runs from higher to
lower d.  In each step a scheme hands out its `value`, hears the neighbours' values, and goes on.

Where a scheme runs is hidden behind `Ends`: for a whole graph a value is an array over the vertices, for one rank it is a
float.  The order of every summation is the same in both, so are the results, to the last bit (but cg's, whose sums over
all ranks are made elsewhere).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, Protocol

import numpy as np

from lb_mpi.diffusion.spectral import Spectrum
from lb_mpi.graph import Floats, Graph, Ints

Value = Any  # (P,) array over the vertices of a whole graph, or the float of one rank
TotalOf = Callable[[Floats], Floats]  # sums of a (k,) array over all ranks; of a (k, P) array over its rows


class Ends(Protocol):
    """The ends of edges: of all edges of a graph, or of those at one rank."""

    def flows(self, value: Value) -> Floats:
        """tau_ij (value_i - value_j) per edge."""

    def outflow(self, flows: Floats) -> Value:
        """Work that flows out of each vertex, or of the rank."""


class WholeGraph:
    """All edges: flows are (E,), positive from tail to head; values are (P,)."""

    def __init__(self, graph: Graph, tau: Floats) -> None:
        self._tails, self._heads = graph.edges()
        self._n, self._tau = graph.n, tau

    def flows(self, value: Value) -> Floats:  # noqa: D102
        difference: Floats = value[self._tails] - value[self._heads]
        return self._tau * difference

    def outflow(self, flows: Floats) -> Value:  # noqa: D102
        return np.bincount(self._tails, flows, self._n) - np.bincount(self._heads, flows, self._n)


class OneRank:
    """The edges of one rank: flows are (deg,), positive away from it; values are floats; `heard` is set before each step."""

    def __init__(self, rank: int, neighbours: Ints, tau: Floats) -> None:
        self.heard: Floats = np.zeros(len(neighbours))
        self._tau = tau
        self._lower = (neighbours < rank).astype(np.int64)

    def flows(self, value: Value) -> Floats:  # noqa: D102
        difference: Floats = value - self.heard
        return self._tau * difference

    def outflow(self, flows: Floats) -> Value:  # noqa: D102
        to_higher, to_lower = np.bincount(self._lower, flows, 2).tolist()  # added up in this order in WholeGraph, too
        return to_higher + to_lower


class Scheme(Protocol):
    """One scheme under way."""

    value: Value  # what the neighbours have to know before the next step
    time: Value  # l as it would be if all the flow so far had been moved
    potential: Value  # d

    def step(self) -> None:
        """One step, after the neighbours' values have been heard."""

    def flow(self) -> Floats:
        """The net flow per edge so far, after the neighbours' potentials have been heard."""


def coefficients(scheme: str, tau: str, spectrum: Spectrum, points: Floats) -> Iterator[tuple[float, float]]:
    """The pairs (a, b) of ThreeTerm, step by step, for ever; `points` are the eigenvalues in Leja order (ops).

    fos: Jin & Wang; with the optimal factor 2/(lambda_2 + lambda_P) unless tau is the paper's.  sos: Muthukrishnan, Ghosh,
    Schultz 1998.  chebyshev: its semi-iteration (Golub & Varga 1961).  ops: Diekmann, Frommer, Monien 1999.
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


class ThreeTerm:
    """fos, sos, chebyshev, ops: l' = l - a S^-1 A W A^T l + b (l - l before), d' = d + a (l - lbar) + b (d - d before).

    The potentials add up l - lbar and not l (Jin & Wang, eq. 8): the flow is the same, and loses no digits in many steps.
    """

    def __init__(
        self, ends: Ends, time: Value, speed: Value, mean: Value, pairs: Iterator[tuple[float, float]]
    ) -> None:
        self.value = self.time = time
        self.potential = 0.0 * time
        self._ends, self._speed, self._mean, self._pairs = ends, speed, mean, pairs
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
        self.value = self.time = time
        self.potential = potential

    def flow(self) -> Floats:  # noqa: D102
        return self._ends.flows(self.potential)


class ConjugateGradient:
    """cg: solves A W A^T d = w - s lbar (Hu & Blake 1999).

    Both sums of a step are in one reduction (Chronopoulos & Gear 1989).
    """

    def __init__(self, ends: Ends, time: Value, speed: Value, mean: Value, total: TotalOf) -> None:
        self.value = speed * (time - mean)  # the residual: work that is still in excess
        self.time = time
        self.potential = 0.0 * time
        self._ends, self._speed, self._mean, self._total = ends, speed, mean, total
        self._direction, self._outflow = 0.0 * time, 0.0 * time  # p and A W A^T p
        self._squared, self._alpha, self._first_squared = 0.0, 0.0, 0.0

    def step(self) -> None:  # noqa: D102
        excess = self.value
        out = self._ends.outflow(self._ends.flows(excess))
        squared, bent = self._total(np.array([excess * excess, excess * out])).tolist()
        self._first_squared = self._first_squared or squared
        if squared <= 1e-32 * self._first_squared or bent <= 0.0:
            return  # what is left is rounding, and has no direction
        beta = squared / self._squared if self._squared else 0.0
        curvature = bent - beta * squared / self._alpha if beta else bent
        if curvature <= 0.0:  # by rounding only: begin anew with the steepest direction
            beta, curvature = 0.0, bent
        self._alpha, self._squared = squared / curvature, squared
        self._direction = excess + beta * self._direction
        self._outflow = out + beta * self._outflow
        self.potential = self.potential + self._alpha * self._direction
        self.value = excess - self._alpha * self._outflow
        self.time = self._mean + self.value / self._speed

    def flow(self) -> Floats:  # noqa: D102
        return self._ends.flows(self.potential)


class DimensionExchange:
    """dimension_exchange: the edges of one colour in each step; both ends level each other (Cybenko 1989).

    Two ends level each other with tau_ij = s_i s_j / (s_i + s_j), which `ends` must have; colours (E,) or (deg,) beside it.
    """

    def __init__(self, ends: Ends, time: Value, speed: Value, colours: Ints, n_colours: int) -> None:
        self.value = self.time = time
        self.potential = 0.0 * time
        self._ends, self._speed, self._colours, self._n_colours = ends, speed, colours, n_colours
        self._flow = np.zeros(len(colours))
        self._steps = 0

    def step(self) -> None:  # noqa: D102
        if self._n_colours:
            flows = self._ends.flows(self.time)
            flows[self._colours != self._steps % self._n_colours] = 0.0
            self._flow = self._flow + flows
            self.value = self.time = self.time - self._ends.outflow(flows) / self._speed
        self._steps += 1

    def flow(self) -> Floats:  # noqa: D102
        return self._flow.copy()


def colour_edges(graph: Graph) -> Ints:
    """(E,) colours 0, 1, ... of the edges, no two alike at a vertex: each edge in turn takes the first that is free."""
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
