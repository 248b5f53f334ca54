"""Our own communicators: waiting asleep, failures that reach all ranks, and who frees what.

    with call("lb_mpi.save"):                   # what this rank does; Ctrl-C is held back
        own = duplicate(comm)                   # a communicator of our own; it has a `Presence`
        wait(own, own.Iallreduce(mine, all))    # asleep; raises when another rank has sent a failure

Each user's communicator that is passed to a call gets one duplicate, kept as its attribute: the anchor.  On it, ranks
ask each other what they do (`lb_mpi.mpi.common.late`).  All other communicators are duplicates of the anchor, one for each
plan, pool, and so on.  On such a communicator, a rank that cannot go on notifies all others, and every waiting rank also
raises.  Afterwards messages may still be in transit, which no later communicator may receive, and MPI may still write to
the buffers: both are kept for ever.

Without failures this costs nothing: a rank probes for such messages only after it has waited for a while.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

import numpy as np
from mpi4py import MPI

from lb_mpi import signs
from lb_mpi.checks import show
from lb_mpi.compiling import meanwhile
from lb_mpi.errors import Error
from lb_mpi.handlers import deferred
from lb_mpi.knowledge import SpeedSources
from lb_mpi.mpi.common.calls import CallOrder, Failures, busy, call, interrupts, refuse_busy
from lb_mpi.mpi.common.failure import cause, describe, is_of_all, quiet, share
from lb_mpi.mpi.common.late import Questions
from lb_mpi.mpi.common.launcher import check_launcher
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import LONGEST_S, PATIENCE_S, Nap
from lb_mpi.status import write_error

EVERY_S = 0.25  # between two probes for questions
POLLS = 8  # polls in a row before the core is yielded: balanced ranks finish at nearly the same time
QUICK_S = 0.2e-3  # without a nap, but yielding the core
FAILED_AFTER_S = 5e-3  # of waiting, before probing for failures of other ranks
SETTLED_AFTER = 20  # probes of a failure before it is raised
LATE_AFTER_S = 1.0  # of waiting
OTHER_AFTER_S = 2 * LATE_AFTER_S  # of waiting, before calls are compared: who closes since it has failed says so before
ALL_FAIL_S = 10.0  # for MPI to fail on all ranks
UNNAMED = "lb_mpi"
Made = tuple[MPI.Comm, MPI.Request]  # a duplicate, and what completes when all ranks have it
_key = _end_key = MPI.KEYVAL_INVALID
_retained: list[Any] = []  # buffers that MPI may still write to, and communicators with messages in transit
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_retained))  # for MPI_Finalize, which comes after Python has freed its objects
_anchors: list[Presence] = []
_left: list[Presence] = []  # those of them whose user has freed the communicator
ending: list[Callable[[], None]] = []  # called when the program finalizes MPI, while that can still be used
_answering = threading.Lock()  # held by the thread that answers other ranks


class Presence:
    """All ranks of `comm`, a communicator of our own, which `close` frees; `name`: what the user closes, for messages.

        presence = presence_of(duplicate(comm)); presence.name = "plan"
        presence.check()                        # neither closed nor failed
        with presence.notifying():                # an error raised here reaches all other ranks
            request = presence.comm.Irecv(...)
            presence.wait(request.Test)         # lb_mpi.Error when another rank has failed
        presence.close()

    `anchor`: the anchor of the same ranks; None: this is one.  `parent`: a failure there counts here too.
    """

    def __init__(
        self, comm: MPI.Intracomm, anchor: Presence | None = None, parent: Presence | None = None, name: str = UNNAMED
    ) -> None:
        self.comm, self.name, self.usual_call = comm, name, UNNAMED
        self.rank = comm.rank if comm else 0
        self.calls = CallOrder(comm)  # begun on this communicator
        self._failures = Failures(comm)
        self.commit, self.end_commit = self._failures.commit, self._failures.end_commit
        self._parent = parent
        self._users: MPI.Intracomm | None = None  # of an anchor: the user's communicator
        self._n_open = 0  # of an anchor: its children
        self._anchor = self if anchor is None else anchor
        self._anchor._n_open += anchor is not None
        self.speeds: SpeedSources = SpeedSources() if anchor is None else anchor.speeds  # of these ranks, from all doors
        self._questions: Questions = Questions(comm) if anchor is None else anchor._questions
        self._answer_at = 0.0
        self.attend_at = 0.0  # when a loop on this communicator next answers what others ask: short ones follow each other

    @property
    def failed(self) -> bool:
        """A rank has sent a failure."""
        return self._failures.text is not None

    def check(self) -> None:
        """Raise ValueError after `close`, Error after a failure on any rank, or in a task of a pool of these ranks."""
        if self._failures.ahead:
            self._fail(self._failures.ahead[0][1])
        if self._failures.text is not None:
            raise Error(f"{self.name} after a failure ({self._failures.text}): expected only close()")
        if not self.comm:
            raise closed(self.name)
        if MPI.Is_finalized():
            need_mpi(self.name)
        if busy:
            refuse_busy(self.comm)

    def begin(self, name: str) -> None:
        """Begin a call that all ranks make, in the same order; errors as of `check`."""
        self.check()
        self.calls.begin(name)

    def answer(self, waited_s: float = 0.0) -> None:
        """Answer now and then; ask and warn when this rank has waited for long.  For use in loops: costs 0.1 us.

        Error on all ranks when one has waited for long in a call, and another one has begun another call in its place.
        """
        now = time.perf_counter()
        if now < self._answer_at:
            return
        self._answer_at = now + EVERY_S
        if not _answering.acquire(blocking=False):
            return  # another thread answers, for all communicators
        try:
            for anchor in _anchors:
                anchor._questions.serve(waited_s)
            self._questions.warn(now, waited_s)
            if waited_s > OTHER_AFTER_S and self.comm and not self._failures.in_commit and (wrong := self.calls.compare()):
                self._notify(wrong)
                raise Error(wrong)
        finally:
            _answering.release()

    def wait(
        self,
        done: Callable[[], bool],
        keep: Any = None,
        *,
        late: Callable[[], str | None] | None = None,
        name: str | None = None,
        longest_s: float | None = None,
        quick_s: float = QUICK_S,
    ) -> None:
        """Poll until `done()`, without naps for `quick_s`, then mostly asleep; Error when another rank has sent a failure.

        `keep`: buffers that MPI may still write to if this fails.  `late()` is called after a second, and returns what
        is wrong, or None.  `name`: of the call, if this rank is in none (None: `usual_call`); "": a long wait is
        normal.  Ctrl-C is raised only after another second of waiting, since the others may be about to arrive.
        """
        try:
            for _ in range(POLLS):
                if done():
                    return
            began = time.perf_counter()
            while time.perf_counter() - began < quick_s:
                os.sched_yield()
                if done():
                    return
            name = self.usual_call if name is None else name
            nap, interrupted_at = Nap(longest_s), float("inf")
            # If this is the whole call, nothing is lost.  A Ctrl-C of an earlier one waits for a call that all agree on.
            with call(name, watched=bool(name), last=not interrupts().pending) as ctrl_c:
                while not any(done() for _ in range(POLLS)):
                    nap.sleep()
                    now = time.perf_counter()
                    waited_s = now - began
                    self.answer(waited_s)
                    if waited_s > FAILED_AFTER_S:
                        self.raise_failure()
                    if ctrl_c.pending:
                        interrupted_at = min(interrupted_at, now)
                        if now > interrupted_at + PATIENCE_S:
                            ctrl_c.check()
                    if waited_s > LATE_AFTER_S and late is not None and (wrong := late()) is not None:
                        self._notify(wrong)
                        raise Error(wrong)
        except BaseException:
            _retained.append((done, keep))
            raise

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Be in a commit in this block; an error that all ranks raise ends it, too."""
        self.commit(interrupts())
        try:
            yield
        except BaseException as error:
            if self.is_of_all(error):
                self.end_commit()
            raise
        self.end_commit()

    def send_failure(self, error: BaseException, *, alone: bool = False) -> None:
        """Send a failure to all others, once; one that all ranks raise is sent only if this rank leaves `alone`.

        A handler of signals may have raised it between the start of an operation and its wait: the buffers are kept.
        """
        if not self.failed and self.comm and (alone or not self.is_of_all(error)) and not MPI.Is_finalized():
            frames = [frame for frame, _ in walk_tb(error.__traceback__)]
            ours = [one.f_locals for one in frames if one.f_globals.get("__name__", "").startswith("lb_mpi.mpi.")]
            self.retain(ours)
            self._notify(self._text(error))

    def _text(self, error: BaseException) -> str:
        text = describe(error) if isinstance(error, ValueError | TypeError) else cause(error)
        return text if text.startswith("rank ") else f"rank {self.comm.rank}: {text}"

    def is_of_all(self, error: BaseException) -> bool:
        """Return whether all ranks raise this error together."""
        return is_of_all(error, self._anchor)

    @contextmanager
    def notifying(self) -> Iterator[None]:
        """Spread an error raised in this block."""
        try:
            yield
        except BaseException as error:
            self.send_failure(error)
            raise

    def on_all(self, error: BaseException, by: int = 0) -> BaseException:
        """Mark an error that all ranks raise together; only rank `by` prints the traceback."""
        share(error, self._anchor)
        return error if self.rank == by else quiet(error)

    def close(
        self, free: Callable[[], None] = lambda: None, *, error: BaseException | None = None, begun: bool = False
    ) -> None:
        """Collective: call `free`, and free the communicator.  After the first time, or after a failure, do nothing.

        `error`: by which this rank leaves, and which the caller raises.  It is sent to all others at once, unless all ranks
        raise it: they close together.  If the others do not close within a second, this rank alone has raised it again.
        `begun`: this ends a call that all ranks are in, whatever another thread has begun meanwhile.

        Error, but for a rank that leaves by one itself, when another rank has failed, or fails meanwhile.
        """
        if not self.comm:
            return
        if busy and error is None and not self.failed and not begun:
            refuse_busy(self.comm)
        comm = self.comm
        try:
            need_mpi(self.name)
            if error is not None:
                self.send_failure(error)
            if not self.failed:
                name = f"close of a {self.name}"
                self.calls.begin(name)
                self.wait(self._barrier(), name=name, late=lambda: None if error is None else self._text(error))
                free()
                with self.uninterrupted():  # what is sent to a freed communicator may arrive at a later one
                    self.calls.receive()  # the last message of the barrier was sent after those
                    comm.Free()
        except BaseException as caught:
            self.send_failure(caught)
            if error is None or not isinstance(caught, Error):
                raise
        finally:
            if comm:
                self.retain(comm, free)
            self.comm = MPI.COMM_NULL  # type: ignore[assignment]

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Collective: a block that begins on all ranks or on none, and in which no handler of signals raises.

        A rank that raised in it would leave the others in MPI, where no failure reaches them.  While ranks wait for each
        other here, their handlers wait, too, so all are about to come.  Any may have failed before, and then none begins.
        """
        with deferred(), call(""), self.committing():
            self.wait(self._barrier(), name="")
            yield

    def end_unless_all_fail(self, error: MPI.Exception) -> None:
        """Return if MPI has failed on all ranks, as it should; else end the job: the others wait in MPI for ever."""
        over, until = self._barrier(), time.perf_counter() + ALL_FAIL_S
        while not over():
            if time.perf_counter() > until:
                write_error(f"rank {self.comm.rank}: {describe(error)}, not on all ranks: the others may wait in MPI\n")
                self.comm.Abort(1)
            time.sleep(LONGEST_S)

    def _barrier(self) -> Callable[[], bool]:
        """Return a function that is polled until all ranks have called this: a dissemination barrier of messages.

        Another rank may be in another collective call meanwhile, which MPI's own barrier would be mistaken for.
        """
        comm, distances, pending = self.comm, [1 << k for k in range((self.comm.size - 1).bit_length())], list[MPI.Request]()
        nothing = np.zeros(0, dtype=np.uint8)

        def over() -> bool:
            while MPI.Request.Testall(pending):
                if not distances:
                    return True
                distance = distances.pop()
                pending[:] = (
                    comm.Isend(nothing, (comm.rank + distance) % comm.size, Tag.BARRIER),
                    comm.Irecv(nothing, (comm.rank - distance) % comm.size, Tag.BARRIER),
                )
            return False

        return over

    def retain(self, *what: object) -> None:
        """Retain for ever what MPI may still write to."""
        _retained.append(what)

    def raise_failure(self) -> None:
        """Raise Error when another rank has sent a failure.

        The other rank may have finished this call and failed in the next, while this rank has yet to see that the call
        is over.  So a failure is raised only at probe SETTLED_AFTER; a busy rank needs many milliseconds for each.
        """
        one: Presence | None = self
        while one is not None:
            if one.comm:
                one._receive_failure(SETTLED_AFTER)
            one = None if self._failures.in_commit else one._parent

    def duplicate(self) -> MPI.Intracomm:
        """Collective: return a communicator of the same ranks, whose `Presence` is a child of this one."""
        self.check()
        with self.notifying():
            comm = _idup(self.comm, self, [])
            comm.Set_attr(_keyval(), Presence(comm, self._anchor, self))
            return comm

    def _receive_failure(self, after: int = 1) -> None:
        if (text := self._failures.receive(after)) is not None:
            self._fail(text)
            raise quiet(Error(text))

    def _notify(self, text: str) -> None:
        self._fail(text)
        self.retain(self._failures.send(text))

    def _fail(self, text: str) -> None:
        self._failures.note(text)
        if self._users is not None:  # an anchor is given up: the next call makes a new one
            users, self._users = self._users, None
            _anchors.remove(self)
            users.Delete_attr(_keyval())
        elif self in _left:
            _left.remove(self)
            _anchors.remove(self)


def need_mpi(name: str) -> None:
    """Raise an error if MPI has been finalized; `name`: of what is used."""
    if MPI.Is_finalized():
        raise Error(f"{name} after MPI.Finalize(): expected its calls, and close(), before that")


def closed(name: str) -> ValueError:
    """Return the error for use after `close`."""
    return ValueError(f"this {name} is closed: expected a call in its with block, before close()")


# --- communicators ----------------------------------------------------------------------------------------------------


def duplicate(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Collective: return a communicator of our own, of the same ranks, without topology; the caller frees it.

    TypeError if `comm` is no intracommunicator, ValueError if it has been freed.
    """
    if isinstance(comm, MPI.Comm) and comm == MPI.COMM_NULL:  # also MPI.COMM_NULL itself, which is no Intracomm
        raise ValueError("comm = COMM_NULL: expected a communicator of this rank that has not been freed")
    if not isinstance(comm, MPI.Intracomm):
        raise _no_communicator(comm)
    need_mpi("lb_mpi")
    refuse_busy(comm)
    end_with_mpi()
    signs.begin()
    with call(UNNAMED):
        return (_found(comm) or _make_anchor(comm)).duplicate()


