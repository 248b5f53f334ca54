"""A bound that all ranks of a search share: the best value that any of them has found.   (pure)

Branch and bound skips branches that can't lead to anything better than the best solution so far.  Ranks that don't exchange
their best values search far more than one rank alone would.  A bound exchanges them while the ranks work
(`docs/tutorial/4-a-tree.md` has an example, and `apps/tsp.py` is a complete program).

The law
-------
The ranks form a tree by their numbers: the neighbours of rank r are (r - 1) // 8 and 8 r + 1, ..., 8 r + 8.  A rank whose
best value is better than any known to a neighbour sends the neighbour that value, once a turn: BOUND(source, value).

- On each rank the best value only improves.
- A neighbour knows what was sent to it and what it has sent: it has that value or one at least as good, or a BOUND with it
  is under way.  So while the search lasts, a value found by one rank reaches all, over at most 2 log8(size) + 2 neighbours,
  each of which passes it on after its current work quantum.
- No rank's best value is better than the best found by any rank.
- A rank does not pass on a value that is no better than its best.  So each of the size - 1 pairs of neighbours exchanges a
  value at most once in each direction, however many ranks find it.
- A BOUND makes no passive rank active, so Safra's token does not count it, and the search may end with some under way.  They
  are received and dropped; then every rank adopts the best of all ranks' values (`Sharing.level`), so `best` is the same
  everywhere, however the search has ended.

The table
---------
state   arrives        does
------  -------------  -----------------------------------------------------------------------------------
any     BOUND(v)       best = the better one of best and v; its sender knows v, or a better value sent to it before
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
WORST = {"min": math.inf, "max": -math.inf}  # by sense: worse than any value


class Bound:
    """The best value that any rank of a search has found: the smallest or the largest.

    Parameters
    ----------
    sense : "min" if smaller values are better, "max" if larger values are; the same on all ranks.

    Every rank makes a Bound in the same way, and passes it to `lb_mpi.search(comm, problem, bound=bound)`.  Values are
    kept as floats; an integer that no float holds exactly is rejected, and a fraction is rounded to the worse side.  A
    value found before the search (by a heuristic, on any rank) can be passed to `update` before the search.

    Raises ValueError for another sense.
    """

    def __init__(self, sense: str) -> None:
        self.sense = choice("sense", sense, ("min", "max"))
        self._best = WORST[self.sense]

    @property
    def best(self) -> float:
        """The best value so far, as far as this rank knows; before the first one, inf for "min" and -inf for "max".

        When the search has ended, it is the same on all ranks.
        """
        return self._best

    def update(self, value: float) -> bool:
        """Share a value that this rank has found; if it is better than `best`, it becomes `best`, and True is returned.

        Of fractions that are rounded to the same float, the first is kept, and False returned for the others: the float is
        worse than each of them, so True might replace a solution by a worse one.

        Raises ValueError unless the value is a finite number, and for an integer that no float holds exactly: two
        different integers might be the same float.
        """
        found = number("bound.update: value", value)
        given: object = value
        if isinstance(given, Integral) and int(given) != int(found):
            expected = "an integer that a float holds exactly, as all up to 2**53 are"
            raise ValueError(f"bound.update: value = {show(value)}: expected {expected}")
        if self._is_better(found, value):  # by rounding, and the branch with the best value might be skipped
            found = math.nextafter(found, WORST[self.sense])
        return self._adopt(found)

    def _adopt(self, value: float) -> bool:
        """Adopt a value that is known to be a float; return True if it is better than `best` was."""
        if not self._is_better(value, self._best):
            return False
        self._best = value
        return True

    def _is_better(self, one: float, other: float) -> bool:
        return one < other if self.sense == "min" else one > other


def check_bound(bound: object) -> Bound | None:
    """Return a Bound, or None; TypeError for anything else."""
    if bound is not None and not isinstance(bound, Bound):
        raise TypeError(f"bound = {show(bound)}: expected an lb_mpi.Bound, or None")
    return bound


class Sharing:
    """The exchange of `bound` between one rank and the others: the table above."""

    def __init__(self, rank: int, size: int, bound: Bound) -> None:
        self.rank, self.bound = rank, bound
        self.known = dict.fromkeys(neighbours(rank, size), WORST[bound.sense])  # by neighbour: what it has or was sent

    def receive(self, message: Message) -> None:
        """Process a BOUND; ProtocolError unless it comes from a neighbour."""
        source, value = message.source, message.load
        if source not in self.known:
            raise ProtocolError(f"rank {self.rank}, a neighbour of {[*self.known]}, got {message}")
        if self.bound._is_better(value, self.known[source]):  # meanwhile it may have been sent a better value
            self.known[source] = value
        self.bound._adopt(value)

    def send(self) -> list[Send]:
        """Return the messages to the neighbours, once a turn, after processing all that had arrived."""
        best = self.bound.best
        behind = [rank for rank, value in self.known.items() if self.bound._is_better(best, value)]
        self.known.update(dict.fromkeys(behind, best))
        return [(rank, Message(Kind.BOUND, self.rank, load=best)) for rank in behind]

    def level(self, values: Iterable[float]) -> None:
        """Adopt the best of `values` (of all ranks) after the search."""
        for value in values:
            self.bound._adopt(value)


def neighbours(rank: int, size: int) -> list[int]:
    """List the ranks to which a rank sends: its parent in a tree by numbers, and up to `FAN_OUT` children."""
    below = range(FAN_OUT * rank + 1, min(FAN_OUT * rank + FAN_OUT + 1, size))
    return [*([(rank - 1) // FAN_OUT] if rank else []), *below]
