"""Rebalance random graphs on 1 to 8 ranks, check each plan.  python -m benchmarks.campaign_rebalance --runs 500 --mpi both

A case is a random graph (meshes, paths, complete and random graphs; isolated vertices, several components, vertices without
work), random owners (also ranks without vertices; now and then contiguous ranges, by method="slabs"), and none, one or many
values: arrays of any dtype and shape, structured ones too, CSR matrices with unsorted rows, objects with pack and unpack.
Then vertices move up to five times, or there are up to 60 steps, in most of which nothing is decided: by random costs, many
of them 0, speeds and options.  Now and then a pack or unpack fails on one rank, or costs are wrong or an option is another
one there.  Arrays that were replaced are overwritten.

After each rebalance, the plan must be that of a fresh distribution with the same owners, array for array; the values must
be those of their vertices, and the checksum of all values is the same as at first.  After an error that is meant, all ranks
must have the old plan and the old values.  "silent": a start that ended in another way, or did not end.
"""

from __future__ import annotations

import json
import sys
from collections import Counter

from benchmarks.measuring import campaign_parser, environments_of
from lb_mpi.cli.run import limit
from tools.environment import Environment

MOST_RANKS = 8
EACH = 25  # rebalances in one start of the ranks
LIMIT_S = 600.0  # of a start
COUNTED = ("rebalances", "between", "moved", "failed as meant", "cases")


def start(environment: Environment, n: int, seed: int, first: int, n_rebalances: int) -> dict[str, object]:
    """Run cases from number `first` on n ranks; return what came of them."""
    argv = ["-m", "mpi4py", "-m", "benchmarks.campaign_rebalance_ranks", str(seed), str(first), str(n_rebalances)]
    try:
        return environment.answer(n, argv, LIMIT_S)
    except (RuntimeError, ValueError) as error:
        return {"silent": f"seed {seed}, cases from {first} on {n} ranks, {environment.mpi}: {error}"}


def main() -> int:
    """Rebalance, and print what was counted."""
    parser = campaign_parser("campaign_rebalance", __doc__, runs=(500, "how many rebalances, in all, at least"))
    options = parser.parse_args()
    environments = environments_of(options.mpi)
    counts, wrong, k = Counter[str](), list[str](), 0
    n_starts = MOST_RANKS * len(environments)  # at least: each number of ranks has its turn
    while (counts["rebalances"] < options.runs or k < n_starts) and not wrong:
        environment, n = environments[k % len(environments)], 1 + k // len(environments) % MOST_RANKS
        found = start(environment, n, options.seed, 1000 * k, min(EACH, -(-options.runs // n_starts)))
        counts.update({name: int(str(found[name])) for name in COUNTED if name in found})
        wrong += [str(found[name]) for name in ("wrong", "silent") if found.get(name)]
        k += 1
        print(f"{counts['rebalances']} of {options.runs}: {dict(counts)}; {n} ranks, {environment.mpi}", file=sys.stderr)
    answer = {"mpi": [one.mpi for one in environments], "seed": options.seed, "starts": k, **counts, "wrong": wrong}
    mpis = " and ".join(one.mpi for one in environments)
    for_people = [
        f"{counts['rebalances']} rebalances in {counts['cases']} cases on 1 to {MOST_RANKS} ranks, {mpis}: vertices moved "
        f"in {counts['moved']}, {counts['failed as meant']} failed as meant",
        *(wrong or ["nothing was wrong"]),
    ]
    print(json.dumps(answer) if options.json else "\n".join(for_people))
    return int(bool(wrong))


if __name__ == "__main__":
    with limit.interruptible():
        sys.exit(main())
