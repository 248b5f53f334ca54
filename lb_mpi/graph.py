"""Process graphs and task graphs: one immutable structure, the named graphs, and the order of the ring.   (pure)

`lb_mpi.as_graph` (in `graph_files`) converts other forms of graphs, `Graph.from_edges` arrays of edges.

A `Graph` is undirected and weighted, in compressed sparse rows: the neighbours of vertex i are
`indices[indptr[i]:indptr[i + 1]]`, ascending.  Every edge is stored twice, once at each end, with the same weight;
there are no self-loops and no parallel edges.  `Graph` validates all of this.

At the end: the lowest or highest eigenvalues of a large sparse symmetric matrix, reproducibly;
scipy.sparse.linalg.ArpackError (or its subclass ArpackNoConvergence) if Lanczos fails.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from lb_mpi import checks
from lb_mpi.metrics import as_array, check_sum, first_true

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_EDGES = 50_000_000  # of a named graph: 1.6 GB; "complete:100000" is surely a mistake


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected graph of n vertices and E edges, as a sparse matrix (CSR).  The arrays are copies, and read-only.

    Raises ValueError, which names the vertex or the edge, for arrays that do not describe such a graph: wrong lengths,
    neighbours outside 0..n-1, self-loops, parallel or one-sided edges, unequal weights at the two ends, weights that
    are negative, NaN or infinite, or whose sum is.  Raises TypeError for arrays of anything but numbers.
    """

    indptr: Ints  # (n+1,) positions in indices where the neighbours of each vertex begin
    indices: Ints  # (2E,) the neighbours of each vertex, ascending
    weights: Floats  # (2E,) weights of the edges, >= 0, in the order of indices; in a task graph: bytes exchanged
    vertex_weights: Floats  # (n,) weights of the vertices, >= 0; in a task graph: work, in any unit

    @classmethod
    def from_edges(
        cls,
        n: int,
        tails: ArrayLike,
        heads: ArrayLike,
        weights: ArrayLike | None = None,
        vertex_weights: ArrayLike | None = None,
    ) -> Graph:
        """Make a graph of n vertices with the edges tails[k]-heads[k], each given once, in either direction.

        `tails` and `heads` are (E,) vertices 0..n-1.  `weights` (E,) and `vertex_weights` (n,) are 1 if omitted.
        Raises errors as `Graph` does.
        """
        n = checks.integer("n", n, 1)
        tail, head = _vector("tails", tails, int), _vector("heads", heads, int)
        weight = np.ones(len(tail)) if weights is None else _vector("weights", weights, float)
        if not len(tail) == len(head) == len(weight):
            raise ValueError(f"{len(tail)} tails, {len(head)} heads, {len(weight)} weights: expected equal numbers")
        if (k := first_true((tail < 0) | (tail >= n) | (head < 0) | (head >= n))) is not None:
            raise ValueError(f"edge {tail[k]}-{head[k]}: expected vertices in 0..{n - 1}")
        start, end = np.concatenate([tail, head]), np.concatenate([head, tail])
        order = np.argsort(start * n + end, kind="stable")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(start, minlength=n))])
        both = np.concatenate([weight, weight])
        return cls(indptr, end[order], both[order], _vertex_weights(vertex_weights, n))

    @classmethod
    def from_scipy(cls, matrix: Any, vertex_weights: ArrayLike | None = None) -> Graph:
        """Make the graph of a symmetric (n, n) scipy.sparse matrix: each stored entry is an edge of this weight.

        The diagonal is ignored, since it means no edge.  `vertex_weights` (n,) are 1 if omitted.  Raises ValueError,
        which names the entry, for a matrix that is not square or not symmetric, or has entries that are negative, NaN,
        infinite or complex.
        """
        if not bool(scipy.sparse.issparse(matrix)):
            raise TypeError(f"matrix of type {type(matrix).__name__}: expected a scipy.sparse matrix or array")
        if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"matrix of shape {matrix.shape}: expected a square one")
        if matrix.dtype.kind not in "biuf":
            raise ValueError(f"matrix of dtype {matrix.dtype}: expected real numbers")
        entries = scipy.sparse.coo_array(matrix, dtype=float, copy=True)  # sums of small integers would overflow
        entries.sum_duplicates()
        off = entries.row != entries.col
        values = entries.data[off]
        if (k := first_true(values < 0)) is not None:
            edge = f"edge {entries.row[off][k]}-{entries.col[off][k]} of weight {values[k]}"
            raise ValueError(f"{edge}: expected a number >= 0, such as in abs(matrix)")
        csr = scipy.sparse.csr_array((values, (entries.row[off], entries.col[off])), shape=matrix.shape)
        csr.sort_indices()
        indptr, indices = csr.indptr.astype(np.int64), csr.indices.astype(np.int64)
        return cls(indptr, indices, csr.data, _vertex_weights(vertex_weights, matrix.shape[0]))

    @classmethod
    def from_networkx(cls, graph: Any, *, weight: str = "weight", vertex_weight: str = "weight") -> Graph:
        """Make a graph from an undirected networkx graph; vertex k is the k-th node of `list(graph)`.

        `weight` and `vertex_weight` are the names of the attributes with the weights of edges and vertices; an edge or
        vertex without the attribute has weight 1.  The weights of parallel edges in a multigraph add up.  Raises
        ValueError for directed graphs, self-loops and invalid weights.
        """
        if graph.is_directed():
            raise ValueError("a directed networkx graph: expected an undirected one (see its to_undirected method)")
        if not len(graph):
            raise ValueError("an empty networkx graph: expected at least one node")
        number = {node: k for k, node in enumerate(graph)}
        total: dict[tuple[int, int], float] = {}
        for one, other, value in graph.edges(data=weight, default=1):
            if one == other:
                raise ValueError(f"node {one!r} has a self-loop")
            ends = min(number[one], number[other]), max(number[one], number[other])
            total[ends] = total.get(ends, 0.0) + checks.number(f"weight of edge {one!r}-{other!r}", value, least=0.0)
        tails, heads = np.array(list(total), dtype=np.int64).reshape(-1, 2).T
        vertex_weights = [
            checks.number(f"weight of node {node!r}", value, least=0.0)
            for node, value in graph.nodes(data=vertex_weight, default=1)
        ]
        return cls.from_edges(len(number), tails, heads, np.array(list(total.values())), vertex_weights)

    def __post_init__(self) -> None:
        for name, dtype in (("indptr", int), ("indices", int), ("weights", float), ("vertex_weights", float)):
            array = _vector(name, getattr(self, name), dtype).copy()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        self._validate()

    def _validate(self) -> None:
        indptr, indices = self.indptr, self.indices
        n = len(indptr) - 1
        if n < 1:
            raise ValueError("a graph without vertices: expected at least one")
        if indptr[0] != 0 or indptr[-1] != len(indices) or np.any(np.diff(indptr) < 0):
            raise ValueError(f"indptr must rise from 0 to len(indices) = {len(indices)}")
        for name, length in (("weights", len(indices)), ("vertex_weights", n)):
            if len(getattr(self, name)) != length:
                raise ValueError(f"{len(getattr(self, name))} {name}: expected {length}")
        if (k := first_true(~((self.vertex_weights >= 0) & np.isfinite(self.vertex_weights)))) is not None:
            raise ValueError(f"vertex {k} has weight {self.vertex_weights[k]}: expected a finite number >= 0")
        vertices = np.repeat(np.arange(n), np.diff(indptr))
        for wrong, what in (
            ((indices < 0) | (indices >= n), f"neighbour outside 0..{n - 1}"),
            (indices == vertices, "self-loop"),
            (~((self.weights >= 0) & np.isfinite(self.weights)), "weight: expected a finite number >= 0"),
            ((np.diff(vertices, prepend=-1) == 0) & (np.diff(indices, prepend=-1) == 0), "edge twice"),
            ((np.diff(vertices, prepend=-1) == 0) & (np.diff(indices, prepend=-1) < 0), "neighbours must ascend"),
        ):
            if (k := first_true(wrong)) is not None:
                raise ValueError(f"edge {vertices[k]}-{indices[k]} of weight {self.weights[k]}: {what}")
        mirror = np.argsort(indices, kind="stable")  # positions of the edges from the other end
        if not np.array_equal(indices[mirror], vertices) or not np.array_equal(vertices[mirror], indices):
            one, other = divmod(int(np.setdiff1d(vertices * n + indices, indices * n + vertices)[0]), n)
            raise ValueError(f"edge {one}-{other} is one-sided: expected it at both ends")
        if (k := first_true(self.weights[mirror] != self.weights)) is not None:
            ends, weights = f"edge {vertices[k]}-{indices[k]}", (float(self.weights[k]), float(self.weights[mirror[k]]))
            raise ValueError(f"{ends} has weights {weights} at its two ends: expected one weight")
        for each in (self.weights, self.vertex_weights):
            check_sum("the weights of the graph", each)

    @property
    def n(self) -> int:
        """The number of vertices."""
        return len(self.indptr) - 1

    @property
    def n_edges(self) -> int:
        """The number of edges E, each counted once."""
        return len(self.indices) // 2

    @property
    def degrees(self) -> Ints:
        """(n,) number of neighbours of each vertex."""
        return np.diff(self.indptr)

    def neighbours(self, vertex: int) -> Ints:
        """Return the (deg,) neighbours of `vertex`, ascending; IndexError unless it is 0..n-1."""
        if not 0 <= vertex < self.n:
            raise IndexError(f"vertex = {vertex}: expected 0..{self.n - 1}")
        return self.indices[self.indptr[vertex] : self.indptr[vertex + 1]]

    def edges(self) -> tuple[Ints, Ints]:
        """Return the (E,) tails and (E,) heads of all edges, tail < head, in ascending order of (tail, head)."""
        return self._edges

    def edge_weights(self) -> Floats:
        """Return the (E,) weights of the edges, in the order of `edges`."""
        return self.weights[np.repeat(np.arange(self.n), self.degrees) < self.indices]

    def components(self) -> tuple[int, Ints]:
        """Return the number of connected components, and each vertex's component (n,), numbered by their first vertices."""
        return self._components

    @cached_property  # cached, as the next one: planners use it repeatedly while other ranks wait
    def _edges(self) -> tuple[Ints, Ints]:
        tails = np.repeat(np.arange(self.n), self.degrees)
        once = tails < self.indices
        return _frozen(tails[once]), _frozen(self.indices[once])

    @cached_property
    def _components(self) -> tuple[int, Ints]:
        # Not by scipy.sparse.csgraph, whose import takes 0.3 s of CPU: too long for a Balancer on a slow machine.
        (tails, heads), labels, before = self._edges, np.arange(self.n), None
        while before is None or not np.array_equal(labels, before):
            before = labels.copy()
            one, other = labels[tails], labels[heads]
            np.minimum.at(labels, np.maximum(one, other), np.minimum(one, other))
            while not np.array_equal(labels, labels[labels]):
                labels = labels[labels]
        first, numbers = np.unique(labels, return_inverse=True)
        return len(first), _frozen(numbers.astype(np.int64))

    def hops(self) -> int:
        """Return the largest distance, in edges, from vertex 0 to a vertex it can reach; at least half the diameter."""
        away = scipy.sparse.csgraph.shortest_path(self.to_scipy(), unweighted=True, directed=False, indices=0)
        return int(away[np.isfinite(away)].max())

    def to_scipy(self) -> Any:
        """Return the (n, n) weighted adjacency matrix, a scipy.sparse.csr_array; edges of weight 0 are stored zeros."""
        return scipy.sparse.csr_array((self.weights, self.indices, self.indptr), shape=(self.n, self.n))

    def to_networkx(self) -> Any:
        """Return a networkx graph of the vertices 0..n-1; the weights are the attributes "weight"."""
        import networkx  # late: its import is slow

        graph = networkx.Graph()
        graph.add_nodes_from((k, {"weight": weight}) for k, weight in enumerate(self.vertex_weights.tolist()))
        tails, heads = self.edges()
        graph.add_weighted_edges_from(zip(tails.tolist(), heads.tolist(), self.edge_weights().tolist(), strict=True))
        return graph


