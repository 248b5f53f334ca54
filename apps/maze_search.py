"""Parallel maze search: from one corner to the other, depth first, any path.   (pure)

Source: Xu, Zhang, Sun, "A dynamic and distributed algorithm for load balancing on multiprocessors" (Nanjing University,
1991), the example of the paper.  One step goes to any of the eight neighbours of a cell, tried in the paper's order.

A maze of dim x dim cells is one array `cells` of shape (dim + 2, dim + 2), uint8, with the outer wall in it: 0 free and
unmarked, 1 blocked, 2 outer wall, any other value marked (visited).  The entry is the first inner cell, the exit the
last.  A cell is named by its flat index in this array.

All ranks of a machine mark cells of ONE such array (in an MPI shared-memory window, that the caller provides); on several
machines the maze is cut into tiles (`apps.maze_tiles`).  A mark tells by which direction the cell was entered, so
a part of the work that moves is a few bytes and not, as in the paper, the path down to it: the path is put together at the
end, from the exit back to the entry (`way_back`), when what all machines know is joined (`join`).

The array is all that must be saved: what is left to do are the free neighbours of marked cells.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from apps import maze_kernel as kernel
from apps.maze_kernel import BLOCKED, FREE, LAST_DIRECTION, MARKED, STAY, WALL, Cells, Indices, Maze, Stack
from lb_mpi import checks

# --- Mazes: the array of cells, from a file or at random, and the check of a path through it --------------------------

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


# --- The search -------------------------------------------------------------------------------------------------------

NOBODY = -1
NOWHERE = -1
SPLIT_RULES = ("alternate", "half", "one")

# The eight directions in the paper's order, and to stay (by which the entry is entered).
ROWS = (0, -1, -1, -1, 0, 1, 1, 1, 0)
COLUMNS = (1, 1, 0, -1, -1, -1, 0, 1, 0)

SAVED = struct.Struct("<qq??")  # dim, cells marked, found, and if the marks follow: two cells in a byte
RECORD = np.dtype([("position", "<i8"), ("cursor", "i1"), ("upper", "i1")])
WINDOW = 1 << 13  # most records that one part has, and that "alternate" examines when it splits
BUDGET = 1 << 16  # stack records that one call may look at beyond its units: well under a millisecond each


class MazeResult(NamedTuple):
    """What one rank, or all together, did."""

    visited: int  # cells marked, counted by who marked them
    found_at: int  # flat index of the exit when it was reached, otherwise -1
    finder: int  # rank that reached it, otherwise -1


class Visits:
    """The number of cells that one rank has visited, and whether it has found the `exit` of the maze."""

    exit: int

    def __init__(self, rank: int, keeper: bool) -> None:
        self.rank = checks.integer("rank", rank, 0)
        self._visited, self._found, self._keeper = 0, False, bool(keeper)

    @property
    def found(self) -> bool:
        """True when this rank has reached the exit."""
        return self._found

    def result(self) -> MazeResult:
        """Return what this rank did."""
        return MazeResult(self._visited, *((self.exit, self.rank) if self.found else (NOWHERE, NOBODY)))

    def merge(self, one: MazeResult, other: MazeResult) -> MazeResult:
        """Put two ranks' results together; of two that found the exit the first counts."""
        first = one if one.found_at != NOWHERE else other
        return first._replace(visited=one.visited + other.visited)


