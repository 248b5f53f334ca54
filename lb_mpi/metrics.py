"""Imbalance, lower bound; and the validation of speeds, loads and parts.   (pure)

A rank with speed s_i (units of work per second) and load w_i (units of work) needs l_i = w_i / s_i seconds.
"""

from __future__ import annotations

import functools
import math
import numbers
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lb_mpi.checks import show

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
P = ParamSpec("P")
T = TypeVar("T")


def usual_arithmetic(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function compute as numpy does by default, even where the program makes errors of all (`np.seterr`)."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with np.errstate(all="warn", under="ignore"):
            return function(*args, **kwargs)

    return call


def as_now(function: Callable[P, T]) -> Callable[P, T]:
    """Return a user's function that runs with numpy's present error settings, also within `usual_arithmetic`."""
    now = np.geterr()

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with np.errstate(**now):
            return function(*args, **kwargs)

    return call


class Efficiency(NamedTuple):
    """The metrics of the POP project (https://pop-coe.eu/node/69) of P ranks in T seconds, with useful seconds u_r of each.

    They count seconds, regardless of a rank's speed.  NaN: there was nothing to do.
    """

    parallel: float  # mean u / T = load balance * communication efficiency
    balance: float  # load balance: mean u / max u
    communication: float  # communication efficiency: max u / T

    @classmethod
    def of(cls, useful_s: Floats, seconds: float) -> Efficiency:
        """Compute them from the (P,) useful seconds and the time of the run."""
        mean, most = float(useful_s.mean()), float(useful_s.max())
        parts = ((mean, seconds), (mean, most), (most, seconds))
        return cls(*(one / whole if whole > 0.0 else float("nan") for one, whole in parts))


def first_true(flags: NDArray[np.bool_]) -> int | None:
    """Return the index of the first True; None: there is none."""
    return int(flags.argmax()) if flags.any() else None


def check_speeds(speeds: ArrayLike, size: int | None = None, *, name: str = "speeds") -> Floats:
    """Return `speeds` as a new (P,) array; ValueError, naming the index, unless all are finite and > 0 (and P = `size`)."""
    return _check(speeds, size, name, zero=False)


def check_loads(loads: ArrayLike, size: int | None = None, *, name: str = "loads") -> Floats:
    """Return `loads` as a new (P,) array; ValueError, naming the index, unless all are finite and >= 0 (and P = `size`)."""
    return _check(loads, size, name, zero=True)


LEAST = 1e-12  # of the largest speed: below, a spectrum is lost in rounding


def check_comparable(speeds: ArrayLike, size: int) -> Floats:
    """Return `speeds` as `check_speeds` does; ValueError also for one below LEAST of the largest."""
    array = check_speeds(speeds, size)
    if array[slowest := int(array.argmin())] < LEAST * (fastest := array.max()):
        raise ValueError(f"speeds[{slowest}] = {array[slowest]}: expected at least {LEAST} of the largest, {fastest}")
    return array


def check_sum(name: str, values: Floats) -> Floats:
    """Return `values`, which are >= 0; ValueError if their sum is beyond the range of floating point."""
    with np.errstate(over="ignore"):
        if not math.isfinite(values.sum()):
            raise ValueError(f"the sum of {name} exceeds the range of floating point: expected less")
    return values


def scaled(values: Floats) -> tuple[Floats, int]:
    """Return numbers >= 0 divided by a power of four, exactly, so that the largest is 1/4 to 1; and the exponent of two.

    Their sums, ratios and square roots keep all digits, and neither overflow nor underflow.
    """
    exponent = math.frexp(float(values.max(initial=0.0)))[1]
    exponent += exponent % 2
    return np.ldexp(values, -exponent), exponent


def check_parts(parts: ArrayLike, n: int, k: int) -> NDArray[np.int64]:
    """Return `parts` as an (n,) array of integers; ValueError, naming the vertex, for a part outside 0..k-1."""
    array = as_array("parts", parts)
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise ValueError(f"parts of shape {array.shape} = {show(parts)}: expected {n} integers, one per vertex")
    if (vertex := first_true((array < 0) | (array >= k))) is not None:
        raise ValueError(f"parts[{vertex}] = {array[vertex]}: expected 0..{k - 1}")
    return array.astype(np.int64)


def as_array(name: str, values: ArrayLike) -> NDArray[Any]:
    """Return `values` as an array; ValueError for lists of unequal lengths, and masked values."""
    if (masked := sys.modules.get("numpy.ma")) and masked.is_masked(values):  # it is slow to import
        raise ValueError(f"{name} = {show(values)}: expected no masked values (see their method filled)")
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} = {show(values)}: expected numbers in one dimension") from None


