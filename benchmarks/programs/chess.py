"""A tree: count the positions after five moves, as in a test of a program that plays chess.

Source: python-chess, examples/perft, and the third of its usual positions.  Before, the first two
moves are dealt out in turn.
"""

from __future__ import annotations

from typing import Any

import chess

import lb_mpi
from benchmarks.programs.script import main, task

NEEDS = {"chess": "chess"}
START, DEPTH = "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1", 5


@task
def children(node: tuple[str, int]) -> list[tuple[str, int]]:
    """Positions after one more move, down to the last but one."""
    fen, depth = node
    if depth < 2:
        return []
    board, found = chess.Board(fen), []
    for move in board.legal_moves:
        board.push(move)
        found.append((board.fen(), depth - 1))
        board.pop()
    return found


@task
def leaves(node: tuple[str, int]) -> int:
    """Number of positions right below the last ones."""
    fen, depth = node
    return chess.Board(fen).legal_moves.count() if depth == 1 else 0


def perft(node: tuple[str, int]) -> int:
    """Number of positions below a node."""
    return leaves(node) + sum(map(perft, children(node)))


def before(comm: Any) -> Any:
    """In equal parts."""
    second = [node for first in children((START, DEPTH)) for node in children(first)]
    return comm.reduce(sum(map(perft, second[comm.rank :: comm.size])))


def after(comm: Any) -> Any:
    """With lb_mpi."""
    tree = lb_mpi.TreeSearch((START, DEPTH), children, value=leaves)
    return lb_mpi.search(comm, tree).value


if __name__ == "__main__":
    main(before, after)
