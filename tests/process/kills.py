"""A rank is killed at a random moment, while it imports, while MPI starts, while it computes: what is left, what is told?

`kill_one` starts UTS, the weather or particles with `launch/run` on four ranks of this machine, and says whether a process,
shared memory or a temporary file is left, and whether the rank, the host and the signal are told.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.campaign import ranks
from lb_mpi.cli.run import limit
from tools.environment import ROOT, Environment

N_RANKS = 4
LIMIT_S = 90.0  # for a run that should have ended at the kill
LATEST_S = 2.0  # after the ranks are there
PROGRAMS = (
    ("-m", "apps.uts", "--tree", "T1XL"),
    ("-m", "apps.weather", "--shape", "64x128", "--steps", "100000"),
    ("-m", "apps.particles", "--shape", "20x30", "--particles", "20000", "--steps", "100000", "--rebalance"),
)


class Run(NamedTuple):
    """What came of one run."""

    program: str
    rank: int
    after_s: float
    faults: list[str]  # none: nothing is left, and all is told
    errors: str


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
            used = {path for pid in limit.bearers(mark) for path in limit.mapped(Path(f"/proc/{pid}"))}
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
        faults += [f"temporary file {name} left" for name in os.listdir(scratch)]
        errors.seek(0)
        text = errors.read()
    line = f"rank {victim} on host {socket.gethostname()} was killed by signal {signal.SIGKILL:d}"
    faults += ["not told"] * (line not in text)
    return Run(program[1], victim, after_s, faults, text)
