"""Measure the speed of stealing.  python -m benchmarks.stealing

Six ratios to a peer or a bound, which runs in turn with ours (A B A B ...): medians of --repeat rounds, the minimum and the
maximum, and how much of the machine other programs used meanwhile.

kernel     UTS T1, one rank: the compiled kernel against plain Python and hashlib, nodes per CPU second
two ranks  UTS T1L: lb_mpi.search on two ranks against two independent copies side by side, nodes per second
pool       the 690 subtrees of T1 at depth 4: lb_mpi.search on two ranks against MPIPoolExecutor with two workers and
           chunksize 16, tasks per second
unequal    UTS T1L and a maze, four ranks of speeds 0.8, 0.4, 0.2, 0.2: the time against its lower bound, the CPU seconds
           of the work in the same run divided by the sum of the speeds
bound      shortest tours through 14 cities, seeds 1 to --repeat, four ranks that share a bound: nodes searched against
           those that one rank alone searches; the seed with the middle ratio
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks import measuring
from benchmarks.measuring import command, run
from lb_mpi.cli.uts import (
    MAX_CHILDREN,
    PUBLISHED,
    RANDS,
    TREES,
    Tree,
    TreeCount,
    UnbalancedTreeSearch,
    child_counter,
    compile_kernels,
    root_state,
)
from tools.others import Watch

SPEEDS = "0.8,0.4,0.2,0.2"
PLAIN_NODES = 200_000


class Row(NamedTuple):
    """One line of the table."""

    name: str
    ours: float
    peer: float
    ratio: float
    wanted: str
    unit: str
    low: float  # least and greatest ratio of the rounds
    high: float
    others: float = math.nan  # took so much of the machine meanwhile


def plain_count(tree: Tree, limit: int | None = None) -> TreeCount:
    """Count the nodes of a tree in plain Python with hashlib, depth first; at most `limit` of them."""
    count_children = child_counter(tree)
    most = int(tree.branching) if tree.type == "binomial" else 0
    suffixes = [number.to_bytes(4, "big") for number in range(max(most, MAX_CHILDREN))]
    sha1, to_int = hashlib.sha1, int.from_bytes
    nodes = leaves = deepest = 0
    stack = [(root_state(tree), 0)]
    while stack and nodes != limit:
        state, depth = stack.pop()
        nodes += 1
        deepest = max(deepest, depth)
        n = count_children(depth, to_int(state[16:], "big") & (RANDS - 1))
        if n == 0:
            leaves += 1
        else:
            depth += 1
            stack += [(sha1(state + suffix).digest(), depth) for suffix in suffixes[:n]]
    return TreeCount(nodes, leaves, deepest)


def kernel(repeat: int) -> Row:
    """Compare one rank with plain Python, by CPU time, in this process."""
    compile_kernels()
    ours, plain = [], []
    for _ in range(repeat):
        problem = UnbalancedTreeSearch(TREES["T1"])
        problem.start()
        began = time.process_time()
        while problem.work(10_000):
            pass
        ours.append(problem.result().nodes / (time.process_time() - began))
        assert problem.result() == PUBLISHED["T1"]
        began = time.process_time()
        count = plain_count(TREES["T1"], PLAIN_NODES)
        plain.append(count.nodes / (time.process_time() - began))
    return _row("kernel / plain Python", ours, plain, ">= 40", "nodes/CPU s")


def two_ranks(repeat: int) -> Row:
    """Two ranks together against two copies, alternating within one mpiexec."""
    answer = run(2, ["-m", "benchmarks.stealing_ranks", "--repeat", str(repeat)])
    nodes = PUBLISHED["T1L"].nodes
    ours, copies = ([n * nodes / seconds for seconds in answer[way]] for n, way in ((1, "together"), (2, "copies")))
    return _row("2 ranks / 2 independent copies", ours, copies, ">= 0.93", "nodes/s")


def pool(repeat: int) -> Row:
    """Two ranks against a master with two workers."""
    ours, theirs = [], []
    for _ in range(repeat):
        ours.append(run(2, ["-m", "benchmarks.stealing_ranks", "--tasks"])["seconds"])
        theirs.append(run(3, ["-m", "mpi4py.futures", "-m", "benchmarks.stealing_ranks", "--executor"])["seconds"])
    mine, peers = ([690 / seconds for seconds in taken] for taken in (ours, theirs))
    return _row("2 ranks / MPIPoolExecutor", mine, peers, ">= 1.5", "tasks/s")


def unequal(repeat: int, name: str, argv: list[str]) -> Row:
    """Emulated speeds against the lower bound of the same run."""
    answers = [run(4, ["-m", *argv, "--speeds", SPEEDS, "--json"]) for _ in range(repeat)]
    answers.sort(key=lambda answer: answer["seconds"] / answer["lower_bound_seconds"])
    ratios = [answer["seconds"] / answer["lower_bound_seconds"] for answer in answers]
    middle = answers[len(answers) // 2]
    seconds, bound = middle["seconds"], middle["lower_bound_seconds"]
    name = f"{name}, speeds {SPEEDS}: time / bound"
    return Row(name, seconds, bound, seconds / bound, "<= 1.10", "s", ratios[0], ratios[-1])


def bound(repeat: int) -> Row:
    """Count the nodes that four ranks search in excess, since a new bound reaches the others late."""
    argv = ["-m", "apps.tsp", "--cities", "14", "--compare", "--json", "--seed"]
    answers = [run(4, [*argv, str(1 + seed)]) for seed in range(repeat)]
    answers.sort(key=lambda answer: answer["nodes_ratio"])
    middle = answers[len(answers) // 2]
    return Row(
        "14 cities: nodes of 4 ranks / of 1",
        middle["nodes"],
        middle["nodes_alone"],
        middle["nodes_ratio"],
        "<= 1.15",
        "nodes",
        answers[0]["nodes_ratio"],
        answers[-1]["nodes_ratio"],
    )


def _row(name: str, ours: Sequence[float], peers: Sequence[float], wanted: str, unit: str) -> Row:
    """Make a row of two variants that were measured in turn."""
    found = measuring.ratio(ours, peers)
    mine, peer = statistics.median(ours), statistics.median(peers)
    return Row(name, mine, peer, found.median, wanted, unit, found.low, found.high)


def main() -> None:
    """Measure, print the table (or JSON)."""
    parser = command("stealing", __doc__, repeat=(5, "rounds of each measurement"))
    options = parser.parse_args()
    rows = []
    for measure in (
        kernel,
        two_ranks,
        pool,
        lambda repeat: unequal(repeat, "uts T1L", ["apps.uts", "--tree", "T1L"]),
        lambda repeat: unequal(repeat, "maze", ["apps.maze", "--dim", "12000", "--walled", "--seed", "1"]),
        bound,
    ):
        watch = Watch()
        row = measure(options.repeat)
        row = row._replace(others=watch.others())
        rows.append(row)
        if not options.json:
            print(
                f"{row.name:52} {row.ours:14,.4g} {row.peer:14,.4g} {row.unit:12} {row.ratio:7.3f} "
                f"({row.low:.3f} to {row.high:.3f})  {row.wanted:8} {measuring.percent(row.others)}",
                flush=True,
            )
    if options.json:
        print(json.dumps([{**row._asdict(), "others": measuring.known(row.others)} for row in rows]))
        return
    print(measuring.words(max(row.others for row in rows)))


if __name__ == "__main__":
    main()
