"""Graphs and partitions in files; an invalid file is a ValueError that begins with file: or file:line.

METIS .graph and Matrix Market files hold graphs; METIS .part files, which are only written, partitions.

The sizes in a header are checked against the size of the file before memory is allocated for them.
"""

from __future__ import annotations

import io
import os
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import scipy
from numpy.typing import ArrayLike

from lb_mpi.checks import meant, show
from lb_mpi.graph import NAMES, Graph, is_name, parse
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
    hints = {dict: "; for a dict, pass networkx.Graph(it)", np.ndarray: "; for a matrix, pass scipy.sparse.csr_array(it)"}
    expected = "expected an lb_mpi.Graph, a networkx graph, a scipy.sparse matrix, a name or the path of a file"
    raise TypeError(f"graph = {show(graph)}: {expected}{hints.get(type(graph), '')}")


def _read(path: PathLike) -> Graph:
    try:
        with open(path, "rb") as file:
            begin = file.read(len(_MATRIX_MARKET))
    except FileNotFoundError:
        name = os.fsdecode(path)
        kind, _, size = name.partition(":")
        hint = meant(kind, re.findall(r"(\w+):", NAMES)) if size else ""
        expected = f"expected a graph, a matrix, a file (there is none of this name) or a name: {NAMES}{hint}"
        raise FileNotFoundError(f"graph = {show(name)}: {expected}") from None
    if begin.lower() == _MATRIX_MARKET or os.fspath(path).endswith(".mtx"):
        return read_matrix_market(path)
    return read_metis(path)


# --- partitions ------------------------------------------------------------------------------------------------------


def parts_text(parts: ArrayLike) -> str:
    """Return the (n,) parts in METIS format: one vertex's part on each line."""
    return "".join(f"{part}\n" for part in check_parts(parts, np.size(parts), 1 << 62).tolist())


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
    starts, heads, weights, vertex_weights = array("q", [0]), array("q"), array("d"), array("d")
    for line, numbers in lines:
        if len(vertex_weights) == n:
            if numbers:
                _fail(path, line, f"a line after the last of n = {n} vertices")
            continue
        weight, neighbours, values = _metis_vertex(path, line, numbers, header)
        vertex_weights.append(weight)
        heads.extend(neighbours)
        weights.extend(values)
        starts.append(len(heads))
    if len(vertex_weights) < n:
        _fail(path, line, f"the file ends after {len(vertex_weights)} vertices: the header says n = {n}")
    indptr, indices = np.array(starts, dtype=np.int64), np.array(heads, dtype=np.int64) - 1
    ascending = np.argsort(np.repeat(np.arange(n), np.diff(indptr)) * n + indices, kind="stable")
    try:
        graph = Graph(indptr, indices[ascending], np.array(weights)[ascending], np.array(vertex_weights))
    except ValueError as error:
        _fail(path, None, f"{error} (vertices from 0)")
    if graph.n_edges != header.m:
        _fail(path, header.line, f"the header says m = {header.m} edges, the lines after it have {graph.n_edges}")
    return graph


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
    path: PathLike, line: int, numbers: list[int], header: _Header
) -> tuple[int, list[int], list[int]]:
    """Return weight, neighbours (from 1) and edge weights of the vertex on this line."""
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
    return numbers[header.has_sizes] if header.has_weights else 1, neighbours, values


# --- Matrix Market ---------------------------------------------------------------------------------------------------


def read_matrix_market(path: PathLike) -> Graph:
    """Return the graph of a symmetric matrix in a Matrix Market file: an edge for every off-diagonal entry, of its weight.

    Coordinate format, general or symmetric; pattern (weights 1), integer or real.  Entries at the same position add up.
    """
    data = Path(path).read_bytes()
    try:
        rows, columns, entries, layout, field, symmetry = scipy.io.mminfo(io.BytesIO(data))
        if layout != "coordinate" or field == "complex" or symmetry not in ("general", "symmetric"):
            raise ValueError(f"{layout} {field} {symmetry}: expected coordinates of a real matrix, general or symmetric")
        if max(rows, columns) > len(data) or 4 * entries > len(data):  # an entry: two digits, a space and a line end
            raise ValueError(f"{rows} rows, {entries} entries: more than fits into a file of {len(data)} bytes")
        if 0 in data:
            raise ValueError("a byte that is 0: expected text")  # on which scipy 1.17 crashes, as without a last line end
        with np.errstate(over="ignore"):  # of sums, which are checked
            return Graph.from_scipy(scipy.io.mmread(io.BytesIO(data + b"\n"), spmatrix=False))
    except (ValueError, OverflowError) as error:
        line, what = re.fullmatch(r"(?:Line (\d+): )?(.*)", str(error), re.DOTALL).groups()  # type: ignore[union-attr]
        _fail(path, int(line) if line else None, what + " (vertices from 0)" * what.startswith("edge"))
