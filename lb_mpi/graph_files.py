"""Graphs and partitions in files; an invalid file is a ValueError that begins with file: or file:line.

METIS .graph and Matrix Market files hold graphs; METIS .part files, which are only written, partitions.

The sizes in a header are checked against the size of the file before memory is allocated for them.
"""

from __future__ import annotations

import os
import re
import warnings
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import numpy as np
import scipy
from numpy.typing import ArrayLike

from lb_mpi.checks import meant
from lb_mpi.files import write_whole
from lb_mpi.graph import NAMES, Floats, Graph, Ints, is_name, parse
from lb_mpi.metrics import check_parts

_MATRIX_MARKET = b"%%matrixmarket"
_MAX_WEIGHT = 1 << 53  # up to here every integer is a float

PathLike = str | os.PathLike[str]


def _fail(path: PathLike, line: int | None, what: str) -> NoReturn:
    raise ValueError(f"{os.fspath(path)}{'' if line is None else f':{line}'}: {what}")


def as_graph(graph: Any) -> Graph:
    """Convert a graph to a `Graph`; every function of lb_mpi accepts a graph in any of these forms.

    Parameters
    ----------
    graph : a `Graph`; an undirected networkx graph; a symmetric scipy.sparse matrix or array; a name: "mesh:RxC",
        "torus:RxC", "hypercube:D", "cube:N", "ring:N", "complete:N", or lists of neighbours (see `lb_mpi.graph.parse`); or
        the path of a METIS .graph file or a Matrix Market file, which are distinguished by their first line.

    Raises ValueError for an invalid graph (for a file, with its name), OSError for a file that cannot be read, and
    TypeError for anything else.
    """
    if isinstance(graph, Graph):
        return graph
    if isinstance(graph, str) and is_name(graph):
        return parse(graph)
    if isinstance(graph, str | os.PathLike):
        return _read(graph)
    if hasattr(graph, "is_directed") and hasattr(graph, "edges"):
        return Graph.from_networkx(graph)
    if scipy.sparse.issparse(graph):
        return Graph.from_scipy(graph)
    raise TypeError(
        f"graph of type {type(graph).__name__}: expected a Graph, networkx graph, scipy.sparse matrix, name or path"
    )


def _read(path: PathLike) -> Graph:
    try:
        with open(path, "rb") as file:
            begin = file.read(len(_MATRIX_MARKET))
    except FileNotFoundError as error:
        kind, _, size = os.fsdecode(path).partition(":")
        hint = meant(kind, re.findall(r"(\w+):", NAMES)) if size else ""
        raise FileNotFoundError(error.errno, f"No such file, and not the name of a graph: {NAMES}{hint}", path) from None
    if begin.lower() == _MATRIX_MARKET or os.fspath(path).endswith(".mtx"):
        return read_matrix_market(path)
    return read_metis(path)


# --- partitions ------------------------------------------------------------------------------------------------------


def write_parts(path: PathLike, parts: ArrayLike) -> None:
    """Write the (n,) parts in METIS format: one vertex's part on each line."""
    numbers = check_parts(parts, np.size(parts), 1 << 62)
    write_whole(path, "".join(f"{part}\n" for part in numbers.tolist()))


# --- METIS -----------------------------------------------------------------------------------------------------------


class _Header(NamedTuple):
    line: int
    n: int
    m: int
    has_sizes: bool
    has_weights: bool
    has_edge_weights: bool


def read_metis(path: PathLike) -> Graph:
    """Return the graph in a METIS .graph file: a header `n m [fmt [ncon]]`, then a line per vertex (METIS manual 4.1.1).

    Weights of vertices and edges are read as `fmt` says; sizes of vertices are checked and ignored; `ncon` must be 1.
    """
    lines = _numbered_lines(path)
    header = _metis_header(path, *next(lines, (1, [])))
    line, n = header.line, header.n
    line_of = array("q")  # per vertex
    starts, heads, weights, vertex_weights = array("q", [0]), array("q"), array("d"), array("d")
    for line, numbers in lines:
        if len(line_of) == n:
            if numbers:
                _fail(path, line, f"a line after the last of n = {n} vertices")
            continue
        line_of.append(line)
        weight, neighbours, values = _metis_vertex(path, line, numbers, len(line_of), header)
        vertex_weights.append(weight)
        heads.extend(neighbours)
        weights.extend(values)
        starts.append(len(heads))
    if len(line_of) < n:
        _fail(path, line, f"the file ends after {len(line_of)} vertices: the header says n = {n}")
    begins: Ints = np.array(starts, dtype=np.int64)
    tail = np.repeat(np.arange(n), begins[1:] - begins[:-1])
    head, weight_of = np.array(heads, dtype=np.int64) - 1, np.array(weights, dtype=float)
    _check_both_ends(path, n, tail, head, weight_of, line_of)
    if len(head) != 2 * header.m:
        _fail(path, header.line, f"the header says m = {header.m} edges, the lines after it have {len(head) // 2}")
    once = tail < head
    return Graph.from_edges(n, tail[once], head[once], weight_of[once], np.array(vertex_weights))