def as_numbers(name: str, values: ArrayLike) -> Floats:
    """Return `values` as a new array; ValueError for anything but numbers (text, complex numbers, True and False)."""
    given = as_array(name, values)
    try:
        if not (given.dtype.kind in "iuf" or (given.dtype.kind == "O" and all(map(_is_number, given.flat)))):
            raise TypeError
        return np.array(given, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} = {show(values)}: expected numbers") from None


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)


def _check(values: ArrayLike, size: int | None, name: str, *, zero: bool) -> Floats:
    array = as_numbers(name, values)
    least = 0 if zero and size == 0 else 1  # a rank may have nothing, and always has a speed
    if array.ndim != 1 or len(array) < least or (size is not None and len(array) != size):
        expected = "at least one number" if size is None else f"{size} numbers"
        raise ValueError(f"{name} of shape {array.shape} = {show(values)}: expected {expected} in one dimension")
    if (index := first_true(~(np.isfinite(array) & ((array >= 0) if zero else (array > 0))))) is not None:
        raise ValueError(f"{name}[{index}] = {array[index]}: expected a finite number {'>=' if zero else '>'} 0")
    return array


def lower_bound(loads: ArrayLike, speeds: ArrayLike) -> float:
    """Return the ideal time in seconds of (P,) loads on (P,) speeds, a bound for all distributions: sum w / sum s."""
    work, load_exponent = scaled(check_loads(loads))
    speed, speed_exponent = scaled(check_speeds(speeds, len(work)))
    with np.errstate(over="ignore"):
        return float(np.ldexp(work.sum() / speed.sum(), load_exponent - speed_exponent))


def imbalance(loads: ArrayLike, speeds: ArrayLike) -> float:
    """Return max(l) sum(s) / sum(s l) - 1 of the (P,) loads w and (P,) speeds s, l = w / s; 0 without work.

    The slowest rank needs 1 + imbalance times the lower bound.  Jin & Wang, diffusion for heterogeneous systems.
    """
    work, _ = scaled(check_loads(loads))
    speed = np.maximum(scaled(check_speeds(speeds, len(work)))[0], 5e-324)
    with np.errstate(over="ignore"):
        return above(float((work / speed).max()), float(work.sum() / speed.sum()))


def above(value: float, mean: float) -> float:
    """Return by which part a value is above a mean, at least 0."""
    return max(0.0, value / mean - 1.0) if mean > 0.0 else 0.0


def deal(weights: ArrayLike, n: int) -> Ints:
    """Assign n items to k <= n owners in proportion to (k,) weights > 0, at least one each; return (n,) the owner of each.

    Owners alternate as evenly as possible: the j-th (from 0) of an owner's m items is at (j + 1/2) / m of the sequence.
    """
    sums = np.cumsum(np.asarray(weights, np.float64))
    k = len(sums)
    counts = 1 + np.diff(np.rint(sums / sums[-1] * (n - k)).astype(np.int64), prepend=0)
    owners = np.repeat(np.arange(k), counts)
    positions = (np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts) + 0.5) / counts[owners]
    return owners[np.argsort(positions, kind="stable")]


QUEUED, QUEUED_S = 0.1, 0.1  # of the time at work, and seconds: less is not mentioned


def queueing(busy_s: float, queued_s: float) -> str:
    """Return the end of a line: ranks queued for cores for `queued_s` of `busy_s` seconds at work; "" if that is little."""
    if queued_s <= max(QUEUED_S, QUEUED * busy_s):
        return ""
    part = min(1.0, queued_s / busy_s)
    return f"; ranks queued for cores for {part:.0%} of their time at work (fewer cores than ranks, or a busy machine)"
