"""The methods: from an aim and the (P,) speeds of the nodes to positions.   (pure)

`positions` (P,) are node numbers: node positions[k] sits at vertex k, so `speeds[positions]` is the layout.

exhaustive   all P! arrangements
paper        the greedy of Jin & Wang 2003: vertices without a node count as the slowest; fastest nodes first
fill         vertices without a node count as the harmonic mean of the speeds not yet placed; fastest and slowest in turn
swap         from fill (or from the order given, where that is better): swaps of two nodes, as long as one helps
anneal       from local minimum to local minimum of swap (Martin, Otto, Felten 1991), at a temperature that falls
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice, permutations

import numpy as np

from lb_mpi.arranging.modes import DENSE
from lb_mpi.arranging.objectives import TIE, Aim, Changes, costs
from lb_mpi.graph import Floats, Ints

MAX_EXHAUSTIVE = 9
Progress = Callable[[str, float], None]  # the work of the moment, and the part of the method that is done, 0 to 1

_BATCH = 20160  # arrangements at a time
_TRIES = 50  # estimates of a large graph that turn out wrong before descent gives up
KICKS = 4  # random swaps between two descents, at most
HEAT = 0.002  # temperature of log(cost) at the start
ROUNDS = 300  # descents on 64 vertices; fewer on less, which need no more, and on more, where each takes longer


def all_costs(aim: Aim, speeds: Floats) -> Iterator[tuple[Ints, Floats]]:
    """All arrangements (B, P) in ascending order, and their costs (B,), many at a time."""
    orders = permutations(range(len(speeds)))
    while batch := list(islice(orders, _BATCH)):
        positions = np.array(batch, dtype=np.int64)
        yield positions, costs(aim, speeds[positions])


def exhaustive(aim: Aim, speeds: Floats, progress: Progress) -> Ints:
    """The best of all; of equal ones the first."""
    best, least, seen = np.arange(len(speeds)), math.inf, 0
    for positions, values in all_costs(aim, speeds):
        k = _first_least(values)
        if values[k] < least * (1.0 - TIE):
            best, least = positions[k], float(values[k])
        seen += len(values)
        progress("all arrangements", seen / math.factorial(len(speeds)))
    return best


def paper(aim: Aim, speeds: Floats, progress: Progress) -> Ints:
    """The paper's greedy, literally; of equally good vertices it takes the first."""
    return _construct(aim, speeds, np.argsort(-speeds, kind="stable"), lambda rest: float(speeds.min()), progress)


def fill(aim: Aim, speeds: Floats, progress: Progress) -> Ints:
    """Like the greedy, but vertices without a node count as what is left on average, and both extremes come in turn."""
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
            choice = _first_least(aim.changes(layout).place(free, float(speeds[node])))
        positions[free[choice]] = node
        progress("placing nodes", (step + 1) / len(speeds))
    return positions


def swap(aim: Aim, speeds: Floats, progress: Progress) -> Ints:
    """A local minimum: no swap of two nodes makes the cost smaller.  Never worse than the order given."""
    return descend(aim, speeds, _start(aim, speeds, progress), progress)


def descend(aim: Aim, speeds: Floats, positions: Ints, progress: Progress) -> Ints:
    """Swap two nodes again and again, as long as a swap makes the cost smaller.

    Of the swaps that do, the one with the lowest bound is taken: what it does to the two modes that matter is best, even if
    others then take their place.  (The steepest descent ends earlier, in worse minima.)  Up to `modes.DENSE` vertices the
    end is a local minimum; in larger graphs, where swaps are only estimated, so many that promise most have failed.
    """
    positions = positions.copy()
    first, second = (ends.astype(np.int64) for ends in np.triu_indices(len(speeds), 1))
    here: Changes | None = aim.changes(speeds[positions])
    steps = 0
    while here is not None:
        here = _step(aim, speeds, positions, here, first, second)
        steps += 1
        progress(f"{steps} swaps", 1.0 - 0.99**steps)  # how many there will be, nobody knows
    return positions


def _step(aim: Aim, speeds: Floats, positions: Ints, here: Changes, first: Ints, second: Ints) -> Changes | None:
    """Make one swap in `positions` that helps; None when there is none."""
    limit = here.cost * (1.0 - TIE)
    bounds = here.swap_bounds(first, second)
    worth = np.flatnonzero(bounds < limit)
    worth = worth[np.argsort(bounds[worth], kind="stable")]
    tries = 0
    while tries < _TRIES:
        k = here.first_below(first[worth], second[worth], limit)
        if k == len(worth):
            return None
        ends = [first[worth[k]], second[worth[k]]]
        positions[ends] = positions[ends[::-1]]
        there = aim.changes(speeds[positions])
        if there.cost < limit:
            return there
        positions[ends] = positions[ends[::-1]]
        worth = worth[k + 1 :]
        tries += len(speeds) > DENSE
    return None


def anneal(aim: Aim, speeds: Floats, progress: Progress, seed: int) -> Ints:
    """From local minimum to local minimum: some random swaps, then descent; worse ones are accepted, but ever fewer.

    Never worse than the order given.
    """
    positions = swap(aim, speeds, lambda text, part: progress(text, 0.1 * part))
    rng, n = np.random.default_rng(seed), len(speeds)
    rounds = max(10, int(ROUNDS * min(n / 64.0, (64.0 / n) ** 2)))
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
        progress(f"annealing, {done + 1} local minima", 0.1 + 0.9 * (done + 1) / rounds)
    return best


def _start(aim: Aim, speeds: Floats, progress: Progress) -> Ints:
    given, filled = np.arange(len(speeds)), fill(aim, speeds, progress)
    return given if aim.changes(speeds).cost <= aim.changes(speeds[filled]).cost else filled


def _first_least(values: Floats) -> int:
    return int(np.flatnonzero(values <= values.min() * (1.0 + TIE))[0])
