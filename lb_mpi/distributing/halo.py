"""The halo of a part: which values of other parts' vertices a rank needs, and whom it sends its own.   (pure)

Each vertex of a graph is owned by one rank.  A rank's ghosts are the vertices of others that its own have as neighbours.
Its rows (`piece`) are all that it needs to be told of the graph; the rest it computes from these alone (`part_of`):

    owned vertices, ascending                        0 .. n_local-1
    ghosts, by owner, ascending for each             n_local .. n_local+n_ghosts-1

Graphs are undirected, so the vertices that rank r sends to rank s are those of r with a neighbour on s, ascending: just
what s has as its ghosts of r.  Nobody has to ask for anything.
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
    indptr: Ints  # (n_local+1,) where the neighbours of each begin
    neighbours: Ints  # (nnz,) of each, ascending
    owners: Ints  # (nnz,) the ranks that own these
    weights: Floats  # (nnz,) of the edges
    vertex_weights: Floats  # (n_local,)


@dataclass(frozen=True, eq=False)
class GraphPart:
    """A rank's part of a graph in its own numbers, and what it exchanges with whom."""

    vertices: Ints  # (n_local,) global numbers of the owned vertices, ascending
    ghosts: Ints  # (n_ghosts,) global numbers of the ghosts, by owner, ascending for each
    indptr: Ints  # (n_local+1,) where the neighbours of each owned vertex begin
    indices: Ints  # (nnz,) local numbers of the neighbours, in the ascending order of their *global* numbers
    weights: Floats  # (nnz,) of the edges, beside indices
    vertex_weights: Floats  # (n_local,)
    ranks: Ints  # (R,) those with which values are exchanged, ascending
    send_indptr: Ints  # (R+1,) where in `send` begins what each of them is sent
    send: Ints  # local numbers of the vertices sent
    receive_indptr: Ints  # (R+1,) where in the ghosts begin those of each

    @property
    def n_local(self) -> int:
        """The number of owned vertices."""
        return len(self.vertices)

    @property
    def n_ghosts(self) -> int:
        """The number of ghosts: values received in an exchange."""
        return len(self.ghosts)


class Pieces(Sequence[Piece]):
    """The pieces of `graph`, one for each of `size` ranks, each made when it is asked for; owners (n,)."""

    def __init__(self, graph: Graph, owners: Ints, size: int) -> None:
        self._graph, self._owners = graph, owners
        self._order = np.argsort(owners, kind="stable")  # so that all ranks' vertices are found in O(n log n), not O(n P)
        self._begin = np.searchsorted(owners[self._order], np.arange(size + 1))

    def __len__(self) -> int:
        return len(self._begin) - 1

    def __getitem__(self, rank: int) -> Piece:  # type: ignore[override]
        if not 0 <= rank < len(self):
            raise IndexError(rank)
        graph = self._graph
        vertices = self._order[self._begin[rank] : self._begin[rank + 1]]
        first, degrees = graph.indptr[vertices], graph.degrees[vertices]
        indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        entries = np.repeat(first - indptr[:-1], degrees) + np.arange(indptr[-1])
        neighbours = graph.indices[entries]
        return Piece(
            vertices, indptr, neighbours, self._owners[neighbours], graph.weights[entries], graph.vertex_weights[vertices]
        )

    def sizes(self) -> Ints:
        """(P, 2) numbers of vertices, and of entries in their rows."""
        ends = np.concatenate([[0], np.cumsum(self._graph.degrees[self._order])])[self._begin]
        return np.stack([np.diff(self._begin), np.diff(ends)], axis=1)


def part_of(piece: Piece, rank: int) -> GraphPart:
    """All that `rank` has to know of its part, from its piece alone."""
    vertices, indptr, neighbours, owners, weights, vertex_weights = piece
    away = owners != rank
    tails = np.repeat(np.arange(len(vertices)), np.diff(indptr))[away]
    # A ghost is (owner, global number), and what is sent is (rank, local number): both sorted, each once.
    ghost_owners, ghosts = _unique_pairs(owners[away], neighbours[away])
    send_ranks, send = _unique_pairs(owners[away], tails)
    ranks = np.unique(ghost_owners)
    indices = np.empty(len(neighbours), dtype=np.int64)
    indices[~away] = np.searchsorted(vertices, neighbours[~away])
    by_number = np.argsort(ghosts)
    indices[away] = len(vertices) + by_number[np.searchsorted(ghosts[by_number], neighbours[away])]
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


def _unique_pairs(firsts: Ints, seconds: Ints) -> tuple[Ints, Ints]:
    """The pairs (firsts[k], seconds[k]) in ascending order, each once."""
    order = np.lexsort((seconds, firsts))
    first, second = firsts[order], seconds[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(first) != 0) | (np.diff(second) != 0)
    return first[new], second[new]


def block_parts(n: int, size: int) -> Ints:
    """(n,) parts of n vertices in blocks of equal size, up to one: the first to rank 0, and so on."""
    return np.arange(n, dtype=np.int64) * size // max(n, 1)


def random_parts(n: int, size: int, seed: int) -> Ints:
    """(n,) parts of equal size, up to one, dealt out at random."""
    return np.random.default_rng(seed).permutation(block_parts(n, size))
