"""Set-up of diffusion, before it sees any load: the scheme, tau, its spectrum.   (pure)

It depends on graph and speeds only.  Only what takes an eigensolver (`Eigen`) has to be computed by one for all.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi.checks import choice, show
from lb_mpi.diffusion.schemes import colour_edges
from lb_mpi.diffusion.spectral import Spectrum, eigenvalues, leja_order, paper_tau, spectrum
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
AUTO = "auto"  # the scheme that `usual_scheme` names
MOST_DIRECT = 512  # ranks for which the root is asked; see docs/scale.md
SHORT, LONG = 2, 8  # a graph is short up to SHORT log2 P hops from rank 0, long from P / LONG hops on
TAU_RULES = ("paper", "scaled", "uniform")


class Eigen(NamedTuple):
    """Numbers that take an eigensolver: found by one rank and told to all, for machines may differ in the last bits."""

    spectrum: Spectrum = Spectrum(1.0, 1.0)  # of sos, chebyshev, and fos unless tau is the paper's
    points: Floats = np.zeros(0)  # eigenvalues in Leja order, of ops


@dataclass(frozen=True, eq=False)
class Local:
    """One rank's part of a Setup."""

    scheme: str
    tau_rule: str
    rank: int
    speed: float
    neighbours: Ints  # (deg,) ascending
    tau: Floats  # (deg,) beside neighbours
    colours: Ints  # (deg,) for dimension_exchange
    n_colours: int
    eigen: Eigen


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
    colours: Ints  # (E,) for dimension_exchange, otherwise 0
    n_colours: int  # steps in which dimension_exchange uses every edge once
    eigen: Eigen

    def mean_times(self, loads: ArrayLike) -> Floats:
        """(P,) the time lbar = sum w / sum s of each rank's component."""
        work = np.bincount(self.labels, check_loads(loads, self.graph.n), self.n_components)
        return (work / np.bincount(self.labels, self.speeds, self.n_components))[self.labels]

    def local(self, rank: int) -> Local:
        """The part that one rank needs."""
        tails, heads = self.graph.edges()
        mine = np.flatnonzero((tails == rank) | (heads == rank))  # ascending, as the neighbours are
        return Local(
            scheme=self.scheme,
            tau_rule=self.tau_rule,
            rank=rank,
            speed=float(self.speeds[rank]),
            neighbours=self.graph.neighbours(rank),
            tau=self.tau[mine],
            colours=self.colours[mine],
            n_colours=self.n_colours,
            eigen=self.eigen,
        )


def prepare(graph: Graph, speeds: ArrayLike, scheme: str = "fos", tau: str | None = None) -> Setup:
    """Prepare a scheme for a graph and (P,) speeds; "auto" is the usual one of the graph (see `usual_scheme`).

    `tau` is "paper" (min(s_i, s_j) min(1/(deg_i + 1), 1/(deg_j + 1))), "scaled" (the paper's, times the optimal factor
    2/(lambda_2 + lambda_P)) or "uniform" (the same on all edges, the optimal one); None for the usual one of the scheme.
    sos, chebyshev and ops always scale; cg and direct don't depend on a factor; dimension_exchange has its own tau.

    A graph that isn't connected is balanced in each component by itself; a UserWarning names them.  ValueError for unknown
    words and bad speeds, TypeError for what is no graph.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"graph = {show(graph)}: expected an lb_mpi.graph.Graph")
    scheme = chosen_scheme(graph, scheme)
    rule = tau_rule(scheme, tau)
    speeds = check_speeds(speeds, graph.n)
    warn_of_components(graph)
    return assemble(graph, speeds, scheme, rule, find_eigen(graph, speeds, scheme, rule))


def usual_scheme(graph: Graph) -> str:
    """The scheme that "auto" stands for on a process graph: told by its size and hops alone, so the same on all ranks.

    direct              up to MOST_DIRECT ranks: one gather, a solution on the root that is exact, one scatter; and on long
                        graphs (a ring, a narrow mesh) of any size, where every other takes about as many steps as ranks,
                        and where to solve takes next to nothing
    fos                 on larger graphs that are short (a hypercube, a random regular graph): it is through in about as
                        many steps as there are hops, and needs neither a sum over all ranks nor a spectrum
    cg                  on all others (tori, meshes): about as many steps as hops; a sum of two numbers in each

    sos and chebyshev take as few steps as cg without its sums.  But they need a spectrum from an eigensolver on the root,
    again whenever speeds have changed, and that takes longer than all of cg's sums: take them where speeds are constant.
    Figures: docs/scale.md.
    """
    hops = graph.hops()
    if graph.n <= MOST_DIRECT or hops * LONG >= graph.n:
        return "direct"
    return "fos" if hops <= SHORT * math.log2(graph.n) else "cg"


def chosen_scheme(graph: Graph, scheme: str) -> str:
    """The scheme itself, and the usual one of the graph for "auto"; ValueError for other words."""
    return usual_scheme(graph) if scheme == AUTO else choice("scheme", scheme, (*SCHEMES, AUTO))


def tau_rule(scheme: str, tau: str | None) -> str:
    """The rule for tau, checked; None: the usual one of the scheme."""
    choice("scheme", scheme, SCHEMES)
    return DEFAULT_TAU[scheme] if tau is None else choice("tau", tau, TAU_RULES)


def find_eigen(graph: Graph, speeds: Floats, scheme: str, rule: str) -> Eigen:
    """Find what the scheme needs of the spectrum; ValueError for a graph that is too large for it."""
    weights = _conductances(graph, speeds, rule)
    if scheme in ("sos", "chebyshev") or (scheme == "fos" and rule != "paper"):
        return Eigen(spectrum(graph, speeds, weights))
    if scheme == "ops":
        return Eigen(points=leja_order(eigenvalues(graph, speeds, weights)))
    return Eigen()


def assemble(graph: Graph, speeds: Floats, scheme: str, rule: str, eigen: Eigen) -> Setup:
    """The setup, from what has been checked and found; the same on every machine, to the last bit."""
    weights, colours = _conductances(graph, speeds, rule), np.zeros(graph.n_edges, dtype=np.int64)
    n_colours = 0
    if scheme == "dimension_exchange":
        tails, heads = graph.edges()
        weights = speeds[tails] * speeds[heads] / (speeds[tails] + speeds[heads])
        colours = colour_edges(graph)
        n_colours = int(colours.max(initial=-1)) + 1
    count, labels = graph.components()
    return Setup(scheme, rule, graph, speeds, weights, count, labels, colours, n_colours, eigen)


def warn_of_components(graph: Graph) -> None:
    """A UserWarning for a graph that isn't connected."""
    count, labels = graph.components()
    if count > 1:
        warnings.warn(_name_components(count, labels), UserWarning, stacklevel=3)


def _conductances(graph: Graph, speeds: Floats, rule: str) -> Floats:
    return np.ones(graph.n_edges) if rule == "uniform" else paper_tau(graph, speeds)


def _name_components(count: int, labels: Ints) -> str:
    sizes, first = np.bincount(labels), np.unique(labels, return_index=True)[1]
    named = [f"{size} with rank {rank}" for size, rank in zip(sizes[:10].tolist(), first[:10].tolist(), strict=True)]
    more = f", and {count - 10} more" if count > 10 else ""
    return f"the graph has {count} components ({', '.join(named)}{more}): each is balanced by itself"
