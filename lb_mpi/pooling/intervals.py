"""An interval of task numbers in one 64-bit word, which several ranks change by compare-and-swap.

A word is  epoch (8 bits) | lo (28) | hi (28): in map `epoch`, the tasks lo..hi-1 are owned and not begun.  Its owner takes
chunks at the front, idle ranks take shares from the back.  Each reads the word, and swaps it only if it is unchanged.  The
epoch keeps late thieves out of the next map.

Why a word never recurs (so that no swap succeeds on an old reading): within a map, tasks removed at the front have begun,
and of tasks stolen at the back the thief begins the first before it owns the others.  So `lo` never returns to a previous
value.  But a rank without tasks could sleep between reading and swapping until, 256 maps later, the word is the same again.
So at every map number that `synchronizes`, no rank begins before all have finished the previous maps.

    word = pack(epoch, 0, 100)
    pack(epoch, 8, 100) == drop_front(word, 8)      # 0..7 are begun
    pack(epoch, 0, 60) == drop_back(word, 40)       # 60..99 are stolen
"""

from __future__ import annotations

from typing import NamedTuple

EPOCHS = 1 << 8
MAPS = (1 << 31) - EPOCHS  # numbers of maps, as 32 bits hold them; a multiple of EPOCHS, as the next one follows
_BITS = 28
_MASK = (1 << _BITS) - 1
MOST = (1 << _BITS) - 2  # tasks in a map; the word of all ones belongs to no rank


class Interval(NamedTuple):
    """The tasks lo..hi-1 of map `epoch` (a number below 256)."""

    epoch: int
    lo: int
    hi: int

    @property
    def n(self) -> int:
        """The number of its tasks."""
        return self.hi - self.lo


def synchronizes(epoch: int) -> bool:
    """Return whether all ranks must finish the previous map before this one begins."""
    return epoch % EPOCHS == 0


def pack(epoch: int, lo: int, hi: int) -> int:
    """Return the word of an interval."""
    return epoch << 2 * _BITS | lo << _BITS | hi


def unpack(word: int) -> Interval:
    """Return the interval in a word."""
    return Interval(word >> 2 * _BITS, word >> _BITS & _MASK, word & _MASK)


def epoch_of(word: int) -> int:
    """Return the number of the map of a word: `unpack(word).epoch`, quickly."""
    return word >> 2 * _BITS


def n_tasks(word: int) -> int:
    """Return the number of tasks in a word: `unpack(word).n`, quickly."""
    return (word & _MASK) - (word >> _BITS & _MASK)


def drop_front(word: int, n: int) -> int:
    """Return the word without its first n tasks."""
    return word + (n << _BITS)


def drop_back(word: int, n: int) -> int:
    """Return the word without its last n tasks."""
    return word - n
