"""When is everybody done?  Safra's token.   (pure)

Source: Dijkstra, "Shmuel Safra's version of termination detection" (EWD998, 1987).

The law
-------
A rank is active when it has work in hand, otherwise passive.  Only WORK messages make a passive rank active, so only they
are counted: `count` = sent minus received.  A rank that receives one turns black.  A token (count, colour) goes round the
ring; an active rank keeps it, a passive one adds its own count and colour, passes it on, and turns white.

The initiator ends it all when it is passive and white, and the token is home, white, and token.total + count = 0.
Otherwise the probe was inconclusive, and it sends out a new one, after a pause.

Invariant (EWD998, with B = the WORK messages under way, t = the position of the token, q = its count):
    B = the sum of all counts, and one of
    P1  all ranks that the token has visited are passive, and the sum of their counts = q
    P2  the sum of the visited ranks' counts + q > 0   (q counts what the rest will hear of)
    P3  some rank that is not visited yet is black
    P4  the token is black

The table
---------
rank           holds the token, passive and                             does
-------------  -------------------------------------------------------  ----------------------------------------------
not initiator  -                                                        pass on (token.total + count, either is black);
                                                                        turn white
initiator      white, token white, token.total + count = 0              it is over
initiator      otherwise, pause is over                                 pass on (0, white); turn white
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from lb_mpi.errors import ProtocolError
from lb_mpi.searching.drafting import Pause


class Token(NamedTuple):
    """Safra's token."""

    total: int
    black: bool


class Termination:
    """Safra's algorithm on one rank.  The initiator begins with the token in hand, as after an inconclusive probe."""

    route: Literal["ring"] = "ring"

    def __init__(self, *, initiator: bool, alone: bool, pause: Pause) -> None:
        self.initiator, self.alone, self.pause = initiator, alone, pause
        self.count = 0
        self.black = False
        self.token: Token | None = Token(0, True) if initiator else None
        self.not_before = 0.0
        self.over = False

    @property
    def wake_at(self) -> float:
        """When there is something to do even if no message arrives (inf: never)."""
        return self.not_before if self.token is not None else math.inf

    def sent(self) -> None:
        """A WORK message leaves this rank."""
        self.count += 1

    def received(self) -> None:
        """A WORK message has arrived: the rank may be active again behind the token's back."""
        self.count -= 1
        self.black = True

    def arrive(self, token: Token, now: float) -> None:
        """The token has come to this rank; ProtocolError when it is here already."""
        if self.token is not None:
            raise ProtocolError(f"a second token {token} beside {self.token}")
        self.token = token
        if self.initiator and not self._conclusive(token):
            self.not_before = now + self.pause.next()

    def settle(self, active: bool, now: float) -> Token | None:
        """The token to pass to the successor now, if any; sets `over` when all is done."""
        if active or self.token is None or self.over:
            return None
        token = self.token
        if not self.initiator:
            self.token, out = None, Token(token.total + self.count, token.black or self.black)
            self.black = False
            return out
        if self.alone or self._conclusive(token):
            self.over = True
            return None
        if now < self.not_before:
            return None
        self.token, self.black = None, False
        return Token(0, False)

    def _conclusive(self, token: Token) -> bool:
        return not token.black and not self.black and token.total + self.count == 0
