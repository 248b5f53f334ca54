"""Decide what to do when a run has ended: whether to start it again, on which hosts, and why, in words.   (pure)

The law
-------
- A program that fails by itself would do so again: it isn't started again.  A rank or a host that dies may be chance.
- Who came first is the cause: mpiexec ends the other ranks.  But where a rank dies, others may fail of it before its
  death is told: within `SETTLE_S`, a death counts before a failure.
- Without a save since the start, starting again would be the same once more; but not where a restart hangs before the
  program has said anything (hangs.py), or loses a host: that is not its doing, and all that was saved is still there.
- What people have ended stays ended.
- Where no rank has told how it ended, the code of mpiexec does: a signal (Open MPI: 128 and more, MPICH: 9), that it has
  saved and stopped (75: in python -m mpi4py, MPI_Abort leaves no rank the time to tell), or a failure.
- A rank that ends with 0 after MPI had begun, and without MPI_Finalize, has failed.

The table
---------
how it has ended                                       with a save, restarts left   otherwise
-----------------------------------------------------  ---------------------------  ------------------
DONE     mpiexec with 0, and all ranks, too            over: 0                      over: 0
STOPPED  a rank with 75: it has saved, as it was told  over: 75                     over: 75
FAILED   a rank with another exit code, or as above    over: that of mpiexec        over: that of mpiexec
DIED     a rank by a signal                            again                        over: that of mpiexec
GONE     a host                                        again                        over: that of mpiexec
         the same, in a restart that has said nothing  again, without a save        over: that of mpiexec
HUNG     a rank neither computes nor answers           again                        over: 124
         the same, in a restart that has said nothing  again, without a save        over: 124
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from lb_mpi.hosts import Host
from lb_mpi.launching.heard import End
from lb_mpi.launching.limit import HUNG
from lb_mpi.signs import SAVED

SETTLE_S = 1.0


class How(Enum):
    """The ways in which a run can end."""

    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    DIED = "died"
    GONE = "gone"
    HUNG = "hung"


class Outcome(NamedTuple):
    """A run that has ended, as far as it is known."""

    code: int  # of mpiexec, 0 to 255
    ends: Sequence[tuple[float, End]] = ()  # of ranks, with the seconds after the start when they were told
    gone: Sequence[str] = ()  # hosts that are
    hung: bool = False  # some rank does
    lost_nothing: bool = False  # it was a restart, and ended before the program said anything
    first_word_s: float | None = None  # when it did, here or in the start before
    n_saved: int = 0  # saves since the start
    saved: int = 0  # the number of the last one
    seconds: float = 0.0  # that it ran


class RestartDecision(NamedTuple):
    """The decision after a run."""

    again: bool
    code: int  # the exit code, when it's over
    why: str  # in words; empty where nothing needs to be said


def how(outcome: Outcome) -> How:
    """Find what the cause was."""
    if outcome.hung:
        return How.HUNG
    if outcome.gone:
        return How.GONE
    first = cause(outcome)
    if first is not None:
        return How.DIED if first.code < 0 else How.STOPPED if first.code == SAVED else How.FAILED
    if not outcome.code:
        return How.DONE
    if outcome.code == SAVED:
        return How.STOPPED
    return How.DIED if outcome.code == signal.SIGKILL or outcome.code > 128 else How.FAILED


def cause(outcome: Outcome) -> End | None:
    """Return the rank that ended first; None when no rank has ended in a way that is told."""
    if not outcome.ends:
        return None
    ends = sorted(outcome.ends, key=lambda end: end[0])
    first_s, first = ends[0]
    if first.code == SAVED:
        return first
    return next((end for at_s, end in ends if end.code < 0 and at_s <= first_s + SETTLE_S), first)


def decide(outcome: Outcome, n_restarts: int, allowed: int) -> RestartDecision:
    """Decide after a run that was started again `n_restarts` times of `allowed`."""
    found = how(outcome)
    if found is How.DONE:
        return RestartDecision(False, 0, "")
    if found is How.STOPPED:
        number = f" ({outcome.saved})" if outcome.n_saved else ""
        return RestartDecision(False, SAVED, f"saved{number} and stopped: the same command goes on from there")
    code = HUNG if found is How.HUNG else outcome.code or 1
    if not allowed:
        return RestartDecision(False, code, "")
    if found is How.FAILED:
        return RestartDecision(False, code, "no restart: the program has failed by itself")
    if n_restarts == allowed:
        return RestartDecision(
            False, code, f"no restart: {'the one' if allowed == 1 else f'all {allowed}'} allowed had been made"
        )
    if found in (How.GONE, How.HUNG) and outcome.lost_nothing:
        return RestartDecision(
            True, code, f"restart {n_restarts + 1} of {allowed}, after {outcome.seconds:.1f} s: the program had not begun"
        )
    if not outcome.n_saved:
        return RestartDecision(False, code, "no restart: nothing was saved since the last start")
    return RestartDecision(
        True, code, f"restart {n_restarts + 1} of {allowed}, after {outcome.seconds:.1f} s, from save {outcome.saved}"
    )


class Place(NamedTuple):
    """The ranks of a program that is started again."""

    ranks: list[int]  # (n,) the host of each, by its number in the list; empty: nowhere
    words: list[str]  # what is not as it was


def place(hosts: Sequence[Host], problems: Mapping[int, str], wanted: int) -> Place:
    """Place at most `wanted` ranks on the hosts without `problems`, slot by slot; problems are lines, by host."""
    slots = [index for index, host in enumerate(hosts) for _ in range(host.slots) if index not in problems]
    words = [f"left out: {problems[index]}" for index in sorted(problems)]
    if len(slots) < wanted:
        words.append(f"{len(slots)} rank{'s' * (len(slots) != 1)} instead of {wanted}: there are no more slots")
    return Place(slots[:wanted], words)