def _numbered_lines(path: PathLike) -> Iterator[tuple[int, list[int]]]:
    """Yield line numbers and integers of all lines except comments."""
    with open(path, "rb") as file:
        for number, text in enumerate(file, start=1):
            if text.startswith(b"%"):
                continue
            try:
                if b"_" in text:  # int() accepts 1_000
                    raise ValueError
                numbers = [int(token) for token in text.split()]
            except ValueError:
                _fail(path, number, f"expected integers, got {text[:60].decode('ascii', 'replace').strip()!r}")
            yield number, numbers


def _metis_header(path: PathLike, line: int, numbers: list[int]) -> _Header:
    if not 2 <= len(numbers) <= 4:
        _fail(path, line, f"expected a header n m [fmt [ncon]], got {len(numbers)} numbers")
    n, m, fmt, ncon = numbers + [0, 1][len(numbers) - 2 :]
    if n < 1 or m < 0:
        _fail(path, line, f"n = {n}, m = {m}: expected n >= 1, m >= 0")
    digits = f"{fmt:03d}"
    if not re.fullmatch("[01]{3}", digits):
        _fail(path, line, f"fmt = {fmt}: expected three digits 0 or 1")
    if ncon != 1:
        _fail(path, line, f"ncon = {ncon}: expected 1 (one weight per vertex)")
    n_bytes = os.path.getsize(path)
    if n > n_bytes or 4 * m > n_bytes:  # a line has at least one byte, an edge two digits and two separators
        _fail(path, line, f"n = {n}, m = {m}: more than fits into a file of {n_bytes} bytes")
    return _Header(line, n, m, *(digit == "1" for digit in digits))


def _metis_vertex(
    path: PathLike, line: int, numbers: list[int], vertex: int, header: _Header
) -> tuple[int, list[int], list[int]]:
    """Return weight, neighbours (from 1) and edge weights of the vertex (from 1) on this line."""
    skip, stride = header.has_sizes + header.has_weights, 1 + header.has_edge_weights
    if len(numbers) < skip or (len(numbers) - skip) % stride:
        _fail(path, line, f"{len(numbers)} numbers: not what the header's fmt announces")
    neighbours = numbers[skip::stride]
    values = numbers[skip + 1 :: 2] if header.has_edge_weights else [1] * len(neighbours)
    for value in numbers[:skip] + values:
        if not 0 <= value <= _MAX_WEIGHT:
            _fail(path, line, f"size or weight {value}: expected 0..2^53")
    for neighbour in neighbours:
        if not 1 <= neighbour <= header.n:
            _fail(path, line, f"neighbour {neighbour}: expected 1..{header.n}")
        if neighbour == vertex:
            _fail(path, line, f"vertex {vertex} is its own neighbour (self-loop)")
    if len(set(neighbours)) < len(neighbours):
        _fail(path, line, f"vertex {vertex} lists a neighbour twice")
    return numbers[header.has_sizes] if header.has_weights else 1, neighbours, values


def _check_both_ends(path: PathLike, n: int, tail: Ints, head: Ints, weight: Floats, line_of: array[int]) -> None:
    there, back = np.argsort(tail * n + head), np.argsort(head * n + tail)
    keys, mirrored = (tail * n + head)[there], (head * n + tail)[back]
    missing = keys[~np.isin(keys, mirrored)]
    if len(missing):
        one, other = divmod(int(missing[0]), n)
        _fail(path, line_of[one], f"vertex {one + 1} lists {other + 1}, which doesn't list {one + 1} (one-sided edge)")
    unequal = weight[there] != weight[back]
    if unequal.any():
        one, other = divmod(int(keys[unequal.argmax()]), n)
        _fail(path, line_of[one], f"the edge {one + 1}-{other + 1} has another weight in line {line_of[other]}")


