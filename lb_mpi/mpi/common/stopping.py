"""Signals that ask a run to end: it saves first.

SIGTERM is what a batch system sends before its time limit; SIGUSR1 is what one asks it to send earlier, and what mpiexec
passes on to the ranks.  Both are noted while a `with` block runs, and all ranks hear of it in the same step.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np
from mpi4py import MPI

from lb_mpi import signs
from lb_mpi.mpi.common.presence import Presence, call, duplicate, presence_of

_NAME = "lb_mpi.asked_to_stop"
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Signals:
    """What came on this rank; made by `noted`."""

    def __init__(self) -> None:
        self.came: signal.Signals | None = None  # the first one

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.came = self.came or signal.Signals(number)


@contextmanager
def noted() -> Iterator[Signals]:
    """Note SIGTERM and SIGUSR1 in this block, instead of dying of them; what was there before is there again afterwards.

    One that is ignored, or that has a handler already, stays as it is; so do both outside the main thread.
    """
    signals = Signals()
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in SIGNALS if main and signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, signals._note)
    try:
        yield signals
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


class _Question:
    """Is any rank asked to stop?  The answer to a question is that of the step before, so that nobody waits for it."""

    def __init__(self, presence: Presence, signals: Signals) -> None:
        self._presence, self._signals = presence, signals
        self._mine, self._any = np.zeros((2, 1), dtype=np.int32)
        self._request: MPI.Request | None = None

    def __call__(self) -> signal.Signals | None:
        self._presence.check()
        self.finish()
        stop = int(self._any[0])
        self._mine[0] = self._signals.came or 0
        self._request = self._presence.comm.Iallreduce(self._mine, self._any, MPI.MAX)
        return signal.Signals(stop) if stop else None

    def finish(self) -> None:
        """Complete what has been begun."""
        if self._request is not None:
            with self._presence.telling():
                self._presence.wait(self._request.Test, self, name=_NAME)
            self._request = None

    def leave(self) -> None:
        """Let it be: other ranks may never come to it."""
        self._presence.abandon(self)


@contextmanager
def asked_to_stop(comm: MPI.Intracomm) -> Iterator[Callable[[], signal.Signals | None]]:
    """Collective: note SIGTERM and SIGUSR1 in this block; the function that it gives is called in each step, by all ranks.

        with lb_mpi.asked_to_stop(comm) as asked:
            for step in range(steps):
                ...
                if asked():
                    lb_mpi.save(comm, "saves", step, heat=heat)
                    break

    It returns the signal that came on any rank, the same on all and in the same step, or None.  A rank hears of a signal
    a step or two later: a reduction of one number runs beside each step, and isn't waited for where the step is longer.
    """
    with call(_NAME):
        presence = presence_of(duplicate(comm))
        presence.name = "lb_mpi.asked_to_stop"
    with noted() as signals:
        question = _Question(presence, signals)
        signs.saves_at_signal(comm.rank == 0)
        try:
            yield question
        except BaseException as error:
            question.leave()
            presence.spread(error)
            raise
        finally:
            signs.saves_at_signal(False)
        question.finish()
        presence.close()
