"""Numbers that all ranks add up, or of which they find the largest: the answer has the same bits on all ranks.   (pure)

Sums are of integers, so every tree of a reduction gives the same.  A real number is counted in units, and each count is sent
in two halves, so that sums of days over a million ranks do not overflow.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.actor import ALL, Await
from lb_mpi.graph import Floats, Ints

UNIT = 2.0**-30  # of real numbers
HALF = 2**32


class Reduction(NamedTuple):
    """Numbers of one rank for a reduction over all; the answer is the same on all ranks."""

    sums: Ints = np.zeros(0, dtype=np.int64)
    maxima: Floats = np.zeros(0)


def reduce(sums: Iterable[int] = (), maxima: Iterable[float] = ()) -> Generator[Await, Any, Reduction]:
    """Reduce numbers over all ranks: a part of a story (`lb_mpi.actor`)."""
    numbers = Reduction(np.array([*sums], dtype=np.int64), np.array([*maxima], dtype=float))
    answer: Reduction = (yield Await((ALL,), ((ALL, numbers),)))[ALL]
    return answer


def reduced(everyone: Sequence[Reduction]) -> Reduction:
    """Reduce the numbers of all ranks in one process."""
    maxima = np.array([one.maxima for one in everyone]).max(axis=0)
    return Reduction(np.sum([one.sums for one in everyone], axis=0), maxima)


def units(value: float) -> int:
    """Count a real number in units."""
    return round(value / UNIT)


def halves(reals: Iterable[float], counts: Iterable[int] = ()) -> Ints:
    """(2 n,) the high and the low half of each of n numbers: of reals, which are counted in units, and of counts."""
    numbers = itertools.chain(map(round, map((1.0 / UNIT).__mul__, reals)), counts)
    return np.fromiter(itertools.chain.from_iterable(map(divmod, numbers, itertools.repeat(HALF))), dtype=np.int64)


def joined(sums: Ints) -> list[int]:
    """Return the counts from the sums of their halves."""
    high, low = sums.reshape(-1, 2).T.tolist()
    return [*map(operator.add, map(HALF.__mul__, high), low)]
