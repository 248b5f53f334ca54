"""The command `simulate lockstep`: the idealised search of a maze (Xu, Zhang, Sun 1991, the table of the example)."""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from lb_mpi.checks import integer
from lb_mpi.problems.maze import MazeSearch, random_maze, read_maze
from lb_mpi.problems.maze_kernel import Cells
from lb_mpi.searching import room
from lb_mpi.searching.lockstep import Comparison, compare

PUBLISHED = {1: "67 steps", 2: "47 steps, 10 balances", 4: "33 steps, 13 balances"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--maze", metavar="FILE", help="rows of 0 (free) and 1 (blocked) within a wall of 2")
    which.add_argument(
        "--dims", type=dims, metavar="N,N,...", help="drawn mazes of N x N cells instead, and medians for each N"
    )
    parser.add_argument("--free", type=float, default=0.7, help="of --dims: how many cells are free (%(default)s)")
    parser.add_argument(
        "--seeds",
        type=int,
        default=10,
        help="of --dims: mazes drawn for each N; those without a way out are left out (%(default)s)",
    )
    parser.add_argument("--ranks", type=int, default=2, help="number of virtual ranks (%(default)s)")
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.125,
        metavar="J",
        help="work that is too little to be shared: 1 for each cell of the path since the first with untried directions, "
        "and an eighth for each of these (%(default)s)",
    )
    parser.add_argument(
        "--split-rule",
        choices=("half", "one", "alternate"),
        default="half",
        help="which untried directions a rank gives away: half of those of its oldest cell that has several, one of them, "
        "or those of every other cell (%(default)s)",
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Search as the options say; ValueError for odd values and mazes.

    `steps` until the search was over, `balances`, how often work was moved, whether an exit was `found`,
    `steps_on_one_rank`, `speedup` and `efficiency`.  With --dims: the `sizes`, each with its `dim`, the number of `mazes`
    with a way out, and the medians of the others.
    """
    ranks, rules = options.ranks, (options.split_rule, options.threshold)
    if options.maze is None:
        sizes = [median_of_mazes(dim, ranks, options.free, options.seeds, *rules) for dim in options.dims]
        return {"ranks": ranks, "sizes": sizes}
    found = compare_on(read_maze(options.maze), ranks, *rules)
    return {
        "ranks": ranks,
        **found.together._asdict(),
        "steps_on_one_rank": found.alone.steps,
        "speedup": found.speedup,
        "efficiency": found.efficiency,
    }


def compare_on(cells: Cells, ranks: int, split_rule: str = "half", threshold: float = 0.125) -> Comparison:
    """The search of a maze on one rank and on `ranks`; the cells stay as they are."""
    room.check_ranks(ranks, room.MAZE_BYTES + room.CELL_BYTES * cells.size)

    def make(size: int) -> list[MazeSearch]:
        shared = cells.copy()
        return [MazeSearch(shared, rank, split_rule) for rank in range(size)]

    return compare(make, ranks, threshold)


def median_of_mazes(
    dim: int, ranks: int, free: float = 0.7, seeds: int = 10, split_rule: str = "half", threshold: float = 0.125
) -> dict[str, Any]:
    """Medians over drawn mazes of dim x dim cells that have a way out; ValueError when none has."""
    room.check_ranks(ranks, room.MAZE_BYTES + room.CELL_BYTES * (dim + 2) ** 2)
    drawn = (random_maze(dim, free, seed) for seed in range(integer("seeds", seeds, 1)))
    some = [found for cells in drawn if (found := compare_on(cells, ranks, split_rule, threshold)).together.found]
    if not some:
        raise ValueError(f"dims = {dim}, free = {free}, seeds = {seeds}: expected a maze with a way out, got none")
    return {
        "dim": dim,
        "mazes": len(some),
        "steps_on_one_rank": median(one.alone.steps for one in some),
        "steps": median(one.together.steps for one in some),
        "balances": median(one.together.balances for one in some),
        "speedup": median(one.speedup for one in some),
        "efficiency": median(one.efficiency for one in some),
    }


def summary(answer: dict[str, Any]) -> list[str]:
    """The answer in a few lines for people."""
    if "sizes" in answer:
        lines = [
            f"{answer['ranks']} ranks, medians:",
            " cells  mazes  on one rank    steps  balances  speed-up  efficiency",
        ]
        return lines + [
            f"{one['dim']:>4}^2  {one['mazes']:>5}  {one['steps_on_one_rank']:>11.6g}  {one['steps']:>7.6g}  "
            f"{one['balances']:>8.6g}  {one['speedup']:>8.2f}  {one['efficiency']:>10.3f}"
            for one in answer["sizes"]
        ]
    published = "; ".join(f"{ranks} ranks {text}" for ranks, text in PUBLISHED.items())
    return [
        f"{answer['ranks']} ranks: {answer['steps']} steps, {answer['balances']} balances, "
        + ("exit found" if answer["found"] else "no path to the exit"),
        f"speed-up {answer['speedup']:.2f} against the {answer['steps_on_one_rank']} steps of one rank, "
        f"efficiency {answer['efficiency']:.3f}",
        f"published for the paper's maze: {published} (33 / 13 can't be reproduced by this model)",
    ]


def dims(text: str) -> list[int]:
    """The sizes of mazes; argparse turns a ValueError into its own."""
    return [integer("dim", int(word), 1) for word in text.split(",")]