def _frozen(array: Ints) -> Ints:
    array.flags.writeable = False
    return array


NAMES = "mesh:RxC, torus:RxC, hypercube:D, cube:N, ring:N, complete:N or lists of neighbours like 2/1,3/2"
_NEIGHBOURS = re.compile(r"(?=.*[0-9])[0-9,]*(/[0-9,]*)+")


def is_name(text: str) -> bool:
    """Return True for a text meant for `parse`: it begins like a named graph, or lists neighbours."""
    return bool(re.match("(mesh|torus|hypercube|cube|ring|complete):", text) or _NEIGHBOURS.fullmatch(text))


def parse(text: str) -> Graph:
    """Make the graph "mesh:RxC", "torus:RxC", "hypercube:D", "cube:N", "ring:N" or "complete:N", or one given by lists.

    All weights are 1.  In a mesh or torus, vertex r*C + c is row r, column c.  A torus or ring with only one or two
    vertices in a direction is a mesh in that direction, since no edge may be there twice.  For "cube:N" see `cube`.
    Lists, as in "2/1,3/2", give the neighbours of each vertex, separated by slashes; in them the first vertex is 1.
    Raises ValueError for any other text.
    """
    if _NEIGHBOURS.fullmatch(text):
        return _of_neighbours(text)
    match = re.fullmatch(r"(mesh|torus):([0-9]{1,18})x([0-9]{1,18})|(hypercube|cube|ring|complete):([0-9]{1,18})", text)
    if match is None:
        raise ValueError(f"graph = {checks.show(text)}: expected {NAMES}")
    if match[4] == "hypercube":
        dimension = int(match[5])
        _check_edges(dimension << min(dimension, 64), text)
        return grid((2,) * dimension, (False,) * dimension)
    rows, columns, size = (int(word or 1) for word in match.group(2, 3, 5))
    if rows * columns * size == 0:
        raise ValueError(f"graph = {text!r}: expected at least one vertex")
    if match[1]:
        return mesh(rows, columns, periodic=match[1] == "torus")
    if match[4] == "ring":
        return mesh(1, size, periodic=True)
    if match[4] == "cube":
        return cube(size)
    _check_edges(size * (size - 1) // 2, text)
    return Graph.from_edges(size, *np.triu_indices(size, 1))


def _of_neighbours(text: str) -> Graph:
    lists = [[int(word) for word in part.split(",") if word] for part in text.split("/")]
    arcs = [(one, other) for one, others in enumerate(lists, start=1) for other in others]
    known = set(arcs)
    for one, other in arcs:
        if not 1 <= other <= len(lists) or other == one:
            raise ValueError(f"graph: vertex {one} lists {other}: expected another one of 1..{len(lists)}")
        if (other, one) not in known:
            raise ValueError(f"graph: vertex {one} lists {other}, but not the other way round: expected both")
    if len(known) < len(arcs):
        one, other = next(arc for arc in known if arcs.count(arc) > 1)
        raise ValueError(f"graph: vertex {one} lists {other} twice: expected it once")
    once = np.array([(one - 1, other - 1) for one, other in arcs if one < other], dtype=np.int64).reshape(-1, 2)
    return Graph.from_edges(len(lists), once[:, 0], once[:, 1])


def mesh(rows: int, columns: int, *, periodic: bool = False) -> Graph:
    """The rows x columns mesh, or the torus if `periodic`; vertex r*columns + c is row r, column c."""
    rows, columns = checks.integer("rows", rows, 1), checks.integer("columns", columns, 1)
    _check_edges(2 * rows * columns, f"{'torus' if periodic else 'mesh'}:{rows}x{columns}")
    return grid((rows, columns), (periodic, periodic))


def grid(dims: Sequence[int], periods: Sequence[int]) -> Graph:
    """The grid of these lengths, periodic where `periods` says so; vertices in row-major order, as MPI's Cartesian ranks."""
    vertices = np.arange(math.prod(dims)).reshape(dims)
    tails, heads = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for axis, (length, periodic) in enumerate(zip(dims, periods, strict=True)):
        along = np.moveaxis(vertices, axis, 0)
        tails.append(along[:-1].ravel())
        heads.append(along[1:].ravel())
        if periodic and length > 2:
            tails.append(along[-1].ravel())
            heads.append(along[0].ravel())
    return Graph.from_edges(vertices.size, np.concatenate(tails), np.concatenate(heads))


def cube(size: int) -> Graph:
    """The hypercube of `size` vertices, whose numbers differ in one bit; incomplete unless `size` is a power of two.

    It is connected.  Two vertices are at most log2 of the size apart, rounded up, and no vertex has more neighbours.
    """
    size = checks.integer("size", size, 1)
    _check_edges(size * (size - 1).bit_length() // 2, f"cube:{size}")
    vertices = np.arange(size)
    bits = [1 << k for k in range((size - 1).bit_length())]
    tails = [vertices[(vertices & bit == 0) & (vertices | bit < size)] for bit in bits]
    heads = [ends | bit for ends, bit in zip(tails, bits, strict=True)]
    nothing = np.zeros(0, dtype=np.int64)
    return Graph.from_edges(size, np.concatenate([nothing, *tails]), np.concatenate([nothing, *heads]))


def most_square_mesh(size: int) -> tuple[int, int]:
    """Return rows <= columns with rows * columns = size, as close to each other as possible."""
    size = checks.integer("size", size, 1)
    rows = next(rows for rows in range(math.isqrt(size), 0, -1) if size % rows == 0)
    return rows, size // rows


def ring_order(size: int) -> tuple[int, ...]:
    """Return all ranks in binary reflected Gray-code order; neighbours on the ring are neighbours on the hypercube.

    For a size that is no power of two: the order of the next power of two without the missing ranks.  Xu, Zhang, Sun 1991.
    """
    cube = 1 << (checks.integer("size", size, 1) - 1).bit_length()
    return tuple(rank for rank in (k ^ (k >> 1) for k in range(cube)) if rank < size)


def _vector(name: str, values: ArrayLike, dtype: type) -> NDArray[Any]:
    array = as_array(name, values)
    if array.ndim != 1:
        raise ValueError(f"{name} of shape {array.shape}: expected one dimension")
    if array.size and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise TypeError(f"{name} of dtype {array.dtype}: expected {dtype.__name__}s")
    return array.astype(np.int64 if dtype is int else np.float64, copy=False)


def _vertex_weights(values: ArrayLike | None, n: int) -> Floats:
    return np.ones(n) if values is None else _vector("vertex_weights", values, float)


def _check_edges(n_edges: int, name: str) -> None:
    if n_edges > MAX_EDGES:
        raise ValueError(f"graph = {name!r}: expected at most {MAX_EDGES} edges")


# --- A process graph that follows the hosts: many edges inside a host, few between hosts ------------------------------


def host_graph(hosts: Sequence[Hashable]) -> Graph:
    """Make the process graph that follows the hosts; `hosts` has the name of each rank's host, in any order.

    The ranks on a host form a hypercube (an incomplete one, if their number is not a power of two).  The hosts, in the
    order of their first ranks, form the most square torus; its edges are distributed over the ranks of a host in turn.
    So a host exchanges one message with each of four others, while in a torus of all ranks each rank has neighbours on
    other hosts.  Raises ValueError if there are no ranks.
    """
    if not len(hosts):
        raise ValueError("hosts = []: expected one for each rank")
    ranks: dict[Hashable, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    groups = list(ranks.values())
    edges = [(group[one], group[other]) for group in groups for one, other in zip(*cube(len(group)).edges(), strict=True)]
    dealt = [itertools.cycle(group) for group in groups]
    for one, other in zip(*mesh(*most_square_mesh(len(groups)), periodic=True).edges(), strict=True):
        edges.append((next(dealt[one]), next(dealt[other])))
    tails, heads = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return Graph.from_edges(len(hosts), tails, heads)


# --- lanczos ----------------------------------------------------------------------------------------------------------


def highest(matrix: Any, count: int = 1, *, tol: float) -> tuple[Floats, Floats]:
    """Return the (count,) highest eigenvalues, ascending, and the (n, count) vectors of a symmetric (n, n) matrix."""
    values, vectors = scipy.sparse.linalg.eigsh(matrix, count, which="LA", tol=tol, v0=_start(matrix.shape[0]))
    order = np.argsort(values)
    return values[order], vectors[:, order]


def lowest(
    matrix: Any, kernel: Any, count: int = 1, *, tol: float, maxiter: int | None = None
) -> tuple[Floats, Floats]:
    """Return the (count,) lowest eigenvalues other than 0, ascending, and (n, count) vectors of a sparse (n, n) matrix.

    The matrix is symmetric, its eigenvalues are >= 0, and the columns of kernel (n, c) an orthonormal basis for 0.
    Lanczos with shift and invert, slightly below 0, with the kernel removed.
    """
    n = matrix.shape[0]
    shift = -1e-6 * float(matrix.diagonal().mean())
    factors = factorise(matrix - shift * scipy.sparse.eye_array(n))

    def inverse(vector: Floats) -> Floats:
        vector = vector.ravel()
        vector = factors.solve(vector - kernel @ (kernel.T @ vector))
        return np.asarray(vector - kernel @ (kernel.T @ vector))

    operator = scipy.sparse.linalg.LinearOperator((n, n), matvec=inverse, dtype=float)  # type: ignore[call-arg, unused-ignore]
    values, vectors = scipy.sparse.linalg.eigsh(operator, count, which="LA", tol=tol, v0=inverse(_start(n)), maxiter=maxiter)
    order = np.argsort(-values)
    return 1.0 / values[order] + shift, vectors[:, order]


def lowest_plain(matrix: Any, kernel: Any, above: float, *, tol: float, maxiter: int) -> float:
    """Return the lowest nonzero eigenvalue without a factorisation: the kernel is moved to `above`, the upper end."""
    n = matrix.shape[0]

    def moved(vector: Floats) -> Floats:
        vector = vector.ravel()
        return np.asarray(matrix @ vector + above * (kernel @ (kernel.T @ vector)))

    operator = scipy.sparse.linalg.LinearOperator((n, n), matvec=moved, dtype=float)  # type: ignore[call-arg, unused-ignore]
    options = {"tol": tol, "v0": _start(n), "maxiter": maxiter, "return_eigenvectors": False}
    values = scipy.sparse.linalg.eigsh(operator, 1, which="SA", **options)
    return float(values[0])


def factorise(matrix: Any) -> Any:
    """Factorise a sparse symmetric positive definite matrix; the result has `solve`."""
    options = {"SymmetricMode": True}
    matrix = scipy.sparse.csc_array(matrix)
    return scipy.sparse.linalg.splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)


def _start(n: int) -> Floats:
    return np.random.default_rng(0).uniform(-1.0, 1.0, n)  # ARPACK's own would differ in every run
