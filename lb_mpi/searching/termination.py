"""Termination detection: Safra's token on the ring, and Dijkstra and Scholten's tree on a random route.   (pure)

Sources: Dijkstra, "Shmuel Safra's version of termination detection" (EWD998, 1987); Dijkstra, Scholten, "Termination
detection for diffusing computations" (Information Processing Letters 11, 1980).

Safra's token
-------------
A rank is active if it has work, otherwise passive.  Only WORK messages make a passive rank active, so only they are counted:
`count` = sent minus received.  A rank that receives one turns black.  A token (count, colour) goes round the ring; an active
rank keeps it, a passive one adds its own count and colour, passes it on, and turns white.

The initiator detects the end if it is passive and white, and the token is back, white, and token.total + count = 0.
Otherwise the probe was inconclusive, and it sends a new one after a pause.

Invariant (EWD998, with B = the WORK messages under way, t = the position of the token, q = its count):
    B = the sum of all counts, and at least one of
    P1  all ranks that the token has visited are passive, and the sum of their counts = q
    P2  the sum of the visited ranks' counts + q > 0   (q counts what the rest will receive)
    P3  some rank that is not visited yet is black
    P4  the token is black

rank           holds the token, passive and                             does
-------------  -------------------------------------------------------  ----------------------------------------------
not initiator  -                                                        pass on (token.total + count, either is black);
                                                                        turn white
initiator      white, token white, token.total + count = 0              it is over
initiator      otherwise, pause is over                                 pass on (0, white); turn white

Dijkstra and Scholten's tree
----------------------------
Safra's token needs a hop for every rank and round.  Here a rank that gives work away gets an ACK when that work is done.
The working ranks form a tree, which shrinks from its leaves, and all work is done when only the root is left.

A rank is engaged or free.  An engaged rank other than the root has a `parent`, to which it owes an ACK.  The `deficit` of a
rank is the number of its WORK messages not yet acknowledged.

- WORK makes a free rank the child of its sender.  WORK to an engaged rank is acknowledged once that rank has no work: one
  message acknowledges all that one sender has sent.
- An engaged rank without work and without a deficit sends its parent the ACK that it owes, too, and becomes free; the root
  in that state knows that the search is over.
- At the start all ranks are engaged, each as the child of its parent in the binomial tree (`walking`).  So any rank may have
  work from the start, as after a restart, and a rank without work is free after its first turn: one ACK a rank.

Invariant, in each state and for any order of messages:
    the deficit of a rank = the WORK from it under way + the ACKs that others owe it, beside those of its children
                            + the messages that ACKs under way to it acknowledge + its engaged children
    every rank that has work, or a deficit, is engaged
    from every engaged rank the parents lead to the root
Summed over all ranks: deficits = WORK under way + WORK whose ACK is owed or under way + engaged ranks without the root.  So
when the root has no deficit, its subtree is empty: no other rank is engaged, nothing is under way.

A rank without work owes no ACK at the end of a turn, except to its parent; so no two ranks wait for each other's.

rank               event                              does                            is then
-----------------  ---------------------------------  ------------------------------  -----------
free               WORK                               parent = its sender             engaged
engaged            WORK                               owes its sender one more ACK    engaged
engaged            WORK is sent                       deficit + 1                     engaged
engaged            ACK of n messages                  deficit - n                     engaged
engaged            no work                            ACK to each that it owes one    engaged
engaged, not root  no work and no deficit             the same, and to its parent     free
root               no work and no deficit             the same; it is over            engaged

The cost: at most one ACK for each WORK, and nothing while no work moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from lb_mpi.errors import ProtocolError
from lb_mpi.searching.drafting import MOVES, Kind, Message, Pause, Send
from lb_mpi.searching.walking import children, parent


class Token(NamedTuple):
    """Safra's token."""

    total: int
    black: bool


