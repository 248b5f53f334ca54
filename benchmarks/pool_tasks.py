"""The tasks of `benchmarks.pool`: CPU time that is spun away, sleep, a large function, large results."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SIGMA = 1.0  # of the logarithm of heavy-tailed costs: in a thousand, the largest is some 14 times the mean
MODEL_BYTES, RESULT_BYTES = 50_000_000, 2_000_000


def costs(kind: str, n: int, mean_s: float, seed: int) -> list[float]:
    """n costs in seconds of this mean, "constant" or "heavy" (lognormal)."""
    if kind == "constant":
        return [mean_s] * n
    drawn = np.random.default_rng(seed).lognormal(0.0, SIGMA, n)
    return [float(cost) for cost in drawn * (mean_s / drawn.mean())]


def spin(seconds: float) -> float:
    """Use so much CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return seconds


def nothing(item: int) -> int:
    """The cheapest task."""
    return item


def nap(seconds: float) -> float:
    """Wait, as for another program."""
    time.sleep(seconds)
    return seconds


def large(seconds: float) -> NDArray[np.float64]:
    """A large result."""
    spin(seconds)
    return np.full(RESULT_BYTES // 8, seconds)


class Model(NamedTuple):
    """Data that comes with a function."""

    data: NDArray[np.float64]

    def look_up(self, seconds: float) -> float:
        """Look something up."""
        spin(seconds)
        return float(self.data[int(seconds * 1e6) % len(self.data)])


def model() -> Model:
    """Make one of 50 MB."""
    return Model(np.random.default_rng(0).random(MODEL_BYTES // 8))
