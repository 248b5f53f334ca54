"""The MPI carrier: the loop of `lb_mpi.actor` on a real rank.

    with call("lb_mpi.f") as interrupts:
        carry(actor, port, presence, record, interrupts)

Beside the loop, it does all that only real ranks need, and does it here alone: it sleeps while nothing happens, attends to
other ranks' questions and failures and to Ctrl-C, which it lets into the user's code and holds back elsewhere, and measures
how the time is spent.  An emulated slow rank is an actor around the actor (`lb_mpi.emulate.Slow`).
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from types import TracebackType
from typing import Any, Generic, Self

from lb_mpi import signs
from lb_mpi.actor import Actor, J, M
from lb_mpi.emulate import Rest
from lb_mpi.errors import ProtocolError
from lb_mpi.mpi.common.calls import Interrupts
from lb_mpi.mpi.common.communicator import FAILED_AFTER_S, Presence
from lb_mpi.mpi.common.waiting import PATIENCE_S, Nap
from lb_mpi.record.events import Phase
from lb_mpi.record.record import OFF, Record

ATTEND_S = 1e-3  # between two checks of what other ranks and the launcher ask
NAPS_S = 2e-3  # of naps between two turns, for the questions, failures and Ctrl-C that only a turn notices


class Meter:
    """Measures how a rank spends its time from one turn to the next."""

    def worked(self, seconds: float) -> None:
        """Add time with a job, or with messages."""

    def rested(self, seconds: float) -> None:
        """Add a rest of an emulated slow rank, with the messages handled in it."""

    def waited(self, seconds: float) -> None:
        """Add time without a job."""

    def handled(self) -> None:
        """Note that messages were handled."""


class Port(ABC, Generic[M, J]):
    """The outside of an actor on this rank: its messages are parcels, and its jobs call the user's functions."""

    @abstractmethod
    def arrived(self) -> list[tuple[int, M]]:
        """Return (source, message) of all that has arrived, in order for each source."""

    @abstractmethod
    def post(self, sends: list[tuple[int, M]]) -> None:
        """Start to send (destination, message), in order; return at once."""

    def run(self, job: J) -> Any:
        """Do a job and return its outcome; what it raises is the job's failure."""
        raise NotImplementedError

    def idle(self) -> bool:
        """Return True if no message has arrived; called while waiting, so it must be cheaper than a turn."""
        return False

    meter: Meter | None = None  # what measures this rank's time
    commits = False  # True: it is `settled` at some time

    @property
    def settled(self) -> bool:
        """True once all ranks are ready and end well: what begins then is a commit (`lb_mpi.mpi.common.calls`)."""
        return False

    @property
    def failed_after_s(self) -> float:
        """Seconds of waiting, after which this rank raises the failure of another one."""
        return FAILED_AFTER_S


def carry(
    actor: Actor[M, J, Any], port: Port[M, J], presence: Presence, record: Record, interrupts: Interrupts, *,
    start: float = 0.0, quick_s: float = 0.0,
) -> None:  # fmt: skip
    """Run the loop until the actor is over.

    The actor's times are seconds since `start`, a time by time.perf_counter().  A waiting rank yields its core for
    `quick_s`, and then takes naps; after a wait longer than that, the next one yields only half as long.  Ctrl-C between
    jobs fails the actor; if it then waits for long, Ctrl-C is raised.  Once the port is settled, it waits for the next call.
    A ProtocolError names the last events in a note.
    """
    with _Rank(actor, port, presence, record, interrupts, start, quick_s) as rank:
        while True:
            rank.post(actor.turn(rank.now(), rank.arrived()))
            rank.attend()
            if actor.over:
                break
            if (job := actor.job) is not None:
                rank.post(rank.do(job))
            else:
                rank.wait(until=actor.wake_at)


