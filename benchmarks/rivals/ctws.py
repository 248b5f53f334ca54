"""CTWS: a token goes round the ring, and who holds it may steal.   (pure)

Source: Assis, Oliveira, Barros, Sardina, Bianchini, Xavier-de-Souza, "Distributed-memory load balancing with cyclic
token-based work-stealing applied to reverse time migration" (IEEE Access 2019, arXiv 1907.00879).  Implemented from its
abstract: one token in a cycle, one thief at a time, victims in cyclic order, one-sided operations.

Assumed: the token names the next victim, so that the one who steals goes on where the last one has left off; a thief takes
half of the victim's window, keeps the token until it has found something or has tried `TRIES` victims, and passes it on; a
rank that computes looks for the token between two quanta.  Their tasks take minutes and make no tasks, on some dozens of
nodes: that is what it was made for.
"""

from __future__ import annotations

from benchmarks.rivals.rival import Windowed
from lb_mpi.searching.drafting import Kind, Message, Send

TRIES = 8  # victims that a thief tries while it holds the token


class CyclicToken(Windowed):
    """One rank of CTWS."""

    def begin(self) -> None:
        """Set up what this kind of rank keeps."""
        super().begin()
        self.token: int | None = 0 if self.rank == 0 else None  # the next victim, if this rank holds the token
        self.tries = 0

    def serve(self, message: Message, now: float) -> list[Send]:
        """The token, requests, and answers to them."""
        if message.kind is Kind.TOKEN:
            self.token, self.tries = message.pid, 0
        elif message.kind is Kind.DRAFTING:
            return self.touch(message, now)
        else:
            self.asked = None
        return []

    def seek(self, now: float) -> list[Send]:
        """Steal with the token, or pass it on."""
        if self.token is None or self.asked is not None or self.size == 1:
            return []
        if not self.holds_work and self.tries < TRIES:
            self.tries += 1
            victim = self.token if self.token != self.rank else (self.token + 1) % self.size
            self.token = (victim + 1) % self.size
            return self.take(victim)
        victim, self.token = self.token, None
        return [((self.rank + 1) % self.size, Message(Kind.TOKEN, self.rank, pid=victim))]
