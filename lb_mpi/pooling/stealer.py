"""One rank of a pool, map after map: its chunks, steals and answers.   (pure)

A `Stealer` is an actor (`lb_mpi.actor`) from `begin` until `end`: then the map is over for it.  Its jobs are

    Swap(rank, old, new)        compare-and-swap of that rank's word; the result: whether it succeeded
    Interval(epoch, lo, hi)     a chunk of tasks to run; the result: its seconds of wall-clock time

It reads `words`, the words of the ranks on its host, their `timings`, and what is known from earlier maps.  Other ranks
change words at any time, so a swap may fail.  Then another one is proposed, from the words as they are by then.

Law.  At each time, the intervals owned (in words), the chunks begun, the intervals in transit (stolen and not yet in the
thief's word, or in a GIVE) and the tasks done are a partition of the tasks of the map.  A task that was begun is never
stolen.  A thief begins the first chunk of a stolen interval before the rest can be stolen again; otherwise, two idle ranks
could pass the last task back and forth forever.  Only its owner fills an empty word, so that swap never fails.

On one host words are in shared memory, and no rank waits for one that computes.  A thief that finds nothing on its own host
asks a rank of another host (ASK).  Between two of its chunks, that rank steals for it from the rank with the most work on
its host, and answers (GIVE, possibly empty).  A rank in a long task can't answer, so after a while the thief asks the next
host.  Each ASK is answered by one GIVE.  Tasks given to a rank that has found others meanwhile are kept until it has none.

In a pool on one host, each rank publishes how many tasks it has run, and in which time, where the others read it.  So the
first map steals by measured speeds, too, and a slow rank leaves the last tasks to faster ranks for a limited time.
Those in its word are stolen like all others.

The end of a turn of a rank (the first row that fits):

    it has                                  it proposes to                       after success
    stolen tasks not yet in its word        fill its empty word                  -
    no chunk, but tasks that it leaves      -                                    (the rows on ASKs, then it waits)
    no chunk, but an interval               take a chunk at the front            the chunk is begun
    no chunk, but tasks of a GIVE           -                                    the first chunk is begun, the rest is stolen
    no chunk, but victims on its host       take a share from the back           the first chunk is begun, the rest is stolen
    an ASK to answer, something to give     take a share from the back           GIVE it
    an ASK to answer, nothing to give       -                                    an empty GIVE
    a chunk                                 -                                    it runs
    other hosts                             -                                    ASK one; a pause when all were asked
    none of these                           -                                    it waits
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeVar

from lb_mpi.errors import ProtocolError
from lb_mpi.knowledge import Estimate, RankKnowledge, Timing
from lb_mpi.pooling.intervals import EPOCHS, MOST, Interval, drop_back, drop_front, epoch_of, n_tasks, pack, unpack
from lb_mpi.pooling.learning import LONG_S, wait_s

PAUSE_S = (0.5e-3, 10e-3)  # shortest and longest, before asking again hosts that had nothing
PATIENCE_S = 2e-3  # after this time without an answer a thief also asks the next host


T_co = TypeVar("T_co", covariant=True)


class ByRank(Protocol[T_co]):
    """A container with one value per rank, such as a dict or a list."""

    def __getitem__(self, rank: int, /) -> T_co: ...


class Timings(Protocol):
    """A container of the timings of the ranks on a host, which all of them read, and each writes for itself."""

    def __getitem__(self, rank: int, /) -> Timing: ...
    def __setitem__(self, rank: int, timing: Timing, /) -> None: ...


class BeginMap(NamedTuple):
    """The root to each rank: map number `epoch` (from 1) begins; it owns lo..hi-1; chunksize 0: adaptive.

    `largest_first`: the costs are known.
    """

    epoch: int
    lo: int
    hi: int
    chunksize: int = 0
    largest_first: bool = False
    n: int = 0  # tasks of the map; 0: unknown


class EndMap(NamedTuple):
    """The root to each rank: the map is over, and the remaining tasks in words are dropped."""


class StealKind(IntEnum):
    """Messages between ranks of different hosts."""

    ASK = 1  # speed: the thief's
    GIVE = 2  # lo, hi: the tasks given; lo == hi: none


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
    """A request to change the word of `rank` from `old` to `new`; it fails if the word isn't `old`."""

    rank: int
    old: int
    new: int


