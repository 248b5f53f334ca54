"""What is left when a rank is killed?  MPI=openmpi python -m tools.kills --runs 50

Each run starts UTS or the weather with `launch/run -n 4` on this machine, and kills one rank (SIGKILL) at a random moment:
while it imports, while MPI starts, while it computes.  Counted are the runs after which a process, shared memory or a
temporary file is left, and those in which the rank, the host or the signal is not told.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from lb_mpi.launching import leftovers, limit
from tools.environment import ROOT, Environment, wanted

N_RANKS = 4
LIMIT_S = 90.0  # for a run that should have ended at the kill
LATEST_S = 2.0  # after the ranks are there
PROGRAMS = (
    ("-m", "apps.uts", "--tree", "T1XL"),
    ("-m", "apps.weather", "--shape", "64x128", "--steps", "100000"),
)
NUMBER = (b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK=")


class Run(NamedTuple):
    """What came of one run."""

    program: str
    rank: int
    after_s: float
    faults: list[str]  # none: nothing is left, and all is told
    told: str


def ranks(mark: str, program: str) -> dict[int, int]:
    """Return the process of each rank that runs `program`, without what stands before it."""
    found = {}
    for pid in limit.bearers(mark):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = [value.partition(b"=")[2] for value in variables if value.startswith(NUMBER)]
        if rank and words[1:3] == [b"-m", program.encode()]:
            found[int(rank[0])] = pid
    return found


def kill_one(environment: Environment, chance: random.Random) -> Run:
    """Start a program, kill one of its ranks, look what is left."""
    program = chance.choice(PROGRAMS)
    victim, after_s = chance.randrange(N_RANKS), chance.uniform(0.0, LATEST_S)
    faults = []
    with tempfile.TemporaryDirectory(prefix="lb_mpi-") as folder, tempfile.TemporaryFile("w+") as errors:
        hosts, scratch = Path(folder) / "hosts.txt", Path(folder) / "tmp"
        hosts.write_text(f"{socket.gethostname()} slots={N_RANKS}\n")
        scratch.mkdir()
        mark, env = limit.marked({**environment.variables(), "TMPDIR": str(scratch)})
        argv = [str(environment.python), "launch/run", "--hosts", str(hosts), "--", str(environment.python), *program]
        process = subprocess.Popen(argv, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            deadline = time.monotonic() + LIMIT_S
            while len(found := ranks(mark, program[1])) < N_RANKS:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{' '.join(program)} has not started")
                time.sleep(0.02)
            time.sleep(after_s)
            used = {path for pid in limit.bearers(mark) for path in leftovers.mapped(Path(f"/proc/{pid}"))}
            os.kill(found[victim], signal.SIGKILL)
            try:
                faults += ["exit code 0"] * (process.wait(LIMIT_S) == 0)
            except subprocess.TimeoutExpired:
                faults.append("hung")
            faults += ["process left"] * bool(limit.bearers(mark))
        finally:
            limit.end(mark)
            process.wait()
        faults += ["shared memory left"] * any(path.exists() for path in used)
        faults += ["temporary file left"] * bool(os.listdir(scratch))
        errors.seek(0)
        told = errors.read()
    line = f"rank {victim} on host {socket.gethostname()} was killed by signal {signal.SIGKILL:d}"
    faults += ["not told"] * (line not in told)
    return Run(program[1], victim, after_s, faults, told)


def main() -> int:
    """Kill, and print what was counted."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.kills", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=50, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of programs, ranks and moments (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    environment, chance = wanted(), random.Random(options.seed)
    faults: Counter[str] = Counter()
    for number in range(options.runs):
        run = kill_one(environment, chance)
        faults.update(run.faults)
        if run.faults:
            print(f"run {number}: {run.program}, rank {run.rank} after {run.after_s:.2f} s: {run.faults}", file=sys.stderr)
            print(run.told, file=sys.stderr)
    answer = {"mpi": environment.mpi, "runs": options.runs, "seed": options.seed, "faults": dict(faults)}
    for_people = f"{environment.mpi}: {options.runs} runs, faults: {dict(faults) or 'none'}"
    print(json.dumps(answer) if options.json else for_people)
    return int(bool(faults))


if __name__ == "__main__":
    with limit.interruptible():
        sys.exit(main())
