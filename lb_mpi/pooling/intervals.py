"""An interval of task numbers in one 64-bit word, which several ranks change by compare-and-swap.

A word is  epoch (8 bits) | lo (28) | hi (28): in map `epoch`, the tasks lo..hi-1 are owned and not begun.  Its owner takes
chunks at the front, whoever is idle takes a share from the back; each reads the word, and swaps it for the new one only if
it is still what was read.  The epoch keeps thieves that come late out of the next map.

Why a word never comes back (so that a swap can't succeed on an old reading): within a map, a task that has left a word at
the front has been begun, and one that has left at the back is stolen, whose first task the thief begins before it owns the
others.  So `lo` never comes back to a number that it has had.  A rank without tasks isn't missed in a map: it could sleep
between reading and swapping until, 256 maps later, the word is the same again.  So at every map number that `meets`, nobody
begins before all ranks are through with those before.

    word = pack(epoch, 0, 100)
    pack(epoch, 8, 100) == take_front(word, 8)      # 0..7 are begun
    pack(epoch, 0, 60) == take_back(word, 40)       # 60..99 are stolen
"""

from __future__ import annotations

from typing import NamedTuple

EPOCHS = 1 << 8
_BITS = 28
_MASK = (1 << _BITS) - 1
MOST = (1 << _BITS) - 2  # tasks in a map; the word of ones is nobody's


class Interval(NamedTuple):
    """The tasks lo..hi-1 of map `epoch` (a number below 256)."""

    epoch: int
    lo: int
    hi: int

    @property
    def n(self) -> int:
        """The number of its tasks."""
        return self.hi - self.lo


def meets(epoch: int) -> bool:
    """True for a map that begins only when each rank is through with the one before."""
    return epoch % EPOCHS == 0


def pack(epoch: int, lo: int, hi: int) -> int:
    """The word of an interval."""
    return epoch << 2 * _BITS | lo << _BITS | hi


def unpack(word: int) -> Interval:
    """The interval in a word."""
    return Interval(word >> 2 * _BITS, word >> _BITS & _MASK, word & _MASK)


def take_front(word: int, n: int) -> int:
    """The word without its first n tasks."""
    return word + (n << _BITS)


def take_back(word: int, n: int) -> int:
    """The word without its last n tasks."""
    return word - n
