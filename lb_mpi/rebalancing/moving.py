"""Vertices that change their owner: the rows of the graph that move, and the pieces that they become.   (pure)

A rank that gives a vertex away sends its row of the graph once, straight to the new owner.  By then it knows the new owners
of all neighbours of its vertices, also of those that a third rank moves: so the row is right when it arrives, and the new
owner needs nothing else to make its part (`lb_mpi.distributing.halo.part_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lb_mpi.distributing.halo import GraphPart, Piece
from lb_mpi.graph import Floats, Ints


class Moving(NamedTuple):
    """Some rows of the graph, with what is known of their vertices."""

    piece: Piece
    costs: Floats  # (n,) estimated cost of each vertex


class Owners(NamedTuple):
    """The new owners of a rank's vertices and of its ghosts."""

    local: Ints  # (n_local,)
    ghosts: Ints  # (n_ghosts,)


def owners_now(part: GraphPart, rank: int) -> Owners:
    """Return the owners before any vertex moves."""
    of_ghosts = np.repeat(part.ranks, np.diff(part.receive_indptr))
    return Owners(np.full(part.n_local, rank, dtype=np.int64), of_ghosts)


def labels_for(part: GraphPart, labels: Ints, neighbour: int) -> Ints:
    """Return the labels of the vertices that a neighbour has as ghosts, in the order of its ghosts."""
    index = np.searchsorted(part.ranks, neighbour)
    if index == len(part.ranks) or part.ranks[index] != neighbour:
        return np.zeros(0, dtype=np.int64)
    return np.asarray(labels[part.send[part.send_indptr[index] : part.send_indptr[index + 1]]])


def still_touching(part: GraphPart, owners: Owners, rank: int) -> set[int]:
    """Return the neighbours with which this rank shares a border once vertices have these owners; both ends agree."""
    away = part.indices >= part.n_local
    ghosts = part.indices[away] - part.n_local
    homes = owners_now(part, rank).ghosts[ghosts]
    mine = np.repeat(owners.local, np.diff(part.indptr))[away]
    theirs = owners.ghosts[ghosts]
    beside = ((mine == rank) & (theirs == homes)) | ((mine == homes) & (theirs == rank))
    return set(np.unique(homes[beside]).tolist())


def rows_of(part: GraphPart, costs: Floats, owners: Owners, index: Ints) -> Moving:
    """Return the rows of the vertices with the local numbers `index`, ascending."""
    entries, indptr = _entries(part.indptr, index)
    heads = part.indices[entries]
    numbers, labels = np.concatenate([part.vertices, part.ghosts]), np.concatenate(owners)
    piece = Piece(
        part.vertices[index], indptr, numbers[heads], labels[heads], part.weights[entries], part.vertex_weights[index]
    )
    return Moving(piece, costs[index])


def joined(parts: Sequence[Moving]) -> tuple[Moving, Ints]:
    """Join rows, at least one; return them sorted by vertex, and (n,) the position of each in the order of `parts`."""
    pieces = [one.piece for one in parts]
    vertices = np.concatenate([one.vertices for one in pieces])
    degrees = np.concatenate([np.diff(one.indptr) for one in pieces])
    order = np.argsort(vertices, kind="stable")
    entries, indptr = _entries(np.concatenate([[0], np.cumsum(degrees)]), order)
    neighbours, owners, weights = (
        np.concatenate([getattr(one, name) for one in pieces])[entries] for name in ("neighbours", "owners", "weights")
    )
    vertex_weights = np.concatenate([one.vertex_weights for one in pieces])[order]
    piece = Piece(vertices[order], indptr, neighbours, owners, weights, vertex_weights)
    return Moving(piece, np.concatenate([one.costs for one in parts])[order]), order


def cut_of(part: GraphPart, owners: Owners) -> float:
    """Return half the weight of the edges from this rank's vertices to vertices of other owners."""
    tails = np.repeat(owners.local, np.diff(part.indptr))
    heads = np.concatenate(owners)[part.indices]
    return 0.5 * float(part.weights[tails != heads].sum())


def _entries(indptr: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return the positions of the entries of some rows of a CSR array, row by row, and where each row begins there."""
    degrees = indptr[rows + 1] - indptr[rows]
    begin = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    return np.arange(begin[-1]) + np.repeat(indptr[rows] - begin[:-1], degrees), begin
