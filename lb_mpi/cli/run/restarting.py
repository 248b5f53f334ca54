"""Decide after a run whether to start it again, on which hosts, and why, in words.   (pure)

The law
-------
- A program that fails by itself would fail again, so it isn't restarted.  The death of a rank or of a host may be chance.
- The first end is the cause: mpiexec ends the other ranks.  But ranks may fail because one died, before its death is
  reported: within `SETTLE_S`, a death counts before a failure.
- Without a save since the start, a restart may only repeat it: after a hang, and after the second death in a row by the same
  signal in the same rank.  The first one may be chance, and the loss of a host is not the program's fault.
- A run that people have ended is not restarted.
- mpiexec may end with 0 although ranks are lost: 0 counts only if every rank has reported its end.
- If no rank has reported why it ended, the code of mpiexec decides: a signal (Open MPI: 128 and more, MPICH: 9), saved and
  stopped (75: in python -m mpi4py, MPI_Abort leaves no rank the time to report), or a failure.
  Any other code may be MPI_Abort's, too, in which mpiexec also ends the processes that watch ranks: no sign of a death.
- A program that was asked to stop, and has then saved and ended with 0, has stopped: it may have work left.
- A rank that ends with 0 after MPI_Init but without MPI_Finalize has failed.

The table
---------
how it has ended                                       over, with          restarts left, with a save   without
-----------------------------------------------------  ------------------  ---------------------------  ------------------
DONE     mpiexec and all ranks with 0                  0
STOPPED  a rank with 75: it has saved on request       75
         all with 0, and a save since the request      75
FAILED   a rank with another exit code, or as above    that of mpiexec
DIED     a rank                                        that of mpiexec     again                        again, unless as
         a rank whose end nobody has reported          1                                                the last start
GONE     a host                                        that of mpiexec     again                        again
HUNG     a rank that hangs                             124                 again                        over
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from lb_mpi.cli.run.hosts import Host
from lb_mpi.cli.run.lines import End
from lb_mpi.cli.run.processes import HUNG
from lb_mpi.signs import SAVED
from lb_mpi.table import counted

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
    """A run that has ended, as far as known."""

    code: int  # of mpiexec, 0 to 255
    ends: Sequence[tuple[float, End]] = ()  # that are not regular, with the seconds from the start to their reports
    unreported: Sequence[int] = ()  # ranks whose end nobody has reported
    gone: Sequence[str] = ()  # a line for each host that is gone
    hung: bool = False  # some rank hung
    n_saved: int = 0  # number of saves since the start
    saved: int = 0  # the number of the last one
    saved_on_request: bool = False  # one of them came after the program was asked to save and stop
    seconds: float = 0.0  # duration of the run


class RestartDecision(NamedTuple):
    """The decision after a run."""

    again: bool
    code: int  # the exit code if it is over
    why: str  # in words; "": no message


def how(outcome: Outcome) -> How:
    """Find how the run ended."""
    if outcome.hung:
        return How.HUNG
    if outcome.gone:
        return How.GONE
    first = cause(outcome)
    if first is not None:
        return How.DIED if first.code < 0 else How.STOPPED if first.code == SAVED else How.FAILED
    if not outcome.code:
        return How.DIED if outcome.unreported else How.STOPPED if outcome.saved_on_request else How.DONE
    if outcome.code == SAVED:
        return How.STOPPED
    return How.DIED if outcome.code == signal.SIGKILL or outcome.code > 128 else How.FAILED


def cause(outcome: Outcome) -> End | None:
    """Return the rank that ended first; None if no rank has reported its end."""
    if not outcome.ends:
        return None
    ends = sorted(outcome.ends, key=lambda end: end[0])
    first_s, first = ends[0]
    if first.code == SAVED:
        return first
    died = [end for at_s, end in ends if end.code < 0 and at_s <= first_s + SETTLE_S]
    return died[0] if died else first


def decide(outcome: Outcome, n_restarts: int, allowed: int, before: Outcome | None = None) -> RestartDecision:
    """Decide after a run, restarted `n_restarts` times so far, of at most `allowed`; `before`: how the last start ended."""
    found = how(outcome)
    if found is How.DONE:
        return RestartDecision(False, 0, "")
    if found is How.STOPPED:
        number = f" ({outcome.saved})" if outcome.n_saved else ""
        return RestartDecision(False, SAVED, f"saved{number} and stopped: the same command continues from there")
    code = HUNG if found is How.HUNG else outcome.code or 1
    if not allowed:
        return RestartDecision(False, code, "")
    if found is How.FAILED:
        return RestartDecision(False, code, "no restart: the program has failed")
    if n_restarts == allowed:
        made = "the one allowed restart was" if allowed == 1 else f"all {allowed} allowed restarts were"
        return RestartDecision(False, code, f"no restart: {made} made")
    if found is How.HUNG and not outcome.n_saved:
        return RestartDecision(False, code, "no restart: nothing was saved since the last start")
    if found is How.DIED and before is not None and _repeats(outcome, before):
        return RestartDecision(False, code, "no restart: it died as the last time, and nothing was saved in between")
    save = f"save {outcome.saved}" if outcome.n_saved else "the last save, if there is one"
    return RestartDecision(True, code, f"restart {n_restarts + 1} of {allowed}, after {outcome.seconds:.1f} s, from {save}")


def _repeats(outcome: Outcome, before: Outcome) -> bool:
    """Return whether a run without a save has died as that `before`: the same signal in the same rank, as far as known."""
    one, other = cause(outcome), cause(before)
    same = (one and one._replace(host="")) == (other and other._replace(host=""))
    return not outcome.n_saved and how(before) is How.DIED and same


def assign_ranks(hosts: Sequence[Host], problems: Mapping[int, str], wanted: int) -> tuple[list[int], list[str]]:
    """Assign at most `wanted` ranks to the hosts without `problems` (lines, by host), slot by slot.

    Return the host of each rank, by its number in the list, and in words what differs from the previous start.
    """
    slots = [index for index, host in enumerate(hosts) for _ in range(host.slots) if index not in problems]
    words = [f"left out: {problems[index]}" for index in sorted(problems)]
    if len(slots) < wanted:
        words.append(f"{counted(len(slots), 'rank')} instead of {wanted}: there are no more slots")
    return slots[:wanted], words
