"""A2WS: news of loads and speeds goes round the ring, and who has none steals from whom it knows to be late.   (pure)

Source: Fernandes, de Assis, Martins, Barros, Xavier-de-Souza, "Adaptive asynchronous work-stealing for distributed
load-balancing in heterogeneous systems" (arXiv 2401.04494).  Implemented from its abstract: nodes collect information about
others and use it to choose victims and the size of what they take; no thread of its own, all one-sided.

Assumed: a rank knows of others up to `radius` places away on the ring.  It puts what it knows into both neighbours' memory
when its own load has changed by `CHANGE` or when it has heard something new, but once in `EVERY_S` at most.  A thief draws
its victim with the time that it is known to need as the weight, and takes as large a part of its work as its own speed is
of both.  When it knows of nobody with work the radius doubles, up to `MOST_RADIUS`.  Speeds are measured.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from benchmarks.rivals.rival import PARTS, Windowed
from lb_mpi.searching.drafting import Kind, Message, Send

RADIUS, MOST_RADIUS = 4, 64  # at first, at most
CHANGE = 2.0  # of a load, up or down, that is worth telling
EVERY_S = 50e-6  # at least so long from one telling to the next
ENTRY = struct.Struct("<iddd")  # rank and Known


class Known(NamedTuple):
    """What is known of a rank."""

    at: float  # when it was so
    load: float
    speed: float  # units of work per second


class Adaptive(Windowed):
    """One rank of A2WS."""

    def begin(self) -> None:
        """Set up what this kind of rank keeps."""
        super().begin()
        self.known: dict[int, Known] = {}  # of others
        self.radius = min(RADIUS, self.size // 2)
        self.speed = 0.0  # 0: not measured yet
        self._told, self._told_at, self._has_news = 0.0, -EVERY_S, False
        self._before: tuple[float, int] | None = None  # when the quantum under way began, and the units done until then

    def serve(self, message: Message, now: float) -> list[Send]:
        """News, requests, and answers to them."""
        if message.kind in (Kind.REPORT, Kind.DRAFTING):
            return self.touch(message, now)
        self.asked = None
        load = 0.0 if message.kind is Kind.REJECT else self._load_of(message.source) / 2
        self.known[message.source] = Known(now, load, message.load)
        return []

    def touch(self, message: Message, now: float) -> list[Send]:
        """News are put here, or work is taken."""
        if message.kind is not Kind.REPORT:
            return [(to, answer._replace(load=self.speed)) for to, answer in super().touch(message, now)]
        for rank, *told in ENTRY.iter_unpack(message.payload):
            news = Known(*told)
            if rank != self.rank and (rank not in self.known or news.at > self.known[rank].at):
                self.known[rank] = news
                self._has_news = True
        return []

    def taken_by(self, message: Message) -> int:
        """As large a part of all work here as the thief's speed is of both; one part at least."""
        both = self.speed + message.load
        part = message.load / both if both else 0.5
        return min(len(self.window), max(1, round(PARTS * part)))

    def seek(self, now: float) -> list[Send]:
        """Tell what is new; look for a victim."""
        self._measure(now)
        sends = self._tell(now) if self.size > 1 else []
        if self.holds_work or self.asked is not None or self.size == 1:
            return sends
        near = [(rank, known) for rank, known in self.known.items() if known.load > self.threshold]
        if near:
            late = [known.load / (known.speed or 1.0) for _, known in near]
            return sends + self.take(self.rng.choices(near, late)[0][0], self.speed)
        self.radius = min(2 * self.radius, MOST_RADIUS, self.size // 2)
        return sends

    def _measure(self, now: float) -> None:
        if self._before is not None and now > self._before[0]:
            self.speed = (self.units - self._before[1]) / (now - self._before[0])
        self._before = (now, self.units) if self.load > 0.0 else None

    def _load_of(self, rank: int) -> float:
        return self.known[rank].load if rank in self.known else 0.0

    def _tell(self, now: float) -> list[Send]:
        low, high = sorted((self.waiting, self._told))
        if not (self._has_news or high > CHANGE * low):
            return []
        if now < self._told_at + EVERY_S:
            self.wake_at = self._told_at + EVERY_S
            return []
        self._told, self._told_at, self._has_news = self.waiting, now, False
        mine = ENTRY.pack(self.rank, now, self.waiting, self.speed)
        sends = []
        for step in (1, -1):
            behind = [(self.rank - step * k) % self.size for k in range(1, self.radius)]
            entries = [ENTRY.pack(rank, *self.known[rank]) for rank in behind if rank in self.known]
            report = Message(Kind.REPORT, self.rank, payload=mine + b"".join(entries))
            sends.append(((self.rank + step) % self.size, report))
        return sends
