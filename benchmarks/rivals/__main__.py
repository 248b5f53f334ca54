"""Our stealing beside its rivals, in one simulator:   python -m benchmarks.rivals [--tree T1 --ranks 64,256 --speeds 1]

    --rivals    of walking (ours), ring (ours, the paper's), glb, ctws, a2ws
    --json      one line of JSON for each run, as it ends, instead of the table

Each run counts a published tree exactly.  A message takes 5 us, a node 1 us on a rank of speed 1, a look for messages comes
every 50 us; the end is included.  Efficiency is all work / (time * sum of the speeds).  A one-sided get counts as two.
Sources of the rivals, and what was assumed, stand in `benchmarks.rivals.glb`, `ctws` and `a2ws`.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any, NamedTuple, cast

from benchmarks.rivals.a2ws import Adaptive
from benchmarks.rivals.ctws import CyclicToken
from benchmarks.rivals.glb import Lifelines
from benchmarks.rivals.rival import OneSided
from lb_mpi.checks import choice, comma_list
from lb_mpi.problems.uts import PUBLISHED, TREES, Tree, TreeCount, UnbalancedTreeSearch
from lb_mpi.searching.options import Options
from lb_mpi.searching.searcher import Searcher
from lb_mpi.searching.simulate import SimulatedSearch, Simulation, pause_for, search

LATENCY_S = 5e-6
THRESHOLD = 4.0  # J, for all


class Way(NamedTuple):
    """One way of stealing."""

    title: str
    rank: type[Any]  # of a Searcher, or what stands for one
    world: type[Simulation] = Simulation
    route: str | None = None


WAYS = {
    "walking": Way("ours, walking drafts", Searcher, route="random"),
    "ring": Way("ours, the paper's ring", Searcher, route="ring"),
    "glb": Way("GLB, lifelines", Lifelines),
    "ctws": Way("CTWS", CyclicToken, OneSided),
    "a2ws": Way("A2WS", Adaptive, OneSided),
}


def run(way: str, tree: Tree, ranks: int, speeds: list[float], seed: int = 0, **parameters: Any) -> SimulatedSearch:
    """Count a tree in one way, on ranks of `speeds` in turns; more `parameters` as for `searching.simulate.search`."""
    chosen = WAYS[choice("rivals", way, tuple(WAYS))]
    options = Options(threshold=THRESHOLD, pause_s=pause_for(ranks, LATENCY_S), seed=seed, route=chosen.route)
    return search(
        [UnbalancedTreeSearch(tree) for _ in range(ranks)],
        simulation_class=chosen.world,
        searcher_class=cast(type[Searcher], parameters.pop("rank_class", chosen.rank)),
        speeds=[speeds[rank % len(speeds)] for rank in range(ranks)],
        options=options,
        seed=seed,
        **{"latency": LATENCY_S, **parameters},
    )


def measure(way: str, tree: str, ranks: int, speeds: list[float], seed: int) -> dict[str, Any]:
    """One run, as numbers; AssertionError when the count is wrong."""
    began = time.process_time()
    found = run(way, TREES[tree], ranks, speeds, seed)
    count: TreeCount = found.value
    if count != PUBLISHED[tree]:
        raise AssertionError(f"{way} on {ranks} ranks counted {count}: {tree} has {PUBLISHED[tree]}")
    return {
        "tree": tree,
        "ranks": ranks,
        "speeds": speeds,
        "way": way,
        "efficiency": found.efficiency,
        "messages": found.messages / ranks,
        "most_messages": found.most_messages,
        "virtual_seconds": found.virtual_seconds,
        "detection_s": found.detection_s,
        "cpu_seconds": time.process_time() - began,
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of Markdown: efficiency (messages a rank), a line for each way, a column for each number of ranks."""
    sizes = sorted({row["ranks"] for row in rows})
    lines = [
        "| tree, speeds | way | " + " | ".join(f"{size:,}" for size in sizes) + " |",
        "|---" * (2 + len(sizes)) + "|",
    ]
    cells = {(row["tree"], tuple(row["speeds"]), row["way"], row["ranks"]): row for row in rows}
    for tree, speeds, way in dict.fromkeys(key[:3] for key in cells):
        found = [cells.get((tree, speeds, way, size)) for size in sizes]
        shown = [f"{one['efficiency']:.3f} ({one['messages']:,.0f})" if one else "-" for one in found]
        unequal = ", unequal" if len(speeds) > 1 else ""
        lines.append(f"| {tree}{unequal} | {WAYS[way].title} | " + " | ".join(shown) + " |")
    return lines


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument("--tree", choices=sorted(PUBLISHED), default="T1")
    parser.add_argument("--ranks", default="64,256", help="numbers of virtual ranks (%(default)s)")
    parser.add_argument("--speeds", default="1", help="of the ranks, in turns: 1,.5,.25,.25 (%(default)s)")
    parser.add_argument("--rivals", default=",".join(WAYS), help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for ranks in comma_list("ranks", options.ranks):
        for way in options.rivals.split(","):
            rows.append(measure(way, options.tree, int(ranks), comma_list("speeds", options.speeds), options.seed))
            if options.json:
                print(json.dumps(rows[-1]), flush=True)
    if not options.json:
        print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
