"""The two commands: their time limit leaves nothing behind, their counts are right, their environment needs nothing."""

import os
import re
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from lb_mpi.cli.run import limit
from tests.process.lab import gone, until
from tests.process.started import LIMIT_S, started
from tools import counts, limited, progress, schedule, stages, testing
from tools.counts import Counts, count
from tools.environment import FOLDERS, ROOT, SetupError, wanted

pytestmark = pytest.mark.one_mpi

HERE = {"PATH": os.defpath, "HOME": "/"}

# A parent that hangs, with a child of its own session that ignores SIGTERM, and a grandchild that has lost its parent.
FAMILY = """
import os, signal, sys, time
def note(): open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
note()
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note()
    time.sleep(60)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note()
        time.sleep(60)
    os._exit(0)
time.sleep(60)
"""

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="without /proc only groups can be ended")


def family(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir()]


@needs_proc
def test_a_hanging_command_is_ended_with_all_its_descendants(tmp_path):
    with tempfile.TemporaryFile() as said:
        argv = [sys.executable, "-c", FAMILY, str(tmp_path)]
        assert limited.run(argv, 6.0, env=HERE, stderr=said) == limit.HUNG
        said.seek(0)
        text = said.read().decode()
    assert "hung: ended after 6 s" in text
    assert str(tmp_path) in text
    assert len(family(tmp_path)) == 3
    assert all(map(gone, family(tmp_path)))


@needs_proc
def test_processes_left_by_a_finished_command_are_ended(tmp_path):
    waits = "import pathlib\nwhile len(list(pathlib.Path(sys.argv[1]).iterdir())) < 3: time.sleep(0.02)\nos._exit(7)"
    script = FAMILY.rpartition("time.sleep(60)")[0] + waits
    assert limited.run([sys.executable, "-c", script, str(tmp_path)], 30.0, env=HERE) == 7
    assert all(map(gone, family(tmp_path)))


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_everything(tmp_path, number):
    script = f"""
import sys
from lb_mpi.cli.run import limit
from tools import limited
with limit.interruptible():
    limited.run([sys.executable, "-c", {FAMILY!r}, {str(tmp_path)!r}], 60.0, env={HERE!r})
"""
    with started([sys.executable, "-c", script], cwd=ROOT) as process:
        pids = until(lambda: len(family(tmp_path)) == 3 and family(tmp_path))
        process.send_signal(number)
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + number
    assert "Traceback" not in said
    assert all(map(gone, pids))


def report(folder: Path, rank: int, **endings: str) -> Path:
    path = folder / f"{rank}.xml"
    cases = "".join(
        f'<testcase classname="tests.mpi" name="{name}">{f"<{ending}/>" if ending != "passed" else ""}</testcase>'
        for name, ending in endings.items()
    )
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return path


def test_counts_of_one_rank(tmp_path):
    one = report(tmp_path, 0, a="passed", b="skipped", c="failure", d="error", e="passed")
    assert count([one], 1) == (Counts(2, 2, 1), "")
    assert str(Counts(2, 2, 1)) == "2 passed, 2 failed, 1 skipped"
    assert str(Counts(2)) == "2 passed, 0 failed"


def test_a_test_that_fails_on_any_rank_has_failed_once(tmp_path):
    reports = [
        report(tmp_path, 0, a="passed", b="passed", c="skipped"),
        report(tmp_path, 1, a="passed", b="failure", c="skipped"),
        report(tmp_path, 2, a="passed", b="failure", c="skipped"),
    ]
    assert count(reports, 1) == (Counts(1, 1, 1), "")


def test_a_lost_rank_is_a_failure(tmp_path):
    good = report(tmp_path, 1, a="passed")
    counts, problem = count([tmp_path / "0.xml", good], 134)
    assert counts == Counts(1, 1, 0)
    assert problem == "exit code 134, no report of rank 0"
    (tmp_path / "0.xml").write_text("<testsuites>")  # cut off
    assert count([tmp_path / "0.xml", good], 0)[0].failed == 1


def test_a_hang_an_empty_run_and_a_bad_exit_code_are_failures(tmp_path):
    good, empty, skipped = report(tmp_path, 0, a="passed"), report(tmp_path, 1), report(tmp_path, 2, a="skipped")
    assert count([good], limit.HUNG) == (Counts(1, 1, 0), "hung")
    assert count([empty], counts.NO_TEST) == (Counts(0, 1, 0), "no test ran")
    assert count([skipped], 0) == (Counts(0, 1, 1), "no test ran")
    assert count([good], 3) == (Counts(1, 1, 0), "exit code 3")
    # with -k, a stage may have nothing to do
    assert count([empty], counts.NO_TEST, may_be_empty=True) == (Counts(), "")


