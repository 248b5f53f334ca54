"""The MPI carrier: the loop of `lb_mpi.actor` on a real rank.

    with call("lb_mpi.f") as interrupts:
        carry(actor, port, presence, record, slow, interrupts)

Beside the loop, it does all that only real ranks need, and does it here alone: it sleeps while nothing happens, answers
other ranks' questions, detects failed ranks, lets Ctrl-C into the user's code and holds it back elsewhere, emulates a slow
rank, and measures how the time is spent.
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
from lb_mpi.emulate import throttle
from lb_mpi.errors import ProtocolError
from lb_mpi.mpi.common.communicator import FAILED_AFTER_S, Presence
from lb_mpi.mpi.common.waiting import PATIENCE_S, Interrupts, Nap
from lb_mpi.record.events import Phase
from lb_mpi.record.record import OFF, Record

ATTEND_S = 1e-3  # between two looks at what other ranks and the launcher ask
NAPS_S = 2e-3  # of naps between two turns, for the questions, failures and Ctrl-C that only a turn notices


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

    commits = False  # True: it is `settled` at some time

    @property
    def settled(self) -> bool:
        """True once all ranks are ready and end well: what begins then is a `Presence.commit`."""
        return False

    @property
    def failed_after_s(self) -> float:
        """Seconds of waiting, after which this rank raises the failure of another one."""
        return FAILED_AFTER_S


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


class Events(deque[tuple[float, str, list[tuple[int, Any]]]]):
    """The last messages and jobs of an actor; a ProtocolError that ends the block gets them as a note."""

    def __init__(self, actor: Any, start: float) -> None:
        super().__init__(maxlen=20)
        self._actor, self._start = actor, start

    def moved(self, now: float, way: str, messages: list[tuple[int, Any]]) -> None:
        """Note messages, of which only the kinds are kept."""
        self.append((now, way, [(rank, getattr(message, "kind", type(message))) for rank, message in messages]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, ProtocolError):
            lines = [f"The last events of this rank's {type(self._actor).__name__}, in seconds since the call began:"]
            for now, way, messages in self:
                words = ", ".join(f"{_name(kind)} {way} {rank}" for rank, kind in messages)
                lines.append(f"{now - self._start:10.6f}  {words or way}")
            error.add_note("\n".join(lines))


def _name(kind: Any) -> str:
    return getattr(kind, "name", None) or getattr(kind, "__name__", None) or str(kind)


def carry(
    actor: Actor[M, J, Any], port: Port[M, J], presence: Presence, record: Record, slow: throttle,
    interrupts: Interrupts, *, meter: Meter | None = None, start: float = 0.0, quick_s: float = 0.0,
) -> None:  # fmt: skip
    """Run the loop until the actor is over; `slow` emulates a slow rank.

    The actor's times are seconds since `start`, a time by time.perf_counter().  A waiting rank yields its core for
    `quick_s`, and then takes naps; after a wait longer than that, the next one yields only half as long.  Ctrl-C between
    jobs fails the actor; if it then waits for long, Ctrl-C is raised.  Once the port is settled, it waits for the next call.
    A ProtocolError names the last events in a note.
    """
    measures, meter, yielding_s = meter is not None, meter or Meter(), quick_s
    nap, idle_since, interrupted, settled = None, 0.0, False, False
    records = record is not OFF
    outcome: list[tuple[int, M]] = []  # what a job sends: it leaves when an emulated slow rank has rested
    spent, before = meter.waited, time.perf_counter()
    with Events(actor, start) as events:
        while True:
            now = time.perf_counter()
            if measures:
                spent(now - before)
                before = now
            if records:
                record.enter(Phase.PROTOCOL, now)
            if outcome and not (slow.rests and slow.due()):
                port.post(outcome)
                outcome = []
            if arrived := port.arrived():
                events.moved(now, "from", arrived)
            if sends := actor.turn(now - start, arrived):
                events.moved(now, "to", sends)
                port.post(sends)
            if port.commits and not settled and port.settled:
                settled = True
                presence.commit()
            if active := bool(arrived or sends):
                if measures:
                    meter.handled()
                if idle_since:
                    yielding_s = quick_s if now < idle_since + quick_s else 0.5 * yielding_s
                idle_since = 0.0
            waited_s = now - idle_since if idle_since else 0.0
            if now >= presence.attend_at:
                presence.attend_at = now + ATTEND_S
                signs.turn()
                try:
                    presence.answer(waited_s)
                except Warning as error:  # where warnings are errors
                    port.post(actor.fail(error))
            if waited_s and waited_s > port.failed_after_s:
                presence.raise_failure(waited_s)
            if interrupts.pending and not interrupted and not interrupts.committed:
                interrupted = True
                port.post(actor.fail(KeyboardInterrupt()))
            elif interrupted and waited_s > PATIENCE_S:
                interrupts.check()
            if actor.over:
                if outcome:  # of the last job of a slow rank, which still rests
                    port.post(outcome)
                if settled:
                    presence.end_commit()
                return
            if slow.rests and ((rest_s := slow.due()) or outcome):  # what a rest held back leaves first
                spent, idle_since = meter.rested, 0.0
                record.enter(Phase.RESTING, time.perf_counter())
                time.sleep(rest_s)  # in slices: an emulated slow rank still handles messages
                continue
            if (job := actor.job) is not None:
                events.append((now, f"does {type(job).__name__}", []))
                outcome = _do(actor, port, job, interrupts)
                spent, idle_since = meter.worked, 0.0
            elif active:
                spent = meter.worked
            else:
                spent = meter.waited
                asleep = time.perf_counter()
                if records:
                    record.enter(Phase.WAITING, asleep)
                nap = nap or Nap()
                if not idle_since:
                    idle_since = asleep
                    nap.reset()
                until = start + actor.wake_at
                if asleep < idle_since + yielding_s:
                    until = min(idle_since + yielding_s, until)
                    os.sched_yield()
                    while port.idle() and time.perf_counter() < until:
                        os.sched_yield()
                else:
                    nap.take(until - asleep)
                    until = min(asleep + NAPS_S, until)
                    while port.idle() and (now := time.perf_counter()) < until:
                        nap.take(until - now)


def end_child(parent: int) -> None:
    """End this process if the user's code has forked it from `parent`, and returned: only the parent may go on in lb_mpi."""
    if os.getpid() != parent:
        os._exit(1)


def _do(actor: Actor[M, J, Any], port: Port[M, J], job: J, interrupts: Interrupts) -> list[tuple[int, M]]:
    """Do a job, in which Ctrl-C is raised at once; return what the actor sends then."""
    process = os.getpid()
    try:
        with interrupts.allowed():
            result = port.run(job)
    except BaseException as error:
        end_child(process)
        return actor.fail(error)
    if os.getpid() != process:
        end_child(process)
    return actor.done(job, result)
