"""Detect ranks that hang: stopped, at their start, or while all other ranks wait for them.   (pure)

A rank hangs if its program has been stopped (SIGSTOP) for `hang_s`.  The other rules:

A start
-------
Before the program of a rank begins, rank.py reports the rank.  If ranks are missing, the last one was reported `limit_s`
ago, no program has reached lb_mpi, and mpiexec still runs, the missing ranks hang.  Their programs have not begun.

Not detected: a start in which every rank is present and silent.  It can't be distinguished from a program that never calls
lb_mpi, and waits or computes.

A rank that answers nobody while all others wait for it
-------------------------------------------------------
- A rank sleeps if it has been in lb_mpi for `hang_s`, and asleep there most of the time.  It waits if it is in a call;
  otherwise it serves a pool.  Both answer the questions of other ranks.
- While a rank is in a call without sleeping, nobody hangs: it runs a function of the user, which may take or wait as long
  as it likes.
- If all ranks are known, at least one waits, and the others sleep or have been outside lb_mpi for `hang_s`, each of those
  outside hangs if it has reached the end of its program, or has done nothing for `hang_s`.  One that computes, reads or
  writes may be blocked in MPI, or prepare the work of all, and nobody outside can distinguish this.  So it is named after
  `hang_s`, and hangs after `PATIENCE` times as long.
- If all ranks sleep, the launcher asks them how many others don't answer.  Those that miss most are cut off from the
  network of MPI.  If all miss equally many, the host of rank 0 is taken for connected.

Not detected: ranks that wait for each other outside lb_mpi, or in different calls; a call of lb_mpi that is blocked in MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lb_mpi.cli.run.lines import RankState

NEITHER = "neither computing nor answering"


class Hang(NamedTuple):
    """A rank that hangs."""

    rank: str
    host: str
    seconds: float
    where: str = ""  # or ", in a search"
    how: str = NEITHER
    cut_off: bool = False  # from the network of MPI

    def __str__(self) -> str:
        return f"rank {self.rank} on host {self.host} hangs: {self.how} for {self.seconds:.0f} s{self.where}"

    def late(self) -> str:
        """Describe it before it counts as hanging."""
        return f"rank {self.rank} on host {self.host} is late: {self.how} for {self.seconds:.0f} s{self.where}"


def stopped(states: Sequence[RankState], hang_s: float) -> list[Hang]:
    """Return the ranks that have been stopped for `hang_s` seconds (0: never)."""
    found = []
    for state in states:
        if 0 < hang_s <= state.stopped_s:
            where = f", in {state.phase}" if state.phase else ""
            found.append(Hang(state.rank, state.host, state.stopped_s, where, "stopped"))
    return found


START_S = 30.0  # minimum for a start: all hosts read Python from a file server at once


class FirstSigns:
    """The start of ranks on `hosts` (the host name of each rank); `hang_s`: time after which a rank hangs (0: never)."""

    def __init__(self, hosts: Sequence[str], hang_s: float) -> None:
        self._hosts = {str(rank): host for rank, host in enumerate(hosts)}
        self._limit_s = max(hang_s, START_S) if hang_s else float("inf")
        self._n_begun, self._begun_s = 0, 0.0

    def stuck(self, now: float, states: Sequence[RankState]) -> list[Hang]:
        """Return the ranks that hang before their programs, `now` seconds after the start began."""
        if len(states) != self._n_begun:
            self._n_begun, self._begun_s = len(states), now
        begun, missing_s = {state.rank for state in states}, now - self._begun_s
        if missing_s < self._limit_s or any(state.spoke for state in states):
            return []
        if not begun <= self._hosts.keys():  # another kind of mpiexec numbers its ranks differently
            return []
        missing = [(rank, host) for rank, host in self._hosts.items() if rank not in begun]
        return [Hang(*one, missing_s, ", in its start, before its program") for one in missing]


PATIENCE = 10
ANSWERS_S = 5.0  # for the answers of all ranks
OUTSIDE = "outside of lb_mpi, computing or blocked in MPI,"


class Awaited:
    """The ranks for which all others wait.

    `n_ranks` : of the run
    `hang_s` : time after which a rank hangs (0: never)
    `ask` : asks all ranks how many others don't answer, with the number of the question
    """

    def __init__(self, n_ranks: int, hang_s: float, ask: Callable[[int], None]) -> None:
        self._n_ranks, self._hang_s, self._ask = n_ranks, hang_s, ask
        self._number, self._asked_at = 0, float("-inf")  # of the last question
        self.late: list[Hang] = []  # ranks that will hang if nothing changes

    def stuck(self, now: float, states: Sequence[RankState]) -> list[Hang]:
        """Return the ranks that hang at the time `now`."""
        self.late = []
        asleep = [state for state in states if state.waits_s >= self._hang_s]
        waiting = [state for state in asleep if state.phase]
        others = [state for state in states if state.waits_s < self._hang_s]
        if not self._hang_s or len(states) < self._n_ranks or not waiting or any(state.phase for state in others):
            return []
        waited_s = min(state.waits_s for state in waiting)
        where = f", while the other ranks wait in {waiting[0].phase}"
        if not others:
            return self._cut_off(now, states, waited_s, where)
        hangs = [self._outside(state, waited_s, where) for state in others]
        if any(hang.seconds < self._hang_s for hang in hangs):
            return []
        if any(hang.how == OUTSIDE and hang.seconds < PATIENCE * self._hang_s for hang in hangs):
            self.late = hangs
            return []
        return hangs

    def _outside(self, state: RankState, waited_s: float, where: str) -> Hang:
        """Return how, and for how long, a rank outside lb_mpi has been awaited."""
        how = "at the end of its program" if state.at_end else NEITHER if state.idle_s >= self._hang_s else OUTSIDE
        return Hang(state.rank, state.host, min(state.away_s, waited_s), where, how)

    def _cut_off(self, now: float, states: Sequence[RankState], waited_s: float, where: str) -> list[Hang]:
        if now > self._asked_at + ANSWERS_S + self._hang_s:  # once more, if nothing was found
            self._number, self._asked_at = self._number + 1, now
            self._ask(self._number)
        answers = [state for state in states if state.answered == self._number]
        if len(answers) < len(states) and now < self._asked_at + ANSWERS_S:
            return []
        most = max((state.n_silent for state in answers), default=0)
        cut_off = [state for state in answers if state.n_silent == most > 0]
        if len(cut_off) == len(answers):
            near = next((state.host for state in states if state.rank == "0"), "")
            cut_off = [state for state in cut_off if state.host != near] or cut_off
        how = f"without an answer from {most} of {len(states) - 1} ranks"
        return [Hang(state.rank, state.host, waited_s, where, how, cut_off=True) for state in cut_off]
