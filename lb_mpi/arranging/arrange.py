"""Arrangement: which node sits at which vertex of a process graph, so that diffusion converges fastest.   (pure)

Law (Jin & Wang, "Improving the convergence rate of the diffusion algorithm by arranging processors", Journal of
Software 2003).  The graph and the speeds are given; the assignment of nodes to vertices is free.  With one tau on all
edges the error falls by (p - 1)/(p + 1) per step, p = lambda_P / lambda_2 of S^-1 A A^T; with the paper's tau by
1 - lambda_2 of S^-1 A W A^T.  A good arrangement for one can be bad for the other.

    arrangement = lb_mpi.arrange(graph, speeds)      # objective="uniform", method="swap"
    speeds[arrangement.positions]                    # the speeds in the order of the vertices
    lb_mpi.reorder_ranks(comm, graph, speeds)        # a communicator with the ranks in this order (needs MPI)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi import checks
from lb_mpi.arranging import METHODS, OBJECTIVES
from lb_mpi.arranging.objectives import AIMS, DENSE, TIE, Aim, UniformAim, costs, find_modes
from lb_mpi.diffusion.setup import Spectrum, laplacian
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.graph_files import as_graph
from lb_mpi.metrics import as_now, check_comparable, scaled, usual_arithmetic

# --- The methods: from an objective and the (P,) speeds of the nodes to positions -------------------------------------
#
# `positions` (P,) are node numbers: node positions[k] sits at vertex k, so `speeds[positions]` is the layout.
#
# exhaustive   all P! arrangements
# paper        the greedy method of Jin & Wang 2003: empty vertices count as the slowest; fastest nodes first
# fill         empty vertices count as the harmonic mean of the speeds not yet placed; fastest and slowest alternate
# swap         from the best of fill, paper (in small graphs) and the given order: swaps of two nodes, as long as one helps
# anneal       from local minimum to local minimum of swap (Martin, Otto, Felten 1991), at a falling temperature

MAX_EXHAUSTIVE = 9
Progress = Callable[[str, float], None]  # current activity, and the part of the method that is done, 0 to 1
Search = Callable[[Aim, Floats, Progress], Ints]

_BATCH = 20160  # arrangements per batch
_TRIES = 50  # in a large graph: wrong estimates before descent gives up
SWAP_ROUNDS = 4  # descents from one local minimum to the next that take as long as swap
KICKS = 4  # random swaps between two descents, at most
HEAT = 0.002  # temperature of log(cost) at the start
ROUNDS = 300  # descents on 64 vertices; fewer on smaller graphs, and on larger ones, where each is slower


def exhaustive(aim: Aim, speeds: Floats, progress: Progress) -> Ints:
    """The best of all arrangements; among equals the first."""
    best, least, seen = np.arange(len(speeds)), math.inf, 0
    for positions in _all(len(speeds)):
        values = costs(aim, speeds[positions])
        k = _first_least(values)
        if values[k] < least * (1.0 - TIE):
            best, least = positions[k], float(values[k])
        seen += len(values)
        progress("all arrangements", seen / math.factorial(len(speeds)))
    return best


def paper(aim: Aim, speeds: Floats, progress: Progress) -> Ints:
    """The paper's greedy method, exactly; among equally good vertices the first."""
    return _construct(aim, speeds, np.argsort(-speeds, kind="stable"), lambda rest: float(speeds.min()), progress)


