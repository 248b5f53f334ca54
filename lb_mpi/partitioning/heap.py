"""A heap of vertices, the largest key first, in which keys may change.   (pure)

The arrays are as long as there are vertices, so that nothing is allocated while it works.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lb_mpi.graph import Floats, Ints
from lb_mpi.partitioning.compiled import inlined

OUT, DONE = -1, -2  # for `place`: not in the heap; never to come into it again


class Heap(NamedTuple):
    """The vertices that wait, and their keys."""

    items: Ints  # (n,) the first size[0] are in the heap; none has a larger key than the one above it
    place: Ints  # (n,) where in `items` each vertex stands, or OUT, or DONE
    key: Floats  # (n,)
    size: Ints  # (1,)


@njit(cache=True)
def make_heap(n: int) -> Heap:
    """Return an empty heap for the vertices 0..n-1."""
    return Heap(np.empty(n, np.int64), np.full(n, OUT), np.zeros(n), np.zeros(1, np.int64))


@inlined
def put(heap: Heap, v: int, key: float) -> None:
    """Put v in with this key, or change its key if it is there already."""
    i = heap.place[v]
    if i < 0:
        i = heap.size[0]
        heap.size[0] += 1
        heap.items[i] = v
        heap.key[v] = key
        rise(heap, i)
    elif key > heap.key[v]:
        heap.key[v] = key
        rise(heap, i)
    elif key < heap.key[v]:
        heap.key[v] = key
        sink(heap, i)


@inlined
def pop(heap: Heap) -> int:
    """Take out the vertex of the largest key; the heap must not be empty."""
    v: int = heap.items[0]
    remove(heap, v)
    return v


@inlined
def remove(heap: Heap, v: int) -> None:
    """Take v out, if it is in."""
    i = heap.place[v]
    if i < 0:
        return
    heap.place[v] = OUT
    heap.size[0] -= 1
    if i < heap.size[0]:
        last = heap.items[heap.size[0]]
        heap.items[i] = last
        heap.place[last] = i
        rise(heap, i)
        sink(heap, heap.place[last])


@inlined
def clear(heap: Heap) -> None:
    """Take out all vertices; those that are done stay done."""
    for i in range(heap.size[0]):
        heap.place[heap.items[i]] = OUT
    heap.size[0] = 0


@inlined
def rise(heap: Heap, i: int) -> None:
    """Restore the order after the key of the i-th item has risen."""
    items, place, key = heap.items, heap.place, heap.key
    v = items[i]
    while i > 0:
        above = (i - 1) >> 1
        if key[items[above]] >= key[v]:
            break
        items[i] = items[above]
        place[items[i]] = i
        i = above
    items[i] = v
    place[v] = i


@inlined
def sink(heap: Heap, i: int) -> None:
    """Restore the order after the key of the i-th item has fallen."""
    items, place, key, size = heap.items, heap.place, heap.key, heap.size[0]
    v = items[i]
    while True:
        below = 2 * i + 1
        if below >= size:
            break
        if below + 1 < size and key[items[below + 1]] > key[items[below]]:
            below += 1
        if key[items[below]] <= key[v]:
            break
        items[i] = items[below]
        place[items[i]] = i
        i = below
    items[i] = v
    place[v] = i
