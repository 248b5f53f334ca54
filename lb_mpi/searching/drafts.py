"""The drafts that a rank could serve, and whose turn it is.   (pure)

Walks go before standing drafts: one that isn't served goes on to another rank.  Standing ones are served first
come, first served.  After `PATIENCE` walks have gone before the one that has stood longest, that one is the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lb_mpi.searching.drafting import PATIENCE


class Draft(NamedTuple):
    """A draft that a rank could serve."""

    source: int  # the rank that wants work
    seq: int  # of its walk; 0: a standing draft
    weight: int = 1  # ranks that it wants work for
    left: int = 0  # hops that a walk may still make


class Drafts:
    """The drafts of others that are with one rank."""

    def __init__(self, standing: Iterable[Draft] = ()) -> None:
        self.walks: list[Draft] = []  # queued since the begin of the turn
        self.standing = list(standing)  # the one that has stood longest first
        self.overtaken = 0  # walks served since that one could have been

    def __bool__(self) -> bool:
        return bool(self.walks or self.standing)

    def stands(self, source: int) -> bool:
        """Tell if a standing draft of this rank is here."""
        return any(draft.source == source for draft in self.standing)

    def in_order(self) -> list[Draft]:
        """List all of them, those first whose turn it is."""
        if self.standing and self.overtaken >= PATIENCE:
            return [self.standing[0], *self.walks, *self.standing[1:]]
        return [*self.walks, *self.standing]

    def serve(self, n: int) -> list[Draft]:
        """Take out the first `n` of them, and list them."""
        served = self.in_order()[:n]
        n_walks = sum(draft.seq > 0 for draft in served)
        self.walks = self.walks[n_walks:]
        self.standing = self.standing[n - n_walks :]
        self.overtaken = self.overtaken + n_walks if self.standing and n == n_walks else 0
        return served

    def leave(self) -> list[Draft]:
        """Take out the walks, and list them."""
        walks, self.walks = self.walks, []
        return walks
