"""Mazes: the array of cells, from a file or at random, and the check of a path through it.   (pure)

A maze of dim x dim cells is one array of shape (dim + 2, dim + 2), uint8, with the outer wall in it: 0 free and unmarked,
1 blocked, 2 outer wall, any other value marked (visited).  The entry is the first inner cell, the exit the last.
"""

from __future__ import annotations

import math
import os

import numpy as np
import numpy.typing as npt

from lb_mpi import checks
from lb_mpi.problems.maze_kernel import BLOCKED, FREE, WALL, Cells

BLOCK = 1 << 20  # cells that random_maze draws at a time


def check_cells(cells: Cells) -> int:
    """Return dim of an array that can hold a maze with its wall; TypeError, ValueError when it can't."""
    dim = _check_shape("cells", cells)
    if not all((edge == WALL).all() for edge in (cells[0], cells[-1], cells[:, 0], cells[:, -1])):
        raise ValueError(f"cells: expected the outer wall, {WALL}, all round")
    return dim


def read_maze(path: str | os.PathLike[str]) -> Cells:
    """Read a maze as the paper prints it: rows of 0 (free) and 1 (blocked) within an outer wall of 2.

    Returns cells of shape (dim + 2, dim + 2), uint8.
    Errors: OSError when the file can't be read; ValueError with file:line when it is no square maze with a whole wall.
    """
    with open(path, "rb") as file:
        lines = file.read().splitlines()
    while lines and not lines[-1]:
        lines.pop()
    name = os.fspath(path)
    if not lines:
        raise ValueError(f"{name}:1: the file is empty: expected rows of 0, 1 and 2")
    width = len(lines[0])
    for number, line in enumerate(lines, start=1):
        wrong = line.translate(None, b"012")
        if wrong:
            raise ValueError(f"{name}:{number}: character {chr(wrong[0])!r}: expected only 0, 1 and 2")
        if len(line) != width:
            raise ValueError(f"{name}:{number}: {len(line)} cells: expected {width}, as in the first row")
        if number in (1, len(lines)):
            if line.strip(b"2"):
                raise ValueError(f"{name}:{number}: the wall is broken: expected only 2 in the first and the last row")
        elif not (line.startswith(b"2") and line.endswith(b"2")):
            raise ValueError(f"{name}:{number}: the wall is broken: expected 2 at both ends")
        elif b"2" in line[1:-1]:
            raise ValueError(f"{name}:{number}: a wall (2) inside: expected 0 or 1")
    if len(lines) != width or width < 3:
        raise ValueError(f"{name}:{len(lines)}: {len(lines)} rows of {width} cells: expected a square, at least 3 x 3")
    return (np.frombuffer(b"".join(lines), np.uint8) - ord("0")).reshape(width, width)


def random_maze(dim: int, free: float, seed: int, walled: bool = False, out: Cells | None = None) -> Cells:
    """Make a maze of dim x dim cells, each free with probability `free`, entry and exit always.

    Returns cells of shape (dim + 2, dim + 2), uint8.

    walled  block all neighbours of the exit, so that it can't be reached and all reachable cells must be visited
    out     array to fill and to return (a shared window, say) instead of a new one

    Memory beyond the array is a few megabytes.  Errors: ValueError, TypeError that name the argument.
    """
    dim = check_maze_parameters(dim, free, seed, walled)
    cells: Cells
    if out is None:
        cells = np.empty((dim + 2, dim + 2), np.uint8)
    elif _check_shape("out", out) != dim:
        raise ValueError(f"out has shape {out.shape}: expected {(dim + 2, dim + 2)}")
    else:
        cells = out
    rng = np.random.default_rng(seed)
    cells[0], cells[-1], cells[:, 0], cells[:, -1] = WALL, WALL, WALL, WALL
    inner = cells[1:-1, 1:-1]
    rows = max(1, BLOCK // dim)
    for first in range(0, dim, rows):
        block = inner[first : first + rows]
        block[:] = np.where(rng.random(block.shape) < free, FREE, BLOCKED)
    if walled:
        inner[-2:, -2:] = BLOCKED
    inner[0, 0] = inner[-1, -1] = FREE
    return cells


def check_maze_parameters(dim: int, free: float, seed: int, walled: bool = False) -> int:
    """Return dim; ValueError, TypeError for what `random_maze` can't make."""
    checks.seed(seed)
    if not (math.isfinite(free) and 0 < free <= 1):
        raise ValueError(f"free = {free!r}: expected a probability with 0 < free <= 1")
    return checks.integer("dim", dim, 3 if walled else 1)


def check_path(cells: Cells, path: npt.ArrayLike) -> None:
    """Verify a path, shape (n,) flat indices, in a maze, before or after the search; ValueError names the first fault.

    It leads from the entry to the exit, each step to one of the eight neighbours; no cell is blocked, none comes twice.
    """
    dim = check_cells(cells)
    width = dim + 2
    steps = np.asarray(path)
    if steps.ndim != 1 or steps.size == 0 or steps.dtype.kind not in "iu":
        raise ValueError(f"path of shape {steps.shape}, {steps.dtype}: expected at least one integer, in one dimension")
    if steps.min() < 0 or steps.max() >= width * width:
        raise ValueError(f"path has cells {steps.min()} to {steps.max()}: expected 0 to {width * width - 1}")
    if steps[0] != width + 1:
        raise ValueError(f"path begins at cell {steps[0]}: expected the entry, {width + 1}")
    if steps[-1] != dim * width + dim:
        raise ValueError(f"path ends at cell {steps[-1]}: expected the exit, {dim * width + dim}")
    faults = np.flatnonzero(np.isin(cells.reshape(-1)[steps], (BLOCKED, WALL)))
    if faults.size:
        raise ValueError(f"path goes through cell {steps[faults[0]]}: it is blocked")
    rows, columns = np.divmod(steps.astype(np.int64), width)
    faults = np.flatnonzero(np.maximum(abs(np.diff(rows)), abs(np.diff(columns))) != 1)
    if faults.size:
        i = faults[0]
        raise ValueError(f"path goes from cell {steps[i]} to {steps[i + 1]}: expected one of its eight neighbours")
    again = np.sort(steps)
    faults = np.flatnonzero(again[1:] == again[:-1])
    if faults.size:
        raise ValueError(f"path comes twice through cell {again[faults[0]]}")


def _check_shape(name: str, cells: Cells) -> int:
    if not isinstance(cells, np.ndarray) or cells.dtype != np.uint8:
        raise TypeError(f"{name} is {getattr(cells, 'dtype', type(cells).__name__)}: expected a numpy array of uint8")
    if cells.ndim != 2 or cells.shape[0] != cells.shape[1] or cells.shape[0] < 3:
        raise ValueError(f"{name} has shape {cells.shape}: expected (dim + 2, dim + 2) with dim >= 1")
    if not (cells.flags.c_contiguous and cells.flags.writeable):
        raise ValueError(f"{name}: expected a C-contiguous, writeable array")
    return int(cells.shape[0]) - 2