def _answer_meanwhile() -> None:
    """Answer other ranks while another thread of this one compiles kernels."""
    if not _anchors or MPI.Query_thread() < MPI.THREAD_SERIALIZED or not _answering.acquire(blocking=False):
        return
    try:
        for anchor in _anchors:
            anchor._questions.serve(0.0)
    finally:
        _answering.release()


meanwhile.append(_answer_meanwhile)


def end_with_mpi() -> None:
    """Report that the program is at its end when MPI is finalized; does nothing before MPI is initialised, or repeatedly."""
    global _end_key
    if _end_key == MPI.KEYVAL_INVALID and MPI.Is_initialized() and not MPI.Is_finalized():
        _end_key = MPI.Comm.Create_keyval(delete_fn=_end)
        MPI.COMM_SELF.Set_attr(_end_key, None)  # MPI.Finalize deletes it first of all


def _end(_comm: MPI.Comm, _keyval: int, _value: None) -> None:
    signs.end()
    for last in ending:
        last()


@atexit.register
def _interrupt() -> None:
    """Raise the Ctrl-C that has waited for another call: the program ends as by a KeyboardInterrupt that nobody catches."""
    if interrupts().pending:
        print(end="", flush=True)
        write_error("KeyboardInterrupt (in the last call of lb_mpi)\n")
        if MPI.Is_initialized() and not MPI.Is_finalized():
            MPI.Finalize()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)


