"""The jobs of ./launch/demo: each once without and once with balancing, on four ranks of unequal speed."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from lb_mpi.cli.run import processes
from lb_mpi.table import Table
from tools import limited
from tools.environment import ROOT, SETUP_LIMIT_S, Environment, SetupError, prepare, wanted
from tools.others import MUCH, Watch

SPEEDS = (0.8, 0.4, 0.2, 0.2)
LIMIT_S = 300.0
PAGE = "report.html"
POLL_S = 1.0  # at other programs, before the first job


class Job(NamedTuple):
    """A row of the table: an app with its arguments."""

    name: str
    argv: tuple[str, ...]
    unbalanced: tuple[str, ...] = ("--no-balance",)  # what turns the balancing off


JOBS = [  # a minute together, on two cores that have nothing else to do
    Job("UTS tree T1L, 102 million nodes", ("apps.uts", "--tree", "T1L")),
    Job("weather 64 x 128, 32 levels", ("apps.weather", "--shape", "64x128", "--steps", "20"), ("--balance", "none")),
]
MORE = [
    Job("maze 7000 x 7000, no way out", ("apps.maze", "--dim", "7000", "--walled", "--seed", "1")),
    Job("weather 128 x 256, 32 levels", ("apps.weather", "--steps", "30"), ("--balance", "none")),
    Job("heat, mesh of 200 x 300, once dealt out", ("apps.heat", "mesh:200x300", "--steps", "30"), ("--balance", "block")),
]


def run(environment: Environment, job: Job, record: Path | None) -> dict[str, Any]:
    """Run `job` without balancing, or with it and a `record`; return what it measured."""
    speeds = ["--speeds", ",".join(map(str, SPEEDS))]
    argv = ["-m", *job.argv, "--json", *speeds, *([] if record else job.unbalanced)]
    return environment.answer(len(SPEEDS), argv, LIMIT_S, env={"LB_MPI_RECORD": str(record)} if record else {})


def show(rows: list[tuple[Job, dict[str, Any], dict[str, Any]]]) -> None:
    """Print the table."""
    lines = []
    for job, without, balanced in rows:
        seconds, bound = balanced["seconds"], balanced["lower_bound_seconds"]
        lines.append((job.name, f"{without['seconds']:.2f}", f"{seconds:.2f}", f"{bound:.2f}", f"{seconds / bound:.2f}"))
    print(f"Four ranks of speeds {', '.join(map(str, SPEEDS))}: seconds")
    print(Table(("job", "without balancing", "with", "lower bound", "with / bound"), lines, words=(0,)))
    print("Without: each rank does the same share, and the slowest decides when the job ends.")
    print("With: ranks that would wait do work of the others.")
    print("Lower bound: CPU seconds of the work in the balanced run / sum of the speeds. With / bound: 1.00 is perfect.")


def obstacles(cores: int, others: float) -> str:
    """Say why this machine can't show what balancing gains; "" if it can.

    `cores` : that this process may use; `others` : the part of all cores that other programs use.
    """
    if cores < sum(SPEEDS):
        return f"This machine gives the demo 1 core, and its four ranks need {sum(SPEEDS):g}: the times will say little."
    if others > MUCH:
        return f"Other programs use {others:.0%} of this machine's cores: the times will say little about balancing."
    return ""


def conclusion(rows: list[tuple[Job, dict[str, Any], dict[str, Any]]], others: float) -> str:
    """Say in a sentence what was gained; `others`: the part of the machine that other programs used."""
    if others > MUCH:
        return (
            f"Other programs used {others:.0%} of this machine's cores, so these times do not tell what balancing gains. "
            "Run it again on a quiet machine."
        )
    gained = [without["seconds"] / balanced["seconds"] for _, without, balanced in rows]
    each = ", ".join(f"{job.name.split(',')[0]} {ratio:.1f}" for (job, _, _), ratio in zip(rows, gained, strict=True))
    return f"Times as fast with balancing: {each}."


def main() -> int:
    """./launch/demo."""
    parser = argparse.ArgumentParser(
        prog="launch/demo",
        usage="[MPI=openmpi] %(prog)s",
        description="Set up an environment of its own, then run each job on four ranks that emulate unequal machines, "
        "without and with balancing, and print a table. The variable MPI chooses mpich (default) or openmpi.",
    )
    parser.add_argument("--all", action="store_true", help="also run three longer jobs, which take some minutes")
    jobs = JOBS + (MORE if parser.parse_args().all else [])
    with processes.interruptible(), ExitStack() as stack:
        try:
            environment = wanted()
            prepare(environment)
        except SetupError as error:
            print(error, file=sys.stderr)
            return error.code
        if os.path.realpath(sys.prefix) != os.path.realpath(environment.path):  # what follows needs what was installed
            os.chdir(ROOT)
            os.execve(environment.python, [str(environment.python), "launch/demo", *sys.argv[1:]], environment.variables())
        watch = Watch()
        time.sleep(POLL_S)  # nothing of ours runs meanwhile
        if words := obstacles(len(os.sched_getaffinity(0)), watch.others()):
            print(words, flush=True)
        if limited.run([sys.executable, "-m", "apps.kernels"], SETUP_LIMIT_S, env=environment.variables(), cwd=ROOT):
            print("the kernels could not be compiled", file=sys.stderr)
            return 1
        rows = []
        record = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lb_mpi-")))
        watch.others()  # from now on
        for number, job in enumerate(jobs, start=1):
            pair = []
            for how, folder in (("without", None), ("with", record / str(number))):
                print(f"{number} of {len(jobs)}: {job.name}, {how} balancing ...", flush=True)
                started = time.monotonic()
                try:
                    pair.append(run(environment, job, folder))
                except RuntimeError as error:
                    print(error, file=sys.stderr)
                    return 1
                print(f"{time.monotonic() - started:.1f} s", flush=True)
            rows.append((job, pair[0], pair[1]))
            print(f"{job.name}: {pair[0]['seconds']:.2f} s without, {pair[1]['seconds']:.2f} s with balancing", flush=True)
        others = watch.others()
        print(conclusion(rows, others))
        show(rows)
        report = [sys.executable, "-m", "lb_mpi", "report", str(record / str(len(jobs))), "-o", str(ROOT / PAGE)]
        with open(os.devnull, "wb") as nowhere:  # it predicts what was measured here
            if limited.run(report, LIMIT_S, env=environment.variables(), cwd=ROOT, stdout=nowhere):
                return 1
        print(f"What each rank did in job {len(jobs)}, as a page for a browser: {PAGE}", flush=True)
        if len(jobs) == len(JOBS):
            print("More jobs, some minutes: ./launch/demo --all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
