"""One rank of a pool, map after map: its chunks, steals and answers.   (pure)

A `Worker` is an actor (`lb_mpi.virtual`) from `begin` until `end`: then the map is over for it.  Its jobs are

    Swap(rank, old, new)        compare-and-swap of that rank's word; the result: whether it has succeeded
    Interval(epoch, lo, hi)     a chunk of tasks that was begun; the result: the seconds of wall-clock time that it took

It reads `words`, the words of the ranks on its host, and their `speeds`: others change them under its eyes, so a swap may
fail.  One that has failed is proposed anew, by the words as they are then.

Law.  At each time, the intervals owned (in words), the chunks begun, and the intervals under way (stolen and not yet in the
thief's word, or in a GIVE) are, with the tasks done, a partition of the tasks of the map.  A task that was begun is not
stolen.  A stolen interval's first chunk is begun before the rest can be stolen again: two idle ranks would pass the last
task back and forth for ever.  Only its owner fills an empty word, and so it never fails to.

On one host words lie in shared memory, and nobody waits for a rank that computes.  Between hosts a thief that finds nothing
on its own host asks a rank of another (ASK), which between two of its chunks steals for it from whoever on its host has the
most, and answers (GIVE, maybe of nothing).  A rank in the middle of a long task doesn't answer for as long, so a thief asks
the next host after a while.  Each ASK is answered by one GIVE.  Tasks that are given to a rank which has got others in the
meantime are kept until it has none.

The end of a turn of a rank (the first row that fits):

    it has                                  it proposes to                       when that has succeeded
    stolen tasks not yet in its word        fill its empty word                  -
    no chunk, but an interval               take a chunk at the front            the chunk is begun
    no chunk, but tasks of a GIVE           -                                    the first chunk is begun, the rest is stolen
    no chunk, but victims on its host       take a share from the back           the first chunk is begun, the rest is stolen
    an ASK to answer, something to give     take a share from the back           GIVE it
    an ASK to answer, nothing to give       -                                    GIVE nothing
    a chunk                                 -                                    it runs
    other hosts                             -                                    ASK one; a pause when all were asked
    none of these                           -                                    it waits
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeVar

from lb_mpi.errors import ProtocolError
from lb_mpi.pooling.deal import Pace, share
from lb_mpi.pooling.intervals import EPOCHS, MOST, Interval, pack, take_back, take_front, unpack

T_co = TypeVar("T_co", covariant=True)
PAUSE_S = (0.5e-3, 10e-3)  # shortest and longest, before hosts that had nothing are asked again
PATIENCE_S = 2e-3  # after which a thief that has no answer asks the next host, too


class ByRank(Protocol[T_co]):
    """A value of each rank, such as a dict or a list has."""

    def __getitem__(self, rank: int, /) -> T_co: ...


class BeginMap(NamedTuple):
    """The root to each rank: map number `epoch` (from 1 on) begins, and lo..hi-1 are yours; chunksize 0: adaptive."""

    epoch: int
    lo: int
    hi: int
    chunksize: int = 0


class EndMap(NamedTuple):
    """The root to each rank: the map is over; what is left in words is not begun any more."""


class StealKind(IntEnum):
    """Messages between ranks of different hosts."""

    ASK = 1  # speed: the thief's
    GIVE = 2  # lo, hi: what is given; lo == hi: nothing


class StealMessage(NamedTuple):
    """One message of a map."""

    kind: StealKind
    epoch: int
    lo: int = 0
    hi: int = 0
    speed: float = 0.0


Send = tuple[int, StealMessage]  # destination rank, message
Arrival = tuple[int, StealMessage | BeginMap | EndMap]  # source rank, message


class Swap(NamedTuple):
    """The word of `rank` is to become `new`, if it is still `old`."""

    rank: int
    old: int
    new: int


class Worker:
    """The protocol of one rank; `host` are the ranks on its host (with itself), `others` those of each other host."""

    def __init__(
        self,
        rank: int,
        host: Sequence[int],
        others: Sequence[Sequence[int]] = (),
        *,
        words: ByRank[int],
        speeds: ByRank[float],
        seed: int = 0,
    ) -> None:
        self.rank = rank
        self.words, self.speeds = words, speeds
        self.epoch = -1  # number of the map; -1: none
        self.chunk: Interval | None = None  # begun, and not yet done
        self.steals = 0
        self._host = [peer for peer in host if peer != rank]
        self._hosts = _Hosts(others, random.Random(f"{seed} {rank}"))
        self._pace = Pace()
        self._rest: Interval | None = None  # stolen, not yet in the word
        self._given: list[Interval] = []  # of other hosts, and not yet begun
        self._asks: list[tuple[int, float]] = []  # (thief, its speed), of other hosts
        self._swap: Swap | None = None  # proposed
        self._answering = False  # that is for the first of the asks
        self._sends: list[Send] = []

    def begin(self, epoch: int, lo: int, hi: int, chunksize: int = 0) -> None:
        """Begin a map; see `BeginMap`."""
        if self.chunk is not None or not 0 <= lo <= hi <= MOST:
            raise ProtocolError(f"begin of {lo}..{hi} with chunk {self.chunk}")
        self.epoch = epoch
        self._rest = self._interval(lo, hi)
        self._pace = Pace(chunksize)
        self._given.clear()
        self._asks.clear()
        self._hosts.begin()

    def end(self) -> None:
        """The map is over; see `EndMap`."""
        self.epoch = -1
        self._swap = None

    @property
    def over(self) -> bool:
        """There is no map, or it is over."""
        return self.epoch < 0

    @property
    def job(self) -> Swap | Interval | None:
        """A swap, or else a chunk to run."""
        return self._swap or self.chunk

    @property
    def wake_at(self) -> float:
        """The time at which another host may be asked again."""
        return math.inf if self.epoch < 0 else self._hosts.ready_at

    def turn(self, now: float, arrived: Iterable[Arrival]) -> list[Send]:
        """Take in what has arrived, and see what is to be done next; returns what is to be sent."""
        for source, message in arrived:
            self._receive(source, message)
        self._swap = self._propose(now)
        return self._take_sends()

    def done(self, job: Swap | Interval, result: float) -> list[Send]:
        """Take in whether a swap has succeeded, or how many seconds a chunk took; returns what is to be sent."""
        if isinstance(job, Swap):
            self._swap = None
            if result:
                self._swapped(job)
        elif job == self.chunk:
            self.chunk = None
            self._pace.observe(job.n, result)
        else:
            raise ProtocolError(f"{job} is done, the chunk is {self.chunk}")
        return self._take_sends()

    def fail(self, _error: BaseException) -> list[Send]:
        """A task has raised: this rank begins nothing more in this map."""
        self.chunk = None
        self.end()
        return []

    def _take_sends(self) -> list[Send]:
        sends, self._sends = self._sends, []
        return sends

    def _receive(self, source: int, message: StealMessage | BeginMap | EndMap) -> None:
        """Take in a message; one from a rank in another map is answered with nothing, or dropped."""
        if isinstance(message, BeginMap):
            self.begin(*message)
            return
        if isinstance(message, EndMap):
            self.end()
            return
        current = message.epoch == self.epoch
        if message.kind == StealKind.ASK and current:
            self._asks.append((source, message.speed))
        elif message.kind == StealKind.ASK:
            self._sends.append((source, StealMessage(StealKind.GIVE, message.epoch)))
        elif message.kind == StealKind.GIVE:
            if current:
                self._take_given(source, message.lo, message.hi)
        else:
            raise ProtocolError(f"message {message} from rank {source}")

    def _propose(self, now: float) -> Swap | None:
        """The next swap; None: there's a chunk to run, or nothing to do yet."""
        self._answering = False
        if self.over:
            return None
        own = self.words[self.rank]  # words change under our eyes: each is read once
        if self._rest is None and self.chunk is None:
            if n := unpack(own).n:
                return Swap(self.rank, own, take_front(own, min(self._pace.n, n)))
            if self._given:
                self._begin_stolen(self._given.pop(0))
            elif (swap := self._steal(self._host, self.speeds[self.rank])) is not None:
                return swap
        if self._rest is not None:
            # At the begin of a map the word may hold what an ended one has left, and its thieves may still take of it.
            return Swap(self.rank, own, pack(*self._rest))
        if self._asks:
            if (swap := self._steal([self.rank, *self._host], self._asks[0][1])) is not None:
                self._answering = True
                return swap
            while self._asks:
                self._give(0, 0)
        if self.chunk is None and (asked := self._hosts.ask(now)) is not None:
            self._sends.append((asked, StealMessage(StealKind.ASK, self.epoch, speed=self.speeds[self.rank])))
        return None

    def _swapped(self, swap: Swap) -> None:
        """The swap that was proposed has succeeded."""
        old, new = unpack(swap.old), unpack(swap.new)
        if self._rest is not None:
            self._rest = None
        elif self._answering:
            self._give(new.hi, old.hi)
        elif swap.rank == self.rank:
            self.chunk = self._interval(old.lo, new.lo)
        else:
            self._begin_stolen(self._interval(new.hi, old.hi))

    def _interval(self, lo: int, hi: int) -> Interval:
        """Tasks of this map, as they stand in words."""
        return Interval(self.epoch % EPOCHS, lo, hi)

    def _steal(self, ranks: Sequence[int], speed: float) -> Swap | None:
        """Propose to take a share, for a thief of this speed, of the rank whose interval would last the longest."""
        words, speeds = self.words, self.speeds
        best, longest = None, 0.0
        for rank in ranks:
            word = words[rank]
            interval = unpack(word)
            if interval.epoch != self.epoch % EPOCHS or interval.n <= longest * speeds[rank]:
                continue
            if n := share(interval.n, speed, speeds[rank]):
                best, longest = Swap(rank, word, take_back(word, n)), interval.n / speeds[rank]
        return best

    def _begin_stolen(self, stolen: Interval) -> None:
        self.steals += 1
        begun = min(self._pace.n, stolen.n)
        self.chunk = stolen._replace(hi=stolen.lo + begun)
        self._rest = stolen._replace(lo=stolen.lo + begun) if begun < stolen.n else None

    def _give(self, lo: int, hi: int) -> None:
        self._sends.append((self._asks.pop(0)[0], StealMessage(StealKind.GIVE, self.epoch, lo, hi)))

    def _take_given(self, source: int, lo: int, hi: int) -> None:
        if not self._hosts.answered(source, gave=lo < hi):
            raise ProtocolError(f"GIVE of {lo}..{hi - 1} from rank {source}, which was not asked")
        if lo < hi:
            self._given.append(self._interval(lo, hi))


