"""How much is lent: what leaves of a planned loan, and what a rank that has nothing left to do is given.   (pure)"""

from __future__ import annotations

from collections.abc import Sequence

LATENCY_S = 0.5e-3  # at least as much has to be saved by a loan
BLOCK_S = 2.5e-3  # of a block at home: short enough for who waits, and so long that timing it costs nothing
LEAST_HANDLINGS = 8  # a block takes at least so many times as long as it takes to handle it
PART = 0.5  # of a rank's share in what is left is lent at a time
HALVINGS = 3  # what is kept of planned loans is halved so often: 1/2, 1/4, 1/8
KEPT_S = 16 * BLOCK_S  # what is kept takes the borrower at least so long; its owner may be slow, with long blocks


def shortest_s(handling_s: float) -> float:
    """Seconds of a short block at home, where to handle one takes `handling_s` beside its rows."""
    return max(BLOCK_S, LEAST_HANDLINGS * handling_s)


def kept(n_before: int, loan_s: float) -> float:
    """Which part of a planned loan stays at home for whoever is dry first, after `n_before` rounds with planned loans.

    Plans rest on estimates, and a loan that has left is not divided any more.  So half is kept at first, and less in each
    round, as the estimates get better.  The longest loan takes its borrower `loan_s` seconds longer than its own rows, which
    are there for whoever is dry: nothing is kept where asking for that part would take about as long as computing it.
    """
    rest: float = 0.5 ** min(1 + n_before, HALVINGS)
    return rest if rest * loan_s >= KEPT_S else 0.0


def part(sizes: Sequence[float], each_s: float, share: float, faster: float, handling_s: float = 0.0) -> int:
    """How many blocks, of these sizes, the next one first, a helper is given of what is left at home.

    Size 1 takes `each_s` seconds at home.  The helper makes up `share` of the speed of all ranks, and is `faster` times as
    fast as this one.  It gets PART of its share, or all of it if that takes less than a short block, and one block at least;
    nothing that would not come back LATENCY_S before this rank alone would be through, if that takes it `handling_s` more.
    """
    left = sum(sizes)
    wanted = max(PART * share * left, min(share * left, shortest_s(handling_s) / each_s if each_s else 0.0))
    size, n = sizes[0], 1
    while n < len(sizes) and size + 0.5 * sizes[n] <= wanted:
        size += sizes[n]
        n += 1
    back_s = size * each_s / faster + LATENCY_S + handling_s
    return n if back_s + LATENCY_S <= left * each_s else 0
