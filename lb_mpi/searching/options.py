"""What can be set about a search.   (pure)"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lb_mpi.checks import choice, number, seed, show

MOST_ON_RING = 32  # ranks for which the ring is the usual route: a round of it takes as many hops


class Options(NamedTuple):
    """What can be set about a search; times in seconds, loads in the unit of `problem.load()`."""

    threshold: float = 0.125  # J of the paper: only a load above it is split
    pause_s: tuple[float, float] = (1e-4, 1e-2)  # shortest and longest pause before drafting again
    balance: bool = True  # False: each rank is dealt one share, nothing moves afterwards
    seed: int = 0  # of the jitter of the pauses
    report_every_s: float = math.inf  # between two REPORTs to rank 0
    route: str | None = None  # of drafts: "ring" or "random"; None: the ring on up to 32 ranks
    save_every_s: float | None = None  # between two saves; inf: only when asked; None: nothing is saved

    def route_on(self, size: int) -> str:
        """Return the route that drafts take on so many ranks."""
        return self.route or ("ring" if size <= MOST_ON_RING else "random")

    def checked(self) -> Options:
        """The same in Python's own numbers; ValueError with name, value and expectation."""
        if not isinstance(self.balance, bool | np.bool_):
            raise ValueError(f"balance = {show(self.balance)}: expected True or False")
        every, saves = self.report_every_s, self.save_every_s
        return Options(
            threshold=number("threshold", self.threshold, least=0.0, unit="J, as problem.load()"),
            pause_s=_pause(self.pause_s),
            balance=bool(self.balance),
            seed=seed(self.seed),
            report_every_s=_seconds("report_every_s", every),
            route=None if self.route is None else choice("route", self.route, ("ring", "random")),
            save_every_s=None if saves is None else _seconds("save_every_s", saves),
        )


def _seconds(name: str, value: object) -> float:
    """Return a time above 0; infinity will do."""
    if isinstance(value, float | np.floating) and value == math.inf:
        return math.inf
    return number(name, value, above=0.0, unit="seconds")


def _pause(pause_s: object) -> tuple[float, float]:
    try:
        shortest, longest = (number("pause_s", each, above=0.0) for each in pause_s)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        shortest, longest = 1.0, 0.0
    if not shortest <= longest:
        expected = "two numbers in seconds, 0 < shortest <= longest, both finite"
        raise ValueError(f"pause_s = {show(pause_s)}: expected {expected}")
    return shortest, longest
