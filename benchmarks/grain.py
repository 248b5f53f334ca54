"""Compare the doors of lb_mpi with other ways to do the work.  python -m benchmarks.grain [--only SECTION ...] [--quick]

A table of cases: work, number of ranks, ways to do it.  A step is work of some length on each rank.

rows      steps of `map_rows` with 60 equal rows on each rank, beside a plain loop that ends with a barrier: two equal ranks
          that compute, and four ranks of speeds 1, 0.5, 0.25, 0.25 that wait (what Python itself needs is not slowed down).
          "Rows by speed" is the plain loop of somebody who knows the speeds.  Then a call with nothing to do, beside a
          barrier and an allreduce
pool      tasks of `Pool.map` on two ranks, in long maps and in maps of 16 tasks, beside mpi4py's MPICommExecutor,
          multiprocessing and, if it is installed, joblib's loky.  The number behind an executor is its chunksize
executor  tasks of `Executor.map` and `Executor.submit`, beside MPICommExecutor; "+ 1": with one more rank, which manages
exchange  steps of computing and `plan.exchange` on two ranks, beside Irecv, Isend and Waitall
search    whole searches on two ranks, in which one rank has all work at first, beside equal parts dealt out by hand
busy      two and four equal ranks, while 0, 2 or 8 other processes use the cores all the time: steps of rows, of a stencil
          (which begin with the program's own exchange of edges), and whole runs of apps.weather
peers     lists of tasks with other pools / with lb_mpi.Pool, on two ranks
hosts     steps of `map_rows`, and maps / their lower bound, on three emulated hosts of speeds 0.8, 0.4, 0.2 with 1 ms
          between them (launch/cluster; needs root)

METG, the minimum effective task granularity, is the shortest step or task with which ranks are 90 % efficient: they spend
90 % of the time on the user's work.  It is measured with longer and longer steps.  The first and the last length are the
least and the greatest that can be found; "inf" means that no length was efficient.

The ways run in turn (A B A B).  Each row has the median of the rounds, with the minimum and the maximum.  A * means that
other programs used more than 5 % of the machine meanwhile, so that the row says little.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.measuring import Answer, Row, command, hosts, run, spin, table

EFFICIENT = 0.9
UNEQUAL, HOSTS = "1,0.5,0.25,0.25", "0.8,0.4,0.2"
STEPS = (0.3e-3, 1e-3, 3e-3, 10e-3, 30e-3, 100e-3)  # seconds of work on each rank in a step of rows
EXCHANGES = (10e-6, 30e-6, 100e-6, 300e-6, 1e-3, 3e-3)  # ... of an exchange
SEARCHES = (1e-3, 3e-3, 10e-3, 30e-3, 100e-3, 300e-3)  # ... of a search
TASKS = (10e-6, 30e-6, 100e-6, 300e-6, 1e-3, 3e-3, 10e-3)  # of a task
LIST_S, MOST_TASKS, FEW = (0.15, 5_000, 16)  # seconds of work on each rank in a list of tasks; tasks in it; in a short one
ONE_MORE = " + 1"  # behind a way's name: it gets one more rank, which manages
MPI_POOL = "MPIPoolExecutor 1" + ONE_MORE
WEATHER = ["-m", "apps.weather", "--shape", "64x128", "--steps", "30", "--json"]

Seconds = dict[str, list[float]]  # of a step, by way and round


# --- tasks, and processes without MPI that run them ---------------------------------------------------------------------


def task_list(n: int, length_s: float, few: int, list_s: float) -> tuple[int, int]:
    """Number of tasks in a list for n ranks, and of maps of it; `few`: in maps of so many tasks, 0: in one map."""
    tasks = min(MOST_TASKS, round(n * list_s / length_s))
    return (few, max(tasks // few, 1)) if few else (tasks, 1)


def timed(run: Callable[[], Any], times: int = 1) -> float:
    """Seconds of a call, or of several."""
    began = time.perf_counter()
    for _ in range(times):
        run()
    return time.perf_counter() - began


Map = Callable[[Callable[[Any], Any], Sequence[Any]], Sequence[Any]]


@contextlib.contextmanager
def processes(n: int) -> Iterator[Map]:
    """multiprocessing.Pool, in an interpreter without MPI."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(n) as pool:
        pool.map(spin, [1e-3] * 4 * n, 1)
        yield pool.map


@contextlib.contextmanager
def loky(n: int) -> Iterator[Map]:
    """joblib's loky, with its auto-batching, in an interpreter without MPI."""
    import joblib
    from joblib.externals.loky import get_reusable_executor

    with joblib.Parallel(n_jobs=n, backend="loky") as parallel:
        parallel(joblib.delayed(spin)(1e-3) for _ in range(4 * n))
        yield lambda function, items: parallel(joblib.delayed(function)(item) for item in items)
    get_reusable_executor().shutdown()


