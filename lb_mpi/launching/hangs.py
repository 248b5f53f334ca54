"""Detect ranks that hang: in a call of lb_mpi, at their start, or while all other ranks wait for them.   (pure)

A rank hangs in a call of lb_mpi, or stopped, if it has been idle for long (host.py): no turn (`lb_mpi.signs`), no
computing, no reading or writing.  The other rules:

A start
-------
Before the program of a rank begins, rank.py reports the rank.  If ranks are missing, the last one was reported `limit_s`
ago, no program has reached lb_mpi, and mpiexec still runs, the missing ranks hang.  Their programs have not begun.

Not detected: a start in which every rank is present and silent.  It can't be distinguished from a program that never calls
lb_mpi, and waits or computes.

A rank that all others wait for
-------------------------------
- A rank waits if it has been in calls of lb_mpi for long, and asleep there most of the time.  A rank that serves a pool is
  in no call: it may wait as long as it likes.
- While one rank computes, reads or writes, or sleeps on purpose, nobody hangs.  If all ranks are known and at least one
  waits, each of the others hangs if it has reached the end of its program, or has done nothing for `hang_s`, or is in a
  blocking MPI call.
- A rank sleeps on purpose if the innermost line of its Python stack calls `sleep`: it will wake up.
- A rank in a blocking MPI call uses CPU time as if it computed.  So in the second half of `hang_s` its Python stack is
  requested repeatedly.  It is blocked if the stack is always the same, and its innermost line calls a blocking method: all
  ranks that could send it something wait for it.

Not detected: a rank that waits in MPI in another way, or on a line of code that can't be read here; one that sleeps
repeatedly until something happens that never does; one that waits for a dead file server.
"""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lb_mpi.launching.heard import RankState

NEITHER = "neither computing nor answering"


class Hang(NamedTuple):
    """A rank that hangs."""

    rank: str
    host: str
    seconds: float
    where: str  # "", or ", in a search"
    how: str = NEITHER

    def __str__(self) -> str:
        return f"rank {self.rank} on host {self.host} hangs: {self.how} for {self.seconds:.0f} s{self.where}"


def stuck_inside(states: Sequence[RankState], hang_s: float) -> list[Hang]:
    """Return the ranks that hang in a call of lb_mpi, or are stopped, after `hang_s` seconds (0: never)."""
    found = []
    for state in states:
        if 0 < hang_s <= state.idle_s and (state.phase or state.stopped):
            where = f", in {state.phase}" if state.phase else ""
            found.append(Hang(state.rank, state.host, state.idle_s, where, "stopped" if state.stopped else NEITHER))
    return found


START_S = 30.0  # minimum for a start: all hosts read Python from a file server at once


class Start:
    """The start of ranks on `hosts` (the host name of each rank); `hang_s`: time after which a rank hangs (0: never)."""

    def __init__(self, hosts: Sequence[str], hang_s: float) -> None:
        self._hosts = {str(rank): host for rank, host in enumerate(hosts)}
        self._limit_s = max(hang_s, START_S) if hang_s else float("inf")
        self._n_came, self._came_s = 0, 0.0

    def stuck(self, now: float, states: Sequence[RankState]) -> list[Hang]:
        """Return the ranks that hang before their programs, `now` seconds after the start began."""
        if len(states) != self._n_came:
            self._n_came, self._came_s = len(states), now
        came, missing_s = {state.rank for state in states}, now - self._came_s
        if missing_s < self._limit_s or any(state.spoke for state in states):
            return []
        if not came <= self._hosts.keys():  # another kind of mpiexec numbers its ranks differently
            return []
        missing = [(rank, host) for rank, host in self._hosts.items() if rank not in came]
        return [Hang(*one, missing_s, ", in its start, before its program") for one in missing]


MOST_ASKED = 4  # idle ranks to ask; if more compute, or seem to, none is asked
N_LOOKS = 4  # at a stack
# Blocking methods of mpi4py, except names that other libraries use for computations.
_BLOCKING = re.compile(
    r"\.([SsBbRr]?send|[Rr]ecv|[Ss]endrecv\w*|[Mm]?[Pp]robe|[Ww]ait(all|any|some)?|[Bb]arrier|[Bb]cast"
    r"|[Aa]llgatherv?|[Aa]lltoall[vw]?|[Aa]llreduce|Gatherv?|Scatterv?|Reduce\w*|Scan|Exscan|Finalize)\("
)
_SLEEP = re.compile(r"\bsleep\(")
_MAIN = re.compile(r'^Current thread .*\n  File "(.*)", line (\d+) in .*\n(  .*\n)*', re.MULTILINE)


class Awaited:
    """The ranks for which all others wait.

    `n_ranks` : of the run
    `hang_s` : time after which a rank hangs (0: never)
    `stack` : returns the Python stack of a rank; empty if there is none
    """

    def __init__(self, n_ranks: int, hang_s: float, stack: Callable[[str], str]) -> None:
        self._n_ranks, self._hang_s, self._stack = n_ranks, hang_s, stack
        self._blocked: dict[str, tuple[float, str]] = {}  # by rank: time of the first look, and its stack
        self._slept: dict[str, float] = {}  # by rank: when it was last seen to sleep on purpose
        self._look_at = 0.0

    def stuck(self, now: float, states: Sequence[RankState]) -> list[Hang]:
        """Return the ranks that hang at the time `now`."""
        waiting = [state for state in states if state.waits_s >= self._hang_s / 2]
        late = [state for state in states if state.waits_s < self._hang_s / 2]
        if not self._hang_s or len(states) < self._n_ranks or not waiting or not late:
            self._forget()
            return []
        self._look([state for state in late if not state.at_end], now)
        waited_s = min(state.waits_s for state in waiting)
        where = f", while the other ranks wait in {waiting[0].phase}"
        hangs = [Hang(state.rank, state.host, waited_s, where, self._how(state, now)) for state in late]
        return hangs if waited_s >= self._hang_s and all(hang.how for hang in hangs) else []

    def _forget(self) -> None:
        self._blocked.clear()
        self._slept.clear()

    def _how(self, state: RankState, now: float) -> str:
        if state.at_end:
            return "at the end of its program"
        if state.idle_s >= self._hang_s:
            sleeps = now - self._slept.get(state.rank, -math.inf) < self._hang_s / 2
            return "" if state.phase or state.stopped or sleeps else NEITHER
        since = self._blocked[state.rank][0] if state.rank in self._blocked else now
        return "in a blocking call of MPI" if now - since >= self._hang_s / 2 else ""

    def _look(self, late: Sequence[RankState], now: float) -> None:
        """Look at the stacks of these ranks from time to time."""
        resting = [state.rank for state in late if state.idle_s >= self._hang_s / 2]
        computing = [state.rank for state in late if state.rank not in resting]
        if len(computing) > MOST_ASKED:
            self._forget()
            return
        if now < self._look_at:
            return
        self._look_at = now + self._hang_s / 2 / N_LOOKS
        looked = {}
        for rank in computing + resting[:MOST_ASKED]:
            stack, line = innermost(self._stack(rank))
            if _SLEEP.search(line):
                self._slept[rank] = now
            elif _BLOCKING.search(line):
                since, before = self._blocked.get(rank, (now, stack))
                looked[rank] = since if stack == before else now, stack
        self._blocked = looked


def innermost(stacks: str) -> tuple[str, str]:
    """Return the main thread's stack in faulthandler's output, and its innermost line of code."""
    main = _MAIN.search(stacks)
    return (main[0], linecache.getline(main[1], int(main[2]))) if main else ("", "")