class _Hosts:
    """The other hosts: each is asked once, in a random order, then after a pause that grows while they have nothing."""

    def __init__(self, others: Sequence[Sequence[int]], rng: random.Random) -> None:
        self.asked: set[int] = set()  # ranks that have not answered
        self.ready_at = 0.0
        self._others = [list(host) for host in others]
        self._rng = rng
        self._left: list[list[int]] = []
        self._latest = -1  # the rank for whose answer the next host waits
        self._pause_s = 0.0

    def begin(self) -> None:
        """A new map: an answer that is still under way belongs to the old one."""
        self.asked.clear()
        self.ready_at = 0.0 if self._others else math.inf
        self._pause_s = 0.0
        self._left = self._rng.sample(self._others, len(self._others))

    def ask(self, now: float) -> int | None:
        """A rank to ask now, if any."""
        if now < self.ready_at:
            return None
        while self._left:
            if ranks := [rank for rank in self._left.pop() if rank not in self.asked]:
                self._latest = self._rng.choice(ranks)
                self.asked.add(self._latest)
                self.ready_at = now + PATIENCE_S
                return self._latest
        self._pause_s = min(max(2 * self._pause_s, PAUSE_S[0]), PAUSE_S[1])
        self.ready_at = now + self._pause_s
        self._latest = -1
        self._left = self._rng.sample(self._others, len(self._others))
        return None

    def answered(self, source: int, *, gave: bool) -> bool:
        """A rank has answered; False if it wasn't asked."""
        if source not in self.asked:
            return False
        self.asked.remove(source)
        if source == self._latest:
            self.ready_at = 0.0
        if gave:
            self._pause_s = self.ready_at = 0.0
        return True
