"""Measure how short steps and tasks may be.  python -m benchmarks.grain [--door DOOR ...] [--quick]

METG, the minimum effective task granularity, is the shortest step or task with which ranks are 90 % efficient: they spend
90 % of the time on the user's work.  It is measured with longer and longer steps.  The first and the last length are the
least and the greatest that can be found; "inf" means that no length was efficient.

rows      steps of `map_rows` with 60 equal rows on each rank, beside a plain loop that ends with a barrier: two equal ranks
          that compute, and four ranks of speeds 1, 0.5, 0.25, 0.25 that wait (what Python itself needs is not slowed down).
          "Rows by speed" is the plain loop of somebody who knows the speeds.  Then a call with nothing to do, beside a
          barrier and an allreduce
pool      tasks of `Pool.map` on two ranks, in long maps and in maps of 16 tasks, beside mpi4py's MPICommExecutor,
          multiprocessing and, if it is installed, joblib's loky; then the CPU time of a map and of a task beside the user's
          function.  The number behind an executor is its chunksize
executor  tasks of `Executor.map` and `Executor.submit`, beside MPICommExecutor; "+ 1": with one more rank, which manages
exchange  steps of computing and `plan.exchange` on two ranks, beside Irecv, Isend and Waitall
search    whole searches on two ranks, in which one rank has all work at first, beside equal parts dealt out by hand
hosts     `map_rows` on three emulated hosts of speeds 0.8, 0.4, 0.2 with 1 ms between them (launch/cluster; needs root)

The contestants run in turn (A B A B).  Each row has the median of the rounds, with the minimum and the maximum.  A * means
that other programs used more than 5 % of the machine meanwhile, so that the row says little.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from benchmarks import measuring, pool
from benchmarks.measuring import Answer, Row, command, run, table

EFFICIENT = 0.9
UNEQUAL, HOSTS = "1,0.5,0.25,0.25", "0.8,0.4,0.2"
STEPS = (0.3e-3, 1e-3, 3e-3, 10e-3, 30e-3, 100e-3)  # seconds of work on each rank in a step of rows
EXCHANGES = (10e-6, 30e-6, 100e-6, 300e-6, 1e-3, 3e-3)  # ... of an exchange
SEARCHES = (1e-3, 3e-3, 10e-3, 30e-3, 100e-3, 300e-3)  # ... of a search
TASKS = (10e-6, 30e-6, 100e-6, 300e-6, 1e-3, 3e-3, 10e-3)  # of a task
LIST_S, MOST_TASKS = 0.15, 5_000  # seconds of work on each rank in a list of tasks, and tasks in it
EXECUTOR_LIST_S = 0.6  # the same for executors: at its end, the root's task holds Python's lock for 5 ms

Rows = Iterator[Row]
Efficiency = dict[str, list[list[float]]]  # by way, round and length


def metg(lengths: Sequence[float], efficiencies: Sequence[float]) -> float:
    """Length, between those that were measured, from which on the efficiency is EFFICIENT; inf: that of none is."""
    k = len(lengths)
    while k and efficiencies[k - 1] >= EFFICIENT:
        k -= 1
    if k == len(lengths):
        return math.inf
    if k == 0:
        return lengths[0]
    low, high = efficiencies[k - 1 : k + 1]
    return float(lengths[k - 1] * math.pow(lengths[k] / lengths[k - 1], (EFFICIENT - low) / (high - low)))


def metg_rows(what: str, lengths: Sequence[float], efficiency: Efficiency, wanted: dict[str, str]) -> Rows:
    """METG of each way, in milliseconds."""
    for way, rounds in efficiency.items():
        values = [1e3 * metg(lengths, one) for one in rounds]
        yield Row(f"{what}: METG({EFFICIENT:.0%}) of {way}".replace("%", " %"), values, "ms", wanted.get(way, ""))


# --- doors whose step is a collective call ------------------------------------------------------------------------------


def steps(
    door: str, lengths: Sequence[float], options: argparse.Namespace, answer: Answer, *argv: str
) -> list[dict[str, list[float]]]:
    """Seconds of a step by length, way and round, as `benchmarks.grain_ranks` measures them."""
    case = ["-m", "benchmarks.grain_ranks", door, "--lengths", *map(str, lengths), "--repeat", str(options.repeat)]
    seconds: list[dict[str, list[float]]] = answer([*case, *argv])["seconds"]
    return seconds


def efficiency_of(seconds: Sequence[dict[str, list[float]]], ideal_s: Sequence[float]) -> Efficiency:
    """Part of the time that the work needs, from the seconds of a step."""
    return {
        way: [
            [ideal / taken for ideal, taken in zip(ideal_s, one, strict=True)] for one in zip(*by_length, strict=True)
        ]
        for way, by_length in ((way, [at[way] for at in seconds]) for way in seconds[0])
    }


def rows(options: argparse.Namespace) -> Rows:
    """Two equal ranks, and four unequal ones; then calls with nothing to do."""
    lengths = lengths_of(STEPS, options)
    seconds = steps("rows", lengths, options, lambda argv: run(2, argv))
    yield from metg_rows("rows, 2 equal ranks", lengths, efficiency_of(seconds, lengths), {"map_rows": "<= 3"})
    for length_s, at in zip(lengths, seconds, strict=True):
        wanted = {3e-3: "<= 1.10", 10e-3: "<= 1.04", 100e-3: "<= 1.01"}.get(length_s, "")
        name = f"rows, 2 equal ranks, steps of {1e3 * length_s:g} ms: map_rows / plain loop"
        yield Row(name, ratios(at["map_rows"], at["equal rows"]), "times", wanted)
    speeds = [float(speed) for speed in UNEQUAL.split(",")]
    ideal_s = [length_s * len(speeds) / sum(speeds) for length_s in lengths]
    seconds = steps("rows", lengths, options, lambda argv: run(4, argv), "--speeds", UNEQUAL, "--waits")
    what = f"rows, speeds {UNEQUAL}"
    yield from metg_rows(what, lengths, efficiency_of(seconds, ideal_s), {"map_rows": "<= 10"})
    for length_s, at in zip(lengths, seconds, strict=True):
        name = f"{what}, steps of {1e3 * length_s:g} ms: map_rows / rows by speed"
        yield Row(name, ratios(at["map_rows"], at["rows by speed"]), "times")
    for n, wanted in ((2, "<= 0.15"), (4, "<= 0.25")):
        (at,) = steps("calls", [0.0], options, lambda argv, n=n: run(n, argv))  # type: ignore[misc]
        for way, values in at.items():
            name = f"rows, {n} ranks: {'empty call of map_rows' if way == 'map_rows' else way}"
            yield Row(name, [1e3 * value for value in values], "ms", wanted if way == "map_rows" else "")


def exchange(options: argparse.Namespace) -> Rows:
    """Two ranks, each with half of a mesh."""
    lengths = lengths_of(EXCHANGES, options)
    seconds = steps("exchange", lengths, options, lambda argv: run(2, argv))
    yield from metg_rows("exchange, 2 ranks", lengths, efficiency_of(seconds, lengths), {})


def search(options: argparse.Namespace) -> Rows:
    """Two ranks, of which one has all work at first."""
    lengths = lengths_of(SEARCHES, options)
    seconds = steps("search", lengths, options, lambda argv: run(2, argv))
    yield from metg_rows("search, 2 ranks", lengths, efficiency_of(seconds, lengths), {})


def hosts(options: argparse.Namespace) -> Rows:
    """Three emulated hosts, a rank on each.  RuntimeError where they can't be had."""
    lengths, speeds = lengths_of(STEPS[3:], options), [float(speed) for speed in HOSTS.split(",")]
    what = f"hosts {HOSTS}"
    with measuring.hosts(HOSTS) as answer:
        (at,) = steps("calls", [0.0], options, answer)
        yield Row(f"{what}: empty call of map_rows / barrier", ratios(at["map_rows"], at["barrier"]), "times", "<= 1.5")
        for way, values in at.items():
            yield Row(f"{what}: {way}", [1e3 * value for value in values], "ms")
        seconds = steps("rows", lengths, options, answer, "--speeds", HOSTS, "--hosts-are-slow")
    for length_s, at in zip(lengths, seconds, strict=True):
        ideal_s = length_s * len(speeds) / sum(speeds)
        for way, values in at.items():
            wanted = "<= 1.25" if way == "map_rows" and length_s == 30e-3 else ""
            name = f"{what}, steps of {1e3 * length_s:g} ms: {way} / ideal"
            yield Row(name, [value / ideal_s for value in values], "times", wanted)


