"""Idealised search in lock step: communication is free, and one step is one unit of work on every rank.

Source: Xu, Zhang, Sun, "A dynamic and distributed algorithm for load balancing on multiprocessors" (Nanjing University,
1991), the table of the example.  It says what balancing could gain at best: a bound to hold real runs against.

One step is
1. balance: ranks without work, in order, each take a part from the rank of maximal load Q > J; of equal ones from the
   first after itself on the ring.  Loads are valued anew after each split, a rank may be split again, each split counts
   as one balance.
2. work: ranks with work, in order, each do one unit; who received in this step works in it, and whose work has vanished
   meanwhile (others did it) loses the step.
3. The search is over when a rank has found, or no rank has work.

On the paper's maze of 16 x 16 with `MazeSearch` this gives L1 = 67 steps on one rank and L2 = 47 steps with 10 balances
on two, exactly as published, when the cell is open that the paper's path crosses and its print blocks.  The published
L4 = 33 with 13 balances is not reproduced: this model finds the exit in fewer steps.  `compare_on` has the paper's speed-up
S = L1 / L and efficiency E = S / ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from apps.maze_kernel import Cells
from apps.maze_search import MazeSearch, random_maze
from lb_mpi.checks import integer, number
from lb_mpi.graph import ring_order
from lb_mpi.searching.guard import Guard
from lb_mpi.searching.problem import Problem


class LockstepResult(NamedTuple):
    """What the idealised search took."""

    steps: int  # L of the paper
    balances: int  # parts of work that were moved
    found: bool  # False: all work is done


class Comparison(NamedTuple):
    """The idealised search on one rank, and on many."""

    ranks: int
    alone: LockstepResult
    together: LockstepResult

    @property
    def speedup(self) -> float:
        """S of the paper: how many times fewer steps it takes together; 1.0 where there is nothing to do."""
        return self.alone.steps / self.together.steps if self.together.steps else 1.0

    @property
    def efficiency(self) -> float:
        """E of the paper: the speed-up a rank.  Above 1 where the exit is found before all that one rank sees first."""
        return self.speedup / self.ranks


def compare_on(cells: Cells, ranks: int, rule: str = "half", threshold: float = 0.125) -> Comparison:
    """Search a maze on one rank, then on `ranks`, in the order of the paper's ring; the cells stay as they are.

    threshold  J, in the unit of `load()`

    Errors: ValueError that names the argument.
    """

    def search(size: int) -> LockstepResult:
        shared = cells.copy()
        return lockstep([MazeSearch(shared, rank, rule) for rank in range(size)], ring_order(size), threshold)

    ranks = integer("ranks", ranks, 1)
    alone = search(1)
    return Comparison(ranks, alone, search(ranks) if ranks > 1 else alone)


class Medians(NamedTuple):
    """Of the mazes of one size that have a way out."""

    mazes: int
    steps_on_one_rank: float
    steps: float
    balances: float
    speedup: float
    efficiency: float


def median_of_mazes(dim: int, ranks: int, free: float, seeds: int) -> Medians:
    """Medians over drawn mazes of dim x dim cells that have a way out; ValueError when none has."""
    drawn = (random_maze(dim, free, seed) for seed in range(seeds))
    some = [found for cells in drawn if (found := compare_on(cells, ranks)).together.found]
    if not some:
        raise ValueError(f"dims = {dim}, free = {free}, seeds = {seeds}: expected a maze with a way out, got none")
    return Medians(
        len(some),
        median(one.alone.steps for one in some),
        median(one.together.steps for one in some),
        median(one.together.balances for one in some),
        median(one.speedup for one in some),
        median(one.efficiency for one in some),
    )


def lockstep(problems: Sequence[Problem], ring: Sequence[int], threshold: float = 0.125) -> LockstepResult:
    """Search in lock step with problems[r] on rank r, all freshly made; the first starts here.

    ring       all ranks in ring order (the paper: binary reflected Gray code, [0, 1, 3, 2] for four)
    threshold  J, in the unit of `load()`: only a load above it is split

    Errors: ValueError that names the argument; SearchError for what a problem returns against its law.
    """
    size = len(problems)
    if size == 0:
        raise ValueError("problems is empty: expected at least one")
    if sorted(ring) != list(range(size)):
        raise ValueError(f"ring = {list(ring)!r}: expected each rank of 0 to {size - 1} once")
    threshold = number("threshold", threshold, least=0.0, unit="J, as problem.load()")

    problems = [Guard(problem) for problem in problems]
    problems[0].start()
    steps = balances = 0
    loads = [problem.load() for problem in problems]
    found = any(problem.found for problem in problems)
    while any(loads) and not found:
        steps += 1
        for rank in range(size):
            if loads[rank] == 0.0:
                balances += _draft(problems, ring, threshold, loads, rank)
        for rank in range(size):
            if loads[rank] > 0.0:
                _one_unit(problems[rank])
        found = any(problem.found for problem in problems)
        loads = [problem.load() for problem in problems]
    return LockstepResult(steps, balances, found)


def _draft(problems: Sequence[Problem], ring: Sequence[int], threshold: float, loads: list[float], thief: int) -> int:
    """Let the thief take a part from the most loaded rank that can give one; returns the number of balances, 0 or 1."""
    index = ring.index(thief)
    others = [*ring[index + 1 :], *ring[:index]]
    for victim in sorted(others, key=lambda rank: -loads[rank]):  # a stable sort: ties stay in ring order
        if loads[victim] <= threshold:
            break
        part = problems[victim].split()
        if part is not None:
            problems[thief].absorb(part)
            loads[victim], loads[thief] = problems[victim].load(), problems[thief].load()
            return 1
    return 0


def _one_unit(problem: Problem) -> None:
    """Do one unit, whatever may be dropped on the way to it: in this model that is free."""
    while problem.work(1) == 0 and problem.load() > 0.0 and not problem.found:
        pass
