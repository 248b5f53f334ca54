"""Apps in processes of their own: as they start by themselves, and killed or stopped while they save."""

import json
import os
import random
import signal
import subprocess
import time

import pytest

from benchmarks.campaign import ranks
from lb_mpi.cli.run import processes
from tests.process.started import LIMIT_S, needs_mpiexec, on_ranks, started
from tools.environment import ROOT, here

pytestmark = [pytest.mark.one_mpi, needs_mpiexec]
LINES = [
    "maze --dim 100",
    "uts --depth 4",
    "tsp --cities 7",
    "heat mesh:8x8 --steps 3 --rebalance",
    "weather --shape 8x8 --steps 2",
    "particles --steps 2 --particles 1000 --rebalance",
    "sweep --tasks 20 --until 5",
]


@pytest.mark.parametrize("line", LINES)
def test_an_app_by_itself(line):
    app, *options = line.split()
    code, text = on_ranks(1, "-m", f"apps.{app}", *options, "--json")
    assert code == 0, text
    assert json.loads(text.splitlines()[-1])["ranks"] == 1


# --- killed or stopped while it saves --------------------------------------------------------------------------------

APP = "apps.weather"
SMALL = ["--shape", "24x48", "--levels", "4"]


def committed(folder):
    return sorted(int(path.parent.name.removeprefix("save-")) for path in folder.glob("save-*/manifest"))


def interrupted(n, folder, number, victim, after):
    """Start on n ranks, send the signal to a rank (None: to mpiexec) `after` so many saves; its exit code and stderr."""
    environment = here()
    options = ["--steps", "1000000", "--save", str(folder), "--save-every", "1"]
    argv = [str(environment.python), "-m", APP, *SMALL, *options]
    command, variables = environment.job(n, argv)
    run_id, env = processes.with_run_id({**os.environ, **variables})
    last = max(committed(folder), default=0)
    try:
        with started(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + LIMIT_S
            while max(committed(folder), default=0) < last + after:
                assert process.poll() is None, process.communicate()[1]
                assert time.monotonic() < deadline
                time.sleep(1e-3)
            os.kill(process.pid if victim is None else ranks(run_id, APP)[victim], number)
            _, errors = process.communicate(timeout=LIMIT_S)
            return process.returncode, errors
    finally:
        processes.end(run_id)


def test_a_run_that_is_killed_and_then_stopped_ends_with_the_same_bits(tmp_path):
    chance = random.Random(3)
    folder = tmp_path / "saves"
    code, _ = interrupted(3, folder, signal.SIGKILL, chance.randrange(3), chance.randint(1, 9))
    assert code != 0
    code, errors = interrupted(2, folder, signal.SIGUSR1, None, 2)
    last = committed(folder)[-1]
    assert code == os.EX_TEMPFAIL
    line = f"python -m {APP}: saved at step {last}, stopped by SIGUSR1: run the same command to go on"
    assert line in errors.splitlines()
    whole = ["-m", APP, *SMALL, "--steps", str(last + 3), "--json"]
    resumed = here().answer(1, [*whole, "--save", str(folder)], LIMIT_S)
    alone = here().answer(1, whole, LIMIT_S)
    assert (resumed["first_step"], alone["first_step"]) == (last, 0)
    assert resumed["checksum"] == alone["checksum"]
    assert committed(folder)[-1] == last + 3
