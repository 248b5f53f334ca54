"""The shape of a protocol: one rank of a search, a round or a map, as an object that a carrier drives.   (pure)

Every carrier runs the same loop, on real ranks, on a virtual clock, and in a test that visits all orders:

    while not actor.over:
        post(actor.turn(now, arrived))              # messages in, messages out
        job = actor.job
        if job is None:
            wait for a message, or until actor.wake_at
        else:
            post(actor.done(job, run(job)))         # post(actor.fail(error)) if it raised

`Searcher`, `Round` and `Worker` are such actors.  What is sent is a list of (destination, message), what has arrived one of
(source, message).

What an actor may rely on
- Messages of one rank to another arrive in the order in which they were sent, each once.
- `now` never goes back.  An actor reads no clock, and draws random numbers only from a seed that it was given.
- Between a turn and the end of the job that it has asked for, the actor is left alone: messages wait for the next turn.
- A turn follows each job.

What a carrier may rely on
- A turn serves all that has arrived, in order, and then does what is due.  It may come at any time, without messages too.
- `job` is all that the actor wants done, one thing at a time: to compute (a quantum, rows, a chunk of tasks), or what else
  only the carrier can do and has to tell the outcome of (to swap a word in shared memory, to write a state to disk).
  Another turn instead of the job withdraws it: the actor asks anew, by what it knows then.
- Without a job the actor is silent until a message arrives or `wake_at` has come.
- An actor that is over asks for nothing.  What still arrives is for its next turn, which drops it or declines it.
- A message that all ranks send to the root, or that the root sends to all of them, may travel as a collective operation.
- What the user's code raises in a job goes to `fail`, and the protocol ends in order; an actor itself raises nothing but
  ProtocolError, for a message that its table does not allow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

M = TypeVar("M")  # a message
J = TypeVar("J")  # a job
R_contra = TypeVar("R_contra", contravariant=True)  # what has come of a job


class Actor(Protocol[M, J, R_contra]):
    """One rank of a protocol."""

    @property
    def over(self) -> bool:
        """The loop ends."""

    @property
    def job(self) -> J | None:
        """What is to be done now; None: nothing."""

    @property
    def wake_at(self) -> float:
        """When a turn is due although no message arrives and there is no job; inf: never."""

    def turn(self, now: float, arrived: Iterable[tuple[int, M]], /) -> list[tuple[int, M]]:
        """Serve the (source, message) that have arrived, in order; return the (destination, message) to send, in order."""

    def done(self, job: J, result: R_contra, /) -> list[tuple[int, M]]:
        """Take in what has come of a job; return what to send."""

    def fail(self, error: BaseException, /) -> list[tuple[int, M]]:
        """Take in that a job has raised; return what to send."""