def ratios(ours: Sequence[float], peers: Sequence[float]) -> list[float]:
    """Ours / the peer's, by round."""
    return [mine / other for mine, other in zip(ours, peers, strict=True)]


def lengths_of(lengths: Sequence[float], options: argparse.Namespace) -> Sequence[float]:
    """All of them, or every other one."""
    return lengths[::2] if options.quick else lengths


# --- doors whose grain is a task ----------------------------------------------------------------------------------------


def tasks(
    what: str,
    names: Sequence[str],
    options: argparse.Namespace,
    processes: Mapping[str, pool.Map] = MappingProxyType({}),
    few: int | None = None,
    list_s: float = LIST_S,
) -> Rows:
    """METG of all that run tasks on two ranks, or two `processes`; `few`: in maps of so many tasks.

    `list_s`: seconds of work on each rank in a list of tasks.
    """
    lengths = lengths_of(TASKS, options)
    efficiency: Efficiency = {name: [] for name in (*names, *processes)}
    for k in range(options.repeat):
        for one in efficiency.values():
            one.append([])
        for length_s in lengths:
            n = min(MOST_TASKS, round(2 * list_s / length_s))
            n, maps = (n, 1) if few is None else (few, max(n // few, 1))
            argv = ["--tasks", str(n), "--task-s", str(length_s), "--maps", str(maps)]
            told = pool.compete(2, names, argparse.Namespace(repeat=1, seed=k), *argv)
            seconds = {name: told["seconds"][name][0] for name in names}
            for name, map_items in processes.items():
                seconds[name] = pool.timed(functools.partial(map_items, pool.spin, [length_s] * n), maps)
            for name, taken in seconds.items():
                efficiency[name][k].append(told["useful_s"] / (2 * taken))
    yield from metg_rows(what, lengths, efficiency, {})


def pools(options: argparse.Namespace) -> Rows:
    """Long maps, short maps, and what they cost beside the user's function."""
    ours: dict[str, list[float]] = {"task_s": [], "map_s": [], "of_many_s": []}
    theirs: dict[str, list[float]] = {"map_s": [], "of_many_s": []}
    with contextlib.ExitStack() as stack:
        processes = {name: stack.enter_context(opened(2)) for name, opened in pool.PROCESSES.items()}
        found = [*tasks("pool, 2 ranks", ["pool", "MPICommExecutor 16"], options, processes)]
        short = f"pool, 2 ranks, maps of {pool.FEW} tasks"
        found += tasks(short, ["pool", "MPICommExecutor 1"], options, processes, pool.FEW)
        for _ in range(options.repeat):
            for name, values in run(2, ["-m", "benchmarks.pool_ranks", "overhead", "--tasks", "20000"]).items():
                ours[name] += values
            for name, value in pool.cpu_of_processes(processes["multiprocessing"]).items():
                theirs[name].append(value)
    yield from found  # now that the processes have ended, their CPU time isn't taken for that of others
    yield Row("pool, 2 ranks: CPU of a task that does nothing", [1e6 * one for one in ours["task_s"]], "us", "<= 3")
    for name, what, factor, unit, wanted in (
        ("map_s", f"a map of {pool.FEW} tasks of 1 ms", 1e3, "ms", "<= 0.3"),
        ("of_many_s", f"one of {pool.MANY} tasks of 1 ms", 1e6, "us", "<= 15"),
    ):
        yield Row(f"pool, 2 ranks: CPU of the root for {what}", [factor * one for one in ours[name]], unit, wanted)
        yield Row(f"multiprocessing: CPU of the main process for {what}", [factor * one for one in theirs[name]], unit)


def executor(options: argparse.Namespace) -> Rows:
    """Ours, and mpi4py's, of which rank 0 only manages."""
    names = ["Executor 1", "Executor.submit", "MPICommExecutor 1", "MPICommExecutor 1 + 1", "MPICommExecutor 16"]
    yield from tasks("executor, 2 ranks", names, options, list_s=EXECUTOR_LIST_S)


DOORS: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "rows": rows,
    "pool": pools,
    "executor": executor,
    "exchange": exchange,
    "search": search,
    "hosts": hosts,
}


def main() -> None:
    """Measure, print the table (or JSON)."""
    parser = command("grain", __doc__, repeat=(5, "rounds of each measurement"))
    parser.add_argument(
        "--door",
        nargs="+",
        choices=DOORS,
        default=[door for door in DOORS if door != "hosts"],
        help="measure only these (default: all but hosts)",
    )
    parser.add_argument("--quick", action="store_true", help="two rounds with every other length, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.repeat = 2
    table(options.door, lambda name: DOORS[name](options), options.json)


if __name__ == "__main__":
    main()
