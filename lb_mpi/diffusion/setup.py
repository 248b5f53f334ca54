"""What diffusion needs to know before it sees any load: the scheme, tau, its spectrum.   (pure)

It depends on graph and speeds only.  The root prepares it once, and sends each rank its small part.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi.diffusion.schemes import colour_edges
from lb_mpi.diffusion.spectral import Spectrum, eigenvalues, generalised_inverse, leja_order, paper_tau, spectrum
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.metrics import check_loads, check_speeds

DEFAULT_TAU = {
    "fos": "paper",
    "sos": "paper",
    "chebyshev": "paper",
    "ops": "paper",
    "cg": "uniform",
    "dimension_exchange": "paper",
    "direct": "uniform",
}
SCHEMES = tuple(DEFAULT_TAU)
TAU_RULES = ("paper", "scaled", "uniform")


class DirectData(NamedTuple):
    """What one rank needs for the scheme direct."""

    rows: Floats  # (deg+1, P) of the generalised inverse: its own, then its neighbours'
    speeds: Floats  # (P,) of all ranks
    labels: Ints  # (P,) components of all ranks


@dataclass(frozen=True, eq=False)
class Local:
    """One rank's part of a Setup: small, and all that the rank has to be sent."""

    scheme: str
    tau_rule: str
    rank: int
    speed: float
    neighbours: Ints  # (deg,) ascending
    tau: Floats  # (deg,) beside neighbours
    colours: Ints  # (deg,) for dimension_exchange
    n_colours: int
    component: int  # of the process graph
    spectrum: Spectrum
    points: Floats  # eigenvalues in Leja order, for ops
    direct: DirectData | None


@dataclass(frozen=True, eq=False)
class Setup:
    """All that doesn't depend on the loads; made by `prepare`."""

    scheme: str
    tau_rule: str
    graph: Graph
    speeds: Floats  # (P,)
    tau: Floats  # (E,) up to the scheme's own factor
    n_components: int
    labels: Ints  # (P,) components
    spectrum: Spectrum  # of sos, chebyshev, and fos unless tau is the paper's; otherwise (1, 1)
    points: Floats = field(default_factory=lambda: np.zeros(0))  # eigenvalues in Leja order, for ops
    colours: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (E,) for dimension_exchange

    @cached_property
    def inverse(self) -> Floats:
        """(P, P) generalised inverse of A W A^T, computed at its first use."""
        return generalised_inverse(self.graph, self.tau)

    def balanced_times(self, loads: ArrayLike) -> Floats:
        """(P,) the time lbar = sum w / sum s of each rank's component."""
        work = np.bincount(self.labels, check_loads(loads, self.graph.n), self.n_components)
        return (work / np.bincount(self.labels, self.speeds, self.n_components))[self.labels]

    def local(self, rank: int) -> Local:
        """The part that one rank needs."""
        tails, heads = self.graph.edges()
        mine = np.flatnonzero((tails == rank) | (heads == rank))  # ascending, as the neighbours are
        neighbours = self.graph.neighbours(rank)
        direct = None
        if self.scheme == "direct":
            direct = DirectData(self.inverse[[rank, *neighbours]], self.speeds, self.labels)
        return Local(
            scheme=self.scheme,
            tau_rule=self.tau_rule,
            rank=rank,
            speed=float(self.speeds[rank]),
            neighbours=neighbours,
            tau=self.tau[mine],
            colours=self.colours[mine] if len(self.colours) else np.zeros(len(mine), dtype=np.int64),
            n_colours=self.n_colours,
            component=int(self.labels[rank]),
            spectrum=self.spectrum,
            points=self.points,
            direct=direct,
        )

    @property
    def n_colours(self) -> int:
        """Steps in which dimension_exchange uses every edge once."""
        return int(self.colours.max(initial=-1)) + 1


def prepare(graph: Graph, speeds: ArrayLike, scheme: str = "fos", tau: str | None = None) -> Setup:
    """What a scheme needs to know of the (P,) speeds and the graph.

    `tau` is "paper" (min(s_i, s_j) min(1/(deg_i + 1), 1/(deg_j + 1))), "scaled" (the paper's, times the optimal factor
    2/(lambda_2 + lambda_P)) or "uniform" (the same on all edges, the optimal one); None for the usual one of the scheme.
    sos, chebyshev and ops always scale; cg and direct don't depend on a factor; dimension_exchange has its own tau.

    A graph that isn't connected is balanced in each component by itself; a UserWarning names them.  ValueError for unknown
    words and bad speeds.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"scheme = {scheme!r}: expected one of {', '.join(SCHEMES)}")
    rule = DEFAULT_TAU[scheme] if tau is None else tau
    if rule not in TAU_RULES:
        raise ValueError(f"tau = {tau!r}: expected one of {', '.join(TAU_RULES)}")
    speeds = check_speeds(speeds, graph.n)
    count, labels = graph.components()
    if count > 1:
        warnings.warn(_name_components(count, labels), UserWarning, stacklevel=2)
    weights = np.ones(graph.n_edges) if rule == "uniform" else paper_tau(graph, speeds)
    ends, points, colours = Spectrum(1.0, 1.0), np.zeros(0), np.zeros(0, dtype=np.int64)
    if scheme in ("sos", "chebyshev") or (scheme == "fos" and rule != "paper"):
        ends = spectrum(graph, speeds, weights)
    elif scheme == "ops":
        points = leja_order(eigenvalues(graph, speeds, weights))
    elif scheme == "dimension_exchange":
        tails, heads = graph.edges()
        weights = speeds[tails] * speeds[heads] / (speeds[tails] + speeds[heads])
        colours = colour_edges(graph)
    return Setup(scheme, rule, graph, speeds, weights, count, labels, ends, points, colours)


def _name_components(count: int, labels: Ints) -> str:
    sizes, first = np.bincount(labels), np.unique(labels, return_index=True)[1]
    named = [f"{size} with rank {rank}" for size, rank in zip(sizes[:10].tolist(), first[:10].tolist(), strict=True)]
    more = f", and {count - 10} more" if count > 10 else ""
    return f"the graph has {count} components ({', '.join(named)}{more}): each is balanced by itself"
