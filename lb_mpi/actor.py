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

`Searcher`, `Round` and `Stealer` are actors.  Three carriers run them: real ranks (`lb_mpi.mpi.common.carrier`), a virtual
clock (`lb_mpi.virtual`), and tests of all orders of events (`tests/protocol/explore.py`).

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

from collections.abc import Iterable
from typing import Protocol, TypeVar

M = TypeVar("M")  # a message
J = TypeVar("J")  # a job
R_contra = TypeVar("R_contra", contravariant=True)  # the outcome of a job


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
