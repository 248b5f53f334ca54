"""How many tasks at a time: chunks at the front of one's own interval, shares from the back of another's.

A chunk is what is begun between two looks at the messages.  It should last about `TARGET_S`: short against what ranks wait
for at the end, long against the cost of taking it.  Time is wall-clock time, since a task that sleeps, or waits for a file
or a GPU, is as long as it takes; but a time slice that was lost to others makes a chunk look long by a hundred times, so a
chunk shrinks by half at most.
"""

from __future__ import annotations

import math

TARGET_S = 0.5e-3


class Pace:
    """The length of the next chunk, by the time that the last one took; or always `fixed`, if that is not 0."""

    def __init__(self, fixed: int = 0) -> None:
        self.n = fixed or 1
        self._fixed = fixed

    def observe(self, n: int, seconds: float) -> None:
        """A chunk of n tasks took so long: the next is at most twice, at least half the last one's length."""
        if self._fixed:
            return
        fitting = n * TARGET_S / max(seconds, 1e-9)
        self.n = max(1, int(min(max(fitting, self.n / 2), 2 * max(n, self.n))))


def share(n: int, mine: float, theirs: float) -> int:
    """How many of a victim's n tasks not begun a thief takes: so many that both are done at about the same time.

    The victim is expected to be in the middle of a task.  `mine` and `theirs` are the speeds of thief and victim.  A slow
    thief leaves the last task to a fast victim.
    """
    even = (n + 0.5) * mine / (mine + theirs)
    fewer, more = math.floor(even), min(n, math.ceil(even))

    def end(taken: int) -> float:
        return max(taken / mine, (n - taken + 0.5) / theirs)

    return more if end(more) <= end(fewer) else fewer