def fill(aim: Aim, speeds: Floats, progress: Progress) -> Ints:
    """A greedy method in which empty vertices count as the mean of the rest, and fastest and slowest alternate."""
    falling = np.argsort(-speeds, kind="stable")
    order = np.empty_like(falling)
    order[0::2] = falling[: (len(speeds) + 1) // 2]
    order[1::2] = falling[::-1][: len(speeds) // 2]
    return _construct(aim, speeds, order, lambda rest: len(rest) / float((1.0 / rest).sum()), progress)


def _construct(aim: Aim, speeds: Floats, order: Ints, unplaced: Callable[[Floats], float], progress: Progress) -> Ints:
    positions = np.full(len(speeds), -1)
    for step, node in enumerate(order.tolist()):
        free = np.flatnonzero(positions < 0)
        choice = 0
        if len(free) > 1:
            layout = speeds[positions]
            layout[free] = unplaced(speeds[order[step + 1 :]])
            choice = _first_least(aim.changes(layout).placement_costs(free, float(speeds[node])))
        positions[free[choice]] = node
        progress("placing nodes", (step + 1) / len(speeds))
    return positions


def swap(aim: Aim, speeds: Floats, progress: Progress) -> Ints:
    """A local minimum: no swap of two nodes lowers the cost.

    Never worse than the given order and, in graphs of up to DENSE vertices, than `paper`; in larger ones that is slow, and
    `fill` is much better.
    """
    starts = [np.arange(len(speeds)), fill(aim, speeds, _part_of(progress, 0.0, 0.4))]
    if len(speeds) <= DENSE:
        starts.append(paper(aim, speeds, _part_of(progress, 0.4, 0.8)))
    least = min(starts, key=lambda positions: aim.changes(speeds[positions]).cost)
    return descend(aim, speeds, least, _part_of(progress, 0.8, 1.0))


def _part_of(progress: Progress, first: float, last: float) -> Progress:
    """Return the progress of the part of a method from `first` to `last`."""
    return lambda text, done: progress(text, first + (last - first) * done)


def descend(aim: Aim, speeds: Floats, positions: Ints, progress: Progress) -> Ints:
    """Swap two nodes repeatedly, as long as a swap lowers the cost.

    Among such swaps, the one with the lowest bound is made: it is best for the two modes that matter now.  (Steepest
    descent ends earlier, in worse minima.)  Up to `objectives.DENSE` vertices the end is a local minimum; in larger
    graphs, where swaps are only estimated, the most promising ones have failed.
    """
    first, second = (ends.astype(np.int64) for ends in np.triu_indices(len(speeds), 1))
    here = aim.changes(speeds[positions])
    steps = tries = 0
    promising: Ints | None = None  # swaps still to be tried
    while tries < _TRIES:
        limit = here.cost * (1.0 - TIE)
        if promising is None:
            bounds = here.swap_bounds(first, second)
            promising = np.flatnonzero(bounds < limit)
            promising = promising[np.argsort(bounds[promising], kind="stable")]
        k = here.first_below(first[promising], second[promising], limit)
        if k == len(promising):
            break
        trial = positions.copy()
        trial[[first[promising[k]], second[promising[k]]]] = positions[[second[promising[k]], first[promising[k]]]]
        there = aim.changes(speeds[trial])
        if there.cost < limit:
            here, positions, steps, tries, promising = there, trial, steps + 1, 0, None
            progress(f"{steps} swaps", 1.0 - 0.99**steps)  # their number is not known in advance
        else:
            promising, tries = promising[k + 1 :], tries + (len(speeds) > DENSE)
    return positions


def anneal(aim: Aim, speeds: Floats, progress: Progress, seed: int) -> Ints:
    """From local minimum to local minimum: random swaps, then descent; worse ones are accepted, but ever more rarely.

    Never worse than the given order.
    """
    rng, n = np.random.default_rng(seed), len(speeds)
    rounds = max(10, int(ROUNDS * min(n / 64.0, (64.0 / n) ** 2)))
    first = SWAP_ROUNDS / (SWAP_ROUNDS + rounds)  # the part of the time until the first local minimum
    positions = swap(aim, speeds, _part_of(progress, 0.0, first))
    here = least = aim.changes(speeds[positions]).cost
    best = positions
    for done in range(rounds):
        trial = positions.copy()
        for _ in range(rng.integers(1, KICKS + 1)):
            ends = rng.choice(n, 2, replace=False)
            trial[ends] = trial[ends[::-1]]
        trial = descend(aim, speeds, trial, lambda text, part: None)
        cost = aim.changes(speeds[trial]).cost
        heat = HEAT * (1.0 - done / rounds)
        if math.log(cost / here) <= -heat * math.log1p(-rng.random()):  # Metropolis
            positions, here = trial, cost
        if here < least:
            best, least = positions, here
        progress(f"annealing, {done + 1} of {rounds} local minima", first + (1.0 - first) * (done + 1) / rounds)
    return best


def _first_least(values: Floats) -> int:
    return int(np.flatnonzero(values <= values.min() * (1.0 + TIE))[0])


# --- All arrangements of a small graph --------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """Compares one p with those of all arrangements: Pr, Pct and N of Jin and Wang.  Equal ones are on neither side."""

    p: float
    least: float
    greatest: float
    below: int  # number of arrangements with a smaller p
    above: int  # number of arrangements with a larger p
    n: int  # number of all arrangements

    @property
    def relative(self) -> float:
        """Pr, 0 to 1: the distance of p from the least, in parts of the distance of the greatest from it."""
        span = self.greatest - self.least
        return (self.p - self.least) / span if span > TIE * self.greatest else 0.0

    @property
    def percentile(self) -> float:
        """Pct, 0 to 1: the part of all arrangements that has a smaller p."""
        return self.below / self.n


def compare_with_all(graph: Graph, speeds: Floats, p: float) -> Comparison:
    """Compare `p` with all arrangements of (P,) speeds; ValueError for more than 9 vertices."""
    if graph.n > MAX_EXHAUSTIVE:
        raise ValueError(f"all arrangements of {graph.n} vertices: expected at most {MAX_EXHAUSTIVE}")
    aim, least, greatest, below, above, n = UniformAim(graph), math.inf, 0.0, 0, 0, 0
    for positions in _all(graph.n):
        values = costs(aim, speeds[positions])
        least, greatest = min(least, float(values.min())), max(greatest, float(values.max()))
        below += int((values < p * (1.0 - TIE)).sum())
        above += int((values > p * (1.0 + TIE)).sum())
        n += len(values)
    return Comparison(p, least, greatest, below, above, n)


def _all(n: int) -> Iterator[Ints]:
    """All arrangements of n nodes, in batches of (B, n) positions."""
    orders = permutations(range(n))
    while batch := list(islice(orders, _BATCH)):
        yield np.array(batch, dtype=np.int64)


# --- Arguments, result, prediction ------------------------------------------------------------------------------------

SEARCHES = {"exhaustive": exhaustive, "paper": paper, "fill": fill, "swap": swap}
_DRAWS = 25  # of the initial times
_N_MODES = 8  # at either end of the spectrum of large graphs, to predict steps


@dataclass(frozen=True, eq=False)
class Arrangement:
    """An assignment of P nodes to the P vertices of a process graph, as `arrange` returns it, and what it gains.

    The given order, in which node k is at vertex k, is that of the speeds as passed to `arrange`.
    """

    positions: Ints  # (P,) node positions[k], which has speed speeds[positions[k]], is at vertex k
    objective: str  # as passed to `arrange`
    method: str  # as passed to `arrange`
    p_before: float  # p of the given order
    p: float  # lambda_P / lambda_2 of S^-1 A A^T, for any objective; the number of steps is proportional to p
    spectrum_before: Spectrum  # spectrum of the given order
    spectrum: Spectrum  # lambda_2 and lambda_P of the matrix of the objective
    tolerance: float  # the imbalance at which the steps end
    steps_before: int  # predicted number of steps in the given order
    steps_predicted: int  # predicted number of steps (see `lb_mpi.arranging.arrange.predict_steps`)
    note: str  # the reason why nothing was gained; empty if something was

    @property
    def vertices(self) -> Ints:
        """(P,) the vertex of each node: vertices[positions[k]] = k."""
        return np.argsort(self.positions)


def arrange(
    graph: Any,
    speeds: ArrayLike,
    *,
    objective: str = "uniform",
    method: str = "swap",
    seed: int = 0,
    tolerance: float = 1e-6,
    progress: Callable[[str, float], None] | None = None,
) -> Arrangement:
    """Assign P nodes of given speeds to the P vertices of a process graph, so that diffusion converges fastest.

    Parameters
    ----------
    graph : a connected graph of P vertices in any form that `lb_mpi.as_graph` accepts: an `lb_mpi.Graph`, a networkx
        graph, a scipy.sparse matrix, a name or a file.
    speeds : (P,) speeds of the nodes, above 0, in any unit.
    objective : "uniform": the smallest p (see `lb_mpi.Arrangement`), for schemes with the same tau on all edges;
        "paper": the largest lambda_2 with the paper's tau.
    method : "exhaustive": the best of all assignments, for at most 9 vertices; "paper": the greedy method exactly as in
        Jin & Wang, which may be worse than the given order; "fill": a better greedy method at the same cost; "swap":
        descent by swaps of two nodes from "fill", or from "paper" or the given order if that is better, so it is never
        worse than "paper" (up to 400 vertices); "anneal": from one local minimum to the next.  No method but "paper" returns
        an assignment worse than the given order.
    seed : integer >= 0, of the random numbers of "anneal"; the other methods use none.
    tolerance : the imbalance, above 0, for which the number of steps is predicted.
    progress : a function that is called as progress("current activity", done), with done from 0 to 1,
        after each step of the method.

    Returns an `Arrangement`.

    Raises ValueError for unknown words, invalid speeds, a graph that is not connected (arrange each component
    separately) and too many vertices for "exhaustive"; TypeError for anything that is not a graph.

    Examples
    --------
        >>> found = lb_mpi.arrange("mesh:1x5", speeds=[1, 2, 3, 4, 5])
        >>> found.positions, found.steps_before, found.steps_predicted
        (array([0, 3, 4, 2, 1]), 73, 46)
    """
    report = as_now(checks.function("progress", progress, optional=True) or (lambda text, done: None))
    return _arrange(as_graph(graph), speeds, objective, method, seed, tolerance, report)


@usual_arithmetic
def _arrange(
    graph: Graph, given: ArrayLike, objective: str, method: str, seed: int, tolerance: float, report: Progress
) -> Arrangement:
    speeds, exponent = scaled(check(graph, given, objective, method, seed, tolerance))
    aim: Aim = AIMS[objective](graph)
    positions, note = np.arange(graph.n), ""
    if graph.n <= 2:
        note = f"nothing to gain: with {graph.n} of them every order is the same"
    elif speeds.min() == speeds.max():
        note = "nothing to gain: all speeds are equal"
    else:
        searches: dict[str, Search] = {**SEARCHES, "anneal": partial(anneal, seed=seed)}
        positions = searches[method](aim, speeds, report)
        if method != "paper" and aim.changes(speeds[positions]).cost >= aim.changes(speeds).cost * (1.0 - TIE):
            positions, note = np.arange(graph.n), "nothing gained: nothing better was found than the order given"
    before, after = (_spectrum(aim, layout) for layout in (speeds, speeds[positions]))
    if objective == "uniform":  # whose matrix has the unit of 1 / speed
        with np.errstate(over="ignore"):
            before, after = (Spectrum(*np.ldexp(ends, -exponent).tolist()) for ends in (before, after))
    uniform = UniformAim(graph)
    p_before, p = (_ratio(_spectrum(uniform, layout)) for layout in (speeds, speeds[positions]))
    return Arrangement(
        positions=positions,
        objective=objective,
        method=method,
        p_before=p_before,
        p=p,
        spectrum_before=before,
        spectrum=after,
        tolerance=tolerance,
        steps_before=predict_steps(graph, speeds, objective=objective, tolerance=tolerance),
        steps_predicted=predict_steps(graph, speeds[positions], objective=objective, tolerance=tolerance),
        note=note,
    )


def check(graph: Graph, speeds: ArrayLike, objective: str, method: str, seed: int, tolerance: float = 1.0) -> Floats:
    """Return the speeds as an array; errors as for `arrange`."""
    checks.choice("objective", objective, OBJECTIVES)
    checks.choice("method", method, METHODS)
    checks.seed(seed)
    checks.number("tolerance", tolerance, above=0.0)
    array = check_comparable(speeds, graph.n)
    count, labels = graph.components()
    if count > 1:
        apart = int(np.flatnonzero(labels)[0])
        raise ValueError(
            f"the graph has {count} components (vertex {apart} can't be reached from vertex 0): expected a connected one; "
            "arrange each component by itself"
        )
    if method == "exhaustive" and graph.n > MAX_EXHAUSTIVE:
        raise ValueError(f"method = 'exhaustive' with {graph.n} vertices: expected at most {MAX_EXHAUSTIVE}")
    return array


def predict_steps(graph: Graph, speeds: ArrayLike, *, objective: str = "uniform", tolerance: float = 1e-6) -> int:
    """Steps of fos until the imbalance is within the tolerance, with the (P,) speeds in the order of the vertices.

    The objective "uniform" uses fos with the optimal uniform tau, "paper" fos with the paper's.  The initial times are
    drawn uniformly from 5 to 15; each step multiplies their part along the mode (x, lambda) by 1 - tau lambda.  Returns
    the median of some draws.  In graphs of more than 400 vertices only the slowest modes count.
    """
    speeds, _ = scaled(check(graph, speeds, objective, "swap", 0, tolerance))
    if graph.n == 1:
        return 0
    aim: Aim = AIMS[objective](graph)
    modes = find_modes(laplacian(graph, aim.tau(speeds)), speeds, _N_MODES, _N_MODES)
    tau = 2.0 / (modes.values[0] + modes.values[-1]) if objective == "uniform" else 1.0
    kept = 1.0 - tau * modes.values
    times = np.random.default_rng(0).uniform(5.0, 15.0, (graph.n, _DRAWS))
    parts = (modes.vectors * speeds[:, None]).T @ (times / (speeds @ times / speeds.sum()))

    def left(steps: int) -> Floats:
        return np.asarray((modes.vectors @ (kept[:, None] ** steps * parts)).max(axis=0))

    def done(steps: int) -> bool:  # in this step or the next: the fastest mode changes its sign in each step
        return float(np.median(np.minimum(left(steps), left(steps + 1)))) <= tolerance

    low, high = -1, 1
    while not done(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if done(middle) else (middle, high)
    return high if np.median(left(high)) <= tolerance else high + 1


def _spectrum(aim: Aim, layout: Floats) -> Spectrum:
    if len(layout) == 1:
        return Spectrum(1.0, 1.0)
    values = find_modes(laplacian(aim.graph, aim.tau(layout)), layout, 1, 1).values
    return Spectrum(float(values[0]), float(values[-1]))


def _ratio(spectrum: Spectrum) -> float:
    return spectrum.high / spectrum.low
