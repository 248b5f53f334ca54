"""GLB: random victims, then lifelines.   (pure)

Source: Saraswat, Kambadur, Kodali, Grove, Krishnamoorthy, "Lifeline-based global load balancing" (PPoPP 2011), and the
workers of X10's and APGAS's GLB libraries.  A rank without work asks `RANDOM` random victims, one after the other, then its
lifelines, one after the other: its neighbours on the hypercube.  A victim without work to spare answers at once that it
has none; but it remembers who came by a lifeline, and sends a half of its work when it has some.  Who has asked all in vain
sleeps until one of its lifelines brings work.

Assumed: requests are served between two quanta, as GLB's workers do; each is served by a half of what is in hand, above the
threshold that all have here; in the beginning all but rank 0 hang on their parent in the binomial tree, whose edges are
lifelines (X10's library has a ternary tree).  Two random victims: X10's usual one is one less; two were better here.
"""

from __future__ import annotations

from benchmarks.rivals.rival import Rival
from lb_mpi.searching import tree
from lb_mpi.searching.drafting import Kind, Message, Send

RANDOM = 2  # random victims before the lifelines
LIFELINE = 1  # in WORK: it came by a lifeline, which is free again
NOT_ASKED = -1  # in WORK: nobody waits for it


class Lifelines(Rival):
    """One rank of GLB."""

    def begin(self) -> None:
        """Set up what this kind of rank keeps."""
        self.lifelines = tree.neighbours(self.rank, self.size)
        self.active = {tree.parent(self.rank)} if self.rank else set()  # lifelines that know that this rank waits
        self.hanging = tree.children(self.rank, self.size)[::-1]  # ranks that wait on a lifeline to this one
        self.asking = 0  # the number of the request that is under way; 0: none
        self.tried = 0  # random victims, since there was work last
        self.asleep = self.rank > 0

    def serve(self, message: Message, now: float) -> list[Send]:
        """Requests, by chance (DRAFTING) or by a lifeline (STAND), and answers to them."""
        source, by_lifeline = message.source, message.kind is Kind.STAND
        if message.kind in (Kind.WORK, Kind.REJECT):
            if message.seq == self.asking:
                self.asking = 0
            if message.kind is Kind.WORK:
                self.tried, self.asleep = 0, False
                if message.pid == LIFELINE:
                    self.active.remove(source)
            return []
        part = self._half()
        if part is not None:
            return [self._give(source, part, message.seq, by_lifeline)]
        if by_lifeline:
            self.hanging.append(source)
        return [(source, Message(Kind.REJECT, self.rank, message.seq))]

    def seek(self, now: float) -> list[Send]:
        """Work for who hangs on this rank; otherwise the next victim."""
        sends: list[Send] = []
        while self.hanging and (part := self._half()) is not None:
            sends.append(self._give(self.hanging.pop(0), part, NOT_ASKED, True))
        self.load = self.problem.load()
        if self.load > 0.0 or self.asking or self.asleep or self.size == 1:
            return sends
        if self.tried < RANDOM:
            self.tried += 1
            victim = self.rng.randrange(self.size - 1)
            victim, kind = victim + (victim >= self.rank), Kind.DRAFTING
        else:
            left = [rank for rank in self.lifelines if rank not in self.active]
            if not left:
                self.asleep = True
                return sends
            victim, kind = left[0], Kind.STAND
            self.active.add(victim)
        self.drafting.seq += 1
        self.asking = self.drafting.seq
        return [*sends, (victim, Message(kind, self.rank, self.asking))]

    def _give(self, to: int, part: bytes, seq: int, by_lifeline: bool) -> Send:
        _, message = self.give(to, part, seq)
        return to, message._replace(pid=LIFELINE) if by_lifeline else message

    def _half(self) -> bytes | None:
        return self.problem.split() if self.problem.load() > self.threshold else None
