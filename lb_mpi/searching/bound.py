"""A bound that all ranks of a search share: the best value that any of them has found.   (pure)

In branch and bound, what can't lead to anything better than the best solution so far is not searched.  Ranks that don't tell
each other of theirs search far more than one rank alone would.  With a bound they do, while they work:

    bound = lb_mpi.Bound("min")                     # made alike on every rank; "max" where larger is better

    class Tours(lb_mpi.Problem):
        def work(self, units):
            ...
            if lower_bound >= bound.best:           # the best value of all ranks, as far as this one has heard
                continue                            # no better tour down there
            ...
            if bound.improve(length):               # the other ranks will hear of it
                self.tour = tour                    # the solution itself stays here: `result` and `merge` find the best

    result = lb_mpi.search(comm, Tours(), bound=bound)

`apps/tsp.py` is a complete program.

The law
-------
The ranks stand in a tree by their numbers: the neighbours of rank r are (r - 1) // 8 and 8 r + 1, ..., 8 r + 8.  A rank
whose best value is better than what a neighbour is known to have tells that neighbour, once a turn: BOUND(source, value).

- On each rank the best value only improves.
- A neighbour is known to have what it was told, and what it told.  It has that, or something at least as good, or a BOUND
  with it is under way: so while the search lasts, what one rank has found comes to all, over at most 2 log8(size) + 2
  neighbours, each of which passes it on after its work quantum at hand.
- Nobody's best value is better than what some rank has found.
- A value that is no better than the best here goes no further.  So each value is told at most once from each side of each
  of the size - 1 pairs of neighbours, however many find it: no storm, and no ring on which it could go round.
- A BOUND makes no passive rank active, so Safra's token does not count it, and the search may end with some under way.
  They are received and dropped like all else; then every rank takes the best of all ranks' values (`Sharing.level`), so
  that `best` is the same everywhere, however the search has ended.

The table
---------
state   arrives        does
------  -------------  -----------------------------------------------------------------------------------
any     BOUND(v)       best = the better one of best and v; its sender is known to have v, unless it's known to have better
any     (end of turn)  BOUND(best) to each neighbour that isn't known to have a value as good
after the end          BOUND is dropped
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral

from lb_mpi.checks import choice, number, show
from lb_mpi.errors import ProtocolError
from lb_mpi.searching.drafting import Kind, Message, Send

FAN_OUT = 8


class Bound:
    """The best value that any rank of a search has found: the smallest (sense "min") or the largest ("max").

    Every rank makes its own, alike, and passes it to `lb_mpi.search(comm, problem, bound=bound)`.  Values are kept as
    floats; integers that no float holds exactly are refused.  What was found before the search (by a heuristic, on any of
    the ranks) may be told before the search.

    Errors: ValueError for another sense.
    """

    def __init__(self, sense: str) -> None:
        self.sense = choice("sense", sense, ("min", "max"))
        self._best = self.worst

    @property
    def best(self) -> float:
        """The best value so far, as far as this rank has heard; infinite (inf for "min", -inf for "max") before the first.

        The same on all ranks when the search is over.
        """
        return self._best

    @property
    def worst(self) -> float:
        """What any value is better than."""
        return math.inf if self.sense == "min" else -math.inf

    def improve(self, value: float) -> bool:
        """Tell of a value that this rank has found; True when it is better than `best`, which it is from now on.

        ValueError unless it is a finite number, and for an integer that no float holds exactly: two of these that differ
        might be the same float.
        """
        found = number("bound.improve: value", value)
        given: object = value
        if isinstance(given, Integral) and int(given) != int(found):
            expected = "an integer that a float holds exactly, as all up to 2**53 are"
            raise ValueError(f"bound.improve: value = {show(value)}: expected {expected}")
        return self.take(found)

    def take(self, value: float) -> bool:
        """Take in a value that is known to be a float; True when it is better than `best` was."""
        if not self.is_better(value, self._best):
            return False
        self._best = value
        return True

    def is_better(self, one: float, other: float) -> bool:
        """Tell if `one` is better than `other`, and not the same."""
        return one < other if self.sense == "min" else one > other


def check_bound(bound: object) -> Bound | None:
    """Return a Bound, or None; TypeError for anything else."""
    if bound is not None and not isinstance(bound, Bound):
        raise TypeError(f"bound = {show(bound)}: expected an lb_mpi.Bound, or None")
    return bound


class Sharing:
    """What one rank tells the others of its `bound`, and hears of theirs: the table above."""

    def __init__(self, rank: int, size: int, bound: Bound) -> None:
        self.rank, self.bound = rank, bound
        self.known = dict.fromkeys(neighbours(rank, size), bound.worst)  # by neighbour: what it has, or will have

    def hear(self, message: Message) -> None:
        """Serve a BOUND; ProtocolError when it comes from anybody but a neighbour."""
        source, value = message.source, message.load
        if source not in self.known:
            raise ProtocolError(f"rank {self.rank}, a neighbour of {[*self.known]}, got {message}")
        if self.bound.is_better(value, self.known[source]):  # it may have been told something better meanwhile
            self.known[source] = value
        self.bound.take(value)

    def tell(self) -> list[Send]:
        """What the neighbours are to hear, once a turn, when all that had arrived is served."""
        best = self.bound.best
        behind = [rank for rank, value in self.known.items() if self.bound.is_better(best, value)]
        self.known.update(dict.fromkeys(behind, best))
        return [(rank, Message(Kind.BOUND, self.rank, load=best)) for rank in behind]

    def level(self, values: Iterable[float]) -> None:
        """The search is over, and `values` are the best ones of all ranks: take the best of them."""
        for value in values:
            self.bound.take(value)


def neighbours(rank: int, size: int) -> list[int]:
    """List whom a rank tells: the one above it in a tree by numbers, and up to `FAN_OUT` below."""
    below = range(FAN_OUT * rank + 1, min(FAN_OUT * rank + FAN_OUT + 1, size))
    return [*([(rank - 1) // FAN_OUT] if rank else []), *below]
