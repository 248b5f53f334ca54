"""One rank of work stealing on thousands of ranks: drafts that walk, and drafts that stand.   (pure)

A draft on the ring (`drafting`) needs a hop for each rank.  Here it walks over some random ranks.  If none of them could
answer it, it returns, and its rank leaves a standing draft with each of its neighbours on the hypercube and falls asleep.  A
neighbour with spare work answers it later, so no rank asks repeatedly.

Source: the terms, J and the split between work quanta are those of Xu, Zhang, Sun 1991 (see `drafting`).  The standing
drafts are those of Saraswat et al., "Lifeline-based global load balancing" (PPoPP 2011).

The law
-------
- Every piece of work is in exactly one place: being worked on by a rank, kept by a rank, or in one WORK message.
- A source has at most one walk out; (source, seq) identifies it forever.  It is out exactly while its DRAFTING is under way
  or queued, or the WORK that answers it is under way.
- A source has at most one standing draft with each neighbour.  The neighbour is in the source's `stood` exactly while
  STAND is under way, kept by it, or the WORK that answers it is under way.
- Each draft is answered once at most: by the returning walk, after at most `reach` + 1 hops, or by WORK.
- A rank that is ASLEEP has no walk out, and a standing draft with each of its neighbours; one that never had work has a
  standing draft with its parent in the binomial tree only.  It is silent until a message arrives.
- WORK may reach a BUSY rank, from an earlier standing draft.  It is kept packed, and absorbed when no other work is left, or
  passed on to the next draft.  `absorb` is only called without work, on the ring and here.
- OWNED belongs to its receiver (see `Owning`), in any state; it answers no draft.
- No order between messages is assumed.

At the start every rank without work is ASLEEP, and its draft stands, unsent, with its parent in the binomial tree, weighted
by the number of ranks below it.  So work reaches all in log2 P splits, in fair shares.

No rank waits forever: unanswered walks return, and no rank holds anything while it waits.  A rank with Q > J at the end of a
turn answers its drafts, walks first, since they would otherwise move on; after `PATIENCE` of those in a row the oldest
standing draft is first.  Ranks that ever had work are connected by edges of the binomial tree, which are edges of the
hypercube.  So while any rank keeps having Q > J, its sleeping neighbours wake, and then theirs.

One split answers many drafts: with n = min(drafts, Q / (J / 2) - 1) the work is split into n + 1 shares, by weight: the
number of ranks that the draft asks for, times the speed of its source (units of work per second in its last quanta).  A
rank that has not worked yet counts as fast as the one that splits.

The binomial tree and the hypercube
-----------------------------------
The parent of a rank is its number without the lowest set bit, r & (r - 1); rank 0 is the root.  So a rank is at most
ceil(log2 P) hops from the root, has at most that many children, and each of these edges belongs to the hypercube: parent and
child differ in one bit.  A rank needs only its own number and the number of ranks.

Example: of 8 ranks, 0 has the children 1, 2 and 4; 2 has 3; 4 has 5 and 6; 6 has 7.

The table (what is not in it is a ProtocolError)
------------------------------------------------
(drawn from `lb_mpi.searching.drafting.TABLE`)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from lb_mpi.errors import ProtocolError
from lb_mpi.searching.drafting import PATIENCE, TABLE, Kind, Message, Send, State, draw
from lb_mpi.searching.problem import Problem, shares

__doc__ = (__doc__ or "").replace("(drawn from `lb_mpi.searching.drafting.TABLE`)", draw("random"))

REACH = 16  # ranks that a walk visits; of 4, 8, 16 and 32 the best on 1,024 ranks
EQUAL = 16  # weight of a share for one rank that is as fast as the one that splits
DECAY = 0.9  # of a quantum's weight with each later one, in the speed that a rank measures
EXPECTED = {(row.state, row.event) for row in TABLE if row.route == "random"}


# --- the binomial tree and the hypercube over all ranks, by their numbers ----------------------------------------------


def parent(rank: int) -> int:
    """Return the parent of a rank; the root's is itself."""
    return rank & (rank - 1)


def children(rank: int, size: int) -> list[int]:
    """List the children of a rank, of `size` ranks in all, in order."""
    return [rank + bit for bit in _bits(rank, size) if rank + bit < size]


def descendants(rank: int, size: int) -> int:
    """Count the ranks of this one's subtree, including itself."""
    lowest = rank & -rank if rank else size
    return min(lowest, size - rank)


def neighbours(rank: int, size: int) -> list[int]:
    """List the existing neighbours on the hypercube: ranks whose number differs in one bit."""
    return [rank ^ bit for bit in _bits(0, size) if rank ^ bit < size]


def _bits(rank: int, size: int) -> list[int]:
    """List the powers of two below `size`, and below the lowest bit of `rank`."""
    lowest = rank & -rank if rank else size
    return [1 << k for k in range(min(lowest, size).bit_length()) if 1 << k < min(lowest, size)]


