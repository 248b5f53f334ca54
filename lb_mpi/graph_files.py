"""Graphs from METIS and Matrix Market files; whatever is wrong with a file is a ValueError that begins with file:line.

The sizes that a header claims are held against the size of the file before any memory is taken for them.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import scipy.io
from scipy import sparse

from lb_mpi.graph import Floats, Graph, Ints, from_edges, from_scipy

_MAX_WEIGHT = 1 << 53  # up to here a float holds every integer exactly

PathLike = str | os.PathLike[str]


def _fail(path: PathLike, line: int, what: str) -> NoReturn:
    raise ValueError(f"{os.fspath(path)}:{line}: {what}")


# --- METIS -----------------------------------------------------------------------------------------------------------


class _Header(NamedTuple):
    line: int
    n: int
    m: int
    has_sizes: bool
    has_weights: bool
    has_edge_weights: bool


def read_metis(path: PathLike) -> Graph:
    """The graph in a METIS .graph file: a header `n m [fmt [ncon]]`, then a line per vertex (METIS manual 4.1.1).

    Weights of vertices and edges are read as `fmt` says; sizes of vertices are checked and left out; `ncon` must be 1.
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
    return from_edges(n, tail[once], head[once], weight_of[once], np.array(vertex_weights))


def _numbered_lines(path: PathLike) -> Iterator[tuple[int, list[int]]]:
    """Line numbers and integers of all lines but comments."""
    with open(path, "rb") as file:
        for number, text in enumerate(file, start=1):
            if text.startswith(b"%"):
                continue
            try:
                if b"_" in text:  # int() takes 1_000
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
    if n > n_bytes or 4 * m > n_bytes:  # a line takes a byte, an edge two digits and two separators
        _fail(path, line, f"n = {n}, m = {m}: more than fits into a file of {n_bytes} bytes")
    return _Header(line, n, m, *(digit == "1" for digit in digits))


def _metis_vertex(
    path: PathLike, line: int, numbers: list[int], vertex: int, header: _Header
) -> tuple[int, list[int], list[int]]:
    """Weight, neighbours (from 1) and edge weights of the vertex (from 1) on this line."""
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
    """The graph of a symmetric matrix in a Matrix Market file: an edge for every entry off the diagonal, of its weight.

    Coordinate format; pattern (weights 1), integer or real; symmetric, or general with equal entries on both sides.
    """
    _check_matrix_header(path)
    try:
        matrix = sparse.coo_array(scipy.io.mmread(path))
    except (ValueError, OverflowError) as error:
        named = re.fullmatch(r"Line (\d+): (.*)", str(error))
        if named:
            _fail(path, int(named[1]), named[2])
        _fail(path, Path(path).read_bytes().count(b"\n") + 1, str(error))
    off = matrix.row != matrix.col
    bad = off & ~((matrix.data >= 0) & np.isfinite(matrix.data))
    if bad.any():
        k = int(bad.argmax())
        i, j = int(matrix.row[k]), int(matrix.col[k])
        _fail(path, _line_of_entry(path, i, j), f"weight {matrix.data[k]}: expected a finite number >= 0")
    csr = sparse.csr_array(matrix)
    rows, columns = abs(csr - csr.T).nonzero()
    if len(rows):
        i, j = int(rows[0]), int(columns[0])
        _fail(path, _line_of_entry(path, i, j), f"entry ({i + 1}, {j + 1}) is not equal to ({j + 1}, {i + 1})")
    try:
        return from_scipy(matrix)
    except ValueError as error:  # a stored zero on one side only
        raise ValueError(f"{os.fspath(path)}: {error}") from None


def _check_matrix_header(path: PathLike) -> None:
    with open(path, "rb") as file:
        words = file.readline().lower().split()
        if len(words) != 5 or words[:2] != [b"%%matrixmarket", b"matrix"]:
            _fail(path, 1, "expected %%MatrixMarket matrix coordinate FIELD SYMMETRY")
        for word, allowed in (
            (words[2], ["coordinate"]),
            (words[3], ["real", "double", "integer", "unsigned-integer", "pattern"]),
            (words[4], ["general", "symmetric"]),
        ):
            if word.decode("ascii", "replace") not in allowed:
                _fail(path, 1, f"a {word.decode('ascii', 'replace')} matrix: expected {' or '.join(allowed)}")
        line, text = 2, file.readline()
        while text.startswith(b"%") or text.isspace():
            line, text = line + 1, file.readline()
    sizes = text.split()
    if len(sizes) != 3 or not all(re.fullmatch(b"[0-9]{1,18}", size) for size in sizes):
        _fail(path, line, "expected the line of sizes: rows, columns, entries")
    rows, columns, entries = map(int, sizes)
    if rows != columns or rows < 1:
        _fail(path, line, f"a {rows} x {columns} matrix: expected a square one")
    n_bytes = os.path.getsize(path)
    if rows > n_bytes or 4 * entries > n_bytes:  # an entry takes two digits, a space and an end of line
        _fail(path, line, f"{rows} rows, {entries} entries: more than fits into a file of {n_bytes} bytes")


def _line_of_entry(path: PathLike, i: int, j: int) -> int:
    """The line of entry (i, j), or else of (j, i), counted from 0 in the matrix and from 1 in the file."""
    found = 0
    with open(path, "rb") as file:
        for number, text in enumerate(file, start=1):
            ends = [int(token) - 1 for token in text.split()[:2] if token.isdigit()]
            if ends == [i, j]:
                return number
            if ends == [j, i]:
                found = number
    return found
