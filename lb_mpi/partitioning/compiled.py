"""Random numbers and a heap, for compiled loops."""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lb_mpi.graph import Floats, Ints
from lb_mpi.kernels import borrowing, inlined, njit

# --- Random numbers inside compiled loops: a seed gives the same partition on every machine ---------------------------

State = NDArray[np.uint64]  # (1,)
Array = TypeVar("Array", Ints, Floats)


@inlined
def next_random(state: State, below: int) -> int:
    """Return a random integer in 0..below-1 and advance state (1,) uint64: xorshift64* (Vigna 2016)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return int(np.int64(((x * np.uint64(2685821657736338717)) >> np.uint64(33)) % np.uint64(below)))


def random_state(seed: int) -> State:
    """Return the (1,) state for `next_random`; any integer is a seed."""
    return np.array([_first_state(int(seed))])


@functools.lru_cache(4096)
def _first_state(seed: int) -> np.uint64:
    sequence = np.random.SeedSequence(abs(seed), spawn_key=(int(seed < 0),))
    return np.uint64(sequence.generate_state(1, np.uint64)[0] | np.uint64(1))  # anything but 0


@borrowing
def copy_to(target: Array, at: int, source: Array) -> None:
    """Copy an array into another one, from index `at` on: numba's own assignment compiles an error's text, for 3 s."""
    for k in range(len(source)):
        target[at + k] = source[k]


@njit(cache=True)
def shuffle(values: Ints, n: int, state: State) -> None:
    """Put values[:n] into random order."""
    for i in range(n - 1, 0, -1):
        j = next_random(state, i + 1)
        values[i], values[j] = values[j], values[i]


# --- A heap of vertices, the largest key first, with keys that may change ---------------------------------------------
#
# Each array has an entry per vertex, so that nothing is allocated later.

OUT, DONE = -1, -2  # for `position`: not in the heap; excluded from it for good


class Heap(NamedTuple):
    """The waiting vertices, and their keys."""

    items: Ints  # (n,) the first size[0] are in the heap; no key is larger than the one above it
    position: Ints  # (n,) index of each vertex in `items`, or OUT, or DONE
    key: Floats  # (n,)
    size: Ints  # (1,)


@njit(cache=True)
def make_heap(n: int) -> Heap:
    """Return an empty heap for the vertices 0..n-1."""
    return Heap(np.empty(n, np.int64), np.full(n, OUT), np.zeros(n), np.zeros(1, np.int64))


@inlined
def put(heap: Heap, v: int, key: float) -> None:
    """Insert v with this key, or change its key if it is already in."""
    i = heap.position[v]
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
    """Remove the vertex with the largest key; the heap must not be empty."""
    v: int = heap.items[0]
    remove(heap, v)
    return v


@inlined
def remove(heap: Heap, v: int) -> None:
    """Remove v, if it is in."""
    i = heap.position[v]
    if i < 0:
        return
    heap.position[v] = OUT
    heap.size[0] -= 1
    if i < heap.size[0]:
        last = heap.items[heap.size[0]]
        heap.items[i] = last
        heap.position[last] = i
        rise(heap, i)
        sink(heap, heap.position[last])


@inlined
def clear(heap: Heap) -> None:
    """Remove all vertices; done ones stay done."""
    for i in range(heap.size[0]):
        heap.position[heap.items[i]] = OUT
    heap.size[0] = 0


@inlined
def rise(heap: Heap, i: int) -> None:
    """Restore the order after the key of the i-th item has increased."""
    items, position, key = heap.items, heap.position, heap.key
    v = items[i]
    while i > 0:
        above = (i - 1) >> 1
        if key[items[above]] >= key[v]:
            break
        items[i] = items[above]
        position[items[i]] = i
        i = above
    items[i] = v
    position[v] = i


@inlined
def sink(heap: Heap, i: int) -> None:
    """Restore the order after the key of the i-th item has decreased."""
    items, position, key, size = heap.items, heap.position, heap.key, heap.size[0]
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
        position[items[i]] = i
        i = below
    items[i] = v
    position[v] = i