def _no_communicator(comm: object) -> TypeError:
    more = "; the number of ranks is that of mpiexec -n" if isinstance(comm, int) else ""
    wrong = TypeError(f"comm = {show(comm)}: expected an mpi4py intracommunicator{more}")
    return wrong if MPI.COMM_WORLD.rank == 0 else quiet(wrong)


def presence_of(comm: MPI.Comm) -> Presence:
    """Return the presence of our own communicator; of a user's, that of its anchor, or one that cannot ask any rank."""
    found = _found(comm)
    if found is None:
        assert isinstance(comm, MPI.Intracomm)
        found = Presence(MPI.COMM_NULL, name=UNNAMED)  # type: ignore[arg-type]
        found._questions, found.rank = Questions(comm, ours=False), comm.rank
    return found


def wait(comm: MPI.Comm, request: MPI.Request, keep: Any = None, *, longest_s: float | None = None) -> None:
    """Complete `request` on `comm`, mostly asleep; see `Presence.wait`."""
    presence_of(comm).wait(request.Test, (request, keep), longest_s=longest_s)


@contextmanager
def blocking(comm: MPI.Intracomm) -> Iterator[None]:
    """Collective: a block of calls that block in MPI.  Before it, ranks may wait for long for each other, and may fail."""
    presence = _found(comm) or _make_anchor(comm)  # a user's communicator that nothing has used yet has no barrier of ours
    wait(comm, comm.Ibarrier())
    with presence.uninterrupted():
        try:
            yield
        except MPI.Exception as error:
            presence.end_unless_all_fail(error)
            raise


