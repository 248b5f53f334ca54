"""Collective operations: open a communicator, agree on errors, exchange objects, share memory, read a save, stop.

Every collective call passes the user's communicator to `opened` or `duplicate`, and works on the result.  It checks its
arguments within `agree`, so that all ranks raise if one does, and compares arguments that must be equal with
`agree_on`.  Nothing here blocks: ranks that wait for a late one sleep, report it, and react to Ctrl-C.
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lb_mpi import signs
from lb_mpi.checks import show
from lb_mpi.errors import SaveError
from lb_mpi.mpi.common.failure import Failed, failure, install
from lb_mpi.mpi.common.parcels import UNIT_BYTES, as_units, unit
from lb_mpi.mpi.common.presence import Tag, call, end_with_mpi, hang_s, presence_of
from lb_mpi.mpi.common.presence import duplicate as duplicate
from lb_mpi.mpi.common.presence import wait as wait
from lb_mpi.mpi.common.waiting import interrupts
from lb_mpi.saving.folder import Folder, Saved

T = TypeVar("T")
SLOT_BYTES = 512  # of a value in its first exchange
_N_UNITS = struct.Struct("<q")
install()
_STOP = "lb_mpi.asked_to_stop"
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # from a batch system at its limit, or earlier if asked to warn
_WHERE = "/dev/shm"  # of MPI's shared windows on Linux; without enough room there, the first access is a SIGBUS
end_with_mpi()


@contextmanager
def opened(comm: MPI.Intracomm, name: str, *, watched: bool = False) -> Iterator[MPI.Intracomm]:
    """Collective: be in the call `name` for this block, with a communicator of our own, which is freed at its end.

    A rank that leaves the block by an error sends a failure to all others, which raise `lb_mpi.Error`.
    """
    with call(name, watched=watched):
        own = duplicate(comm)
        presence = presence_of(own)
        try:
            yield own
        except BaseException as error:
            presence.leave(error)
            raise
        presence.close()


def agree(comm: MPI.Intracomm, make: Callable[[], T]) -> T:
    """Collective: return the value of `make()`, which runs on each rank separately; if any rank raises, all do.

    A failing rank raises its own exception, including SystemExit and KeyboardInterrupt.  The others raise the same kind
    (ValueError, TypeError, OSError or one of its kinds for files; otherwise `lb_mpi.Error`), with the text and number
    of the lowest failing rank.  A wrong LB_MPI_HANG_S is an error, too, since all waits use it.
    """
    error: BaseException | None = None
    value: T | None = None
    try:
        hang_s()
        with interrupts().allowed():
            value = make()
    except BaseException as caught:
        error = caught
    raise_on_all(comm, error)
    return value  # type: ignore[return-value]


def raise_on_all(comm: MPI.Intracomm, error: BaseException | Failed | None) -> None:
    """Collective: raise on every rank if `error` is set on any; see `agree`.

    With `Failed`, this rank also raises what the lowest failing rank has sent, from its own error; but SystemExit and
    KeyboardInterrupt are raised unchanged.
    """
    sent = None
    if isinstance(error, Failed):
        error, sent = error
    failed = np.array([error is not None], dtype=np.int32)
    anywhere = np.zeros(1, dtype=np.int32)
    wait(comm, comm.Iallreduce(failed, anywhere, MPI.MAX), (failed, anywhere))
    if not anywhere[0]:
        return
    everyone = allgather(comm, None if error is None else sent or failure(error))
    rank, theirs = next((rank, theirs) for rank, theirs in enumerate(everyone) if theirs is not None)
    if error is None or (sent is not None and isinstance(error, Exception)):
        raise presence_of(comm).on_all(theirs.error(rank), rank) from error
    raise presence_of(comm).on_all(error, rank)


def agree_on(comm: MPI.Intracomm, /, **arguments: Any) -> None:
    """Collective: ValueError on every rank, naming the argument and two ranks, unless all pass equal arguments.

    They are compared as text, since a user's object may be unpicklable, or unequal to itself.
    """
    mine = {name: (show(value), _digest(value)) for name, value in arguments.items()}
    for rank, theirs in enumerate(found := allgather(comm, mine)):
        for name, (text, digest) in theirs.items():
            first = found[0][name]
            if digest != first[1]:
                wrong = ValueError(f"{name} = {text} on rank {rank}: expected {first[0]}, as on rank 0")
                raise presence_of(comm).on_all(wrong, rank)


def allgather(comm: MPI.Intracomm, value: T) -> list[T]:
    """Collective: the values of all ranks, on all of them."""
    slots, mine = np.empty((comm.size, SLOT_BYTES), dtype=np.uint8), _Pickled(value)
    wait(comm, comm.Iallgather(mine.slot, slots), (mine, slots))
    n_units = _n_units(slots)
    everything = np.empty((n_units.sum(), UNIT_BYTES), dtype=np.uint8)
    if len(everything):
        wait(comm, comm.Iallgatherv(as_units(mine.rest), [everything, n_units, unit()]), (mine, everything))
    return _values(slots, everything, n_units)


def gather(comm: MPI.Intracomm, value: T, root: int = 0) -> list[T]:
    """Collective: the values of all ranks, on the root; on other ranks none."""
    slots, mine = np.empty((comm.size if comm.rank == root else 0, SLOT_BYTES), dtype=np.uint8), _Pickled(value)
    wait(comm, comm.Igather(mine.slot, slots, root), (mine, slots))
    n_units = _n_units(slots)
    everything = np.empty((n_units.sum(), UNIT_BYTES), dtype=np.uint8)
    requests = [comm.Isend(as_units(mine.rest), root, Tag.VALUE)] if len(mine.rest) else []
    for rank, (n, end) in enumerate(zip(n_units.tolist(), n_units.cumsum().tolist(), strict=True)):
        if n:
            requests.append(comm.Irecv(as_units(everything[end - n : end]), rank, Tag.VALUE))
    presence_of(comm).wait(lambda: MPI.Request.Testall(requests), (requests, mine, everything))
    return _values(slots, everything, n_units)


def bcast(comm: MPI.Intracomm, value: T | None, root: int = 0) -> T:
    """Collective: return the root's value on all ranks."""
    sent = _Pickled(value if comm.rank == root else None)
    wait(comm, comm.Ibcast(sent.slot, root), sent)
    (n,) = _n_units(sent.slot[None])
    rest = sent.rest if comm.rank == root else np.empty((n, UNIT_BYTES), dtype=np.uint8)
    if n:
        wait(comm, comm.Ibcast(as_units(rest), root), rest)
    found: Any = value if comm.rank == root else _values(sent.slot[None], rest, np.array([n]))[0]
    return found  # type: ignore[no-any-return]


