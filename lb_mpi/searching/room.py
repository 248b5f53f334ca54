"""How many virtual ranks a simulation has room for.   (pure)"""

from __future__ import annotations

from lb_mpi.checks import integer

MOST_BYTES = 8 << 30  # what the problems of all virtual ranks may take: half of a laptop
SEARCHER_BYTES = 5_000  # one rank without its problem, as measured with tracemalloc
TREE_BYTES = 120_000  # a fresh UnbalancedTreeSearch


def check_ranks(ranks: object, problem_bytes: int) -> int:
    """Return the number of virtual ranks, each with a problem of some `problem_bytes`; ValueError when they can't fit."""
    each = SEARCHER_BYTES + problem_bytes
    unit = f"each takes some {each / 1e3:,.0f} kB, and there is room for {MOST_BYTES >> 30} GiB"
    return integer("ranks", ranks, 1, MOST_BYTES // each, unit=unit)
