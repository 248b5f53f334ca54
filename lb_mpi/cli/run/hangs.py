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
  writes may be blocked in MPI, or prepare the work of all, and nobody outside can distinguish this.  So it hangs after
  `PATIENCE` times as long; the ranks that wait warn before (`lb_mpi.mpi.common.late`).
- If all ranks sleep, those that wait hang: no message that they wait for has arrived, so MPI does not connect them.

Not detected: ranks that wait for each other outside lb_mpi; a call of lb_mpi that is blocked in MPI.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lb_mpi.cli.run.lines import RankState

NEITHER = "neither computing nor answering"
AT_END = "at the end of its program"  # it has no Python stack any more


class Hang(NamedTuple):
    """A rank that hangs."""

    rank: str
    host: str
    seconds: float
    where: str = ""  # or ", in a search"
    how: str = NEITHER

    def __str__(self) -> str:
        return f"rank {self.rank} on host {self.host} hangs: {self.how} for {self.seconds:.0f} s{self.where}"


def stopped(states: Sequence[RankState], hang_s: float) -> list[Hang]:
    """Return the ranks that have been stopped for `hang_s` seconds (0: never)."""
    return [
        Hang(one.rank, one.host, one.stopped_s, f", in {one.phase}" if one.phase else "", "stopped")
        for one in states if 0 < hang_s <= one.stopped_s
    ]  # fmt: skip


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
OUTSIDE = "outside of lb_mpi, computing or blocked in MPI,"


def awaited(states: Sequence[RankState], n_ranks: int, hang_s: float) -> list[Hang]:
    """Return the ranks, of `n_ranks`, for which all others have waited long enough (`hang_s`; 0: never)."""
    waiting = [state for state in states if state.waits_s >= hang_s and state.phase]
    others = [state for state in states if state.waits_s < hang_s]
    if not hang_s or len(states) < n_ranks or not waiting or any(state.phase for state in others):
        return []
    if not others:
        return [Hang(one.rank, one.host, one.waits_s, f" in {one.phase}", "waiting, as all ranks do,") for one in waiting]
    waited_s = min(state.waits_s for state in waiting)
    where = f", while the other ranks wait in {waiting[0].phase}"
    hangs = []
    for state in others:
        how = AT_END if state.at_end else NEITHER if state.idle_s >= hang_s else OUTSIDE
        hangs.append(Hang(state.rank, state.host, min(state.away_s, waited_s), where, how))
    early = any(hang.seconds < hang_s * (PATIENCE if hang.how == OUTSIDE else 1) for hang in hangs)
    return [] if early else hangs
