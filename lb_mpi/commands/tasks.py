"""The command `simulate tasks`: maps of a pool on virtual ranks, beside a fixed distribution and a counter."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from lb_mpi.checks import comma_list, integer
from lb_mpi.commands.arguments import add_record, draw, pair, write_record
from lb_mpi.pooling.simulate import MOST_RANKS, TASKS, MapRun, Pool, task_costs
from lb_mpi.pooling.world import Costs
from lb_mpi.recording.record import Record
from lb_mpi.virtual import Network, check_span

KNOWN = ("nothing", "speeds", "costs", "both")
SHOWN = 20  # ranks, to people


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--hosts",
        default="16",
        metavar="N,N,...",
        help="how many ranks there are on each host (%(default)s: all on one)",
    )
    parser.add_argument("--tasks", type=int, default=25, metavar="N", help="in each map, for each rank (%(default)s)")
    parser.add_argument(
        "--maps", type=int, default=1, metavar="N", help="of pool.map, one after the other (%(default)s)"
    )
    parser.add_argument(
        "--costs",
        choices=TASKS,
        default="lognormal",
        help="of the tasks: all the same; drawn, a few are heavy (%(default)s)",
    )
    parser.add_argument(
        "--spread", type=float, default=1.0, help="of drawn costs: standard deviation of their logarithm (%(default)s)"
    )
    parser.add_argument("--task-s", type=float, default=0.01, help="mean seconds of a task at speed 1 (%(default)s)")
    parser.add_argument(
        "--speeds",
        default="uniform:1:1",
        help="of the ranks, relative to each other: uniform:LOW:HIGH, or as many as there are: 1,2,... (%(default)s)",
    )
    parser.add_argument(
        "--known",
        choices=KNOWN,
        default="nothing",
        help="what the pool is told; speeds that it isn't told it measures from map to map (%(default)s)",
    )
    parser.add_argument(
        "--within",
        type=pair,
        default=(2e-6, 2e-6),
        metavar="S[,S]",
        help="seconds that a message takes on one host; two: log-uniform between them (2e-6)",
    )
    parser.add_argument(
        "--between",
        type=pair,
        default=(50e-6, 50e-6),
        metavar="S[,S]",
        help="seconds that a message takes between hosts (5e-5)",
    )
    parser.add_argument("--swap-s", type=float, default=0.5e-6, help="seconds to take tasks from a word (%(default)s)")
    parser.add_argument(
        "--batch-s", type=float, default=0.02, help="seconds between two sends of results (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (%(default)s)")
    add_record(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Simulate as the options say; ValueError for odd values.

    `maps`, a list with the seconds of each, at least (`bound_s`), as dealt and without stealing (`dealt_s`), and with an
    ideal counter (`counter_s`); tasks and busy seconds by rank, steals and messages; their totals; simulated in
    `cpu_seconds`.
    """
    began = time.process_time()
    hosts = [integer("hosts", int(n) if n.is_integer() else n, 1) for n in comma_list("hosts", options.hosts)]
    size = integer("hosts", sum(hosts), 1, MOST_RANKS, unit="ranks in all")
    n_tasks, n_maps = integer("tasks", options.tasks, 0), integer("maps", options.maps, 1)
    seed = integer("seed", options.seed, 0)
    records = [Record(0.0) for _ in range(size)] if options.record is not None else None
    pool = Pool(
        hosts,
        draw("speeds", options.speeds, size, np.random.default_rng(seed)),
        speeds_known=options.known in ("speeds", "both"),
        network=Network(check_span("within", options.within), check_span("between", options.between)),
        expenses=Costs(options.swap_s, batch_s=options.batch_s),
        seed=seed,
        records=records,
    )
    done: list[MapRun] = []
    for k in range(n_maps):
        costs = task_costs(options.costs, n_tasks * size, options.task_s, spread=options.spread, seed=seed + k)
        done.append(pool.map(costs, costs_known=options.known in ("costs", "both")))
    if records is not None:
        names = [f"host{k}" for k, n in enumerate(hosts) for _ in range(n)]
        program = f"simulate tasks --hosts {options.hosts} --maps {n_maps}"
        write_record(options.record, records, pool.world.now, names, program)
    totals = {
        name: sum(getattr(each, name) for each in done)
        for name in ("seconds", "bound_s", "dealt_s", "counter_s", "steals", "messages")
    }
    return {
        "ranks": size,
        "maps": [each._asdict() for each in done],
        "total": totals,
        "ratio": ratio(totals["seconds"], totals["bound_s"]),
        "ratio_dealt": ratio(totals["dealt_s"], totals["bound_s"]),
        "ratio_counter": ratio(totals["counter_s"], totals["bound_s"]),
        "ratio_later": statistics.median(each.ratio for each in done[len(done) // 2 :]),
        "speeds": (pool.learned.values / pool.learned.values.max()).tolist(),
        "cpu_seconds": time.process_time() - began,
    }


def ratio(seconds: float, bound_s: float) -> float:
    """Time / bound; 1 when there was nothing to do."""
    return seconds / bound_s if bound_s else 1.0


def summary(answer: dict[str, Any]) -> list[str]:
    """The answer as tables for people."""
    maps, total = answer["maps"], answer["total"]
    lines = ["  map     bound s   time / bound   as dealt  counter     steals   messages"]
    every = -(-len(maps) // SHOWN)
    for k, each in enumerate(maps):
        if k % every and k != len(maps) - 1:
            continue
        bound_s = each["bound_s"]
        lines.append(
            f"{k + 1:5d} {bound_s:11.6f} {ratio(each['seconds'], bound_s):14.3f} {ratio(each['dealt_s'], bound_s):10.3f} "
            f"{ratio(each['counter_s'], bound_s):8.3f} {each['steals']:10,d} {each['messages']:10,d}"
        )
    last = maps[-1]
    lines += [" rank      speed      tasks     busy s   busy, in the last map"]
    for rank, speed in enumerate(answer["speeds"][:SHOWN]):
        busy_s = last["busy_s"][rank]
        lines.append(
            f"{rank:5d} {speed:10.3f} {last['tasks'][rank]:10,d} {busy_s:10.4f} {ratio(busy_s, last['seconds']):6.0%}"
        )
    if answer["ranks"] > SHOWN:
        lines.append(f"  ... and {answer['ranks'] - SHOWN:,} more ranks")
    return [
        *lines,
        f"{answer['ranks']:,} ranks, {len(maps)} maps: {total['seconds']:.4f} virtual seconds, {answer['ratio']:.3f} of "
        f"the bound ({answer['ratio_later']:.3f} in the later half); as dealt, nothing stolen, {answer['ratio_dealt']:.3f}; "
        f"with a counter that costs nothing {answer['ratio_counter']:.3f}",
        f"{total['steals']:,} steals, with {total['messages']:,} messages",
    ]
