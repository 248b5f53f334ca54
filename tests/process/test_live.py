"""What is shown of a run that is under way."""

import math
import subprocess
import sys

import pytest

from lb_mpi import status
from lb_mpi.cli.report import live
from lb_mpi.cli.report.live import totals, words
from lb_mpi.cli.report.run import assemble
from lb_mpi.cli.run.progress import followed
from lb_mpi.record.events import Driver, Phase, Step, Way
from lb_mpi.record.record import Record
from tests.process.lab import until
from tests.unit.records import about, whole
from tools.environment import ROOT

pytestmark = pytest.mark.one_mpi
SIZE = 4


def file_of(record, rank, now, hosts, *, ended):
    return whole(record, now, about(rank, SIZE, f"node{rank * hosts // SIZE}", clock_s=0.0), ended=ended)


def files(now, *, hosts=1, ended=False):
    """Rank r works the first 1 / (1 + r) of each second, at 10 (r + 1) tasks a second of 1000 that it was dealt."""
    made = []
    for rank in range(SIZE):
        record = Record(0.0)
        for second in range(int(now)):
            record.enter(Phase.OWN, float(second))
            record.enter(Phase.WAITING, second + 1.0 / (1 + rank))
        record.step(Step(Driver.TASKS, 0.0, 0.5, 0.5, 100.0))
        record.move(Way.STEAL, (rank + 1) % SIZE, 5.0)
        record.doing(10.0 * (rank + 1) * now, 1000.0)
        made.append(file_of(record, rank, now, hosts, ended=ended))
    return made


def run(now, *, hosts=1, ended=False):
    return assemble(files(now, hosts=hosts, ended=ended))


def of_one(now, *, best=None, working=False, done=0.0, size=1):
    """Runs of equal ranks that are in the midst of a call: of which not all that is shown is known."""
    made = []
    for rank in range(size):
        record = Record(0.0)
        if working:
            record.enter(Phase.OWN, 0.0)
        if best is not None:
            record.bounded(best, 10.0 * rank)
        record.doing(done)
        made.append(file_of(record, rank, now, 1, ended=False))
    return assemble(made)


# Of `run`: 1,000 tasks of this call and 400 of earlier ones; ranks are busy 1, 1/2, 1/3 and 1/4 of the time.
@pytest.mark.parametrize(("shown", "seen", "before"), [
    ("10 s: 1,400 tasks, 100 a second; busy 52%, least on rank 3: 25%; about 30 s left", run(10.0), run(4.0)),
    ("busy 52%, least on node1: 29%;", run(10.0, hosts=2), None),
    ("a second; best 1,234,567, 60 open; busy", of_one(3.0, best=1234567.0, working=True, size=SIZE), None),
    ("a second; no solution yet, 60 open; busy", of_one(3.0, best=math.inf, working=True, size=SIZE), None),
    ("4 s: 800 tasks, 0 a second", run(4.0), run(4.0)),  # a rank without news is not called idle
    *[(f" units, {rate} a second", of_one(4.0, done=done), None)  # no powers of ten
      for done, rate in ((5_012_345.0, "1,253,086"), (47.0, "11.8"), (0.5, "0.125"))],
    ("2 s: 12 units, 6 a second; busy 100%, least on rank 0: 100%", of_one(2.0, working=True, done=12.0), None),  # a search
])  # fmt: skip
def test_the_line_shows_what_is_known(shown, seen, before):
    said = words(seen, totals(before)) if before else words(seen)
    assert said == shown if shown[0].isdigit() else shown in said


def test_the_line_of_a_program_with_steps_shows_the_time_left():
    found = []
    for rank, done in enumerate((14, 12, 13, 14)):  # the one that is the farthest behind counts
        record = Record(0.0)
        record.use("exchange", {})
        record.stepped(2.0, 10, 50)  # a run before had come so far
        record.stepped(6.0, done, 50)
        record.step(Step(Driver.REBALANCE, 5.0, 5.5, 0.0, 0.0, moved=4, acted=1))  # no unit of work
        record.doing(done)
        found.append(file_of(record, rank, 7.0, 1, ended=False))
    # 38 steps are left, and the last two took 4 s; nothing is known of work.
    assert words(assemble(found)) == "7 s, 12 of 50 steps: 53 exchanges, 7.57 a second; about 76 s left"
    assert words(assemble([*found[1:], file_of(Record(0.0), 0, 7.0, 1, ended=False)])).startswith("7 s: ")


def test_it_is_shown_by_a_process_of_its_own(tmp_path, capfd):
    for name, data in files(9.0, ended=True):
        (tmp_path / name).write_bytes(data)
    with followed(str(tmp_path)):
        said = until(lambda: capfd.readouterr().err)
    assert said.startswith("9 s: 1,300 tasks")


def test_it_stops_when_who_started_it_is_gone(tmp_path):
    argv = [sys.executable, "-m", "lb_mpi.cli.report.live", str(tmp_path)]
    assert subprocess.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=120, capture_output=True).returncode == 0


def test_it_ends_with_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(status, "LINE_S", 0.0)
    polls = [[], files(4.0), files(8.0), files(9.0, ended=True)]

    def wait(_seconds):
        for name, data in polls.pop(0):
            (tmp_path / name).write_bytes(data)
        return False

    monkeypatch.setattr(live, "wait_for_eof", wait)
    live.follow(tmp_path)
    said = capsys.readouterr()
    assert [line.partition(":")[0] for line in said.err.splitlines()] == ["4 s", "8 s", "9 s"]
