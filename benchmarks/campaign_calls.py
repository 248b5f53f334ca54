"""Random calls on 1 to 17 ranks, each result checked.  python -m benchmarks.campaign_calls doors --runs 10000 --mpi both

    doors       calls of all doors, with Ctrl-C on one rank at any moment (`benchmarks/campaign_doors_ranks.py`)
    rows        calls of map_rows and migrate, the same way
    rebalance   vertices of random graphs move, with values of any kind (`benchmarks/campaign_rebalance_ranks.py`)

Ranks are started again and again, on each number of ranks in turn, until there are so many calls.  "wrong": a result that is
not exact, an error that was not meant, or a start that ended in another way or not at all.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import NamedTuple

from benchmarks.measuring import campaign_parser, environments_of
from lb_mpi.cli.run import processes
from tools.environment import Environment

LIMIT_S = 600.0  # of a start
MOST_WRONG = 5


class Campaign(NamedTuple):
    """A kind of random calls: the module that makes them on each rank, and how many calls a start has."""

    module: str  # of the ranks
    counted: str  # what --runs counts
    most: int  # of them in one start


SIZES = (1, 2, 3, 4, 6, 9, 12, 17)  # ranks; few exchange all their numbers, more than eight reduce them with MPI
CAMPAIGNS = {
    "doors": Campaign("benchmarks.campaign_doors_ranks", "operations", 200),
    "rows": Campaign("benchmarks.campaign_doors_ranks", "operations", 200),
    "rebalance": Campaign("benchmarks.campaign_rebalance_ranks", "rebalances", 25),
}


def start(environment: Environment, which: str, n: int, seed: int, n_calls: int) -> dict[str, object]:
    """Run calls on n ranks; return what came of them."""
    argv = ["-m", "mpi4py", "-m", CAMPAIGNS[which].module, str(seed), str(n_calls), which]
    try:
        return environment.answer(n, argv, LIMIT_S, {"LB_MPI_HANG_S": "20"})
    except (RuntimeError, ValueError) as error:
        return {"wrong": f"seed {seed} on {n} ranks, {environment.mpi}: {error}"}


def main() -> int:
    """Start ranks, and print what was counted."""
    parser = campaign_parser("campaign_calls", __doc__, runs=(500, "how many calls, in all, at least"))
    parser.add_argument("which", choices=CAMPAIGNS)
    options = parser.parse_args()
    _, counted, most = CAMPAIGNS[options.which]
    environments = environments_of(options.mpi)
    counts, wrong, k = Counter[str](), list[object](), 0
    n_starts = len(SIZES) * len(environments)  # at least: each number of ranks has its turn
    while (counts[counted] < options.runs or k < n_starts) and len(wrong) < MOST_WRONG:
        environment, n = environments[k % len(environments)], SIZES[k // len(environments) % len(SIZES)]
        found = start(environment, options.which, n, 1000 * options.seed + k, min(most, -(-options.runs // n_starts)))
        wrong += [found.pop("wrong")] if found.get("wrong") else []
        counts.update({name: count for name, count in found.items() if isinstance(count, int)})
        k += 1
        done = f"{counts[counted]} of {options.runs}: {dict(counts)}; {n} ranks, {environment.mpi}"
        print(done, *wrong[-1:], file=sys.stderr)
    mpis = [one.mpi for one in environments]
    if options.json:
        print(json.dumps({"mpi": mpis, "seed": options.seed, "starts": k, **counts, "wrong": wrong}))
    else:
        words = ", ".join(f"{count} {name}" for name, count in counts.items())
        print(f"1 to {SIZES[-1]} ranks, {' and '.join(mpis)}: {words}", *(wrong or ["nothing was wrong"]), sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    with processes.interruptible():
        sys.exit(main())
