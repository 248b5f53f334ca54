"""Compare the pool with other pools and with the lower bound.  python -m benchmarks.pool [--only SECTION ...]

peers     seconds of a list of tasks with another pool / with lb_mpi.Pool; each round has a new random order of the tasks.
          The others are lb_mpi.Executor, mpi4py's MPICommExecutor, schwimmbad, and a counter in a window (which has
          function and items on all ranks before the clock starts); 1, 16: chunksize; "+ 1": with one more rank, which
          manages.  Then, in programs of their own, mpi4py's MPIPoolExecutor, multiprocessing.Pool and joblib's loky.  Tasks
          use CPU time in a loop.
speeds    emulated speeds 0.8,0.4,0.2,0.2: lower bound / time, from the second map on; with tasks that compute, after which
          slow ranks rest, and with tasks that wait, longer on slow ranks, so that four ranks need fewer than four cores
hosts     three emulated hosts of speeds 0.8,0.4,0.2, 1 ms between them (launch/cluster; needs root): time / lower bound

All are medians of the rounds' ratios, with the minimum and the maximum.  A * means that other programs used more than 5 % of
the machine meanwhile, so that the row says little.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks import measuring
from benchmarks.measuring import Row, command, run, table

SPEEDS, HOSTS = "0.8,0.4,0.2,0.2", "0.8,0.4,0.2"
FEW, MANY, TASK_S, MAPS = 16, 200, 1e-3, 25  # tasks of a map whose cost is measured, their seconds, and how many maps
TOTAL_S, MOST_TASKS = 0.3, 10_000  # of useful work in a list of tasks, on each rank


# --- the tasks: loops that use CPU time, and sleep ---------------------------------------------------------------------

SIGMA = 1.0  # of the logarithm of heavy-tailed costs: in a thousand, the largest is some 14 times the mean


def costs(kind: str, n: int, mean_s: float, seed: int) -> list[float]:
    """n costs in seconds of this mean, "constant" or "heavy" (lognormal)."""
    if kind == "constant":
        return [mean_s] * n
    drawn = np.random.default_rng(seed).lognormal(0.0, SIGMA, n)
    return [float(cost) for cost in drawn * (mean_s / drawn.mean())]


def spin(seconds: float) -> float:
    """Use so much CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return seconds


def nothing(item: int) -> int:
    """The cheapest task."""
    return item


def worked(seconds: float) -> tuple[int, float]:
    """Use CPU time; return the process, and the CPU seconds that it used."""
    began = time.thread_time()
    spin(seconds)
    return os.getpid(), time.thread_time() - began


def nap(seconds: float) -> float:
    """Wait, as a task does that has started another program."""
    time.sleep(seconds)
    return seconds


# --- the sections of the table -----------------------------------------------------------------------------------------

Rows = Iterator[Row]


def compete(n: int, contestants: Sequence[str], options: argparse.Namespace, *argv: str) -> dict[str, Any]:
    """Return the seconds of each contestant in each round, on n ranks or (" + 1") on one more."""
    case = ["-m", "benchmarks.pool_ranks", "compete", "--ranks", str(n), "--repeat", str(options.repeat)]
    return run(n + 1, [*case, "--seed", str(options.seed), *argv, "--contestants", *contestants])


def alone(n: int, case: str, options: argparse.Namespace, *argv: str) -> dict[str, Any]:
    """Run a case of `benchmarks.pool_ranks` without peers."""
    more = ["--repeat", str(options.repeat), "--seed", str(options.seed)]
    return run(n, ["-m", "benchmarks.pool_ranks", case, *more, *argv])


def ratios(answer: dict[str, Any], peer: str) -> list[float]:
    """Seconds of a peer / the pool's, round by round."""
    pairs = zip(answer["seconds"][peer], answer["seconds"]["pool"], strict=True)
    return [theirs / ours for theirs, ours in pairs]


def wanted_of(peer: str, n: int, task_s: float) -> str:
    """Return the goal: the pool's speed relative to that of this peer."""
    if n != 2:
        return ""
    if peer == "Executor 1":
        return "<= 1.2" if task_s >= 1e-4 else ""
    if peer == "MPICommExecutor 16":
        return ">= 3" if task_s < 1e-4 else ">= 1.7"
    if peer == "MPICommExecutor 1 + 1":
        return {1e-4: ">= 2", 1e-2: ">= 0.95"}.get(task_s, "")
    if peer.startswith("counter"):
        return ">= 1.3" if task_s < 1e-4 else ">= 0.95"
    return ""


def peers(options: argparse.Namespace) -> Rows:
    """Measure all contestants, by ranks, length of tasks, and spread of costs."""
    names = ["counter", "counter, largest first", "Executor 1", "Executor 16", "Executor.submit"]
    names += ["MPICommExecutor 1", "MPICommExecutor 16", "MPICommExecutor 1 + 1", "MPICommExecutor 16 + 1"]
    names += ["schwimmbad + 1"] if importlib.util.find_spec("schwimmbad") else []
    for n in (2, 4):
        for task_s in (1e-5, 1e-4, 1e-3, 1e-2):
            for kind in ("constant", "heavy"):
                tasks = min(MOST_TASKS, round(TOTAL_S * n / task_s))
                of = ["--tasks", str(tasks), "--task-s", str(task_s), "--kind", kind]
                answer = compete(n, ["pool", *names], options, *of)
                what = f"{n} ranks, {task_s * 1e6:6,.0f} us {kind:8}"
                yield Row(f"{what}: useful share of the pool's time", [
                    answer["useful_s"] / (n * seconds) for seconds in answer["seconds"]["pool"]
                ])  # fmt: skip
                for peer in names:
                    yield Row(f"{what}: {peer} / pool", ratios(answer, peer), "times", wanted_of(peer, n, task_s))
                items = costs(kind, tasks, task_s, options.seed)
                ours = statistics.median(answer["seconds"]["pool"])
                theirs = {"MPIPoolExecutor 1 + 1": by_mpi4py(n, options, of)}
                for peer, opened in PROCESSES.items():
                    with opened(n) as map_items:
                        map_all = functools.partial(map_items, spin, items)
                        theirs[peer] = [timed(map_all) for _ in range(options.repeat)]
                for peer, taken in theirs.items():
                    yield Row(f"{what}: {peer} / pool", [seconds / ours for seconds in taken], "times")


