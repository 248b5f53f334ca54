"""Saves: the newest one that all ranks can read, and the signals that ask a run to save and end."""

from __future__ import annotations

import itertools
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from lb_mpi import signs
from lb_mpi.errors import SaveError
from lb_mpi.handlers import install, restore
from lb_mpi.mpi.common.calls import call, interrupts
from lb_mpi.mpi.common.collective import agree, allgather, bcast
from lb_mpi.mpi.common.communicator import duplicate, need_mpi, presence_of
from lb_mpi.saving.folder import Folder, Saved

T = TypeVar("T")
_STOP = "lb_mpi.asked_to_stop"
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # from a batch system at its limit, or earlier if asked to warn


def newest(
    comm: MPI.Intracomm, folder: Folder, read: Callable[[Saved], T], noun: str, *, stacklevel: int
) -> tuple[int, T] | None:
    """Collective: the number of the newest save that all ranks can read, and what `read` returns; None: there is no save.

    `read` runs on each rank separately.  A save for which it raises SaveError on any rank is skipped, with a warning on
    rank 0; SaveError on all ranks if none is left.
    """

    def read_everywhere(saved: Saved) -> tuple[int, T]:
        damage: list[str] = []

        def attempt() -> T | None:
            try:
                return read(saved)
            except SaveError as error:
                damage.append(str(error))
                return None

        found = agree(comm, attempt)
        for text in itertools.chain(*allgather(comm, damage)):
            raise SaveError(text)
        return saved.number, found  # type: ignore[return-value]

    saves = bcast(comm, agree(comm, lambda: folder.saves() if comm.rank == 0 else None))
    try:
        found, wrong = folder.newest(saves, read_everywhere)
    except SaveError as error:  # all ranks have the same saves, and have read the same of them
        presence_of(comm).on_all(error)
        raise
    if found is not None and wrong:
        text = f"{'; '.join(wrong)}: going on from {noun} {found[0]}, which was saved before"
        agree(comm, lambda: warnings.warn(text, stacklevel=stacklevel) if comm.rank == 0 else None)
    return found


class Signals:
    """The signals received on this rank; made by `noted`."""

    def __init__(self, came: signal.Signals | None = None) -> None:
        self.came = came  # SIGTERM if that is among them
        self.reported = False  # to the program, on all ranks

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.came is not signal.SIGTERM:
            self.came = signal.Signals(number)


_late: list[signal.Signals] = []  # of the last block: it came too late to be reported


@contextmanager
def noted(comm: MPI.Intracomm) -> Iterator[Signals]:
    """Note SIGTERM and SIGUSR1 in this block instead of dying of them; the default handlers are restored afterwards.

    A signal that is ignored, or has a handler already (an outer block's, for example), is left alone; outside the main
    thread both are.  Rank 0 reports to a supervisor that it saves at SIGUSR1, if this block notes it; a SIGUSR1 that it
    sends just as the block ends is ignored.

    A SIGTERM that is not `reported` ends the process when the block is left without an error, as it would outside of the
    block.  Any other signal that is not reported is noted at the beginning of the next block: it is a request, and the
    program may be about to end.
    """
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in SIGNALS if main and signal.getsignal(number) in (signal.SIG_DFL, ignore)]
    signals = Signals(_late.pop() if _late and _late[0] in ours else None)
    for number in ours:
        restore(number, ignore)
        install(number, signals._note)
    reports = comm.rank == 0 and signs.SAVE_SIGNAL in ours
    if reports:
        signs.saves_at_signal(True)
    try:
        yield signals
    finally:
        if reports:
            signs.saves_at_signal(False)
        for number in ours:
            restore(number, signals._note)
        if reports and signal.getsignal(signs.SAVE_SIGNAL) is signal.SIG_DFL:
            install(signs.SAVE_SIGNAL, ignore)
        if signals.came and not signals.reported:
            _late[:] = [signals.came]
    if signal.SIGTERM in _late:
        _late.clear()
        signal.raise_signal(signal.SIGTERM)


def ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal; another handler than SIG_IGN, which a later block would leave alone."""


@contextmanager
def asked_to_stop(comm: MPI.Intracomm) -> Iterator[Callable[[], signal.Signals | None]]:
    """Catch SIGTERM and SIGUSR1 during this block, so that the program can save and stop; collective.

    All ranks must call the function `asked` in each step:

        with lb_mpi.asked_to_stop(comm) as asked:
            for step in range(steps):
                ...
                if asked():
                    lb_mpi.save(comm, "saves", step, heat=heat)
                    sys.exit(75)  # saved and stopped: the same command continues from there

    The function returns the signal that has arrived on any rank, or None; it returns the same on all ranks in the same
    step.  This is one or two steps after the signal: a reduction of one number runs during each step, and ranks wait
    for it only if it takes longer than the step.

    If the block ends before `asked` has returned a signal that came, SIGTERM then ends the process, as it does outside of
    the block; SIGUSR1 is returned in the next block, or by the next `lb_mpi.search(save=)`, if there is one.
    """
    with call(_STOP):
        presence = presence_of(duplicate(comm))
        presence.name = _STOP
    mine, anywhere = np.zeros((2, 1), dtype=np.int32)
    pending: list[MPI.Request] = []  # the reduction of the last step

    def finish() -> None:
        need_mpi(_STOP)
        if pending:
            with presence.notifying():
                presence.wait(pending.pop().Test, (mine, anywhere), name=_STOP)

    def asked() -> signal.Signals | None:
        presence.begin(_STOP)
        with presence.notifying():
            interrupts().check()
        finish()
        stop = int(anywhere[0])
        mine[0] = signals.came or 0
        pending.append(presence.comm.Iallreduce(mine, anywhere, MPI.MAX))
        signals.reported = signals.reported or stop != 0
        return signal.Signals(stop) if stop else None

    try:
        with noted(comm) as signals:
            yield asked
            with call(_STOP, last=True):
                finish()
                presence.close()
    except BaseException as error:
        presence.retain(pending, mine, anywhere)  # other ranks may never join a pending reduction
        presence.send_failure(error, alone=True)  # one that all ranks had raised before may be raised by this rank alone
        raise
