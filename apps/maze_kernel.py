"""The compiled inner loops of the maze search, in one array of cells and by tiles, on plain arrays.   (pure)

Record i of the stack stands at the flat index position[i] and has the directions cursor[i]..upper[i] not yet tried.  Its
*open* directions, n(i) of them, are those that lead to a cell which is free and unmarked right now.
Marks are never removed, so n(i) only ever shrinks; all that is remembered below rests on that.

`Stack.ends` holds three indices into the stack:
- TOP: the last record; the stack is empty when TOP < BOTTOM.
- BOTTOM: every record below it is exhausted (n = 0), for good.
- WIDE: every record below it has n < 2, for good; records above a lower TOP are gone, so WIDE <= TOP + 1.

Each record is passed by BOTTOM once and by WIDE once, so that valuing and splitting are O(1) amortised in the length of
the stack.  `budget` bounds the records that one call examines, so that one call is short, too.

Other ranks may mark cells of the same array meanwhile, without locks: a byte is read and written whole, so the worst
that a race can do is that two ranks mark one cell, and both go on from it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lb_mpi.kernels import njit

# --- The stack and its loops ------------------------------------------------------------------------------------------

Cells = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Directions = npt.NDArray[np.int8]

FREE, BLOCKED, WALL, MARKED = 0, 1, 2, 3  # MARKED + direction: marked, and entered by that direction
TOP, BOTTOM, WIDE = 0, 1, 2
LAST_DIRECTION = 7
DOWN = 6  # the direction of the next row
STAY = 8  # the direction by which the entry is entered, from itself
SENT = MARKED + STAY + 1  # not marked, but a way into it was sent to the owner of its tile (`maze_tiles`)


class Maze(NamedTuple):
    """The cells, and what one rank does in them; flat indices throughout."""

    cells: Cells  # ((dim + 2)^2,) shared by all ranks of a machine
    offsets: Indices  # (9,) from a cell to its neighbour in each direction
    exit: int


class Stack(NamedTuple):
    """The records from the entry, or from where a part began, to the present cell."""

    position: Indices
    cursor: Directions
    upper: Directions
    ends: Indices  # (3,) TOP, BOTTOM, WIDE


@njit(cache=True)
def count(maze: Maze, stack: Stack, i: int) -> int:
    """Count the open directions of record i."""
    here = stack.position[i]
    n = 0
    for direction in range(stack.cursor[i], stack.upper[i] + 1):
        if maze.cells[here + maze.offsets[direction]] == FREE:
            n += 1
    return n


@njit(cache=True)
def mark_cells(maze: Maze, stack: Stack, units: int, budget: int) -> int:
    """Mark up to `units` cells depth first; returns the number of cells marked.

    Stops early when the exit is marked, nothing is left, or `budget` records have been popped.  The stack must have room
    for all that are marked.
    """
    cells, offsets = maze.cells, maze.offsets
    position, cursor, upper, ends = stack
    top, bottom, wide = ends[TOP], ends[BOTTOM], ends[WIDE]
    done = 0
    popped = 0
    while done < units and bottom <= top and popped < budget:
        here = position[top]
        direction, last = cursor[top], upper[top]
        while direction <= last and cells[here + offsets[direction]] != FREE:
            direction += 1
        if direction > last:
            top -= 1
            popped += 1
            wide = min(wide, top + 1)
            continue
        cell = here + offsets[direction]
        cells[cell] = MARKED + direction
        cursor[top] = direction + 1
        top += 1
        position[top], cursor[top], upper[top] = cell, 0, LAST_DIRECTION
        done += 1
        if cell == maze.exit:
            break
    ends[TOP] = top
    ends[WIDE] = wide
    return done


@njit(cache=True)
def trim(maze: Maze, stack: Stack, budget: int) -> int:
    """Pop exhausted records off the top, raise BOTTOM past those below; returns n(BOTTOM).

    0: nothing is left (TOP < BOTTOM), or `budget` records were not enough to tell.
    """
    ends = stack.ends
    top, bottom = ends[TOP], ends[BOTTOM]
    n = 0
    while top >= bottom and budget > 0:
        n = count(maze, stack, top)
        if n > 0:
            break
        top -= 1
        budget -= 1
    ends[TOP] = top
    ends[WIDE] = min(ends[WIDE], top + 1)
    if n == 0:
        return 0
    while bottom < top and budget > 0:
        n = count(maze, stack, bottom)
        if n > 0:
            break
        bottom += 1
        budget -= 1
    ends[BOTTOM] = bottom
    if bottom == top:
        n = count(maze, stack, top)
    return n


@njit(cache=True)
def value(
    cells: Cells,
    offsets: Indices,
    exit: int,
    position: Indices,
    cursor: Directions,
    upper: Directions,
    ends: Indices,
    budget: int,
) -> float:
    """Value what the stack still leads to: its height over the shallowest open record, and an eighth of that one's n.

    Takes the fields of `Maze` and `Stack` one by one, `value(*maze, *stack, budget)`: it is called between all work quanta,
    and it takes numba longer to unpack two named tuples that come from Python (2 to 3 us) than to do the rest.
    """
    n = trim(Maze(cells, offsets, exit), Stack(position, cursor, upper, ends), budget)
    height = ends[TOP] - ends[BOTTOM]
    return 0.0 if height < 0 else height + max(n, 1) / 8


@njit(cache=True)
def divide(maze: Maze, stack: Stack, half: bool, budget: int) -> tuple[int, int, int]:
    """Cut the last open directions off the record that is to be split; returns the part as position, cursor, upper.

    Half of them, or one.  The record is the shallowest with n >= 2, otherwise (none among the next `budget` records) the
    shallowest with n > 0.  Position -1 when there is only one branch, or none, or `budget` records were not enough to
    tell.
    """
    n = trim(maze, stack, budget)
    if n == 0:
        return -1, 0, 0
    top, level = stack.ends[TOP], stack.ends[BOTTOM]
    wide = max(stack.ends[WIDE], level)
    while wide <= top and budget > 0:
        n_wide = count(maze, stack, wide)
        if n_wide >= 2:
            level, n = wide, n_wide
            break
        wide += 1
        budget -= 1
    stack.ends[WIDE] = wide
    if level == top and n == 1:
        return -1, 0, 0
    here, last = stack.position[level], stack.upper[level]
    first = last + 1
    left = n // 2 if half and n >= 2 else 1
    while left > 0 and first > stack.cursor[level]:  # another rank may have marked some since they were counted
        first -= 1
        if maze.cells[here + maze.offsets[first]] == FREE:
            left -= 1
    stack.upper[level] = first - 1
    return here, first, last


@njit(cache=True)
def deal(maze: Maze, stack: Stack, given: Indices) -> int:
    """Choose every second record that is not exhausted; the top one is kept.

    Looks at `given.size` records: half of them are those nearest to the top, half are spread evenly over the rest of the
    stack.  Writes the indices of the chosen ones into `given`, from the top down, and returns how many.  They stay on the
    stack, because the path leads over them; the caller copies and closes them.
    """
    level, bottom = stack.ends[TOP], stack.ends[BOTTOM]
    dense = level - given.size // 2
    stride = max(1, (dense - bottom) // max(1, given.size // 2))
    n = 0
    keep = True
    while level >= bottom and n < given.size:
        if count(maze, stack, level) > 0:
            if not keep:
                given[n] = level
                n += 1
            keep = not keep
        level -= 1 if level > dense else stride
    return n


@njit(cache=True)
def follow(cells: Cells, offsets: Indices, cell: int, path: Indices) -> tuple[int, int]:
    """Step back from `cell` by the directions in which cells were entered, writing into `path` those that fit.

    Returns the number of cells passed, and the last one: the entry, or one whose direction isn't known here.
    """
    n = 0
    while MARKED <= cells[cell] < SENT:
        if n < path.size:
            path[n] = cell
        n += 1
        if cells[cell] == MARKED + STAY or n > cells.size:
            break
        cell = cell - offsets[cells[cell] - MARKED]
    return n, cell


@njit(cache=True)
def grow_tree(cells: Cells, offsets: Indices, entry: int, tree: Cells) -> None:
    """Give each marked cell a direction in `tree`, so that all lead back to the entry over marked cells, breadth first.

    `tree` has no marks before.
    """
    front, n = np.empty(1024, np.int64), 1
    front[0] = entry
    tree[entry] = MARKED + STAY
    while n:
        after, m = np.empty(8 * n, np.int64), 0
        for i in range(n):
            for direction in range(LAST_DIRECTION + 1):
                cell = front[i] + offsets[direction]
                if tree[cell] == FREE and cells[cell] >= MARKED:
                    tree[cell] = MARKED + direction
                    after[m] = cell
                    m += 1
        front, n = after, m


@njit(cache=True)
def pack(cells: Cells, packed: Cells) -> None:
    """Pack two cells into a byte; `packed` has shape ((n + 1) // 2,)."""
    for i in range(cells.size // 2):
        packed[i] = cells[2 * i] | cells[2 * i + 1] << 4
    if cells.size % 2:
        packed[-1] = cells[-1]


@njit(cache=True)
def unpack(packed: Cells, cells: Cells) -> None:
    """Undo `pack`."""
    for i in range(cells.size // 2):
        cells[2 * i] = packed[i] & 15
        cells[2 * i + 1] = packed[i] >> 4
    if cells.size % 2:
        cells[-1] = packed[-1]


@njit(cache=True)
def open_cells(cells: Cells, offsets: Indices, first: int, last: int, found: Indices) -> int:
    """Count the marked cells from `first` to `last` - 1 that have a free neighbour; writes those that fit into `found`."""
    n = 0
    for cell in range(first, last):
        if cells[cell] < MARKED:
            continue
        for direction in range(LAST_DIRECTION + 1):
            if cells[cell + offsets[direction]] == FREE:
                if n < found.size:
                    found[n] = cell
                n += 1
                break
    return n


# --- The search by tiles (`apps.maze_tiles`) ---------------------------------------------------------------

NONE = np.empty(0, np.int64)


class Tiles(NamedTuple):
    """The cells, and how they are cut; flat indices throughout."""

    cells: Cells  # ((dim + 2)^2,)
    offsets: Indices  # (9,) from a cell to its neighbour in each direction
    exit: int
    width: int  # dim + 2
    side: int  # of a tile


class Hand:
    """What a rank has in hand of tiles of `side` cells: one of them, the ways into it, and the path in it, depth first."""

    def __init__(self, side: int) -> None:
        self.tile = 0
        self.ways = NONE
        self.out = np.empty(16 * side, np.int64)  # ways out of it, of one call
        self.position: Indices = np.empty(side * side + 1, np.int64)
        self.cursor: Directions = np.empty(side * side + 1, np.int8)
        self.ends: Indices = np.zeros(2, np.int64)  # length of the path; ways entered

    @property
    def left(self) -> bool:
        """There is something to do in the tile."""
        return bool(self.ends[0] > 0 or self.ends[1] < self.ways.size)

    def enter(self, tile: int, ways: Indices) -> None:
        """Begin with the ways into a tile."""
        self.tile, self.ways = tile, ways
        self.ends[:] = 0


def box(tiles: Tiles, tile: int) -> tuple[int, int, int, int]:
    """Return the first and last row, and the first and last column of a tile's inner cells."""
    row, column = divmod(tile, -(-tiles.width // tiles.side))
    last = tiles.width - 2
    return (
        max(1, row * tiles.side), min(last, (row + 1) * tiles.side - 1),
        max(1, column * tiles.side), min(last, (column + 1) * tiles.side - 1),
    )  # fmt: skip


def tiles_of(tiles: Tiles, ways: Indices) -> Indices:
    """Return the tile that each way leads into, (n,); ValueError for a way to nowhere."""
    found = np.empty(len(ways), np.int64)
    wrong = _tiles_of(tiles.cells.size, tiles.width, tiles.side, ways, found)
    if wrong >= 0:
        raise ValueError(f"a way into cell {ways[wrong] >> 4}: expected 0 to {tiles.cells.size - 1}")
    return found


@njit(cache=True)
def _tiles_of(size: int, width: int, side: int, ways: Indices, found: Indices) -> int:
    """Write the tile of each way into `found`; return the index of a way to nowhere, -1 if there is none."""
    across = -(-width // side)
    for k in range(ways.size):
        cell = ways[k] >> 4
        if not 0 <= cell < size:
            return k
        found[k] = cell // width // side * across + cell % width // side
    return -1


def flood(tiles: Tiles, hand: Hand, units: int) -> tuple[int, Indices]:
    """Mark up to `units` cells of the tile in hand, depth first; return how many, and the ways that lead out of it."""
    if not hand.left:
        return 0, NONE
    done, n_sent = _flood(
        *tiles[:4], box(tiles, hand.tile), hand.position, hand.cursor, hand.ends, units, hand.ways, hand.out
    )
    return done, hand.out[:n_sent].copy()


@njit(cache=True)
def _flood(
    cells: Cells,
    offsets: Indices,
    exit: int,
    width: int,
    box: tuple[int, int, int, int],
    position: Indices,
    cursor: Directions,
    ends: Indices,
    units: int,
    ways: Indices,
    out: Indices,
) -> tuple[int, int]:
    """Go on along the path position[:ends[0]], each with the directions from its cursor on; when it's over, by the next way.

    Stops when `out` is full, too: then what is left goes on with the next call.
    """
    first_row, last_row, left, right = box
    length, entered, done, n_sent = ends[0], ends[1], 0, 0
    while done < units and n_sent < out.size:
        if length == 0:
            if entered == ways.size:
                break
            cell, direction = ways[entered] >> 4, ways[entered] & 15
            entered += 1
            inside = True
        else:
            here, direction = position[length - 1], cursor[length - 1]
            while direction <= LAST_DIRECTION and cells[here + offsets[direction]] not in (FREE, SENT):
                direction += 1
            if direction > LAST_DIRECTION:
                length -= 1
                continue
            cursor[length - 1] = direction + 1
            cell = here + offsets[direction]
            row = cell // width
            column = cell - row * width
            inside = first_row <= row <= last_row and left <= column <= right
        if cells[cell] != FREE and not (inside and cells[cell] == SENT):
            continue
        if not inside:
            cells[cell] = SENT
            out[n_sent] = 16 * cell + direction
            n_sent += 1
            continue
        cells[cell] = MARKED + direction
        position[length], cursor[length] = cell, 0
        length += 1
        done += 1
        if cell == exit:
            break
    ends[0], ends[1] = length, entered
    return done, n_sent


def open_ways(tiles: Tiles, owner: Indices, rank: int) -> Indices:
    """Return the ways from marked cells to free ones in tiles that belong to `rank`, one to each."""
    across = -(-tiles.width // tiles.side)
    free = np.flatnonzero(tiles.cells == FREE)
    row, column = np.divmod(free, tiles.width)
    free = free[owner[row // tiles.side * across + column // tiles.side] == rank]
    ways = np.full(len(free), -1, np.int64)
    for direction in range(LAST_DIRECTION + 1):
        before = tiles.cells[free - tiles.offsets[direction]]
        from_here = (before >= MARKED) & (before < SENT) & (ways < 0)
        ways[from_here] = 16 * free[from_here] + direction
    found: npt.NDArray[np.int64] = ways[ways >= 0]
    return found