def stage(
    name: str, counts: Counts, problem: str = "", script: str = "", n_cores: float = 1, silence_s: float = 60.0
) -> stages.Stage:
    """One that runs `script`, and comes to that unless it has hung."""

    def outcome_of(_folder: Path, code: int) -> stages.Outcome:
        return stages.Outcome(counts, "hung" if code == limit.HUNG else problem, "its output")

    return stages.Stage(name, n_cores, silence_s, lambda _folder: [sys.executable, "-c", script], HERE, outcome_of)


def test_nothing_run_is_a_failure(capsys):
    assert not schedule.run_all([stage("serial", Counts()), stage("mpi", Counts())], verbose=False)
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed"


def failing(tmp_path: Path, name: str, times: int) -> stages.Stage:
    """A stage that fails so many times."""

    def outcome_of(_folder: Path, _code: int) -> stages.Outcome:
        tries = tmp_path / name
        tries.write_text(tries.read_text() + "." if tries.exists() else ".")
        good = len(tries.read_text()) > times
        return stages.Outcome(Counts(1, 0) if good else Counts(0, 1), "", "its output")

    return stage(name, Counts())._replace(outcome_of=outcome_of)


def test_a_stage_that_failed_beside_others_runs_once_more_alone(tmp_path, capsys):
    assert schedule.run_all([failing(tmp_path, "once", 1), stage("serial", Counts(5))], verbose=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["failed beside others and passed alone: once", "6 passed, 0 failed"]
    assert lines.count("its output") == 1
    assert not schedule.run_all([failing(tmp_path, "twice", 2), stage("serial", Counts(5))], verbose=False)
    assert capsys.readouterr().out.splitlines()[-1] == "5 passed, 1 failed"
    assert (tmp_path / "twice").read_text() == ".."


def test_stages_that_fail_alone_or_in_number_are_not_repeated(tmp_path):
    assert not schedule.run_all([failing(tmp_path, "alone", 1)], verbose=False)
    assert not schedule.run_all([failing(tmp_path, name, 1) for name in "abcd"], verbose=False)
    assert (tmp_path / "alone").read_text() == (tmp_path / "a").read_text() == "."


def test_two_stages_run_on_cores_that_others_leave_idle():
    full, idle = stage("full", Counts(1), n_cores=schedule.N_CORES), stage("idle", Counts(1), n_cores=stages.IDLE)
    assert schedule.fits(idle, [], [full, idle])
    assert not schedule.fits(idle, [], [idle, idle])
    assert schedule.fits(full, [], [idle, idle])
    script = f"import os, time\nwhile os.getpriority(os.PRIO_PROCESS, 0) != {limited.LAST}: time.sleep(0.01)"
    assert schedule.run_all([stage("asked", Counts(1), script=script, n_cores=stages.IDLE)], verbose=False)
    assert not schedule.run_all([stage("core", Counts(1), script=script, silence_s=0.3)], verbose=False)


def test_a_stage_waits_for_the_one_that_it_comes_after(tmp_path):
    file = tmp_path / "made"
    first = stage("first", Counts(), script=f"import time; time.sleep(0.5); open({str(file)!r}, 'w')")
    second = stage("second", Counts(1), script=f"open({str(file)!r})")._replace(after=("first",))
    noted = []
    outcome_of = second.outcome_of
    second = second._replace(outcome_of=lambda folder, code: noted.append(code) or outcome_of(folder, code))
    assert schedule.run_all([first, second], verbose=False)
    assert noted == [0]


NOTES = """
import os, pathlib, sys, time
file = pathlib.Path(os.environ["LB_MPI_PROGRESS"]) / "1.progress"
for k in range(N):
    file.write_text(f"{k} 9 tests/a.py::test_{k}")
    time.sleep(0.2)
time.sleep(END)
"""


def test_a_stage_is_slow_while_tests_end_and_hung_when_none_does(capsys, monkeypatch):
    monkeypatch.setattr(schedule, "SIGN_S", 0.5)
    assert schedule.run_all([stage("slow", Counts(9), script=f"N, END = 30, 0{NOTES}", silence_s=5.0)], verbose=False)
    assert re.search(r"slow: \d+ of 9 tests, now tests/a.py::test_\d", capsys.readouterr().out)
    hangs = stage("hangs", Counts(0, 1), script=f"N, END = 1, 60{NOTES}", silence_s=5.0)
    assert not schedule.run_all([hangs], verbose=False)
    assert re.search(r"hangs .*FAILED hung", capsys.readouterr().out)


def test_pytest_notes_its_progress(tmp_path):
    (tmp_path / "test_two.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "tools.progress", "-p", "no:cacheprovider", str(tmp_path)]
    variables = {**HERE, "PYTHONPATH": str(ROOT), progress.VARIABLE: str(tmp_path)}
    assert limited.run(argv, 60.0, env=variables, cwd=tmp_path) == 0
    found = progress.read(tmp_path.glob("*.progress"), 0.0)
    assert (found.done, found.of, found.current) == (1, 2, "test_two.py::test_b")


def test_each_file_is_in_one_share():
    shares = testing.choose(wanted({}), *testing.parse(["--serial-only"]))[-testing.N_SHARES :]
    dealt = [word for share in shares for word in share.argv(ROOT) if word.endswith(".py")]
    assert sorted(dealt) == [str(file.relative_to(ROOT)) for file in testing.files_of("protocol", "unit")]


SERIAL = [f"serial tests, {k} of 6" for k in range(1, 7)]
LONGEST = [f"process/test_{name}.py" for name in sorted(testing.LONGEST)]
PROGRAMS = LONGEST + [name for file in testing.files_of("process") if (name := f"process/{file.name}") not in LONGEST]
OF_ONE = (  # no test for the other MPI
    "cli", "documents", "doors", "host", "launch", "limit", "live", "pool_names", "pythons", "run", "saved_runs", "signs",
    "throttle",
)  # fmt: skip
OF_BOTH = [name for name in PROGRAMS if name not in [f"process/test_{one}.py" for one in OF_ONE]]
CHECKS = ["apps.kernels", "ruff", "mypy"]


@pytest.mark.parametrize(("arguments", "names"), [
    (["--ranks", "2,4"], [*CHECKS, "mpi tests, 4 ranks", "mpi tests, 2 ranks", *PROGRAMS, *SERIAL]),
    (["--other-mpi", "--ranks=2"], ["apps.kernels", "mpi tests, 2 ranks", *OF_BOTH]),
    (["--serial-only"], [*CHECKS, *PROGRAMS, *SERIAL]),
    (["--mpi-only", "--ranks=1"], ["mpi tests, 1 rank"]),
    (["-k", "some", "--ranks=1"], ["mpi tests, 1 rank", "serial tests"]),
    (["tests/unit/test_graph.py", "-x"], ["serial tests"]),
    (["tests/mpi/test_search.py::test_it", "--ranks=3"], ["mpi tests, 3 ranks"]),
])  # fmt: skip
def test_stages_are_chosen(arguments, names):
    assert [one.name for one in testing.choose(wanted({}), *testing.parse(arguments))] == names


def test_stages_with_both_mpis():
    found = testing.choose_both(testing.parse(["--both"])[0])
    first, second = (testing.choose(wanted({"MPI": mpi}), *testing.parse(how)) for mpi, how in BOTH)
    names = [one.name for one in found]
    assert sorted(names) == sorted(
        ["set-up", *(one.name for one in first), *(f"{one.name}, openmpi" for one in second if one.name != "apps.kernels")]
    )
    for one in found:
        assert not {*one.after} - {*names}  # or it would never begin
        python = one.argv(ROOT)[0] if one.name != "set-up" else ""
        assert FOLDERS["openmpi" if one.name.endswith(", openmpi") else "mpich"] + "/" in python or one.name == "set-up"
        if one.name.startswith(("mpi tests", "serial tests")):
            assert "apps.kernels" in one.after
        if one.name.endswith(", openmpi"):
            assert {"set-up", *{one.name.removesuffix(", openmpi")} & {*names}} <= {*one.after}


BOTH = (("mpich", []), ("openmpi", ["--other-mpi"]))


def test_the_variable_mpi_chooses():
    assert wanted({}).path == ROOT / FOLDERS["mpich"]
    assert wanted({"MPI": "OpenMPI"}).path == ROOT / FOLDERS["openmpi"]
    with pytest.raises(SetupError, match="MPI=mvapich: expected mpich or openmpi") as error:
        wanted({"MPI": "mvapich"})
    assert error.value.code == 2


def test_variables_from_nothing_and_without_what_leads_away():
    environment = wanted({})
    bare = environment.variables({})
    assert bare["PATH"].split(os.pathsep)[0] == str(environment.path / "bin")
    assert bare["HOME"]
    away = {"PYTHONPATH": "/x", "PYTHONDONTWRITEBYTECODE": "1", "PMI_RANK": "3"}
    kept = environment.variables({**away, "HOME": "/h", "PIP_CERT": "c"})
    assert not {*away} & {*kept}
    assert kept["HOME"] == "/h"
    assert kept["PIP_CERT"] == "c"
