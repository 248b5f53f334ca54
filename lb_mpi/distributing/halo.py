"""The halo of a part: the values that a rank needs from other ranks, and those that it sends to them.   (pure)

Each vertex of a graph is owned by one rank.  A rank's ghosts are the neighbours of its vertices that other ranks own.
A rank receives only its rows of the graph (`piece`), and computes the rest from them (`part_of`):

    owned vertices, ascending                        0 .. n_local-1
    ghosts, by owner, ascending for each             n_local .. n_local+n_ghosts-1

Graphs are undirected, so the vertices that rank r sends to rank s are those of r with a neighbour on s, ascending:
exactly the ghosts that s has of r.  No rank needs to request them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lb_mpi.graph import Floats, Graph, Ints


class Piece(NamedTuple):
    """A rank's rows of a graph; vertices by their global numbers."""

    vertices: Ints  # (n_local,) owned, ascending
    indptr: Ints  # (n_local+1,) where the neighbours of each vertex begin
    neighbours: Ints  # (nnz,) of each vertex, ascending
    owners: Ints  # (nnz,) of these neighbours
    weights: Floats  # (nnz,) of the edges
    vertex_weights: Floats  # (n_local,)


@dataclass(frozen=True, eq=False)
class GraphPart:
    """A rank's part of a graph in local numbers, and its exchanges with other ranks.

    The first six arrays are read-only, since a program has them, too: what it changed in place would be sent to other ranks.
    """

    vertices: Ints  # (n_local,) global numbers of the owned vertices, ascending
    ghosts: Ints  # (n_ghosts,) global numbers of the ghosts, by owner, ascending for each
    indptr: Ints  # (n_local+1,) where the neighbours of each owned vertex begin
    indices: Ints  # (nnz,) local numbers of the neighbours, in the ascending order of their *global* numbers
    weights: Floats  # (nnz,) of the edges, beside indices
    vertex_weights: Floats  # (n_local,)
    ranks: Ints  # (R,) exchange partners, ascending
    send_indptr: Ints  # (R+1,) where the vertices for each partner begin in `send`
    send: Ints  # local numbers of the vertices sent
    receive_indptr: Ints  # (R+1,) where the ghosts of each partner begin

    def __post_init__(self) -> None:
        for array in (self.vertices, self.ghosts, self.indptr, self.indices, self.weights, self.vertex_weights):
            array.flags.writeable = False

    @property
    def n_local(self) -> int:
        """The number of owned vertices."""
        return len(self.vertices)

    @property
    def n_ghosts(self) -> int:
        """The number of ghosts: values received in an exchange."""
        return len(self.ghosts)


class Pieces(Sequence[Piece]):
    """The pieces of `graph`, one for each of `size` ranks, each made on demand; owners (n,)."""

    def __init__(self, graph: Graph, owners: Ints, size: int) -> None:
        self._graph, self._owners = graph, owners
        self._order = np.argsort(owners, kind="stable")  # groups the vertices by rank in O(n log n), not O(n P)
        self._begin = np.searchsorted(owners[self._order], np.arange(size + 1))

    def __len__(self) -> int:
        return len(self._begin) - 1

    def __getitem__(self, rank: int) -> Piece:  # type: ignore[override]
        if not 0 <= rank < len(self):
            raise IndexError(rank)
        vertices = self._order[self._begin[rank] : self._begin[rank + 1]]
        rows = self._graph.to_scipy()[vertices]
        indptr, neighbours = rows.indptr.astype(np.int64), rows.indices.astype(np.int64)
        weights, vertex_weights = rows.data, self._graph.vertex_weights[vertices]
        return Piece(vertices, indptr, neighbours, self._owners[neighbours], weights, vertex_weights)

    def sizes(self) -> Ints:
        """(P, 2) numbers of vertices, and of entries in their rows."""
        ends = np.concatenate([[0], np.cumsum(self._graph.degrees[self._order])])[self._begin]
        return np.stack([np.diff(self._begin), np.diff(ends)], axis=1)


def part_of(piece: Piece, rank: int) -> GraphPart:
    """Return the part of `rank`, computed from its piece alone."""
    vertices, indptr, neighbours, owners, weights, vertex_weights = piece
    away = owners != rank
    tails = np.repeat(np.arange(len(vertices)), np.diff(indptr))[away]
    # A ghost is (owner, global number), a sent vertex (rank, local number): both sorted and unique.
    ghost_owners, ghosts = _unique_pairs(owners[away], neighbours[away])
    send_ranks, send = _unique_pairs(owners[away], tails)
    ranks = np.unique(ghost_owners)
    indices = np.empty(len(neighbours), dtype=np.int64)
    indices[~away] = _indices(vertices, neighbours[~away])
    by_number = np.argsort(ghosts)
    indices[away] = len(vertices) + by_number[_indices(ghosts[by_number], neighbours[away])]
    return GraphPart(
        vertices=vertices,
        ghosts=ghosts,
        indptr=indptr,
        indices=indices,
        weights=weights,
        vertex_weights=vertex_weights,
        ranks=ranks,
        send_indptr=np.append(np.searchsorted(send_ranks, ranks), len(send)),
        send=send,
        receive_indptr=np.append(np.searchsorted(ghost_owners, ranks), len(ghosts)),
    )


def _indices(numbers: Ints, wanted: Ints) -> Ints:
    """Return the indices of wanted numbers in ascending ones: from a table, ten times as fast, if it is not too long."""
    low = int(numbers[0]) if len(numbers) else 0
    span = int(numbers[-1]) + 1 - low if len(numbers) else 0
    if span > 4 * len(wanted):
        return np.searchsorted(numbers, wanted)
    index = np.empty(span, dtype=np.int64)
    index[numbers - low] = np.arange(len(numbers))
    return np.asarray(index[wanted - low])


def _unique_pairs(firsts: Ints, seconds: Ints) -> tuple[Ints, Ints]:
    """The distinct pairs (firsts[k], seconds[k]) in ascending order; numbers >= 0."""
    span = int(seconds.max(initial=0)) + 1
    first, second = np.divmod(np.unique(firsts * span + seconds), span)
    return first, second


def block_parts(n: int, size: int) -> Ints:
    """(n,) parts of n vertices in blocks of equal size, up to one: the first block to rank 0, and so on."""
    return np.arange(n, dtype=np.int64) * size // max(n, 1)


def random_parts(n: int, size: int, seed: int) -> Ints:
    """(n,) parts of equal size, up to one, assigned at random."""
    return np.random.default_rng(seed).permutation(block_parts(n, size))
