"""The compiled inner loops of the maze search (`lb_mpi.problems.maze`), on plain arrays.   (pure)

The stack is three arrays: record i stands at the flat index position[i] and has the directions cursor[i]..upper[i] not
yet tried.  Its *counted* directions, n(i) of them, are those that lead to a cell which is free and unmarked right now.
Marks are never removed, so n(i) only ever shrinks; all that is remembered below rests on that.

`state` holds three indices into the stack:
- TOP: the last record; the stack is empty when TOP < BOTTOM.
- BOTTOM: every record below it is exhausted (n = 0), for good.
- WIDE: every record below it has n < 2, for good; records above a lower TOP are gone, so WIDE <= TOP + 1.

Each record is passed by BOTTOM once and by WIDE once, so that valuing and splitting are O(1) amortised in the length of
the stack.  `looks` bounds the records that one call looks at, so that one call is short, too.

Other ranks may mark cells of the same array meanwhile, without locks: a byte is read and written whole, so the worst
that a race can do is that two ranks mark one cell, and both go on from it.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

Cells = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Directions = npt.NDArray[np.int8]

FREE, BLOCKED, WALL, MARKED = 0, 1, 2, 3
TOP, BOTTOM, WIDE = 0, 1, 2
LAST_DIRECTION = 7
STAY = 8  # the direction by which the entry is entered, from itself


@njit(cache=True)
def count(cells: Cells, offsets: Indices, here: int, cursor: int, upper: int) -> int:
    """Count the directions cursor..upper of the cell `here` that lead to a free, unmarked cell."""
    n = 0
    for direction in range(cursor, upper + 1):
        if cells[here + offsets[direction]] == FREE:
            n += 1
    return n


@njit(cache=True)
def mark(
    cells: Cells,
    entered: Cells,
    offsets: Indices,
    position: Indices,
    cursor: Directions,
    upper: Directions,
    state: Indices,
    exit_cell: int,
    units: int,
    looks: int,
    log: Indices,
    order: int,
) -> int:
    """Mark up to `units` cells depth first; returns the number of cells marked, and writes them into `log`, if it has room.

    `order` 0 tries the first of a record's directions first, 1 the last, any other now this, now that, as drawn by lot for
    each cell.
    Stops early when the exit is marked, nothing is left, or `looks` records have been popped.  The stack must have room
    for all that are marked.
    """
    top, bottom, wide = state[TOP], state[BOTTOM], state[WIDE]
    done = 0
    popped = 0
    while done < units and bottom <= top and popped < looks:
        here = position[top]
        first, last = cursor[top], upper[top]
        backwards = order == 1 or (order > 1 and ((here * 40503 + order * 9973) >> 7) & 1 == 1)
        direction = last if backwards else first
        step = -1 if backwards else 1
        while first <= direction <= last and cells[here + offsets[direction]] != FREE:
            direction += step
        if not first <= direction <= last:
            top -= 1
            popped += 1
            wide = min(wide, top + 1)
            continue
        cell = here + offsets[direction]
        cells[cell] = MARKED
        entered[cell] = direction + 1
        if backwards:
            upper[top] = direction - 1
        else:
            cursor[top] = direction + 1
        top += 1
        position[top] = cell
        cursor[top] = 0
        upper[top] = LAST_DIRECTION
        if done < log.size:
            log[done] = cell
        done += 1
        if cell == exit_cell:
            break
    state[TOP] = top
    state[WIDE] = wide
    return done


@njit(cache=True)
def trim(
    cells: Cells,
    offsets: Indices,
    position: Indices,
    cursor: Directions,
    upper: Directions,
    state: Indices,
    looks: int,
) -> int:
    """Pop exhausted records off the top, raise BOTTOM past those below; returns n(BOTTOM).

    0: nothing is left (TOP < BOTTOM), or `looks` records were not enough to tell.
    """
    top, bottom = state[TOP], state[BOTTOM]
    n = 0
    while top >= bottom and looks > 0:
        n = count(cells, offsets, position[top], cursor[top], upper[top])
        if n > 0:
            break
        top -= 1
        looks -= 1
    state[TOP] = top
    state[WIDE] = min(state[WIDE], top + 1)
    if n == 0:
        return 0
    while bottom < top and looks > 0:
        n = count(cells, offsets, position[bottom], cursor[bottom], upper[bottom])
        if n > 0:
            break
        bottom += 1
        looks -= 1
    state[BOTTOM] = bottom
    if bottom == top:
        n = count(cells, offsets, position[top], cursor[top], upper[top])
    return n


@njit(cache=True)
def divide(
    cells: Cells,
    offsets: Indices,
    position: Indices,
    cursor: Directions,
    upper: Directions,
    state: Indices,
    half: bool,
    looks: int,
) -> tuple[int, int, int]:
    """Cut the last counted directions off the record that is to be split; returns the part as position, cursor, upper.

    Half of them, or one.  The record is the shallowest with n >= 2, otherwise (none among the next `looks` records) the
    shallowest with n > 0.  Position -1 when there is only one branch, or none, or `looks` records were not enough to
    tell.
    """
    n = trim(cells, offsets, position, cursor, upper, state, looks)
    if n == 0:
        return -1, 0, 0
    top, level = state[TOP], state[BOTTOM]
    wide = max(state[WIDE], level)
    while wide <= top and looks > 0:
        n_wide = count(cells, offsets, position[wide], cursor[wide], upper[wide])
        if n_wide >= 2:
            level, n = wide, n_wide
            break
        wide += 1
        looks -= 1
    state[WIDE] = wide
    if level == top and n == 1:
        return -1, 0, 0
    here, last = position[level], upper[level]
    first = last + 1
    left = n // 2 if half and n >= 2 else 1
    while left > 0 and first > cursor[level]:  # another rank may have marked some since they were counted
        first -= 1
        if cells[here + offsets[first]] == FREE:
            left -= 1
    upper[level] = first - 1
    return here, first, last


@njit(cache=True)
def deal(
    cells: Cells,
    offsets: Indices,
    position: Indices,
    cursor: Directions,
    upper: Directions,
    state: Indices,
    given: Indices,
) -> int:
    """Choose every second record that is not exhausted; the top one is kept.

    Looks at `given.size` records: half of them are those nearest to the top, half are spread evenly over the rest of the
    stack.  Writes the indices of the chosen ones into `given`, from the top down, and returns how many.  They stay on the
    stack, because the path leads over them; the caller copies and closes them.
    """
    level, bottom = state[TOP], state[BOTTOM]
    dense = level - given.size // 2
    stride = max(1, (dense - bottom) // max(1, given.size // 2))
    n = 0
    keep = True
    while level >= bottom and n < given.size:
        if count(cells, offsets, position[level], cursor[level], upper[level]) > 0:
            if not keep:
                given[n] = level
                n += 1
            keep = not keep
        level -= 1 if level > dense else stride
    return n


@njit(cache=True)
def follow(entered: Cells, offsets: Indices, cell: int, path: Indices) -> tuple[int, int]:
    """Step back from `cell` by the directions in `entered`, writing into `path` the cells that fit.

    Returns the number of cells that were entered (the entry included, where the walk ends), and the last cell reached.
    """
    n = 0
    while entered[cell] != 0:
        if n < path.size:
            path[n] = cell
        n += 1
        if entered[cell] == STAY + 1:
            break
        cell = cell - offsets[entered[cell] - 1]
    return n, cell