class Stealer:
    """The protocol of one rank; `host` are the ranks on its host (including itself), `others` those of each other host."""

    def __init__(
        self,
        rank: int,
        host: Sequence[int],
        others: Sequence[Sequence[int]] = (),
        *,
        words: ByRank[int],
        timings: Timings,
        knowledge: RankKnowledge,
        seed: int = 0,
    ) -> None:
        self.rank = rank
        self.words, self._knowledge = words, knowledge
        self._known_speeds: Sequence[float] = ()  # from earlier maps
        self.epoch = -1  # number of the map; -1: none
        self.chunk: Interval | None = None  # begun, not yet done
        self.steals: list[tuple[int, int]] = []  # in this map: (rank that had the tasks, their number)
        self._host = [peer for peer in host if peer != rank]
        self._hosts = _Hosts(others, random.Random(f"{seed} {rank}"))
        self._tail = MapTail(rank, [] if others else host, timings, knowledge)
        self._n = 0  # tasks of the map, if this rank was dealt some
        self._leaving = False  # tasks to faster ranks, for now
        self._pace = Pace()
        self._rest: Interval | None = None  # stolen, not yet in the word
        self._given: list[Interval] = []  # by other hosts, not yet begun
        self._asks: list[tuple[int, float]] = []  # (thief, its speed), from other hosts
        self.swap: Swap | None = None  # proposed
        self._answering = False  # it answers the first of the asks
        self._sends: list[Send] = []

    def begin(self, epoch: int, lo: int, hi: int, chunksize: int = 0, largest_first: bool = False, n: int = 0) -> None:
        """Begin a map; see `BeginMap`."""
        if self.chunk is not None or not 0 <= lo <= hi <= MOST:
            raise ProtocolError(f"begin of {lo}..{hi} with chunk {self.chunk}")
        self.epoch, self.steals = epoch, []
        self._rest = self._interval(lo, hi)
        self._n = n if hi > lo else 0
        self._pace = Pace(chunksize)
        self._known_speeds = self._knowledge.speeds
        self._tail.begin(epoch % EPOCHS, learns=not largest_first)
        self._given.clear()
        self._asks.clear()
        self._hosts.begin()

    def end(self) -> None:
        """End the map; see `EndMap`.  A chunk that was taken just before, and does not run yet, is dropped."""
        self.epoch = -1
        self.swap = self.chunk = None

    @property
    def over(self) -> bool:
        """True if there is no map, or it is over."""
        return self.epoch < 0

    @property
    def job(self) -> Swap | Interval | None:
        """A swap, or else a chunk to run."""
        return self.swap or self.chunk

    @property
    def wake_at(self) -> float:
        """The time at which another host may be asked again, or tasks are no longer left to others."""
        if self.epoch < 0:
            return math.inf
        return self._tail.until if self._leaving else self._hosts.ready_at

    @property
    def sees_tasks(self) -> bool:
        """True if some rank on this host has tasks in its word: a turn may be due although no message has arrived."""
        return self.epoch >= 0 and any(n_tasks(self.words[rank]) for rank in (self.rank, *self._host))

    def turn(self, now: float, arrived: Iterable[Arrival]) -> list[Send]:
        """Process the messages, and choose the next job; return the messages to send."""
        for source, message in arrived:
            self._receive(source, message)
        self.swap = self._propose(now)
        return self._drain_sends()

    def done(self, job: Swap | Interval, result: float, own_s: float | None = None) -> list[Send]:
        """Process the result of a job (see above); return the messages to send.

        `own_s`: the seconds of a chunk that tell the rank's speed; None: all of them.
        """
        if isinstance(job, Swap):
            self.swap = None
            if result:
                self._swapped(job)
        elif job == self.chunk:
            self.chunk = None
            n = job.hi - job.lo
            self._pace.observe(n, result)
            self._tail.observe(n, result if own_s is None else own_s)
        else:
            raise ProtocolError(f"{job} is done, the chunk is {self.chunk}")
        return self._drain_sends()

    def fail(self, _error: BaseException) -> list[Send]:
        """Note that a task has raised: this rank begins nothing more in this map."""
        self.end()
        return []

    def _drain_sends(self) -> list[Send]:
        sends, self._sends = self._sends, []
        return sends

    def _receive(self, source: int, message: StealMessage | BeginMap | EndMap) -> None:
        """Process a message; one from a rank in another map is answered with an empty GIVE, or dropped."""
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
                self._accept_given(source, message.lo, message.hi)
        else:
            raise ProtocolError(f"message {message} from rank {source}")

    def _propose(self, now: float) -> Swap | None:
        """Return the next swap; None: there is a chunk to run, or nothing to do yet."""
        self._answering = self._leaving = False
        if self.epoch < 0:
            return None
        if self.chunk is not None and self._rest is None and not self._asks:
            return None
        own = self.words[self.rank]  # other ranks change words: read each once
        if self._rest is None and self.chunk is None:
            n = n_tasks(own)
            if self._given and not n:
                self._begin_stolen(self._given.pop(0))
            elif now < self._tail.until:
                self._leaving = True
            else:
                swap = Swap(self.rank, own, drop_front(own, self._pace.n(n))) if n else self._steal(self._host)
                if swap is not None:
                    self._leaving = n <= NEAR and self._tail.leaves(now, self._tasks_left)
                    if not self._leaving:
                        return swap
        if self._rest is not None:
            # At the start of a map the word may hold the rest of an old one, from which late thieves may still take.
            return Swap(self.rank, own, pack(*self._rest))
        if self._asks:
            if (swap := self._steal([self.rank, *self._host], self._asks[0][1])) is not None:
                self._answering = True
                return swap
            while self._asks:
                self._give(0, 0)
        if self.chunk is None and (asked := self._hosts.ask(now)) is not None:
            self._sends.append((asked, StealMessage(StealKind.ASK, self.epoch, speed=self._known_speeds[self.rank])))
        return None

    def _swapped(self, swap: Swap) -> None:
        """Continue after the proposed swap has succeeded."""
        old, new = unpack(swap.old), unpack(swap.new)
        if self._rest is not None:
            self._rest = None
        elif self._answering:
            self._give(new.hi, old.hi)
        elif swap.rank == self.rank:
            self.chunk = self._interval(old.lo, new.lo)
        else:
            self.steals.append((swap.rank, old.hi - new.hi))
            self._begin_stolen(self._interval(new.hi, old.hi))

    def _interval(self, lo: int, hi: int) -> Interval:
        """Return an interval of tasks of this map, as in words."""
        return Interval(self.epoch % EPOCHS, lo, hi)

    def _steal(self, ranks: Sequence[int], speed: float | None = None) -> Swap | None:
        """Propose to take a share from the rank whose interval would last longest, by a thief of this speed."""
        best, longest = None, 0.0
        if not (victims := self._left(ranks)):
            return best
        speeds = self._speeds()
        speed = speeds[self.rank] if speed is None else speed
        for rank, word, n in victims:
            if n > longest * speeds[rank] and (taken := share(n, speed, speeds[rank])):
                best, longest = Swap(rank, word, drop_back(word, taken)), n / speeds[rank]
        return best

    def _left(self, ranks: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return (rank, word, tasks not begun) of ranks that have some in this map."""
        epoch, left = self.epoch % EPOCHS, []
        for rank in ranks:
            word = self.words[rank]
            if (n := n_tasks(word)) and epoch_of(word) == epoch:
                left.append((rank, word, n))
        return left

    def _tasks_left(self) -> int:
        """Return how many tasks on this host have not been begun; at first, all: words may not be filled yet."""
        if self._n and not self._tail.has_run:
            return self._n
        return sum([n for _, _, n in self._left([self.rank, *self._host])])

    def _speeds(self) -> ByRank[float]:
        """Return the speeds on this host as far as they are known now."""
        known = self._tail.estimate()
        return self._known_speeds if known is None else known.speeds

    def _begin_stolen(self, stolen: Interval) -> None:
        begun = self._pace.n(stolen.n)
        self.chunk = stolen._replace(hi=stolen.lo + begun)
        self._rest = stolen._replace(lo=stolen.lo + begun) if begun < stolen.n else None

    def _give(self, lo: int, hi: int) -> None:
        self._sends.append((self._asks.pop(0)[0], StealMessage(StealKind.GIVE, self.epoch, lo, hi)))

    def _accept_given(self, source: int, lo: int, hi: int) -> None:
        if not self._hosts.answered(source, gave=lo < hi):
            raise ProtocolError(f"GIVE of {lo}..{hi - 1} from rank {source}, which was not asked")
        if lo < hi:
            self.steals.append((source, hi - lo))
            self._given.append(self._interval(lo, hi))


# --- chunks -------------------------------------------------------------------------------------------------------------

SHORTEST_S, LONGEST_S = 1e-3, 8e-3  # of a chunk
AT_ONCE_S = 0.1e-3  # of a chunk after which the next one may be four times as long
PART = 3  # of the tasks that a rank owns, it begins one in so many together


class Pace:
    """The length of the next chunk, from the time of the last one; always `fixed` if that is not 0.

    A chunk is a part of what the rank owns (guided self-scheduling, Polychronopoulos and Kuck 1987): long ones cost less,
    but what has begun can't be stolen.  It should last for at least `SHORTEST_S`, which is long compared with the cost of
    taking it, and at most `LONGEST_S`, since a rank answers no messages meanwhile.  Wall-clock time counts, since a task
    may also sleep, or wait for a file or a GPU.  But a lost time slice can make a chunk look a hundred times longer, so the
    time of a task is believed to be at most twice as long as before.
    """

    def __init__(self, fixed: int = 0) -> None:
        self._fixed = fixed
        self._task_s = math.inf  # of a task
        self._most = 1  # twice as many as the longest chunk had, or four times if it was over at once

    def n(self, owned: int) -> int:
        """Return how many of the tasks that a rank owns are its next chunk."""
        if self._fixed:
            return min(self._fixed, owned)
        fitting = min(max(SHORTEST_S / self._task_s, owned // PART), LONGEST_S / self._task_s)
        return min(max(1, int(fitting)), self._most, owned)

    def observe(self, n: int, seconds: float) -> None:
        """Observe a chunk of n tasks."""
        self._task_s = max(1e-9, min(seconds / n, 2 * self._task_s))
        self._most = max(self._most, n * (4 if seconds < AT_ONCE_S else 2))


def share(n: int, mine: float, theirs: float) -> int:
    """Return how many of a victim's n tasks not begun a thief takes: both should finish at about the same time.

    The victim is assumed to be in the middle of a task.  `mine` and `theirs` are the speeds of thief and victim.  A slow
    thief leaves the last task to a fast victim.
    """
    even = (n + 0.5) * mine / (mine + theirs)
    fewer, more = math.floor(even), min(n, math.ceil(even))

    def end(taken: int) -> float:
        return max(taken / mine, (n - taken + 0.5) / theirs)

    return more if end(more) <= end(fewer) else fewer


# --- the end of a map ---------------------------------------------------------------------------------------------------

NEAR = 16  # a rank with more tasks of its own is not near the end


class MapTail:
    """The end of a map for one rank: its estimate of the ranks on its host, and whether it leaves tasks to them.

    `host`: all ranks; none if there are several hosts, since what is left on one of them tells little of the others.
    """

    def __init__(self, rank: int, host: Sequence[int], timings: Timings, knowledge: RankKnowledge) -> None:
        self.rank, self._host, self._timings, self._knowledge = rank, host, timings, knowledge
        self._learns = False
        self._mine = Timing()
        self.until = 0.0  # it leaves tasks until then
        self._decided = False  # since its last chunk

    def begin(self, epoch: int, *, learns: bool) -> None:
        """Begin a map; not `learns`: the costs are known, so that long tasks come first."""
        self._learns = learns and len(self._host) > 1
        self._mine = Timing(epoch)
        self.until, self._decided = 0.0, False
        if self._learns:
            self._timings[self.rank] = self._mine

    def observe(self, n: int, seconds: float) -> None:
        """Publish a chunk of n tasks."""
        self.until, self._decided = 0.0, False
        if self._learns:
            self._mine = self._timings[self.rank] = self._mine.added(seconds, n)

    @property
    def has_run(self) -> bool:
        """True if this rank has run tasks of this map."""
        return self._mine.n > 0

    def estimate(self) -> Estimate | None:
        """Return what is known of the ranks on this host; None: nothing of how long the tasks are."""
        if not self._learns:
            return None
        timings = {rank: timing for rank in self._host if (timing := self._timings[rank]).epoch == self._mine.epoch}
        return self._knowledge.estimate(self._host, timings)

    def leaves(self, now: float, tasks: Callable[[], float]) -> bool:
        """Return whether this rank, which could begin one of the `tasks()` not begun on its host, leaves them to others."""
        if not self._decided:
            self.until, self._decided = now + self._wait_s(tasks), True
        return now < self.until

    def _wait_s(self, tasks: Callable[[], float]) -> float:
        if self._mine.seconds <= LONG_S * self._mine.n and self._mine.n:
            return 0.0
        known = self.estimate()
        if known is None or known.task_s < LONG_S * known.speeds[self.rank]:
            return 0.0
        return wait_s(known, self.rank, tasks())


# --- other hosts --------------------------------------------------------------------------------------------------------


class _Hosts:
    """The other hosts: each is asked once, in random order, then again after pauses that grow while they have nothing."""

    def __init__(self, others: Sequence[Sequence[int]], rng: random.Random) -> None:
        self.asked: set[int] = set()  # ranks whose answer is outstanding
        self.ready_at = 0.0
        self._others = [list(host) for host in others]
        self._rng = rng
        self._left: list[list[int]] = []
        self._latest = -1  # the rank whose answer is awaited before asking the next host
        self._pause_s = 0.0

    def begin(self) -> None:
        """Begin a new map: an answer still under way belongs to the old one."""
        self.asked.clear()
        self.ready_at = 0.0 if self._others else math.inf
        self._pause_s = 0.0
        self._left = self._rng.sample(self._others, len(self._others))

    def ask(self, now: float) -> int | None:
        """Return a rank to ask now; None if there is none."""
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
        """Process an answer of a rank; return False if it wasn't asked."""
        if source not in self.asked:
            return False
        self.asked.remove(source)
        if source == self._latest:
            self.ready_at = 0.0
        if gave:
            self._pause_s = self.ready_at = 0.0
        return True
