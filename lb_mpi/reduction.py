"""Numbers that all ranks add up, or of which they find the largest: the answer has the same bits on all ranks.   (pure)

Law.  A sum is the exact sum of real numbers, rounded once: every order, and every tree of a reduction, gives the same.  One
that is too large for a number is infinite.
- Few ranks exchange their numbers, and each adds them up.
- Many have integers added up: a real number has digits to the base 2**32, and each digit has its sum (`digits`, `real`).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.actor import ALL, Await
from lb_mpi.graph import Floats, Ints

DIGIT_BITS = 32
LOWEST = -1126  # exponent of the last bit of the smallest number, as an integer of 53 bits
N_DIGITS = -(-(1024 - LOWEST) // DIGIT_BITS)  # of a real number; the sums of the digits of 2**31 ranks fit into 64 bits
NONE = np.zeros(0)


class Reduction(NamedTuple):
    """Numbers of one rank for a reduction over all; the answer is the same on all ranks."""

    sums: Sequence[float] = ()  # of real numbers, above -inf
    maxima: Floats = NONE


def reduce(sums: Iterable[float] = (), maxima: Iterable[float] = ()) -> Generator[Await, Any, Reduction]:
    """Reduce numbers over all ranks: a part of a story (`lb_mpi.actor`)."""
    numbers = Reduction([*sums], np.array([*maxima], dtype=float))
    answer: Reduction = (yield Await((ALL,), ((ALL, numbers),)))[ALL]
    return answer


def reduced(everyone: Sequence[Reduction]) -> Reduction:
    """Reduce the numbers of all ranks in one process."""
    sums, maxima = zip(*everyone, strict=True)
    return Reduction(added(sums), np.maximum.reduce(maxima))


def added(numbers: Iterable[Sequence[float]]) -> list[float]:
    """Return the n sums of all ranks' n numbers."""
    columns = [*zip(*numbers, strict=True)]
    try:
        return [*map(math.fsum, columns)]
    except OverflowError:  # of one or more
        return [*map(_sum, columns)]


def _sum(numbers: Iterable[float]) -> float:
    try:
        return math.fsum(numbers)
    except OverflowError:
        return math.inf


def digits(numbers: Sequence[float]) -> Ints:
    """(n, N_DIGITS + 1) digits of n numbers, the last ones first; then 1 for an infinite one, otherwise 0."""
    table = np.zeros((len(numbers), N_DIGITS + 1), dtype=np.int64)
    for row, number in zip(table, numbers, strict=True):
        if math.isinf(number):
            row[-1] = 1
        elif number:
            mantissa, exponent = math.frexp(number)
            at, shift = divmod(exponent - 53 - LOWEST, DIGIT_BITS)
            bits, sign = int(abs(mantissa) * 2.0**53) << shift, 1 if number > 0.0 else -1
            while bits:
                bits, row[at] = bits >> DIGIT_BITS, sign * (bits & (1 << DIGIT_BITS) - 1)
                at += 1
    return table


def real(sums: Ints) -> list[float]:
    """Return n real numbers from the (n, N_DIGITS + 1) sums of their digits."""
    return [*map(_real, sums)]


def _real(row: Ints) -> float:
    bits = sum(int(row[at]) << DIGIT_BITS * at for at in np.flatnonzero(row[:-1]).tolist())
    try:
        return math.inf if row[-1] else bits / (1 << -LOWEST)
    except OverflowError:
        return math.inf
