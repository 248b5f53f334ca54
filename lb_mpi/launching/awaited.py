"""Does a rank hang outside of lb_mpi, while all other ranks wait for it in a call of lb_mpi?

The law
-------
- A rank waits that has been in calls of lb_mpi for long, and asleep there for most of the time.  A rank that serves a pool
  is in no call: it may wait for as long as it likes.
- While one rank computes, nobody hangs.  All ranks are known, at least one waits, and each of the others hangs that has come
  to the end of its program, or has not computed for `hang_s`, or is in a blocking call of MPI.
- A rank that does not compute in a call of lb_mpi, or is stopped, is judged in ranks.py.
- In a blocking call of MPI a rank uses CPU time as if it computed.  So for the second half of `hang_s` it is asked for its
  Python stack again and again.  It is blocked if that is the same each time, and its innermost line calls such a method: all
  who could send it something wait for it.

What is not seen: a rank that waits in MPI in another way, or on a line that can't be read here.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lb_mpi.launching.heard import State

MOST_ASKED = 4  # ranks; when more of them compute, or seem to, none is asked
N_LOOKS = 4  # at a stack
# Methods of mpi4py that block, but for those whose names other libraries have for what computes.
_BLOCKING = re.compile(
    r"\.([SsBbRr]?send|[Rr]ecv|[Ss]endrecv\w*|[Mm]?[Pp]robe|[Ww]ait(all|any|some)?|[Bb]arrier|[Bb]cast"
    r"|[Aa]llgatherv?|[Aa]lltoall[vw]?|[Aa]llreduce|Gatherv?|Scatterv?|Reduce\w*|Scan|Exscan)\("
)
_MAIN = re.compile(r'^Current thread .*\n  File "(.*)", line (\d+) in .*\n(  .*\n)*', re.MULTILINE)


class Hang(NamedTuple):
    """A rank that hangs outside of lb_mpi."""

    rank: str
    host: str
    how: str
    seconds: float
    call: str  # in which the others wait

    def __str__(self) -> str:
        """Say it."""
        return (
            f"rank {self.rank} on host {self.host} hangs: {self.how} for {self.seconds:.0f} s, "
            f"while the other ranks wait in {self.call}"
        )


class Awaited:
    """What is known of ranks for which all others wait.

    `n_ranks` : of the run
    `hang_s` : after so long a rank hangs (0: never)
    `stack` : gives the Python stack of a rank; empty if it can't be had
    """

    def __init__(self, n_ranks: int, hang_s: float, stack: Callable[[str], str]) -> None:
        self._n_ranks, self._hang_s, self._stack = n_ranks, hang_s, stack
        self._blocked: dict[str, tuple[float, str]] = {}  # by rank: since when, and its stack
        self._look_at = 0.0

    def stuck(self, now: float, states: Sequence[State]) -> list[Hang]:
        """Return the ranks that hang, `now`, when `states` are known."""
        waiting = [state for state in states if state.waits_s >= self._hang_s / 2]
        late = [state for state in states if state.waits_s < self._hang_s / 2]
        if not self._hang_s or len(states) < self._n_ranks or not waiting or not late:
            self._blocked.clear()
            return []
        self._look([state.rank for state in late if not self._rests(state, self._hang_s / 2)], now)
        waited_s = min(state.waits_s for state in waiting)
        hangs = [Hang(state.rank, state.host, self._how(state, now), waited_s, waiting[0].phase) for state in late]
        return hangs if waited_s >= self._hang_s and all(hang.how for hang in hangs) else []

    def _rests(self, state: State, seconds: float) -> bool:
        return state.at_end or state.idle_s >= seconds

    def _how(self, state: State, now: float) -> str:
        """Say how it hangs; empty if it doesn't."""
        if state.at_end:
            return "at the end of its program"
        if state.idle_s >= self._hang_s:
            return "" if state.phase or state.stopped else "neither computing nor answering"
        since = self._blocked[state.rank][0] if state.rank in self._blocked else now
        return "in a blocking call of MPI" if now - since >= self._hang_s / 2 else ""

    def _look(self, ranks: Sequence[str], now: float) -> None:
        """Now and then, look at the stacks of these ranks."""
        if not ranks or len(ranks) > MOST_ASKED:
            self._blocked.clear()
            return
        if now < self._look_at:
            return
        self._look_at = now + self._hang_s / 2 / N_LOOKS
        looked = {}
        for rank in ranks:
            if stack := blocked(self._stack(rank)):
                since, before = self._blocked.get(rank, (now, stack))
                looked[rank] = since if stack == before else now, stack
        self._blocked = looked


def blocked(stacks: str) -> str:
    """Return the stack of the main thread, of those that faulthandler has written, if it is in a blocking call of mpi4py."""
    main = _MAIN.search(stacks)
    return main[0] if main and _BLOCKING.search(linecache.getline(main[1], int(main[2]))) else ""