def barrier(comm: MPI.Comm) -> None:
    """Collective: wait for all ranks."""
    wait(comm, comm.Ibarrier())


class _Pickled:
    """A pickle: in its slot if it fits, so that most values need one exchange; else in rows of UNIT_BYTES, behind it.

    A slot begins with the number of these rows.  `pickle.loads` ignores what fills the slot, or the last row.
    """

    def __init__(self, value: object) -> None:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        fits = len(data) <= SLOT_BYTES - _N_UNITS.size
        inside, outside = (data, b"") if fits else (b"", data + bytes(-len(data) % UNIT_BYTES))
        self.rest = np.frombuffer(outside, np.uint8).reshape(-1, UNIT_BYTES)
        head = _N_UNITS.pack(len(self.rest)) + inside
        self.slot = np.frombuffer(bytearray(head.ljust(SLOT_BYTES, b"\0")), np.uint8)


def _n_units(slots: NDArray[np.uint8]) -> NDArray[np.int64]:
    """(P,) the numbers at the beginning of (P, SLOT_BYTES) slots."""
    return np.ascontiguousarray(slots[:, : _N_UNITS.size]).view(np.int64)[:, 0]


def _values(slots: NDArray[np.uint8], everything: NDArray[np.uint8], n_units: NDArray[np.int64]) -> list[Any]:
    """Return the values: those with 0 units from their slots, all others one after the other from `everything`."""
    found = []
    for slot, n, end in zip(slots, n_units.tolist(), n_units.cumsum().tolist(), strict=True):
        found.append(pickle.loads(everything[end - n : end].data if n else slot[_N_UNITS.size :].data))
    return found


