"""The compiled inner loops of the maze search by tiles (`lb_mpi.problems.maze_tiles`), on plain arrays.   (pure)"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from lb_mpi.problems.maze_kernel import FREE, LAST_DIRECTION, MARKED, TOLD, Cells, Directions, Indices

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

    def take(self, tile: int, ways: Indices) -> None:
        """Take the ways into a tile."""
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
    cell = ways >> 4
    if len(ways) and not 0 <= cell.min() <= cell.max() < tiles.cells.size:
        raise ValueError(f"ways into cells {cell.min()} to {cell.max()}: expected 0 to {tiles.cells.size - 1}")
    row, column = np.divmod(cell, tiles.width)
    return np.asarray(row // tiles.side * -(-tiles.width // tiles.side) + column // tiles.side)


def flood(tiles: Tiles, hand: Hand, units: int) -> tuple[int, Indices]:
    """Mark up to `units` cells of the tile in hand, depth first; return how many, and the ways that lead out of it."""
    if not hand.left:
        return 0, NONE
    done, told = _flood(
        *tiles[:4], box(tiles, hand.tile), hand.position, hand.cursor, hand.ends, units, hand.ways, hand.out
    )
    return done, hand.out[:told].copy()


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
    length, entered, done, told = ends[0], ends[1], 0, 0
    while done < units and told < out.size:
        if length == 0:
            if entered == ways.size:
                break
            cell, direction = ways[entered] >> 4, ways[entered] & 15
            entered += 1
            inside = True
        else:
            here, direction = position[length - 1], cursor[length - 1]
            while direction <= LAST_DIRECTION and cells[here + offsets[direction]] not in (FREE, TOLD):
                direction += 1
            if direction > LAST_DIRECTION:
                length -= 1
                continue
            cursor[length - 1] = direction + 1
            cell = here + offsets[direction]
            row = cell // width
            column = cell - row * width
            inside = first_row <= row <= last_row and left <= column <= right
        if cells[cell] != FREE and not (inside and cells[cell] == TOLD):
            continue
        if not inside:
            cells[cell] = TOLD
            out[told] = 16 * cell + direction
            told += 1
            continue
        cells[cell] = MARKED + direction
        position[length], cursor[length] = cell, 0
        length += 1
        done += 1
        if cell == exit:
            break
    ends[0], ends[1] = length, entered
    return done, told


def open_ways(tiles: Tiles, owner: Indices, rank: int) -> Indices:
    """Return the ways from marked cells to free ones in tiles that belong to `rank`, one to each."""
    across = -(-tiles.width // tiles.side)
    free = np.flatnonzero(tiles.cells == FREE)
    row, column = np.divmod(free, tiles.width)
    free = free[owner[row // tiles.side * across + column // tiles.side] == rank]
    ways = np.full(len(free), -1, np.int64)
    for direction in range(LAST_DIRECTION + 1):
        before = tiles.cells[free - tiles.offsets[direction]]
        from_here = (before >= MARKED) & (before < TOLD) & (ways < 0)
        ways[from_here] = 16 * free[from_here] + direction
    found: npt.NDArray[np.int64] = ways[ways >= 0]
    return found
