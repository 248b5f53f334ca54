"""What a search must be able to do so that its work can be moved between ranks.

The protocol knows work only as an opaque thing (stealing, "Any problem, not only the maze"): do some units of it, value
its load, split it, absorb a part, be packed as bytes.  Every rank makes the problem alike; rank 0 is told to `start`.
"""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Problem(Protocol):
    """One rank's part of a search.  All methods are called between work quanta, never concurrently."""

    def start(self) -> None:
        """Take the whole problem in hand (called on rank 0 only, once)."""

    def work(self, units: int) -> int:
        """Do at most `units` (>= 1) units of work; return the number done, less than `units` only when nothing is left
        in hand or the search is over (`found`).
        """

    def load(self) -> float:
        """Value the unfinished work in hand: 0.0 exactly when there is none, otherwise > 0, in any unit."""

    def split(self) -> bytes | None:
        """Give away about half of the work in hand, packed; None when it can't be split.  Something is kept."""

    def absorb(self, payload: bytes) -> None:
        """Take in what another rank's `split` packed (only called with no work in hand)."""

    @property
    def found(self) -> bool:
        """True when this rank has an answer that ends the whole search (for "any solution"); counting searches: False."""

    def result(self) -> Any:
        """This rank's partial result (picklable), read after the search has ended."""

    def merge(self, one: Any, other: Any) -> Any:
        """Combine two partial results (associative; applied in rank order)."""