def _found(comm: MPI.Comm) -> Presence | None:
    if _key == MPI.KEYVAL_INVALID:
        return None
    found: Any = comm.Get_attr(_key)
    return found  # type: ignore[no-any-return]


def _keyval() -> int:
    global _key
    if _key == MPI.KEYVAL_INVALID:
        _key = MPI.Comm.Create_keyval(delete_fn=_freed)
    return _key


def _freed(_comm: MPI.Comm, _keyval: int, presence: Presence) -> None:
    """Note that MPI frees a communicator.  No MPI function may be called here."""
    if presence._anchor is not presence:
        presence._anchor._n_open -= 1
    if presence._users is not None:  # the user's own communicator
        presence._users = None
        _left.append(presence)


def _make_anchor(comm: MPI.Intracomm) -> Presence:
    """Collective: make the anchor of a user's communicator."""
    for one in [one for one in _left if not one._n_open]:  # what is open still asks and answers there
        _left.remove(one)
        _anchors.remove(one)
        with _answering:
            one._questions.serve(0.0)
        if one._questions.used or one.comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG):
            _retained.append(one)  # an answer may still arrive, or a failure has, which no later communicator may receive
        else:
            one.comm.Free()
    made: list[Made] = []
    try:
        check_launcher(comm, os.environ)
        _idup(comm, presence_of(comm), made)
        return _anchor_of(comm, made)
    except Error:
        raise
    except BaseException as error:  # of a user's signal handler: the others can be notified only on what is being made
        if not made:
            made.append(comm.Idup())
        if _is_done(made[0][1], PATIENCE_S):
            _anchor_of(comm, made).send_failure(error)
        raise


