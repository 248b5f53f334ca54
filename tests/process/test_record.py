"""Recorded runs on MPI: each driver's record agrees with its own result, and a killed run's can be read."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from lb_mpi.record.events import Driver, Phase, Way
from lb_mpi.record.record import read
from tests.mpi.limits import largest_file
from tests.process.lab import ROOT, until
from tests.process.started import needs_mpiexec, started
from tools.environment import here

recorder = pytest.importorskip("lb_mpi.mpi.common.recorder", exc_type=ImportError)
pytestmark = needs_mpiexec
N = 3

PROGRAM = """
import dataclasses, json, os, subprocess, sys, time
import numpy as np
from mpi4py import MPI
import lb_mpi
from tests.clock import spin
from tests.pile import Pile

class SlowPile(Pile):
    def work(self, units):
        spin(20e-6)
        return super().work(1)

def burn(x):
    if x == 0:  # a task that uses lb_mpi itself is recorded once
        with lb_mpi.Pool(MPI.COMM_SELF) as inner:
            inner.map(abs, [1, 2])
    spin(1e-3)
    return 2 * x

def rows(block):
    spin(2e-4 * len(block))
    return block + 1.0

comm = MPI.COMM_WORLD
began = time.perf_counter()
found = lb_mpi.search(comm, SlowPile(2000), threshold=1.0, emulated_speed=1.0 if comm.rank else 0.5)
with lb_mpi.Balancer(comm) as balancer:
    column = np.arange(30.0 * (1 + 5 * (comm.rank == 0)))
    for _ in range(4):
        column = balancer.map_rows(rows, column)
    lent = [one.rows_moved for one in balancer.history]
    shares = [(one.done, one.busy_s) for one in balancer.report().ranks]
with lb_mpi.Pool(comm, speeds=[1.0] + [0.05] * (comm.size - 1)) as pool:
    doubled = pool.map(burn, range(200))
    tasks = (report := pool.report()) and [dataclasses.asdict(rank) for rank in report.ranks]
seconds = time.perf_counter() - began
if comm.rank == 0:  # a program of its own, which is not recorded in the place of this rank
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI", "PRTE", "MPI_"))}
    child = "from mpi4py import MPI; import lb_mpi; print(lb_mpi.Pool(MPI.COMM_SELF).map(abs, [-1]), file=sys.stderr)"
    subprocess.run([sys.executable, "-c", "import sys; " + child], env=alone, check=True)
sums = comm.gather(float(column.sum()))
if comm.rank == 0:
    print(json.dumps({
        "value": sorted(found.value), "ranks": [vars(rank) for rank in found.ranks], "lent": lent, "sums": sums,
        "shares": shares, "doubled": doubled, "tasks": tasks, "seconds": seconds,
    }), flush=True)
if sys.argv[1:] == ["wait"]:
    lb_mpi.search(comm, SlowPile(10**9), threshold=1.0)
"""


SUBMITTED = """
import lb_mpi
from tests.clock import spin

def burn(x):
    spin(2e-3)
    return 2 * x

if __name__ == "__main__":
    for _ in range(3):
        with lb_mpi.Executor() as executor:
            assert list(executor.map(burn, range(10))) == list(range(0, 20, 2))
"""


def job(folder, *arguments):
    """A run of N ranks that is recorded in a folder."""
    argv, variables = here().job(N, [sys.executable, *arguments])
    return {"args": argv, "env": {**variables, "LB_MPI_RECORD": str(folder), "PYTHONPATH": str(ROOT)}, "cwd": ROOT}


def printed(**options):
    """The output of a run, which must end well."""
    done = subprocess.run(**options, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def report(*arguments):
    return printed(args=[sys.executable, "-m", "lb_mpi", "report", *map(str, arguments)], cwd=ROOT)


def records(folder):
    return [read(path.read_bytes()) for path in sorted(folder.iterdir())]


APART = """
import os, sys, lb_mpi
from mpi4py import MPI
os.chdir(sys.argv[1 + MPI.COMM_WORLD.rank % 2])
with lb_mpi.Pool() as pool:
    pool.map(abs, range(3))