class Safra:
    """Safra's algorithm on one rank of a `ring`.  Rank 0, the initiator, has the token, as after an inconclusive probe."""

    above = 0  # the rank to which the one that knows the end sends FINISH

    def __init__(self, rank: int, ring: Sequence[int], pause: Pause) -> None:
        self.rank, self.successor, self.pause = rank, ring[(ring.index(rank) + 1) % len(ring)], pause
        self.below: Sequence[int] = range(1, len(ring)) if rank == 0 else ()  # the ranks to which this one sends STOP
        self.count = 0
        self.black = False
        self.token: Token | None = Token(0, True) if rank == 0 else None
        self.not_before = 0.0
        self.over = False

    @property
    def wake_at(self) -> float:
        """The time of the next action if no message arrives (inf: never)."""
        return self.not_before if self.token is not None else math.inf

    def sent(self) -> None:
        """Count a message with work that leaves this rank."""
        self.count += 1

    def receive(self, message: Message, now: float) -> bool:
        """Process a message; return True for the token, which is for nobody else.  ProtocolError if it is here already."""
        if message.kind is Kind.TOKEN:
            if self.token is not None:
                raise ProtocolError(f"a second token {message} beside {self.token}")
            self.token = Token(message.seq, bool(message.pid))
            if self.rank == 0:
                self.not_before = now + self.pause.next()
            return True
        if message.kind in MOVES:  # the rank may become active again behind the token
            self.count -= 1
            self.black = True
        return False

    def settle(self, active: bool, now: float) -> list[Send]:
        """Continue after processing all messages; `active`: this rank has work.  Set `over` when all work is done."""
        token = self.token
        if active or token is None or self.over:
            return []
        if self.rank:
            new = Token(token.total + self.count, token.black or self.black)
        else:
            conclusive = not token.black and not self.black and token.total + self.count == 0
            if conclusive or self.successor == self.rank:
                self.over = True
                return []
            if now < self.not_before:
                return []
            new = Token(0, False)
        self.token, self.black = None, False
        return [(self.successor, Message(Kind.TOKEN, self.rank, new.total, int(new.black)))]


class Scholten:
    """The algorithm of Dijkstra and Scholten on one of `size` ranks; rank 0 is the root."""

    wake_at = math.inf  # nothing is due before a message arrives

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.above, self.below = parent(rank), children(rank, size)  # as in `Safra`
        self.parent = self.above  # owed an ACK while this rank is engaged
        self.owed: dict[int, int] = {}  # further ACKs, by rank, while this rank has work
        self.engaged = True
        self.deficit = len(self.below)
        self.over = False

    def sent(self) -> None:
        """Count a message with work that leaves this rank."""
        if not self.engaged:
            raise ProtocolError(f"rank {self.rank} sends work, but it isn't engaged")
        self.deficit += 1

    def receive(self, message: Message, now: float) -> bool:
        """Process a message; return True for an ACK, which is for nobody else.

        ProtocolError for an ACK of less than one message, or of more than the deficit.
        """
        if message.kind is Kind.ACK:
            if not 1 <= message.pid <= self.deficit:
                raise ProtocolError(f"rank {self.rank} got {message}, but the other ranks owe it {self.deficit}")
            self.deficit -= message.pid
            return True
        if message.kind in MOVES:
            self.received(message.pid)
        return False

    def received(self, sender: int) -> None:
        """Process the arrival of a message with work from `sender`."""
        if self.engaged:
            self.owed[sender] = self.owed.get(sender, 0) + 1
        else:
            self.engaged, self.parent = True, sender

    def settle(self, active: bool, now: float) -> list[Send]:
        """Continue after processing all messages; `active`: this rank has work.  Set `over` when all work is done."""
        if active or not self.engaged:
            return []
        owed, self.owed = self.owed, {}
        if self.deficit == 0 and self.rank == 0:
            self.over = True
        elif self.deficit == 0:
            self.engaged = False
            owed[self.parent] = owed.get(self.parent, 0) + 1
        return [(rank, Message(Kind.ACK, self.rank, pid=n)) for rank, n in owed.items()]