class MazeSearch(Visits):
    """One rank's part of the search (a `lb_mpi.searching.problem.Problem`); one unit of work is one new cell marked.

    cells       (dim + 2, dim + 2) uint8, C-contiguous, shared by all ranks that can share memory; never copied
    rank        this rank's number, >= 0
    keeper      this rank saves the marks of its machine, and takes them from a save; one on each machine does
    split_rule  what `split` gives: "half": half of the untried directions of the shallowest record that has two or more
                (the paper's rule); "one": only one of them; "alternate": every second record with untried directions, of
                those nearest to the top and of a sample of the others.  The shallow records lead into what the path has
                left over behind it, a few cells as a rule; large regions that nobody has visited begin near its top

    The load is top - level + n(level) / 8, where level is the shallowest record with untried free directions and
    n(level) their number (the paper).  It is exact while no more than `BUDGET` records have been exhausted since the
    last call; beyond that, records not yet looked at count as open, and the next calls go on looking.

    Errors: ValueError, TypeError for an array that is no maze, or whose entry or exit is blocked.
    """

    def __init__(self, cells: Cells, rank: int, split_rule: str = "alternate", *, keeper: bool = True) -> None:
        super().__init__(rank, keeper)
        self.entry, self.exit = check_ends(cells)
        checks.choice("split_rule", split_rule, SPLIT_RULES)
        self.cells, self.width = cells, len(cells)
        flat = cells.reshape(-1)
        self._maze = Maze(flat, steps(self.width), self.exit)
        # Room for the longest path there can be: pages of it that are never touched cost nothing, whereas to copy a
        # stack of millions of records into a larger one would keep a rank from serving messages for a tenth of a second.
        room = flat.size + WINDOW
        position, cursor, upper = np.empty(room, np.int64), np.empty(room, np.int8), np.empty(room, np.int8)
        self._stack = Stack(position, cursor, upper, np.array([-1, 0, 0], np.int64))
        self._split = split_rule != "one", np.empty(WINDOW if split_rule == "alternate" else 0, np.int64)

    def start(self) -> None:
        """Take the entry in hand; the first unit of work marks it."""
        self._set_records(np.array([self.entry]), STAY, STAY)

    def work(self, units: int) -> int:
        """Mark up to `units` new cells; returns how many.

        Fewer when the exit has been reached, nothing is left, or many exhausted records had to be popped (then load() > 0
        says that there is more to do).
        """
        units = checks.integer("units", units, 1)
        if self.found:
            return 0
        done = kernel.mark_cells(self._maze, self._stack, units, units + BUDGET)
        self._visited += done
        top = self._stack.ends[kernel.TOP]
        self._found = bool(done and top >= 0 and self._stack.position[top] == self.exit)
        return done

    def load(self) -> float:
        """Value the untried directions in hand, in the paper's measure: 0.0 when there are none."""
        maze, stack = self._maze, self._stack
        ends = stack.ends
        return float(
            kernel.value(maze.cells, maze.offsets, maze.exit, stack.position, stack.cursor, stack.upper, ends, BUDGET)
        )

    def split(self) -> bytes | None:
        """Give away untried directions by the split rule, packed; None when there is one branch only."""
        half, dealt = self._split
        n = kernel.deal(self._maze, self._stack, dealt)
        if n > 0:
            levels = dealt[:n][::-1]
            position, cursor, upper, _ = self._stack
            part = np.empty(n, RECORD)
            part["position"], part["cursor"], part["upper"] = position[levels], cursor[levels], upper[levels]
            upper[levels] = -1
            return bytes(part.tobytes())
        record = kernel.divide(self._maze, self._stack, half, BUDGET)
        return None if record[0] < 0 else np.array([record], RECORD).tobytes()

    def absorb(self, payload: bytes) -> None:
        """Take in what another rank's `split` packed; ValueError when it isn't that, or there is work in hand."""
        if self.load() > 0.0:
            raise ValueError(f"absorb on rank {self.rank}: expected no work in hand, load is {self.load()}")
        n, rest = divmod(len(payload), RECORD.itemsize)
        if not 1 <= n <= WINDOW or rest:
            raise ValueError(f"payload of {len(payload)} bytes: expected n * {RECORD.itemsize} with 1 <= n <= {WINDOW}")
        part = np.frombuffer(payload, RECORD)
        position, cursor, upper = part["position"].astype(np.int64), part["cursor"], part["upper"]
        row, column = np.divmod(position, self.width)
        inside = (np.minimum(row, column) >= 1) & (np.maximum(row, column) < self.width - 1)
        wrong = np.flatnonzero(~(inside & (cursor >= 0) & (cursor <= upper) & (upper <= LAST_DIRECTION)))
        if wrong.size:
            raise ValueError(f"payload, record {part[wrong[0]]}: expected an inner cell, and two directions")
        self._set_records(position, cursor, upper)

    def _set_records(self, position: Indices, cursor: npt.ArrayLike, upper: npt.ArrayLike) -> None:
        n = len(position)
        self._stack.position[:n], self._stack.cursor[:n], self._stack.upper[:n] = position, cursor, upper
        self._stack.ends[:] = n - 1, 0, 0

    def save(self) -> bytes:
        """Pack what this rank did; if it is the keeper, with all marks of its machine."""
        return pack_state(self.width - 2, self._visited, self._found, self._maze.cells if self._keeper else None)

    def resume(self, states: Sequence[bytes], mine: Sequence[int]) -> None:
        """Go on from what was saved: this rank with a share of the cells that have free neighbours, wherever they are.

        Every rank reads all states.  The keeper puts the marks into its machine's array; nobody may work before.
        ValueError for those of another maze.
        """
        flat, visited, found = resumed(self.cells, states, mine)
        self._visited += visited
        self._found |= found
        if self._keeper:
            self._maze.cells[:] = flat
        n = len(states)
        found_open = [self._open_cells(flat, flat.size * index // n, flat.size * (index + 1) // n) for index in mine]
        position = np.concatenate([*found_open, np.empty(0, np.int64)])
        self._set_records(position, 0, LAST_DIRECTION)
        if flat[self.entry] == FREE and 0 in mine:
            self.start()

    def _open_cells(self, flat: Cells, first: int, last: int) -> Indices:
        n = kernel.open_cells(flat, self._maze.offsets, first, last, np.empty(0, np.int64))
        found = np.empty(n, np.int64)
        kernel.open_cells(flat, self._maze.offsets, first, last, found)
        return found


def check_ends(cells: Cells) -> tuple[int, int]:
    """Return the entry and the exit, flat indices; ValueError or TypeError for what is no maze, or if one is blocked."""
    dim = check_cells(cells)
    ends = {"entry": (1, 1), "exit": (dim, dim)}
    for name, cell in ends.items():
        if cells[cell] in (BLOCKED, WALL):
            raise ValueError(f"{name} of the maze, cell {cell}, is blocked: expected it free")
    return dim + 3, dim * (dim + 2) + dim


def pack_state(dim: int, visited: int, found: bool, marks: Cells | None) -> bytes:
    """Pack what a rank did, and the marks (flat) of its machine, if it keeps them."""
    packed = np.empty(0 if marks is None else (marks.size + 1) // 2, np.uint8)
    if marks is not None:
        kernel.pack(marks, packed)
    return SAVED.pack(dim, visited, found, marks is not None) + packed.tobytes()


def resumed(cells: Cells, states: Sequence[bytes], mine: Sequence[int]) -> tuple[Cells, int, bool]:
    """Return all marks together (flat), and what those in `mine` have visited, and found; ValueError for another maze."""
    width = len(cells)
    machines, visited, found = [], 0, False
    for index in range(len(states)):
        dim, n, exit_found, marked = SAVED.unpack_from(states[index])
        if dim != width - 2:
            raise ValueError(f"maze of dim {width - 2}: expected {dim}, as it was saved")
        if index in mine:
            visited, found = visited + n, found or exit_found
        if marked:
            packed = np.frombuffer(states[index], np.uint8, offset=SAVED.size)
            if packed.size != (cells.size + 1) // 2:
                raise ValueError(f"state of {len(states[index])} bytes: expected {SAVED.size + (cells.size + 1) // 2}")
            marks = np.empty(cells.size, np.uint8)
            kernel.unpack(packed, marks)
            machines.append(marks.reshape(cells.shape))
    joined = join(machines)
    if not np.array_equal(joined == BLOCKED, cells == BLOCKED):
        raise ValueError(f"maze of dim {width - 2}: expected the one that was saved, with other cells blocked")
    return joined.reshape(-1), visited, found


def steps(width: int) -> Indices:
    """From a cell to its neighbour in each direction, and to itself (STAY): shape (9,), to be added to a flat index."""
    return np.array(ROWS, np.int64) * width + np.array(COLUMNS, np.int64)


def join(machines: Sequence[Cells]) -> Cells:
    """What all machines have marked, as one array; `machines` are those of each, all of one maze, no cell marked by two."""
    joined: Cells = np.maximum.reduce(machines)
    return joined


def way_back(cells: Cells, cell: int) -> Indices:
    """Walk back from `cell` (flat index) to the entry, by the marks; shape (n,), flat indices, `cell` first.

    Where two ranks have entered the same cells within some nanoseconds, their marks may lead round: then the way is one over
    marked cells, whoever entered them from where.  ValueError when `cell` or the entry isn't marked.
    """
    flat, width = cells.reshape(-1), cells.shape[1]
    if not 0 <= cell < flat.size:
        raise ValueError(f"cell = {cell!r}: expected a flat index, 0 to {flat.size - 1}")
    for end in (cell, width + 1):
        if flat[end] < MARKED:
            raise ValueError(f"cell {divmod(end, width)} was not entered: expected one with a way back to the entry")
    n, last = kernel.follow(flat, steps(width), cell, np.empty(0, np.int64))
    if flat[last] != MARKED + STAY:
        tree = np.where(flat < MARKED, flat, FREE).astype(np.uint8)
        kernel.grow_tree(flat, steps(width), width + 1, tree)
        flat = tree
        n, last = kernel.follow(flat, steps(width), cell, np.empty(0, np.int64))
    path = np.empty(n, np.int64)
    kernel.follow(flat, steps(width), cell, path)
    return path


def trace_path(problems: Sequence[MazeSearch], exit_cell: int) -> Indices:
    """Put together the path from the entry to `exit_cell`, shape (n,) flat indices, from all ranks' searches.

    All are in one process, on one machine's array or on several.  ValueError when none of them has found `exit_cell`.
    """
    if not any(problem.result().found_at == exit_cell for problem in problems):
        raise ValueError(f"exit_cell = {exit_cell}: no rank has found it")
    machines = {id(problem.cells): problem.cells for problem in problems}
    return way_back(join(list(machines.values())), exit_cell)[::-1]


def compile_kernels() -> None:
    """Compile the inner loops (or load them from numba's cache) before anything is timed."""
    cells = random_maze(2, 1.0, 0)
    for rule in SPLIT_RULES:
        search = MazeSearch(cells, 0, split_rule=rule)
        search.start()
        search.work(2)
        search.load()
        search.split()
    search.resume([search.save()], range(0))
    way_back(join([cells, cells]), search.entry)
    flat, offsets = cells.reshape(-1), steps(len(cells))
    kernel.grow_tree(flat, offsets, search.entry, np.full_like(flat, FREE))
    kernel.open_cells(flat, offsets, 0, flat.size, np.empty(0, np.int64))