def _digest(value: object) -> int:
    try:
        return zlib.crc32(repr(value).encode(errors="replace"))
    except Exception:
        return 0


# --- memory that the ranks of a host share ----------------------------------------------------------------------------


class SharedBytes:
    """Collective over `comm`: `n_bytes` of memory on each host, shared by its ranks, which are those of `host`.

    OSError on all ranks of `comm` if a host has not enough shared memory.  `close` frees it, collectively.
    """

    def __init__(self, comm: MPI.Intracomm, host: MPI.Intracomm, n_bytes: int) -> None:
        short: OSError | None = None
        try:  # not by `agree`, which would raise a Ctrl-C that is held back
            _check_room(n_bytes)
        except OSError as error:
            short = error
        raise_on_all(comm, short)
        self._window = MPI.Win.Allocate_shared(n_bytes if host.rank == 0 else 0, 1, comm=host)
        memory: Any = self._window.Shared_query(0)[0]
        self.array: NDArray[np.uint8] = np.frombuffer(memory, np.uint8, count=n_bytes)

    def close(self) -> None:
        """Collective over the host: free the memory; `array` and its views must not be used afterwards."""
        self._window.Free()


def _check_room(n_bytes: int) -> None:
    with suppress(FileNotFoundError):
        room = os.statvfs(_WHERE)
        if n_bytes > room.f_bavail * room.f_frsize:
            free = room.f_bavail * room.f_frsize / 2**20
            raise OSError(f"{n_bytes / 2**20:,.0f} MiB of shared memory needed, {free:,.0f} MiB are free")


# --- saves ------------------------------------------------------------------------------------------------------------


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


# --- signals that ask a run to end, so that it saves first ------------------------------------------------------------


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
    ours = [number for number in SIGNALS if main and signal.getsignal(number) in (signal.SIG_DFL, _ignore)]
    signals = Signals(_late.pop() if _late and _late[0] in ours else None)
    for number in ours:
        signal.signal(number, signals._note)
    reports = comm.rank == 0 and signs.SAVE_SIGNAL in ours
    if reports:
        signs.saves_at_signal(True)
    try:
        yield signals
    finally:
        if reports:
            signs.saves_at_signal(False)
        for number in ours:
            signal.signal(number, _ignore if reports and number == signs.SAVE_SIGNAL else signal.SIG_DFL)
        if signals.came and not signals.reported:
            _late[:] = [signals.came]
    if signal.SIGTERM in _late:
        _late.clear()
        signal.raise_signal(signal.SIGTERM)


def _ignore(_number: int, _frame: FrameType | None) -> None:
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
                    break

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
        if pending:
            with presence.notifying():
                presence.wait(pending.pop().Test, (mine, anywhere), name=_STOP)

    def asked() -> signal.Signals | None:
        presence.check()
        finish()
        stop = int(anywhere[0])
        mine[0] = signals.came or 0
        pending.append(presence.comm.Iallreduce(mine, anywhere, MPI.MAX))
        signals.reported = signals.reported or stop != 0
        return signal.Signals(stop) if stop else None

    with noted(comm) as signals:
        try:
            yield asked
        except BaseException as error:
            presence.keep(pending, mine, anywhere)  # other ranks may never join a pending reduction
            presence.send_failure(error, alone=True)  # one that all ranks had raised before may be raised by this rank alone
            raise
        finish()
        presence.close()
