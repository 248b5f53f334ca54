"""Parts and their halo: every rank's part from its piece alone, and an exchange on paper between all of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lb_mpi.distributing.halo import GraphPart, Pieces, block_parts, part_of, random_parts
from lb_mpi.graph import Graph, Ints
from lb_mpi.partitioning.quality import volume


@st.composite
def distributions(draw: st.DrawFn) -> tuple[Graph, Ints, int]:
    """A graph with weights, the owner of each vertex, and the number of ranks; some own nothing."""
    n, size = draw(st.integers(1, 25)), draw(st.integers(1, 6))
    pairs = draw(st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda p: p[0] < p[1])))
    tails, heads = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    weights = np.array(draw(st.lists(st.integers(0, 9), min_size=len(pairs), max_size=len(pairs))), dtype=float)
    graph = Graph.from_edges(n, tails, heads, weights, np.arange(n, dtype=float))
    owners = np.array(draw(st.lists(st.integers(0, size - 1), min_size=n, max_size=n)), dtype=np.int64)
    return graph, owners, size


def all_parts(graph: Graph, owners: Ints, size: int) -> list[GraphPart]:
    return [part_of(piece, rank) for rank, piece in enumerate(Pieces(graph, owners, size))]


def exchanged(parts: list[GraphPart], values: np.ndarray) -> list[np.ndarray]:
    """What all ranks have after an exchange of their vertices' `values`, done on paper."""
    around = []
    for rank, part in enumerate(parts):
        ghosts = np.full(part.n_ghosts, -1.0)
        for k, other in enumerate(part.ranks.tolist()):
            theirs = parts[other]
            box = theirs.ranks.tolist().index(rank)
            sent = theirs.send[theirs.send_indptr[box] : theirs.send_indptr[box + 1]]
            ghosts[part.receive_indptr[k] : part.receive_indptr[k + 1]] = values[theirs.vertices[sent]]
        around.append(np.concatenate([values[part.vertices], ghosts]))
    return around


def check(graph: Graph, owners: Ints, parts: list[GraphPart]) -> None:
    """The law of parts; AssertionError or ValueError for any that break it."""
    owned = np.concatenate([part.vertices for part in parts])
    assert np.array_equal(np.sort(owned), np.arange(graph.n))
    values = 100.0 + np.arange(graph.n)
    for rank, (part, around) in enumerate(zip(parts, exchanged(parts, values), strict=True)):
        assert np.all(np.diff(part.vertices) > 0)
        assert np.all(owners[part.vertices] == rank)
        assert len(set(part.ghosts.tolist())) == part.n_ghosts
        assert np.array_equal(part.ranks, np.unique(owners[part.ghosts]))
        assert rank not in part.ranks
        numbers = np.concatenate([part.vertices, part.ghosts])
        assert np.array_equal(around, values[numbers])  # every ghost has got the value of its own vertex
        assert part.send_indptr[-1] == len(part.send)
        assert part.receive_indptr[-1] == part.n_ghosts
        for k, vertex in enumerate(part.vertices.tolist()):
            row = slice(part.indptr[k], part.indptr[k + 1])
            assert np.array_equal(numbers[part.indices[row]], graph.neighbours(vertex))  # in that order
            assert np.array_equal(part.weights[row], graph.weights[graph.indptr[vertex] : graph.indptr[vertex + 1]])
        assert np.array_equal(part.vertex_weights, graph.vertex_weights[part.vertices])
        assert set(part.indices[part.indices >= part.n_local].tolist()) == set(
            range(part.n_local, part.n_local + part.n_ghosts)
        )  # no ghost for nothing
    assert sum(part.n_ghosts for part in parts) == volume(graph, owners, len(parts))


@settings(deadline=None)
@given(distributions())
def test_parts_of_drawn_distributions_keep_the_law(case):
    graph, owners, size = case
    check(graph, owners, all_parts(graph, owners, size))


@settings(deadline=None)
@given(distributions())
def test_sizes_are_known_beforehand(case):
    pieces = Pieces(*case)
    assert len(pieces) == case[2]
    assert pieces.sizes().tolist() == [[len(piece.vertices), len(piece.neighbours)] for piece in pieces]
    for rank in (-1, len(pieces)):
        with pytest.raises(IndexError):
            pieces[rank]


@settings(deadline=None)
@given(st.integers(1, 50), st.integers(1, 60), st.integers(0, 9))
def test_simple_splits_are_equal_up_to_one(n, size, seed):
    block, dealt = block_parts(n, size), random_parts(n, size, seed)
    assert np.all(np.diff(block) >= 0)
    for parts in (block, dealt):
        sizes = np.bincount(parts, minlength=size)
        assert len(sizes) == size
        assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(dealt, random_parts(n, size, seed))
