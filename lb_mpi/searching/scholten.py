"""When is everybody done, on thousands of ranks?  The algorithm of Dijkstra and Scholten.   (pure)

Source: Dijkstra, Scholten, "Termination detection for diffusing computations" (Information Processing Letters 11, 1980).

Safra's token (`termination`) takes a hop for every rank and round.  Here who gives work away is told when it is done: the
ranks that work form a tree, which shrinks from its leaves, and it is all over when only its root is left.

The law
-------
A rank is engaged, or not.  An engaged one, but for the root, has a `parent`, and owes it one ACK.  The `deficit` of a rank
counts the messages it has sent as WORK and that nobody has acknowledged.

- WORK makes a rank that isn't engaged the child of its sender.  WORK to an engaged rank is acknowledged at once.
- An engaged rank without work in hand and without a deficit sends its parent the ACK that it owes, and is free; the root
  in that state knows that it is over.
- In the beginning all ranks are engaged, each as the child of its parent in the binomial tree (`tree`): so any rank may
  have work from the start, as after a restart, and who has none is free after its first turn.  That is one ACK a rank.

Invariant, in each state and whatever order messages arrive in:
    the deficit of a rank = the WORK from it that is under way + the ACKs under way to it + its engaged children
    every rank that has work in hand, or a deficit, is engaged
    from every engaged rank the parents lead to the root
Summed up over all ranks: deficits = WORK under way + ACKs under way + engaged ranks without the root.  So when the root has
no deficit, the sum of its subtree is empty: nobody else is engaged, nothing is under way.

The table
---------
rank               event                              does                            is then
-----------------  ---------------------------------  ------------------------------  -----------
free               WORK                               parent = its sender             engaged
engaged            WORK                               ACK to its sender               engaged
engaged            WORK is sent                       deficit + 1                     engaged
engaged            ACK                                deficit - 1                     engaged
engaged, not root  no work in hand and no deficit     ACK to the parent               free
root               no work in hand and no deficit     it is over                      engaged

What it costs: one ACK for each WORK, and nothing while nobody moves any.
"""

from __future__ import annotations

import math
from typing import Literal

from lb_mpi.errors import ProtocolError
from lb_mpi.searching import tree
from lb_mpi.searching.drafting import Kind, Message, Send


class Scholten:
    """The algorithm of Dijkstra and Scholten on one of `size` ranks; rank 0 is the root."""

    route: Literal["random"] = "random"

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.parent = tree.parent(rank)  # whom an ACK is owed to, as long as this rank is engaged
        self.engaged = True
        self.deficit = len(tree.children(rank, size))
        self.over = False

    @property
    def wake_at(self) -> float:
        """When there is something to do even if no message arrives: never."""
        return math.inf

    def sent(self) -> None:
        """A WORK message leaves this rank."""
        if not self.engaged:
            raise ProtocolError(f"rank {self.rank} sends work, but it isn't engaged")
        self.deficit += 1

    def received(self, sender: int) -> list[Send]:
        """A WORK message of `sender` has arrived."""
        if self.engaged:
            return [(sender, Message(Kind.ACK, self.rank))]
        self.engaged, self.parent = True, sender
        return []

    def acknowledged(self) -> None:
        """An ACK has arrived; ProtocolError when none is due."""
        if self.deficit < 1:
            raise ProtocolError(f"rank {self.rank} got an ACK, but nobody owes it one")
        self.deficit -= 1

    def settle(self, active: bool) -> list[Send]:
        """All messages that had arrived are served; `active`: there is work in hand.  Sets `over` when all is done."""
        if active or self.deficit > 0 or not self.engaged:
            return []
        if self.rank == 0:
            self.over = True
            return []
        self.engaged = False
        return [(self.parent, Message(Kind.ACK, self.rank))]