class _Rank(Generic[M, J]):
    """A real rank in the loop: see `carry`."""

    def __init__(
        self, actor: Actor[M, J, Any], port: Port[M, J], presence: Presence, record: Record, interrupts: Interrupts,
        start: float, quick_s: float,
    ) -> None:  # fmt: skip
        self._actor, self._port, self._presence, self._interrupts = actor, port, presence, interrupts
        self._record = None if record is OFF else record
        self._meter, self._measures = port.meter or Meter(), port.meter is not None
        self._spent = self._meter.waited
        self._start, self._now = start, time.perf_counter()
        self._quick_s = self._yielding_s = quick_s
        self._nap: Nap | None = None
        self._idle_since = 0.0  # 0: it is not waiting
        self._active = False  # a message has arrived or left in this turn
        self._interrupted = self._settled = False
        self._events: deque[tuple[float, str, list[tuple[int, Any]]]] = deque(maxlen=20)

    def now(self) -> float:
        """Begin a turn; return the actor's time."""
        before, self._now, self._active = self._now, time.perf_counter(), False
        if self._measures:
            self._spent(self._now - before)
        if self._record is not None:
            self._record.enter(Phase.PROTOCOL, self._now)
        return self._now - self._start

    def arrived(self) -> list[tuple[int, M]]:
        """Return what has arrived."""
        if arrived := self._port.arrived():
            self._note("from", arrived)
        return arrived

    def post(self, sends: list[tuple[int, M]]) -> None:
        """Send, unless there is nothing to send."""
        if sends:
            self._note("to", sends)
            self._port.post(sends)

    def _note(self, way: str, messages: list[tuple[int, Any]]) -> None:
        """Note messages, of which only the kinds are kept."""
        self._active = True
        self._events.append((self._now, way, [(rank, getattr(one, "kind", type(one))) for rank, one in messages]))

    def attend(self) -> None:
        """Attend to the other ranks' questions and failures, and to Ctrl-C."""
        if self._port.commits and not self._settled and self._port.settled:
            self._settled = True
            self._presence.commit(self._interrupts)
        if self._active:
            if self._measures:
                self._meter.handled()
            self._work()
        waited_s = self._now - self._idle_since if self._idle_since else 0.0
        if self._now >= self._presence.attend_at:
            self._presence.attend_at = self._now + ATTEND_S
            signs.turn()
            try:
                self._presence.answer(waited_s)
            except Warning as error:  # where warnings are errors
                self.post(self._actor.fail(error))
        if waited_s and waited_s > self._port.failed_after_s:
            self._presence.raise_failure()
        if self._interrupts.pending and not self._interrupted and not self._interrupts.committed:
            self._interrupted = True
            self.post(self._actor.fail(KeyboardInterrupt()))
        elif self._interrupted and waited_s > PATIENCE_S:
            self._interrupts.check()

    def _work(self) -> None:
        """Note that this rank does not wait any more."""
        if self._idle_since:
            quick = self._now < self._idle_since + self._quick_s
            self._yielding_s, self._idle_since = self._quick_s if quick else 0.5 * self._yielding_s, 0.0
        self._spent = self._meter.worked

    def do(self, job: J) -> list[tuple[int, M]]:
        """Do a job, in which Ctrl-C is raised at once; return what the actor sends then."""
        self._events.append((self._now, f"does {type(job).__name__}", []))
        self._idle_since, self._spent = 0.0, self._meter.worked
        process = os.getpid()
        try:
            with self._interrupts:
                result: Any = None
                if isinstance(job, Rest):
                    self._rest(job.seconds)
                else:
                    result = self._port.run(job)
        except BaseException as error:
            end_child(process)
            return self._actor.fail(error)
        if os.getpid() != process:
            end_child(process)
        return self._actor.done(job, result)

    def _rest(self, seconds: float) -> None:
        """Do nothing, to emulate a slow rank."""
        self._spent = self._meter.rested
        if self._record is not None:
            self._record.enter(Phase.RESTING, time.perf_counter())
        time.sleep(seconds)

    def wait(self, until: float) -> None:
        """Wait until something happens, or until this time of the actor's; return at once if something has just happened."""
        if self._active:
            return
        self._spent, asleep = self._meter.waited, time.perf_counter()
        if self._record is not None:
            self._record.enter(Phase.WAITING, asleep)
        nap = self._nap = self._nap or Nap()
        if not self._idle_since:
            self._idle_since = asleep
            nap.reset()
        until += self._start
        if asleep < self._idle_since + self._yielding_s:
            until = min(self._idle_since + self._yielding_s, until)
            os.sched_yield()
            while self._port.idle() and time.perf_counter() < until:
                os.sched_yield()
        else:
            nap.sleep(until - asleep)
            until = min(asleep + NAPS_S, until)
            while self._port.idle() and (now := time.perf_counter()) < until:
                nap.sleep(until - now)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._settled and error is None:
            self._presence.end_commit()
        if isinstance(error, ProtocolError):
            name = type(getattr(self._actor, "actor", self._actor)).__name__
            lines = [f"The last events of this rank's {name}, in seconds since the call began:"]
            for now, way, messages in self._events:
                words = ", ".join(f"{_name(kind)} {way} {rank}" for rank, kind in messages)
                lines.append(f"{now - self._start:10.6f}  {words or way}")
            error.add_note("\n".join(lines))


def _name(kind: Any) -> str:
    return getattr(kind, "name", None) or getattr(kind, "__name__", None) or str(kind)


def end_child(parent: int) -> None:
    """End this process if the user's code has forked it from `parent`, and returned: only the parent may go on in lb_mpi."""
    if os.getpid() != parent:
        os._exit(1)
