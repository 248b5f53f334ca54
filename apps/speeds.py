"""Speeds that change while a program runs: how they are written, and the bound that they allow."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import NamedTuple

from lb_mpi.checks import emulated_speed, integer, number


class Change(NamedTuple):
    """A change of a rank's speed for some time."""

    rank: int
    from_s: float  # since the start
    to_s: float
    factor: float  # of its usual speed, above 0 and at most 1


class Varying:
    """The relative speed of one rank over time: `usual` (0 < usual <= 1), and another one during `changes`.

    Its method `now` is a speed for `lb_mpi.throttle`, and the `emulated_speed=` of a Balancer or a search.  The times of
    the changes are seconds since `start`.
    """

    def __init__(self, usual: float, changes: Sequence[Change] = ()) -> None:
        self.usual, self.changes = emulated_speed(usual, "usual"), tuple(changes)
        self._began: float | None = None

    def start(self) -> None:
        """Start the time of the changes now."""
        self._began = time.perf_counter()

    def now(self) -> float:
        """Return the speed at this moment."""
        return self.usual if self._began is None else self.at(time.perf_counter() - self._began)

    def at(self, seconds: float) -> float:
        """Return the speed at a time after the start, in seconds."""
        speed = self.usual
        for change in self.changes:
            if change.from_s <= seconds < change.to_s:
                speed *= change.factor
        return speed

    def __repr__(self) -> str:
        return f"Varying({self.usual}, {list(self.changes)})"


def change_of(text: str) -> Change:
    """Parse "RANK:FROM_S:TO_S:FACTOR"; ValueError unless 0 <= FROM_S < TO_S and 0 < FACTOR <= 1."""
    parts = text.split(":")
    if len(parts) != 4:
        raise ValueError(f"a change of speed {text!r}: expected RANK:FROM_S:TO_S:FACTOR, as in 1:10:20:0.33")
    try:
        rank, from_s, to_s, factor = int(parts[0]), *map(float, parts[1:])
    except ValueError:
        raise ValueError(f"a change of speed {text!r}: expected four numbers, as in 1:10:20:0.33") from None
    begin = number("FROM_S", from_s, least=0.0)
    return Change(
        integer("RANK", rank, 0), begin, number("TO_S", to_s, above=begin), number("FACTOR", factor, above=0.0, most=1.0)
    )


def seconds_for(work: float, speeds: Sequence[Varying]) -> float:
    """The time after which `work` >= 0 is done if it can be divided freely: no run can end sooner."""
    moments = sorted({0.0, *(moment for one in speeds for change in one.changes for moment in change[1:3])})
    for begin, end in itertools.pairwise(moments):
        power = sum(one.at(begin) for one in speeds)
        if work <= power * (end - begin):
            return begin + work / power
        work -= power * (end - begin)
    return moments[-1] + work / sum(one.at(moments[-1]) for one in speeds)
