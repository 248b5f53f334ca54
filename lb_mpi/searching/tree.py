"""The binomial tree over all ranks, by their numbers.   (pure)

The parent of a rank is its number without the lowest bit that is set, r & (r - 1); rank 0 is the root.  So a rank is
ceil(log2 P) hops from the root at most, has that many children at most, and each of these edges is one of the hypercube:
parent and child differ in one bit.  Nobody need know of more than its own number and the number of ranks.

Example: of 8 ranks, 0 has the children 1, 2 and 4; 2 has 3; 4 has 5 and 6; 6 has 7.
"""

from __future__ import annotations


def parent(rank: int) -> int:
    """Return the rank above this one; the root's is itself."""
    return rank & (rank - 1)


def children(rank: int, size: int) -> list[int]:
    """List the ranks right below this one, of `size` ranks in all, in order."""
    return [rank + bit for bit in _bits(rank, size) if rank + bit < size]


def descendants(rank: int, size: int) -> int:
    """Count the ranks of the subtree of this one, itself included."""
    lowest = rank & -rank if rank else size
    return min(lowest, size - rank)


def neighbours(rank: int, size: int) -> list[int]:
    """List the neighbours on the hypercube that are there: those whose number differs in one bit."""
    return [rank ^ bit for bit in _bits(0, size) if rank ^ bit < size]


def _bits(rank: int, size: int) -> list[int]:
    """List the powers of two below `size`, and below the lowest bit of `rank`."""
    lowest = rank & -rank if rank else size
    return [1 << k for k in range(min(lowest, size).bit_length()) if 1 << k < min(lowest, size)]
