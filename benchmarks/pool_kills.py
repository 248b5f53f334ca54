"""Is a task's result lost, or counted twice, when ranks are killed?  MPI=openmpi python -m benchmarks.pool_kills --runs 200

A run maps 300 tasks with a log, on one to four ranks, of which one or several are killed (SIGKILL) at random moments: while
they import, while MPI starts, while they compute, while they write.  It is started again, with another number of ranks and
other victims, until it ends by itself.  Then the log has each task once, and the results are those of a run without deaths.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.pool_kills_task import run_task, square
from lb_mpi.files import write_whole
from lb_mpi.launching import limit
from lb_mpi.launching.rank import NUMBER
from lb_mpi.mpi.items import check_items
from lb_mpi.mpi.task_log import digest
from lb_mpi.pooling import log
from tools.environment import Environment, wanted

N_TASKS = 300
MOST_DEATHS = 4  # starts of a run that end so
LIMIT_S = 60.0
LATEST_S = 1.5  # after the start of python


class Run(NamedTuple):
    """What came of one run."""

    starts: int
    faults: list[str]


def campaign(environment: Environment, chance: random.Random) -> Run:
    """Start a job again and again, killing ranks, until one start is let live; hold its log against what is expected."""
    faults: list[str] = []
    done: dict[int, Any] = {}
    with tempfile.TemporaryDirectory(prefix="lb_mpi-") as folder:
        path, out = Path(folder) / "log", Path(folder) / "results.json"
        deaths = chance.randint(1, MOST_DEATHS)
        for start in range(deaths + 1):
            n = chance.randint(1, 4)
            victims = {rank: chance.uniform(0.0, LATEST_S) for rank in chance.sample(range(n), chance.randint(1, n))}
            told = ",".join(f"{rank}:{after_s:.3f}" for rank, after_s in victims.items()) if start < deaths else ""
            argv = [str(environment.python), "-m", "benchmarks.pool_kills", "--job", str(path), str(out), told]
            with open(os.devnull, "wb") as nothing:
                if environment.mpiexec(n, argv, LIMIT_S, stdout=nothing, stderr=nothing) == limit.HUNG:
                    faults.append("hung")
            now = read(path)
            faults += ["a finished task was lost, or run again"] * any(now.get(k) != value for k, value in done.items())
            done = now
            if out.exists():
                break
        results = json.loads(out.read_text()) if out.exists() else []
        faults += ["no end"] * (not results)
        if results:
            faults += ["wrong results"] * ([value for value, _ in results] != [square(k) for k in range(N_TASKS)])
            faults += ["results are not those of the log"] * (results != [list(done[k]) for k in range(N_TASKS)])
    return Run(start + 1, faults)


def read(path: Path) -> dict[int, Any]:
    """The finished tasks of a log; none while there is none."""
    if not path.exists():
        return {}
    return log.read(path.read_bytes(), digest(run_task, check_items(N_TASKS)), N_TASKS).done


def job(path: str, out: str, victims: str) -> None:
    """One start, on each rank."""
    after_s = dict(pair.split(":") for pair in victims.split(",") if pair).get(number(os.environ))
    if after_s is not None:
        _die(float(after_s))
    from mpi4py import MPI

    import lb_mpi

    pool = lb_mpi.Pool(MPI.COMM_WORLD)
    results = pool.map(run_task, N_TASKS, log=path)
    pool.close()
    if results is not None:
        write_whole(Path(out), json.dumps(results).encode())


def number(variables: Mapping[str, str]) -> str:
    """The rank of this process, before MPI is started."""
    return next((variables[name] for name in NUMBER if name in variables), "0")


def _die(after_s: float) -> None:
    """Be killed, wherever this process is by then."""
    parent = os.getpid()
    if os.fork():
        return
    time.sleep(after_s)
    if os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)
    os._exit(0)


def main() -> int:
    """Kill, and print what was counted."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pool_kills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=20, help="how many (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of numbers of ranks, victims, moments (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--job", nargs=3, metavar=("LOG", "OUT", "VICTIMS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(*options.job)
        return 0
    environment, chance = wanted(), random.Random(options.seed)
    faults, starts = Counter[str](), 0
    for k in range(options.runs):
        run = campaign(environment, chance)
        faults.update(run.faults)
        starts += run.starts
        if run.faults:
            print(f"run {k}: {run}", file=sys.stderr)
    answer = {
        "mpi": environment.mpi,
        "runs": options.runs,
        "seed": options.seed,
        "starts": starts,
        "faults": dict(faults),
    }
    for_people = f"{environment.mpi}: {options.runs} runs, {starts} starts, faults: {dict(faults) or 'none'}"
    print(json.dumps(answer) if options.json else for_people)
    return int(bool(faults))


if __name__ == "__main__":
    with limit.interruptible():
        sys.exit(main())
