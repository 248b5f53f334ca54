"""Actors, and the one loop that carries them.   (pure)

    protocol (pure)   an actor: one rank of a search, of a round of rows, or of a map of tasks
    port              moves its messages and runs its jobs
    carry             the only loop

        while not actor.over:
            post(actor.turn(now, arrived()))        # messages in, messages out
            if job := actor.job:
                post(actor.done(job, run(job)))     # post(actor.fail(error)) if it raised
            else:
                wait(until=actor.wake_at)

`Searcher`, `Round` and `Stealer` are actors that a table describes, since any message may come at any time.  Where a rank
does one thing after another, a generator tells its story, with the state in its locals:

    theirs = yield Await(sources, sends)    # messages to send, then the next message of each source, by source
    rows = yield job                        # the outcome of a job; JobFailed is raised here if it fails
    return value

`Story` makes an actor of it.  Plans of rows (`lb_mpi.balancing.decider`) and rebalancings, with their choice of vertices
(`lb_mpi.rebalancing`), are stories.

Three carriers run actors: real ranks (`lb_mpi.mpi.common.carrier`), a virtual clock (`lb_mpi.virtual`), and tests of all
orders of events (`tests/protocol/explore.py`).

Messages to send are a list of (destination, message), arrivals a list of (source, message).

An actor may rely on this:
- Messages from one rank to another arrive in the order in which they were sent, each once.
- `now` never decreases.  An actor reads no clock, and draws random numbers only from a seed that it was given.
- Between a turn and the end of the job that it requests, the actor is not called: messages wait for the next turn.
- A turn follows each job.

A carrier may rely on this:
- A turn handles all arrivals, in order, and then does what is due.  It may come at any time, also without messages.
- `job` is the actor's current request: to compute (a quantum, rows, a chunk of tasks), or to do something else that
  only the carrier can do and must report back (swap a word in shared memory, write a state to disk).  Another turn
  instead of the job withdraws the request; the actor then makes a new one.
- Without a job the actor is passive until a message arrives or `wake_at` has come.
- An actor that is over requests nothing.  Later messages go to its next turn, which drops or declines them.
- A message that all ranks send to the root, or that the root sends to all ranks, may be a collective operation.
- An error of the user's code in a job goes to `fail`, and the protocol ends in order.  An actor itself raises only
  ProtocolError, for a message that its table does not allow.
- User code of any kind (a task, a callback, pack, unpack) runs in `run`, never while messages are received or sent: so
  Ctrl-C is raised in it at once, and its time is measured.  Only the problem of a search is part of its actor.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from lb_mpi.errors import ProtocolError

ALL = -2  # instead of a rank: a `Reduction` is sent to ALL, and from ALL comes that of all ranks

M = TypeVar("M")  # a message
J = TypeVar("J")  # a job
R_contra = TypeVar("R_contra", contravariant=True)  # the outcome of a job
T_co = TypeVar("T_co", covariant=True)  # what a story returns


class Actor(Protocol[M, J, R_contra]):
    """One rank of a protocol."""

    @property
    def over(self) -> bool:
        """True when the actor has finished; the loop ends."""

    @property
    def job(self) -> J | None:
        """The job to do now; None: nothing."""

    @property
    def wake_at(self) -> float:
        """The time at which a turn is due even if no message arrives and there is no job; inf: never."""

    def turn(self, now: float, arrived: Iterable[tuple[int, M]], /) -> list[tuple[int, M]]:
        """Handle arrivals (source, message), in order; return (destination, message) to send, in order."""

    def done(self, job: J, result: R_contra, /) -> list[tuple[int, M]]:
        """Record the outcome of a job; return what to send."""

    def fail(self, error: BaseException, /) -> list[tuple[int, M]]:
        """Record that a job has raised; return what to send."""


class Await(NamedTuple):
    """A request of a story: send messages (destination, message), and await the next message of each source.

    It gets the messages by source.  A source is a rank, ALL, or what else the carrier knows.
    """

    sources: Sequence[int] = ()
    sends: Sequence[tuple[int, Any]] = ()


class JobFailed(Exception):
    """Raised in a story where it awaits a job that has failed: `Story.error` is the error."""


class Story(Generic[T_co]):
    """An actor that follows a generator; see above.  A message of a source may come before it is awaited."""

    wake_at = math.inf

    def __init__(self, story: Generator[Any, Any, T_co]) -> None:
        self.job: Any = None
        self.awaited: Sequence[int] | None = None  # the sources; None: not begun
        self.error: BaseException | None = None  # the first one of a job, or one that has come between jobs
        self.now = 0.0
        self._story, self._inbox = story, defaultdict[int, deque[Any]](deque)
        self._end: BaseException | None = None  # StopIteration, or what the story has raised

    @property
    def over(self) -> bool:
        """See `Actor`."""
        return self._end is not None

    @property
    def value(self) -> T_co:
        """The value that the story has returned, once it is over; what it has raised is raised."""
        if isinstance(self._end, StopIteration):
            value: T_co = self._end.value
            return value
        raise ProtocolError("a story that is not over has no value") if self._end is None else self._end

    def turn(self, now: float, arrived: Iterable[tuple[int, Any]] = ()) -> list[tuple[int, Any]]:
        """See `Actor`."""
        self.now = now
        for source, message in arrived:
            self._inbox[source].append(message)
        sends = [] if self.awaited is not None else self._go_on(self._story.send, None)
        return sends + self._receive()

    def done(self, job: Any, result: Any) -> list[tuple[int, Any]]:
        """See `Actor`."""
        return self._go_on(self._story.send, result) + self._receive()

    def fail(self, error: BaseException) -> list[tuple[int, Any]]:
        """See `Actor`.  Between jobs the story goes on; it may look at `error`."""
        self.error = error if self.error is None else self.error
        return [] if self.job is None else self._go_on(self._story.throw, JobFailed()) + self._receive()

    def _receive(self) -> list[tuple[int, Any]]:
        """Go on as long as what is awaited is there."""
        sends = list[tuple[int, Any]]()
        while self.job is None and not self.over and all(self._inbox[source] for source in self.awaited or ()):
            received = {source: self._inbox[source].popleft() for source in self.awaited or ()}
            sends += self._go_on(self._story.send, received)
        if self.over and any(self._inbox.values()):
            raise ProtocolError(f"messages of {[source for source, some in self._inbox.items() if some]} at the end")
        return sends

    def _go_on(self, resume: Callable[[Any], Any], outcome: Any) -> list[tuple[int, Any]]:
        """Let the story go on to its next step; return what it sends."""
        self.job, self.awaited = None, ()
        try:
            step = resume(outcome)
        except ProtocolError:
            raise
        except BaseException as end:  # what it has sent before has left
            self._end = end
            return []
        if isinstance(step, Await):
            self.awaited = step.sources
            return list(step.sends)
        self.job = step
        return []
