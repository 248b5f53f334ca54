"""The command `simulate lockstep`: the idealised search of a maze (Xu, Zhang, Sun 1991, the table of the example)."""

from __future__ import annotations

import argparse
from typing import Any

from lb_mpi.graph import ring_order
from lb_mpi.problems.maze import MazeSearch, read_maze
from lb_mpi.searching import room
from lb_mpi.searching.lockstep import lockstep

PUBLISHED = {1: "67 steps", 2: "47 steps, 10 balances", 4: "33 steps, 13 balances"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--maze", required=True, metavar="FILE", help="rows of 0 (free) and 1 (blocked) within a wall of 2"
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

    `steps` until the search was over, `balances`, how often work was moved, and whether an exit was `found`.
    """
    cells = read_maze(options.maze)
    room.check_ranks(options.ranks, room.MAZE_BYTES + room.CELL_BYTES * cells.size)
    ring = ring_order(options.ranks)
    problems = [MazeSearch(cells, rank, options.split_rule) for rank in range(options.ranks)]
    return {"ranks": options.ranks, **lockstep(problems, ring, options.threshold)._asdict()}


def summary(answer: dict[str, Any]) -> list[str]:
    """The answer in a few lines for people."""
    published = "; ".join(f"{ranks} ranks {text}" for ranks, text in PUBLISHED.items())
    return [
        f"{answer['ranks']} ranks: {answer['steps']} steps, {answer['balances']} balances, "
        + ("exit found" if answer["found"] else "no path to the exit"),
        f"published for the paper's maze: {published} (33 / 13 can't be reproduced by this model)",
    ]
