"""Random numbers inside compiled loops: a seed gives the same partition on every machine.   (pure)"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from lb_mpi.graph import Ints
from lb_mpi.partitioning.compiled import inlined

State = NDArray[np.uint64]  # (1,)


@inlined
def next_random(state: State, below: int) -> int:
    """A random integer in 0..below-1 from state (1,) uint64, which moves on: xorshift64* (Vigna 2016)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return int(np.int64(((x * np.uint64(2685821657736338717)) >> np.uint64(33)) % np.uint64(below)))


def random_state(seed: int) -> State:
    """The (1,) state that `next_random` moves on; any integer is a seed."""
    sequence = np.random.SeedSequence(abs(int(seed)), spawn_key=(int(seed < 0),))
    return sequence.generate_state(1, np.uint64) | np.uint64(1)  # anything but 0


@njit(cache=True)
def shuffle(values: Ints, n: int, state: State) -> None:
    """Put values[:n] into random order."""
    for i in range(n - 1, 0, -1):
        j = next_random(state, i + 1)
        values[i], values[j] = values[j], values[i]