PROCESSES = {"multiprocessing": processes}
if importlib.util.find_spec("joblib"):
    PROCESSES["joblib's loky"] = loky


# --- the table ----------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Work, ranks and ways, and what is shown of them."""

    what: str
    work: str  # of benchmarks.grain_ranks; "weather": the app
    n: int  # ranks
    lengths: Sequence[float] = (0.0,)  # seconds of a step
    metg: bool = False  # a row for each way
    over: str = ""  # the way, or "ideal", by whose time that of the others is divided; "": seconds
    speeds: str = ""
    argv: Sequence[str] = ()  # more arguments of the ranks
    ways: Sequence[str] = ()  # of tasks
    beside: int = 0  # other processes that use the cores
    goals: Mapping[Any, str] = MappingProxyType({})  # by length, and by way, of METG and of seconds


SHORT, POOLS = ("--few", str(FEW)), (*PROCESSES,)
EXECUTORS = ("Executor 1", "Executor.submit", "MPICommExecutor 1", "MPICommExecutor 1 + 1", "MPICommExecutor 16")
PEERS = ("pool", "Executor 1", "Executor 16", *EXECUTORS[1:], "MPICommExecutor 16 + 1", "schwimmbad + 1", MPI_POOL, *POOLS)
PEERS = tuple(way for way in PEERS if importlib.util.find_spec("schwimmbad") or not way.startswith("schwimmbad"))
AS_FAST = MappingProxyType(dict.fromkeys((0.0, 5e-3, 20e-3, 100e-3), "<= 1.05"))
BUSY = {"rows": (5e-3, 20e-3, 100e-3), "stencil": (20e-3,), "weather": (0.0,)}

SECTIONS: dict[str, list[Case]] = {
    "rows": [
        Case("2 equal ranks", "rows", 2, STEPS, True, "equal rows",
             goals={"map_rows": "<= 3", 3e-3: "<= 1.10", 10e-3: "<= 1.04", 100e-3: "<= 1.01"}),
        Case(f"speeds {UNEQUAL}", "rows", 4, STEPS, True, "rows by speed", UNEQUAL, ["--waits"],
             goals={"map_rows": "<= 10"}),
        Case("empty calls, 2 ranks", "calls", 2, goals={"map_rows": "<= 0.15"}),
        Case("empty calls, 4 ranks", "calls", 4, goals={"map_rows": "<= 0.25"}),
    ],
    "pool": [
        Case("long maps", "tasks", 2, TASKS, True, ways=("pool", "MPICommExecutor 16", *POOLS)),
        Case(f"maps of {FEW} tasks", "tasks", 2, TASKS, True, argv=SHORT, ways=("pool", "MPICommExecutor 1", *POOLS)),
    ],
    # longer lists: at their end, the root's task holds Python's lock for 5 ms
    "executor": [Case("2 ranks", "tasks", 2, TASKS, True, argv=["--list-s", "0.6"], ways=EXECUTORS)],
    "exchange": [Case("2 ranks", "exchange", 2, EXCHANGES, True)],
    "search": [Case("2 ranks", "search", 2, SEARCHES, True)],
    "busy": [
        Case(f"{n} ranks, {beside} beside, {work}", work, n, lengths, over="equal rows", beside=beside, goals=AS_FAST)
        for n in (2, 4) for beside in (0, 2, 8) for work, lengths in BUSY.items()
    ],
    "peers": [Case("2 ranks", "tasks", 2, (1e-5, 1e-4, 1e-3, 1e-2), over="pool", argv=["--list-s", "0.3"], ways=PEERS)],
    "hosts": [
        Case(f"empty calls, hosts {HOSTS}", "calls", 3),
        Case(f"hosts {HOSTS}", "rows", 3, STEPS[3:], False, "ideal", HOSTS, ["--hosts-are-slow"]),
        Case(f"hosts {HOSTS}, 300 tasks", "maps", 3, [1e-2], over="bound", goals={1e-2: "<= 1.10"}, speeds=HOSTS,
             argv=["--tasks", "300"]),
    ],
}  # fmt: skip


# --- one way to measure -------------------------------------------------------------------------------------------------