"""


@pytest.mark.one_mpi
def test_ranks_in_folders_of_their_own_record_in_one(tmp_path):
    (other := tmp_path / "other").mkdir()
    run = job("record", "-c", APART, str(tmp_path), str(other))
    printed(**run | {"cwd": tmp_path})
    assert [one.about.rank for one in records(tmp_path / "record")] == list(range(N))


def test_records_agree_with_results(tmp_path):
    folder = tmp_path / "new" / "record"
    reported = json.loads(printed(**job(folder, "-c", PROGRAM)))
    assert reported["value"] == list(range(1, 2001))
    assert reported["doubled"] == [2 * k for k in range(200)]
    sizes = [30 * (1 + 5 * (rank == 0)) for rank in range(N)]
    assert reported["sums"] == [float((np.arange(size) + 4.0).sum()) for size in sizes]

    found = records(folder)
    assert [one.about.rank for one in found] == list(range(N))
    assert all(one.ended and one.about.size == N for one in found)
    for rank, one in enumerate(found):
        steps = one.steps
        assert steps["driver"].tolist() == [Driver.SEARCH] + 4 * [Driver.ROWS] + [Driver.TASKS]
        assert (steps["ended"] >= steps["began"]).all()
        assert steps["ended"].max() - steps["began"].min() <= reported["seconds"] + 0.05
        search, tasks = steps[0], steps[-1]
        assert search["units"] == reported["ranks"][rank]["done"]
        assert search["moved"] == reported["ranks"][rank]["received"]
        assert search["messages"] == reported["ranks"][rank]["messages"]
        assert search["useful_s"] == pytest.approx(reported["ranks"][rank]["useful_s"], rel=1e-3)
        assert steps["moved"][1:5].tolist() == reported["lent"]
        assert steps["home"][1:5].tolist() == [sizes[rank]] * 4
        assert (steps["units"][1:5].sum(), steps["busy_s"][1:5].sum()) == pytest.approx(reported["shares"][rank], rel=1e-5)
        assert tasks["units"] == reported["tasks"][rank]["done"]
        assert tasks["moved"] == reported["tasks"][rank]["received"]
        assert tasks["sent_bytes"] >= reported["tasks"][rank]["sent_bytes"]  # the root knows those up to the last results
        assert one.seconds.sum() == pytest.approx(one.until - one.about.clock_s, rel=1e-3)
        assert set(one.settings) >= {"search", "map_rows"}
        assert one.settings["map_rows"]["scheme"] == "auto"
        assert (steps["home_s"][1:5] > 0.0).all()
        assert one.tasks["n"].sum() == tasks["units"]
        work_s = reported["tasks"][rank]["useful_s"] * reported["tasks"][rank]["speed"]
        assert one.tasks["seconds"].sum() == pytest.approx(work_s, rel=1e-3)
        computed_s = one.seconds[:, [Phase.OWN, Phase.FOREIGN]].sum()
        search_s = reported["ranks"][rank]["useful_s"] * reported["ranks"][rank]["speed"]
        assert computed_s >= search_s
    by_way = {way: [one.flows[one.flows["way"] == way] for one in found] for way in Way}
    assert [flows["amount"].sum() for flows in by_way[Way.DRAFT]] == [rank["received"] for rank in reported["ranks"]]
    assert [flows["amount"].sum() > 0 for flows in by_way[Way.STEAL]] == [rank["received"] > 0 for rank in reported["tasks"]]
    assert sum(flows["amount"].sum() for flows in by_way[Way.LOAN]) == sum(reported["lent"])

    said = report(folder, "--json", "-o", folder / "page.html")
    assert [of["driver"] for of in json.loads(said)["settings"]] == ["map_rows", "pool"]


@pytest.mark.one_mpi
def test_tasks_of_an_executor_are_recorded(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SUBMITTED)
    printed(**job(tmp_path / "record", "-m", "lb_mpi", "pool", str(script)))
    found = records(tmp_path / "record")
    for one in found:
        assert one.steps["driver"].tolist() == [Driver.TASKS]
        assert one.steps["n"].tolist() == [1]
        assert one.steps["useful_s"][0] == pytest.approx(one.tasks["seconds"].sum(), rel=1e-3)
        assert one.steps["busy_s"][0] >= 2e-3 * one.steps["units"][0]
        assert one.seconds[:, Phase.OWN].sum() >= 0.5 * one.steps["busy_s"][0]  # rank 0's tasks run beside its other thread
    assert sum(one.steps["units"].sum() for one in found) == 30
    positions = [first + k for one in found for first, n, _ in one.tasks.tolist() for k in range(n)]
    assert len(set(positions)) == len(positions) == 30
    report(tmp_path / "record", "-o", tmp_path / "report.html")


def test_the_record_of_a_killed_run_can_be_read(tmp_path):
    run = job(tmp_path, "-c", PROGRAM, "wait")
    with started(run.pop("args"), **run, start_new_session=True) as process:
        assert process.stdout.readline().startswith("{")
        until(lambda: all(one.steps["n"].sum() == 6 for one in records(tmp_path)))
        found = records(tmp_path)
        os.kill(found[1].about.process, signal.SIGKILL)
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
    for one in records(tmp_path):
        assert one.steps["n"].sum() == 6
        assert one.seconds.sum() == pytest.approx(one.until - one.about.clock_s, rel=1e-3)
    assert not records(tmp_path)[1].ended


@pytest.mark.one_mpi
@pytest.mark.parametrize("how", ["removed", "replaced", "no room"])
def test_a_record_that_cannot_be_written_any_more_ends_with_one_warning(tmp_path, how):
    file, path = recorder._File(tmp_path), tmp_path / "rank000000.lbrec"
    before = path.read_bytes()
    if how != "no room":
        path.unlink()
    if how == "replaced":
        path.write_bytes(b"another")
    words = f"'{path}'" if how == "no room" else f"{path} was removed or replaced"
    with largest_file(5000, here=how == "no room"), pytest.warns(RuntimeWarning) as came:
        any(file.write(now) for now in (1.0, 2.0))
    assert [str(one.message).partition(" any more: ")[2].endswith(words) for one in came] == [True]
    if how != "removed":
        assert path.read_bytes() == (b"another" if how == "replaced" else before)


@pytest.mark.one_mpi
def test_a_disk_without_room_at_the_start_is_named(tmp_path):
    with largest_file(100), pytest.raises(OSError, match=f"`ulimit -f`.: '{tmp_path}/rank000000.lbrec'"):
        recorder._File(tmp_path)


@pytest.mark.one_mpi
def test_a_folder_that_cannot_be_made_is_an_error_on_every_rank(tmp_path):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "record"
    done = subprocess.run(**job(folder, "-c", PROGRAM), capture_output=True, text=True, timeout=240)
    assert done.returncode != 0
    assert "NotADirectoryError" in done.stderr