# --- drafts -----------------------------------------------------------------------------------------------------------


class Draft(NamedTuple):
    """A draft that a rank could serve."""

    source: int  # the rank that asks for work
    seq: int  # of its walk; 0: a standing draft
    weight: int = 1  # ranks that it asks for
    left: int = 0  # hops that a walk may still make
    speed: float = 0.0  # of the source, units of work per second; 0: unknown


class Drafts:
    """The drafts of other ranks that this rank could answer, and their order.

    Walks go before standing drafts, since an unanswered walk moves on; after `PATIENCE` walks have gone before the oldest
    standing draft, that one is the first.  Standing drafts are answered in the order of their arrival.
    """

    def __init__(self, standing: Iterable[Draft] = ()) -> None:
        self.walks: list[Draft] = []  # queued since the start of the turn
        self.standing = list(standing)  # oldest first
        self.overtaken = 0  # walks answered while a standing draft waited

    def __bool__(self) -> bool:
        return bool(self.walks or self.standing)

    def in_order(self) -> list[Draft]:
        """List all drafts in the order of service."""
        if self.standing and self.overtaken >= PATIENCE:
            return [self.standing[0], *self.walks, *self.standing[1:]]
        return [*self.walks, *self.standing]

    def serve(self, n: int) -> list[Draft]:
        """Remove and return the first `n` drafts."""
        answered = self.in_order()[:n]
        n_walks = sum(draft.seq > 0 for draft in answered)
        self.walks = self.walks[n_walks:]
        self.standing = self.standing[n - n_walks :]
        self.overtaken = self.overtaken + n_walks if self.standing and n == n_walks else 0
        return answered


# --- the rank ---------------------------------------------------------------------------------------------------------


class WalkTerms(NamedTuple):
    """The terms on which a rank drafts, and gives."""

    threshold: float  # J, in the unit of `problem.load()`
    pick: Callable[[int], int]  # pick(n): a random number from 0 to n - 1
    reach: int = REACH  # ranks that a walk visits before it returns
    once: bool = False  # a rank that has had work never drafts again: each rank gets one share, and nothing moves afterwards