def measure(case: Case, repeat: int, answer: Answer | None) -> list[Seconds]:
    """Seconds of a step by length, way and round; `answer` runs the ranks, by default on this machine."""
    if case.work == "weather":
        runs = {"map_rows": WEATHER, "equal rows": [*WEATHER, "--balance", "none"]}
        found: Seconds = {way: [] for way in runs}
        for _ in range(repeat):
            for way, words in runs.items():
                found[way].append(run(case.n, words)["seconds"])
        return [found]
    argv = ["-m", "benchmarks.grain_ranks", case.work, "--lengths", *map(str, case.lengths), *case.argv]
    argv += ["--speeds", case.speeds] if case.speeds else []
    if case.work != "tasks":
        words = [*argv, "--repeat", str(repeat)]
        return list((answer(words) if answer else run(case.n, words))["seconds"])
    return tasks(case, argv, repeat)


def tasks(case: Case, argv: Sequence[str], repeat: int) -> list[Seconds]:
    """Seconds of a step, which is a task on each rank: on ranks, with mpi4py's own launcher, and in processes."""
    on_ranks = [way for way in case.ways if way not in (*PROCESSES, MPI_POOL)]
    n_all = case.n + any(way.endswith(ONE_MORE) for way in on_ranks)
    few, list_s = (float(_option(case.argv, name, value)) for name, value in (("--few", 0), ("--list-s", LIST_S)))
    rounds: list[list[Seconds]] = []
    for k in range(repeat):
        words = [*argv, "--ranks", str(case.n), "--seed", str(k)]
        rounds.append(run(n_all, [*words, "--ways", *on_ranks])["seconds"])
        if MPI_POOL in case.ways:
            words[2] = "pool_executor"
            for at, more in zip(rounds[k], run(case.n + 1, ["-m", "mpi4py.futures", *words])["seconds"], strict=True):
                at.update(more)
        for way in (way for way in case.ways if way in PROCESSES):
            with PROCESSES[way](case.n) as map_items:
                for length_s, at in zip(case.lengths, rounds[k], strict=True):
                    n, maps = task_list(case.n, length_s, int(few), list_s)
                    seconds = timed(functools.partial(map_items, spin, [length_s] * n), maps)
                    at[way] = [seconds * case.n / (n * maps)]
    return [{way: [one[k][way][0] for one in rounds] for way in case.ways} for k in range(len(case.lengths))]


def _option(argv: Sequence[str], name: str, usual: float) -> str | float:
    return argv[argv.index(name) + 1] if name in argv else usual


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


def shown(case: Case, seconds: Sequence[Seconds]) -> Iterator[Row]:
    """Rows of a case."""
    speeds = [float(speed) for speed in case.speeds.split(",") if speed]
    slower = len(speeds) / sum(speeds) if speeds else 1.0
    ways = [*seconds[0]]
    for way in ways if case.metg else ():
        rounds = zip(*(at[way] for at in seconds), strict=True)
        values = [
            metg(case.lengths, [length_s * slower / s for length_s, s in zip(case.lengths, one, strict=True)])
            for one in rounds
        ]
        yield Row(f"{case.what}: METG(90 %) of {way}", [1e3 * value for value in values], "ms", case.goals.get(way, ""))
    if case.metg and not case.over:
        return
    for length_s, at in zip(case.lengths, seconds, strict=True):
        steps = f", {1e3 * length_s:g} ms" if length_s else ""
        for way in ways:
            if not case.over:
                yield Row(f"{case.what}{steps}: {way}", [1e3 * s for s in at[way]], "ms", case.goals.get(way, ""))
            elif way != case.over:
                base = at.get(case.over) or [1.0 if case.over == "bound" else length_s * slower] * len(at[way])
                values = [s / other for s, other in zip(at[way], base, strict=True)]
                goal = case.goals.get(length_s, "") if way.startswith("map") else ""
                yield Row(f"{case.what}{steps}: {way} / {case.over}", values, "times", goal)


@contextlib.contextmanager
def beside(n: int) -> Iterator[None]:
    """Keep n other processes busy meanwhile."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def section(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Measure a section of the table.  RuntimeError where hosts can't be had."""
    with contextlib.ExitStack() as stack:
        answer = stack.enter_context(hosts(HOSTS)) if name == "hosts" else None
        for case in SECTIONS[name]:
            if options.quick:
                case = case._replace(lengths=case.lengths[::2], beside=min(case.beside, 2))
            with beside(case.beside):
                seconds = measure(case, options.repeat, answer)
            yield from shown(case, seconds)


def main() -> None:
    """Measure, print the table (or JSON)."""
    parser = command("grain", __doc__, repeat=(5, "rounds of each measurement"))
    usual = ["rows", "pool", "executor", "exchange", "search"]
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=usual,
        help=f"measure only these sections (default: {' '.join(usual)})")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="one round with every other length, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.repeat = 1
    table(options.only, lambda name: section(name, options), options.json)


if __name__ == "__main__":
    main()
