"""One rank of receiver-initiated stealing over a token ring: DRAFTING, REJECT, ADMISSION.   (pure)

Source: Xu, Zhang, Sun, "A dynamic and distributed algorithm for load balancing on multiprocessors" (Nanjing University,
1991), rules 1 to 4 of the drafting protocol, with the gaps of the paper closed.

The law
-------
A rank without work (the drafter, or thief) sends a token DRAFTING(source, seq, pid, load) round the ring.  A rank with more
work than the token names, and more than the threshold J, writes itself in as the volunteer (pid, load) and sends the
previous volunteer a REJECT.  When the token returns, the drafter sends ADMISSION to the last volunteer (the victim), which
splits its work and sends a part as WORK, or NOWORK if nothing is left to split.

- Every piece of work is in exactly one place: with a rank, or in one WORK message.
- A source has at most one token on the ring; (source, seq) identifies it forever.
- A rank volunteers only when BUSY, so it holds one promise at most; a promise is answered exactly once, by a REJECT or an
  ADMISSION that carries its (source, seq).
- WORK and NOWORK go only to a rank in READY_FOR_ACCEPT, and answer its ADMISSION of the same (source, seq).
- A token is never kept: another's DRAFTING is passed on in every state, so all tokens return.
- A rank that waits for an answer goes on working; if it runs out of work, it doesn't draft before the answer.

The table (what is not in it is a ProtocolError)
------------------------------------------------
(drawn from `TABLE`)

Fairness: a rank counts, per source, how often it had to let that source's token pass although it was the better volunteer.
It doesn't volunteer for a source while another has been skipped `PATIENCE` times more, and such a pass also counts as a
skip.  So the counts draw level, some rank is answered, and none is overtaken forever.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from lb_mpi.errors import ProtocolError
from lb_mpi.searching.problem import Problem

NOBODY = -1
PATIENCE = 4

# --- the table, as data: a rank's reaction to each event, on the ring and with walking drafts.  The tests check every
# observed step against it, and `walking` derives from it what may arrive in which state. ------------------------------


class Row(NamedTuple):
    """One rule of drafting."""

    route: str  # of the drafts: "ring" or "random"
    state: str  # of the rank; "any": all states
    event: str  # the message that arrives, or in brackets the condition at the end of a turn
    does: str
    then: str  # the next state; "same": unchanged


TABLE = (
    Row("ring", "IDLE", "(pause is over)", "DRAFTING(me, seq + 1, none, 0) to the successor", "WAIT_FOR_ACK"),
    Row("ring", "WAIT_FOR_ACK", "own DRAFTING, none", "a growing, jittered pause begins", "IDLE"),
    Row("ring", "WAIT_FOR_ACK", "own DRAFTING, pid", "ADMISSION to pid", "READY_FOR_ACCEPT"),
    Row("ring", "READY_FOR_ACCEPT", "WORK", "absorb it", "BUSY"),
    Row("ring", "READY_FOR_ACCEPT", "NOWORK", "draft again at once", "IDLE"),
    Row("ring", "BUSY", "another's DRAFTING", "Q > load, Q > J: REJECT to pid, write (me, Q) in it", "WAIT_FOR_ADMISSION"),
    Row("ring", "BUSY", "another's DRAFTING", "otherwise: pass it on unchanged", "BUSY"),
    Row("ring", "BUSY", "(no work left)", "", "IDLE"),
    Row("ring", "WAIT_FOR_ADMISSION", "REJECT", "", "BUSY"),
    Row("ring", "WAIT_FOR_ADMISSION", "ADMISSION", "", "READY_FOR_SPLIT"),
    Row("ring", "READY_FOR_SPLIT", "(messages answered)", "split: WORK to the drafter, or NOWORK", "BUSY"),
    Row("ring", "any but BUSY", "another's DRAFTING", "pass it on unchanged", "same"),
    Row("random", "IDLE", "(no walk of mine is out)", "DRAFTING(me, seq + 1, left = reach) to a random rank", "WALKING"),
    Row("random", "IDLE", "(an earlier one is out)", "that walk counts as this one", "WALKING"),
    Row("random", "WALKING", "own DRAFTING", "STAND(me) to each neighbour that holds none of mine", "ASLEEP"),
    Row("random", "BUSY", "own DRAFTING", "drop it", "BUSY"),
    Row("random", "any", "another's DRAFTING", "queue it until the end of the turn", "same"),
    Row("random", "any", "STAND", "keep it until it is answered", "same"),
    Row("random", "any", "OWNED", "take it in hand", "BUSY"),
    Row("random", "WALKING", "WORK", "absorb it", "BUSY"),
    Row("random", "ASLEEP", "WORK", "absorb it", "BUSY"),
    Row("random", "BUSY", "WORK", "keep it, to be absorbed when there is none in hand", "BUSY"),
    Row("random", "BUSY", "(drafts, and work for them)", "WORK to walks, then to those that stand, from one split", "BUSY"),
    Row("random", "any", "(a walk wasn't answered)", "left - 1 > 0: on to a random rank, otherwise home", "same"),
    Row("random", "BUSY", "(no work left)", "", "IDLE"),
)


def draw(route: str) -> str:
    """Draw the rows of one route for a docstring."""
    head = ("state", "arrives", "does", "next state")
    rows: Sequence[Sequence[str]] = [head, *(row[1:] for row in TABLE if row.route == route)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


__doc__ = (__doc__ or "").replace("(drawn from `TABLE`)", draw("ring"))

# --- messages and states ----------------------------------------------------------------------------------------------


class Kind(IntEnum):
    """The kinds of messages."""

    DRAFTING = 1
    REJECT = 2
    ADMISSION = 3
    WORK = 4
    NOWORK = 5
    TOKEN = 6
    FINISH = 7
    STOP = 8
    BOUND = 10
    PAUSE = 12  # of a save (see `lb_mpi.searching.saves`), up to ASK
    COUNT = 13
    WRITE = 14
    WRITTEN = 15
    GO = 16
    ASK = 17
    STAND = 20  # this and the next: only with walking drafts
    ACK = 21
    OWNED = 22  # work that belongs to its receiver (see `lb_mpi.searching.problem.Owning`)


class Message(NamedTuple):
    """One message, of any kind.  (source, seq) identifies its draft, if it belongs to one."""

    kind: Kind
    source: int
    seq: int = 0
    pid: int = NOBODY  # DRAFTING: the volunteer so far, of a walk the hops left; WORK of a walk: its sender; TOKEN: 1
    # when black; FINISH, STOP: the reason; COUNT: the sum; OWNED: its sender; ACK: of how many messages
    load: float = 0.0  # DRAFTING: the claimed load, of a walk, and STAND: the speed of its source; BOUND: the value
    payload: bytes = b""  # WORK, OWNED: the packed part; WRITTEN: receipts


MOVES = (Kind.WORK, Kind.OWNED)  # messages with work, counted by the termination

Send = tuple[int, Message]  # destination rank, message


class State(IntEnum):
    """The six states of the paper, and two of a rank with walking drafts."""

    IDLE = 0
    WAIT_FOR_ACK = 1
    READY_FOR_ACCEPT = 2
    BUSY = 3
    WAIT_FOR_ADMISSION = 4
    READY_FOR_SPLIT = 5
    WALKING = 6
    ASLEEP = 7


class Pause:
    """A pause that doubles from `shortest` to `longest` seconds, each time with a jitter of 0.5 to 1 of its length."""

    def __init__(self, shortest: float, longest: float, rng: random.Random) -> None:
        self.shortest, self.longest, self._rng = shortest, longest, rng
        self._length = shortest

    def next(self) -> float:
        """Return the seconds to wait now; the next pause will be longer."""
        length = self._length * (0.5 + 0.5 * self._rng.random())
        self._length = min(2.0 * self._length, self.longest)
        return length

    def reset(self) -> None:
        """Restart with `shortest`."""
        self._length = self.shortest


class Terms(NamedTuple):
    """The terms on which a rank drafts and volunteers."""

    threshold: float  # J, in the unit of `problem.load()`
    pause: Pause  # between drafts without a volunteer
    once: bool = False  # a rank that has had work never drafts again: each rank gets one share, and nothing moves afterwards


class Drafting:
    """The drafting protocol of one rank; `successor` is the next on the ring; it moves the work of `problem`."""

    kept: Sequence[bytes] = ()  # parts of work that wait to be absorbed

    def __init__(self, rank: int, successor: int, problem: Problem, terms: Terms) -> None:
        self.rank, self.successor, self.problem, self.terms = rank, successor, problem, terms
        self.state = State.IDLE
        self.seq = 0
        self.promise: tuple[int, int] | None = None  # (source, seq) for which this rank volunteered
        self.not_before = 0.0  # no draft before this time
        self.skipped: dict[int, int] = {}
        self.had_work = False
        self.received = 0  # WORK messages absorbed
        self.load = 0.0  # problem.load() at the end of the last `settle`

    def start(self) -> None:
        """Note that this rank has work from the beginning."""
        self.state, self.had_work = State.BUSY, True

    def clock(self, now: float, units: int, active: bool) -> None:
        """Ignore how fast this rank works: no draft on the ring names a speed."""

    def receive(self, message: Message, now: float) -> list[Send]:
        """Process one message, by the rows of the table."""
        kind, state = message.kind, self.state
        if kind is Kind.DRAFTING:
            if message.source != self.rank:
                return [*self._pass_or_volunteer(message)]
            if state is State.WAIT_FOR_ACK and message.seq == self.seq:
                return self._own_draft_is_home(message, now)
        elif kind is Kind.WORK or kind is Kind.NOWORK:
            if state is State.READY_FOR_ACCEPT and (message.source, message.seq) == (self.rank, self.seq):
                return self._answered(message, now)
        elif state is State.WAIT_FOR_ADMISSION and (message.source, message.seq) == self.promise:
            if kind is Kind.ADMISSION:
                self.state = State.READY_FOR_SPLIT
                return []
            if kind is Kind.REJECT:
                self.state, self.promise = State.BUSY, None
                return []
        raise ProtocolError(
            f"rank {self.rank} in {state.name} (draft {self.seq}, promise {self.promise}) got {message}"
        )

    def settle(self, now: float) -> list[Send]:
        """Continue after processing all messages: split if admitted, and draft if there is no work."""
        sends: list[Send] = []
        if self.state is State.READY_FOR_SPLIT:
            sends.append(self._split())
        self.load = self.problem.load()  # once a turn: it may cost some microseconds
        if self.state is State.BUSY and not self.load > 0.0:
            self.state, self.not_before = State.IDLE, now
        if self.state is State.IDLE and now >= self.not_before and self.may_draft:
            self.seq += 1
            self.state = State.WAIT_FOR_ACK
            sends.append((self.successor, Message(Kind.DRAFTING, self.rank, self.seq)))
        return sends

    @property
    def wake_at(self) -> float:
        """The time of the next action if no message arrives (inf: never)."""
        return self.not_before if self.state is State.IDLE and self.may_draft else math.inf

    @property
    def may_draft(self) -> bool:
        """Return False for a rank alone on the ring, or one that has had its only share."""
        return self.successor != self.rank and not (self.terms.once and self.had_work)

    def _pass_or_volunteer(self, message: Message) -> list[Send]:
        if self.state not in (State.BUSY, State.WAIT_FOR_ADMISSION):
            return [(self.successor, message)]
        load = self.problem.load()
        if not load > max(message.load, self.terms.threshold):
            return [(self.successor, message)]
        skips = self.skipped.get(message.source, 0)
        if self.state is not State.BUSY or max(self.skipped.values(), default=0) >= skips + PATIENCE:
            self.skipped[message.source] = skips + 1
            return [(self.successor, message)]
        self.state, self.promise = State.WAIT_FOR_ADMISSION, (message.source, message.seq)
        mine = message._replace(pid=self.rank, load=load)
        if message.pid == NOBODY:
            return [(self.successor, mine)]
        return [(message.pid, Message(Kind.REJECT, message.source, message.seq)), (self.successor, mine)]

    def _own_draft_is_home(self, message: Message, now: float) -> list[Send]:
        if message.pid == NOBODY:
            self.state, self.not_before = State.IDLE, now + self.terms.pause.next()
            return []
        self.state = State.READY_FOR_ACCEPT
        return [(message.pid, Message(Kind.ADMISSION, self.rank, self.seq))]

    def _answered(self, message: Message, now: float) -> list[Send]:
        if message.kind is Kind.NOWORK:
            self.state, self.not_before = State.IDLE, now
            return []
        self.problem.absorb(message.payload)
        self.state, self.had_work = State.BUSY, True
        self.received += 1
        self.terms.pause.reset()
        return []

    def _split(self) -> Send:
        assert self.promise is not None
        source, seq = self.promise
        # The load may have dropped since the promise: compute it again.
        part = self.problem.split() if self.problem.load() > self.terms.threshold else None
        self.state, self.promise = State.BUSY, None
        self.skipped.pop(source, None)
        if part is None:
            return source, Message(Kind.NOWORK, source, seq)
        return source, Message(Kind.WORK, source, seq, payload=part)