class Walking:
    """The drafting protocol of one of `size` ranks; it moves the work of its `problem`."""

    wake_at = math.inf  # nothing is due before a message arrives

    def __init__(self, rank: int, size: int, problem: Problem, terms: WalkTerms) -> None:
        self.rank, self.size, self.problem, self.terms = rank, size, problem, terms
        self.state = State.ASLEEP
        self.seq = 0  # walks started by this rank
        self.out = False  # the last walk is neither back nor answered
        self.stood = {parent(rank)} if rank else set()  # neighbours that hold a standing draft of this rank
        born = [Draft(child, 0, descendants(child, size)) for child in children(rank, size)[::-1]]
        self.drafts = Drafts(born)  # of other ranks, which could be answered here
        self.kept: list[bytes] = []  # parts of work that arrived while there was other work
        self.received = 0  # WORK messages received
        self.load = 0.0  # problem.load() at the end of the last `settle`
        self._units = self._seconds = 0.0  # of the last quanta
        self._now, self._counted = 0.0, 0  # the time of the last turn, and the units of work done until then

    def start(self) -> None:
        """Note that this rank has work from the beginning."""
        self.state = State.BUSY

    def clock(self, now: float, units: int, active: bool) -> None:
        """Measure this rank's speed, at the beginning of a turn; `units` of work are done, `active`: since the last turn."""
        if active and now > self._now:
            self.worked(units - self._counted, now - self._now)
        self._now, self._counted = now, units

    def worked(self, units: int, seconds: float) -> None:
        """Measure this rank's speed: it had work for `seconds`, and did `units` of it (0: a slow rank rested, emulated)."""
        kept = DECAY if units else 1.0
        self._units, self._seconds = kept * self._units + units, kept * self._seconds + seconds

    @property
    def speed(self) -> float:
        """The units of work per second lately; 0: unknown."""
        return self._units / self._seconds if self._seconds > 0.0 else 0.0

    def receive(self, message: Message, now: float) -> list[Send]:
        """Process one message, by the rows of the table."""
        kind, source = message.kind, message.source
        event = (
            kind.name if kind is not Kind.DRAFTING else "own DRAFTING" if source == self.rank else "another's DRAFTING"
        )
        if ((self.state.name, event) in EXPECTED or ("any", event) in EXPECTED) and self._is_due(message):
            if kind is Kind.WORK:
                return self._receive_work(message)
            if kind is Kind.OWNED:
                return self._own(message.payload)
            if kind is Kind.STAND:
                self.drafts.standing.append(Draft(source, 0, speed=message.load))
                return []
            if source == self.rank:
                return self._own_walk_is_home()
            self.drafts.walks.append(Draft(source, message.seq, left=message.pid, speed=message.load))
            return []
        raise ProtocolError(
            f"rank {self.rank} in {self.state.name} (walk {self.seq}, out {self.out}, stood with {sorted(self.stood)}) "
            f"got {message}"
        )

    def settle(self, now: float) -> list[Send]:
        """Continue after processing all messages: serve drafts, let other walks move on, and draft if there is no work."""
        load = self._load()
        sends: list[Send] = []
        if self.state is State.BUSY and self.drafts and (self.kept or load > self.terms.threshold):
            sends += self._serve(load)
            load = self._load()
        for source, seq, _, left, speed in self.drafts.walks:
            to = self._next(source) if left > 1 else source
            sends.append((to, Message(Kind.DRAFTING, source, seq, left - 1, speed)))
        self.drafts.walks = []
        self.load = load
        if self.state is State.BUSY and not load > 0.0:
            self.state = State.IDLE
        if self.state is State.IDLE and self.size > 1:
            sends += self._seek()
        return sends

    def _is_due(self, message: Message) -> bool:
        """Return whether the message's draft is in the expected state."""
        kind, source, seq, pid, _, _ = message
        if kind is Kind.STAND:
            holds_one = any(draft.source == source for draft in self.drafts.standing)
            return (source ^ self.rank).bit_count() == 1 and not holds_one
        if source != self.rank:
            return kind in (Kind.DRAFTING, Kind.OWNED)
        if kind is Kind.WORK and seq == 0:
            return pid in self.stood
        return self.out and seq == self.seq

    def _receive_work(self, message: Message) -> list[Send]:
        if message.seq == 0:
            self.stood.remove(message.pid)
        else:
            self.out = False
        self.received += 1
        if self.state is State.BUSY:
            self.kept.append(message.payload)
        else:
            self.problem.absorb(message.payload)
            self.state = State.BUSY
        return []

    def _own(self, payload: bytes) -> list[Send]:
        self.problem.incoming(payload)  # type: ignore[attr-defined]
        self.state = State.BUSY
        return []

    def _own_walk_is_home(self) -> list[Send]:
        self.out = False
        if self.state is State.BUSY:
            return []
        self.state = State.ASLEEP
        new = [rank for rank in neighbours(self.rank, self.size) if rank not in self.stood]
        self.stood.update(new)
        return [(rank, Message(Kind.STAND, self.rank, load=self.speed)) for rank in new]

    def _seek(self) -> list[Send]:
        if self.terms.once:
            self.state = State.ASLEEP
            return []
        self.state = State.WALKING
        if self.out:
            return []
        self.seq, self.out = self.seq + 1, True
        return [(self._next(self.rank), Message(Kind.DRAFTING, self.rank, self.seq, self.terms.reach, self.speed))]

    def _next(self, source: int) -> int:
        """Return a random rank that is neither this one nor the source of the walk; the source if there is none."""
        low, high = sorted((self.rank, source))
        n = self.size - 1 - (low != high)
        if n == 0:
            return source
        to = self.terms.pick(n)
        to += to >= low
        return to + (to >= high and low != high)

    def _load(self) -> float:
        """Return the load, after absorbing kept parts if there is no other work."""
        load = self.problem.load()  # once a turn: it may cost some microseconds
        while self.kept and not load > 0.0:
            self.problem.absorb(self.kept.pop(0))
            load = self.problem.load()
        return load

    def _serve(self, load: float) -> list[Send]:
        """Give kept parts, and shares of the work, to as many drafts as possible."""
        drafts = self.drafts.in_order()
        parts, self.kept = self.kept[: len(drafts)], self.kept[len(drafts) :]
        waiting = drafts[len(parts) :]
        if waiting and load > self.terms.threshold:
            n = min(len(waiting), self._most(load))
            weights = [self._weight(draft) for draft in waiting]
            mine = EQUAL + sum(weights[n:])  # for this rank, and those that it will have to serve
            parts += shares(self.problem, [mine, *weights[:n]])
        return [
            (draft.source, Message(Kind.WORK, draft.source, draft.seq, self.rank, payload=part))
            for draft, part in zip(self.drafts.serve(len(parts)), parts, strict=True)
        ]

    def _weight(self, draft: Draft) -> int:
        """Return the weight of a draft's share, at least 1; see "One split answers many drafts"."""
        relative = draft.speed / self.speed if draft.speed > 0.0 and self.speed > 0.0 else 1.0
        return max(1, round(EQUAL * draft.weight * relative))

    def _most(self, load: float) -> int:
        """Return the number of shares of a load above J, so that each has at least half of J."""
        half = 0.5 * self.terms.threshold
        return self.size if load >= half * (self.size + 1) else int(load / half) - 1