def _anchor_of(comm: MPI.Intracomm, made: list[Made]) -> Presence:
    """Collective: return the anchor of a user's communicator, of which a duplicate was made."""
    own = MPI.Intracomm(made[0][0])
    if own.Get_topology() != MPI.UNDEFINED:
        # Open MPI crashes when it makes another topology from a duplicate that has one.  All ranks take part.
        with deferred():  # a rank that raises comes here again, and must know whether it has made this call
            bare = MPI.Intracomm(own.Split(0, own.rank))
            made[0] = bare, MPI.REQUEST_NULL
        own.Free()
        own = bare
    anchor = Presence(own)
    anchor._users = comm
    _anchors.append(anchor)
    comm.Set_attr(_keyval(), anchor)
    return anchor


def _is_done(request: MPI.Request, within_s: float) -> bool:
    """Return whether a request is complete within this time."""
    end = time.perf_counter() + within_s
    while not (done := request.Test()) and time.perf_counter() < end:
        time.sleep(LONGEST_S)
    return done


def _idup(comm: MPI.Intracomm, presence: Presence, made: list[Made]) -> MPI.Intracomm:
    """Duplicate without blocking: in `Dup`, waiting ranks do not answer, and spin.

    `made` has the duplicate that is begun, even if a user's signal handler raises just then: C fills it in one step.
    """
    try:
        made.extend(map(MPI.Comm.Idup, (comm,)))
        own, request = made[0]
        presence.wait(request.Test, made)
    except MPI.Exception as error:  # MPICH has about 2,000
        n_open = sum(anchor._n_open for anchor in _anchors)
        how = "expected close(), or a with block, for each Balancer, plan and pool that is no longer used"
        raise Error(f"MPI makes no other communicator, where lb_mpi has {n_open} open: {how}") from error
    return MPI.Intracomm(own)