def by_mpi4py(n: int, options: argparse.Namespace, of: list[str]) -> list[float]:
    """Seconds of MPIPoolExecutor, with one rank more, which manages."""
    more = ["--repeat", str(options.repeat), "--seed", str(options.seed)]
    case = ["-m", "mpi4py.futures", "-m", "benchmarks.pool_ranks", "pool_executor", *more, *of]
    return list(run(n + 1, case)["seconds"])


Map = Callable[[Callable[[Any], Any], Sequence[Any]], Sequence[Any]]


@contextlib.contextmanager
def processes(n: int) -> Iterator[Map]:
    """multiprocessing.Pool, in an interpreter without MPI."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(n) as pool:
        pool.map(spin, [TASK_S] * 4 * n, 1)
        yield pool.map


@contextlib.contextmanager
def loky(n: int) -> Iterator[Map]:
    """joblib's loky, with its auto-batching, in an interpreter without MPI."""
    import joblib
    from joblib.externals.loky import get_reusable_executor

    with joblib.Parallel(n_jobs=n, backend="loky") as parallel:
        parallel(joblib.delayed(spin)(TASK_S) for _ in range(4 * n))
        yield lambda function, items: parallel(joblib.delayed(function)(item) for item in items)
    get_reusable_executor().shutdown()


def timed(run: Callable[[], Any], times: int = 1) -> float:
    """Seconds of a call, or of several."""
    began = time.perf_counter()
    for _ in range(times):
        run()
    return time.perf_counter() - began


PROCESSES = {"multiprocessing": processes}
if importlib.util.find_spec("joblib"):
    PROCESSES["joblib's loky"] = loky


def cpu_of_processes(map_items: Map) -> dict[str, float]:
    """CPU seconds of this process, which waits for others: for a map of a few tasks, and for each of many."""
    began = time.process_time()
    for _ in range(MAPS):
        map_items(spin, [TASK_S] * FEW)
    few = time.process_time()
    map_items(spin, [TASK_S] * MANY)
    return {"map_s": (few - began) / MAPS, "of_many_s": (time.process_time() - few) / MANY}


def speeds(options: argparse.Namespace) -> Rows:
    """Four ranks of emulated speeds."""
    for task_s, tasks, wanted in ((1e-3, 2000, ">= 0.95"), (1e-2, 100, ">= 0.90")):
        of = ["--speeds", SPEEDS, "--task-s", str(task_s), "--tasks", str(tasks), "--kind", "heavy"]
        for known in (False, True):
            answer = alone(4, "pool_bound", options, *of, *(["--costs"] if known else []))
            what = f"speeds {SPEEDS}, {tasks} x {task_s * 1e3:.0f} ms heavy{', costs known' if known else ''}"
            reached = [1.0 / ratio for ratio in answer["ratios"]]
            yield Row(f"{what}: bound / time", reached, "", ">= 0.97" if known else wanted)
            answer = alone(4, "pool_bound", options, "--work", "nap", *of, *(["--costs"] if known else []))
            yield Row(f"{what}, tasks that wait: bound / time", [1.0 / ratio for ratio in answer["ratios"]])


def hosts(options: argparse.Namespace) -> Rows:
    """Three emulated hosts, a rank on each.  RuntimeError where they can't be had."""
    case = ["-m", "benchmarks.pool_ranks", "pool_bound", "--speeds", HOSTS, "--hosts-are-slow"]
    case += ["--repeat", str(options.repeat), "--seed", str(options.seed), "--kind", "heavy", "--task-s", "1e-2"]
    with measuring.hosts(HOSTS) as answer:
        for work, words in (("spin", ""), ("nap", ", tasks that wait")):
            for tasks in (300, 1000):
                ratios = answer([*case, "--tasks", str(tasks), "--work", work])["ratios"]
                yield Row(f"hosts {HOSTS}, {tasks} x 10 ms heavy{words}: time / bound", ratios, "", "<= 1.10")


SECTIONS: dict[str, Callable[[argparse.Namespace], Rows]] = {
    section.__name__: section for section in (peers, speeds, hosts)
}


def main() -> None:
    """Measure, print the table (or JSON)."""
    parser = command("pool", __doc__, repeat=(5, "rounds of each measurement"))
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="run only these sections")
    parser.add_argument("--seed", type=int, default=0, help="seed of costs and orders (default: %(default)s)")
    options = parser.parse_args()
    table(options.only, lambda name: SECTIONS[name](options), options.json)
    if not importlib.util.find_spec("schwimmbad") and "peers" in options.only and not options.json:
        print("schwimmbad is not installed: left out")


if __name__ == "__main__":
    main()