# --- Matrix Market ---------------------------------------------------------------------------------------------------


def read_matrix_market(path: PathLike) -> Graph:
    """Return the graph of a symmetric matrix in a Matrix Market file: an edge for every off-diagonal entry, of its weight.

    Coordinate format; pattern (weights 1), integer or real; symmetric (the lower triangle is stored), or general with equal
    entries on both sides.  Entries at the same position add up.
    """
    # scipy.io.mmread reads "2 1 1.5" of an integer matrix as 1, and a last line "2 1 1real" can end Python (scipy 1.17).
    with open(path, encoding="ascii", errors="replace") as file:
        field, symmetric = _matrix_kind(path, file.readline().lower().split())
        words_of = ((line, text.split()) for line, text in enumerate(file, start=2))
        sizes = ((line, words) for line, words in words_of if words and not words[0].startswith("%"))
        n, n_entries = _matrix_sizes(path, *next(sizes, (2, [])))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of no entries
                table = np.loadtxt(file, comments=None, ndmin=2)
        except ValueError as error:
            _fail(path, None, f"an entry that is not numbers: {str(error)[:100]}")
    shape = n_entries, 2 if field == "pattern" else 3
    if (table.shape if table.size else (0, shape[1])) != shape:
        _fail(path, None, f"{table.shape} numbers after the line of sizes: expected {shape}")
    places, values = table[:, :2].reshape(-1, 2) - 1.0, table[:, 2] if table.shape[1] == 3 else np.ones(n_entries)
    for wrong, what in (
        (not ((places >= 0.0) & (places < n) & (places == np.floor(places))).all(), f"expected rows and columns in 1..{n}"),
        (symmetric and (places[:, 0] < places[:, 1]).any(), "an entry above the diagonal of a symmetric matrix"),
        (not np.isfinite(values).all(), "a value that is not finite"),
        (field.endswith("integer") and (values != np.floor(values)).any(), "a value that is no integer"),
    ):
        if wrong:
            _fail(path, None, what)
    row, column = places.astype(np.int64).T
    off = (row != column) & symmetric  # these represent two entries
    ends = (np.concatenate([row, column[off]]), np.concatenate([column, row[off]]))
    try:
        with np.errstate(over="ignore"):  # of sums, which are checked
            return Graph.from_scipy(scipy.sparse.coo_array((np.concatenate([values, values[off]]), ends), shape=(n, n)))
    except ValueError as error:
        _fail(path, None, f"{error} (vertices from 0)")


def _matrix_kind(path: PathLike, words: list[str]) -> tuple[str, bool]:
    """Return the field of the entries, and whether the matrix is stored as its lower triangle, from the first line."""
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        _fail(path, 1, "expected %%MatrixMarket matrix coordinate FIELD SYMMETRY")
    for word, allowed in (
        (words[2], ["coordinate"]),
        (words[3], ["real", "double", "integer", "unsigned-integer", "pattern"]),
        (words[4], ["general", "symmetric"]),
    ):
        if word not in allowed:
            _fail(path, 1, f"a {word[:60]} matrix: expected {' or '.join(allowed)}")
    return words[3], words[4] == "symmetric"


def _matrix_sizes(path: PathLike, line: int, words: list[str]) -> tuple[int, int]:
    """Return the number of rows and of entries on this line."""
    if len(words) != 3 or not all(word.isdigit() and len(word) <= 18 for word in words):
        _fail(path, line, "expected the line of sizes: rows, columns, entries")
    rows, columns, entries = map(int, words)
    if rows != columns or rows < 1:
        _fail(path, line, f"a {rows} x {columns} matrix: expected a square one")
    n_bytes = os.path.getsize(path)
    if rows > n_bytes or 4 * entries > n_bytes:  # an entry has at least two digits, a space and a line end
        _fail(path, line, f"{rows} rows, {entries} entries: more than fits into a file of {n_bytes} bytes")
    return rows, entries
