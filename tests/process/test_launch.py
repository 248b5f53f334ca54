"""The two commands: their time limit leaves nothing behind, their counts are right, their environment needs nothing."""

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from lb_mpi.cli.run import processes
from tests.process.lab import gone, until
from tests.process.started import LIMIT_S, started
from tools import environment, limited, schedule, stages, testing
from tools.counts import NO_TEST, Counts, count
from tools.environment import FOLDERS, ROOT, SetupError, here, wanted

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


def family(folder):
    return [int(path.name) for path in folder.iterdir()]


@needs_proc
def test_a_hanging_command_is_ended_with_all_its_descendants(tmp_path):
    with tempfile.TemporaryFile() as said:
        argv = [sys.executable, "-c", FAMILY, str(tmp_path)]
        assert limited.run(argv, 6.0, env=HERE, stderr=said) == processes.HUNG
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
from lb_mpi.cli.run import processes
from tools import limited
with processes.interruptible():
    limited.run([sys.executable, "-c", {FAMILY!r}, {str(tmp_path)!r}], 60.0, env={HERE!r})
"""
    with started([sys.executable, "-c", script], cwd=ROOT) as process:
        pids = until(lambda: len(family(tmp_path)) == 3 and family(tmp_path))
        process.send_signal(number)
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + number
    assert "Traceback" not in said
    assert all(map(gone, pids))


def reports(folder, *ranks):
    """Those of ranks: each letter is the end of a test, as it begins; no letters: no report."""
    ends = {"p": "", "s": "<skipped/>", "f": "<failure/>", "e": "<error/>"}
    for rank, text in enumerate(ranks):
        cases = "".join(f'<testcase classname="c" name="{k}">{ends[end]}</testcase>' for k, end in enumerate(text))
        if text:
            (folder / f"{rank}.xml").write_text(f"<testsuites><testsuite>{cases.strip()}</testsuite></testsuites>")
    return [folder / f"{rank}.xml" for rank in range(len(ranks))]


@pytest.mark.parametrize(("ranks", "code", "counts", "problem"), [
    (["psfep"], 1, Counts(2, 2, 1), ""),
    (["pps", "pfs", "pfs"], 1, Counts(1, 1, 1), ""),  # a test that fails on any rank has failed once
    (["", "p"], 134, Counts(1, 1, 0), "exit code 134, no report of rank 0"),
    (["p"], processes.HUNG, Counts(1, 1, 0), "hung"),
    (["s"], 0, Counts(0, 1, 1), "no test ran"),
    (["p"], 3, Counts(1, 1, 0), "exit code 3"),
])  # fmt: skip
def test_tests_are_counted_and_a_run_that_went_wrong_is_a_failure(tmp_path, ranks, code, counts, problem):
    assert count(reports(tmp_path, *ranks), code) == (counts, problem)


def test_only_a_choice_of_tests_may_be_empty_and_half_a_report_is_none(tmp_path):
    (tmp_path / "0.xml").write_text("<testsuites><testsuite/></testsuites>")
    assert count([tmp_path / "0.xml"], NO_TEST) == (Counts(0, 1, 0), "no test ran")
    assert count([tmp_path / "0.xml"], NO_TEST, may_be_empty=True) == (Counts(), "")
    (tmp_path / "0.xml").write_text("<testsuites>")
    assert count([tmp_path / "0.xml"], 0)[0].failed == 1
    assert [str(Counts(2, 2, 1)), str(Counts(2))] == ["2 passed, 2 failed, 1 skipped", "2 passed, 0 failed"]


def stage(name, counts, script=""):
    """One that runs `script`, and comes to that."""
    outcome = stages.Outcome(counts, "", "its output")
    return stages.Stage(name, 1, lambda _folder: [sys.executable, "-c", script], HERE, lambda _folder, _code: outcome)


def test_nothing_run_is_a_failure(capsys):
    assert not schedule.run_all([stage("serial", Counts()), stage("mpi", Counts())])
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed"


def failing(tmp_path, name, times):
    """A stage that fails so many times."""

    def outcome_of(_folder, _code):
        tries = tmp_path / name
        tries.write_text(tries.read_text() + "." if tries.exists() else ".")
        good = len(tries.read_text()) > times
        return stages.Outcome(Counts(1, 0) if good else Counts(0, 1), "", "its output")

    return stage(name, Counts())._replace(outcome_of=outcome_of)


def test_a_stage_that_failed_beside_others_runs_once_more_alone(tmp_path, capsys):
    assert schedule.run_all([failing(tmp_path, "once", 1), stage("serial", Counts(5))])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["failed beside others and passed alone: once", "6 passed, 0 failed"]
    assert lines.count("its output") == 1
    assert not schedule.run_all([failing(tmp_path, "twice", 2), stage("serial", Counts(5))])
    assert capsys.readouterr().out.splitlines()[-1] == "5 passed, 1 failed"
    assert (tmp_path / "twice").read_text() == ".."


def test_stages_that_fail_alone_or_in_number_are_not_repeated(tmp_path):
    assert not schedule.run_all([failing(tmp_path, "alone", 1)])
    assert not schedule.run_all([failing(tmp_path, name, 1) for name in "abcd"])
    assert (tmp_path / "alone").read_text() == (tmp_path / "a").read_text() == "."


def test_a_stage_waits_for_the_one_that_it_comes_after(tmp_path):
    file = tmp_path / "made"
    first = stage("first", Counts(), script=f"import time; time.sleep(0.5); open({str(file)!r}, 'w')")
    second = stage("second", Counts(1), script=f"open({str(file)!r})")._replace(after=("first",))
    noted = []
    outcome_of = second.outcome_of
    second = second._replace(outcome_of=lambda folder, code: noted.append(code) or outcome_of(folder, code))
    assert schedule.run_all([first, second])
    assert noted == [0]


def test_a_test_that_hangs_ends_its_stage_and_shows_where(tmp_path, capsys):
    (tmp_path / "test_one.py").write_text("import time\ndef test_a():\n    time.sleep(60)\n")
    hangs = stages.serial(here(), "hangs", [str(tmp_path / "test_one.py")], 1.0)._replace(after=())
    assert not schedule.run_all([hangs])
    said = capsys.readouterr().out
    assert "FAILED exit code 1, no report" in said
    assert "in test_a\n" in said


@pytest.mark.parametrize("other", [False, True])
def test_each_file_is_in_one_stage_and_what_touches_mpi_also_in_one_of_the_other_mpi(other):
    found = testing.choose_both(testing.parse(["--both"])[0])
    of_mpi = [one for one in found if one.name.endswith(", openmpi") == other]
    words = [word for one in of_mpi if one.name != "set-up" for word in one.argv(ROOT)]
    files = testing.files_of("process") if other else testing.files_of("process", "protocol", "unit")
    expected = [file for file in files if not (other and testing.ONE_MPI.search(file.read_text()))]
    assert sorted(word for word in words if word.endswith(".py")) == sorted(str(one.relative_to(ROOT)) for one in expected)
    assert words.count("tests/mpi") == len(testing.OTHER_RANKS if other else testing.RANKS)
    assert {word.split("/")[-3] for word in words if word.endswith("/python")} == {FOLDERS["openmpi" if other else "mpich"]}
    assert {name for one in found for name in one.after} <= {one.name for one in found}, "or it would never begin"


@pytest.mark.parametrize(("arguments", "names"), [
    (["--mpi-only", "--ranks=1"], ["mpi tests, 1 rank"]),
    (["-k", "some", "--ranks=1"], ["mpi tests, 1 rank", "serial tests"]),
    (["tests/unit/test_graph.py", "-x"], ["serial tests"]),
    (["tests/mpi/test_search.py::test_it", "--ranks=3"], ["mpi tests, 3 ranks"]),
])  # fmt: skip
def test_a_choice_of_tests_has_the_stages_that_it_needs(arguments, names):
    assert [one.name for one in testing.choose(wanted({}), *testing.parse(arguments))] == names


def test_the_variable_mpi_chooses():
    assert wanted({}).path == ROOT / FOLDERS["mpich"]
    assert wanted({"MPI": "OpenMPI"}).path == ROOT / FOLDERS["openmpi"]
    with pytest.raises(SetupError, match="MPI=mvapich: expected mpich or openmpi") as error:
        wanted({"MPI": "mvapich"})
    assert error.value.code == 2


def test_the_other_mpi_gets_the_packages_of_the_first_without_its_mpi_as_links(tmp_path):
    first, second = (environment.Environment(mpi, tmp_path / mpi) for mpi in FOLDERS)
    for name in ("mpich-5.dist-info/RECORD", "lb_mpi-0.dist-info/RECORD", "ruff/a", "numpy/a.py", "numpy/a.pyc.17", "b.py"):
        file = first.path / "lib/python3/site-packages" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (second.path / "lib/python3/site-packages").mkdir(parents=True)  # as venv makes it
    environment._link_packages(first, second)
    linked = [path for path in second.path.rglob("*") if path.is_file()]
    assert sorted(path.name for path in linked) == ["a.py", "b.py"]
    assert all(path.samefile(first.path / path.relative_to(second.path)) for path in linked)


def test_variables_from_nothing_and_without_what_leads_away():
    usual = wanted({})
    bare = usual.variables({})
    assert bare["PATH"].split(os.pathsep)[0] == str(usual.path / "bin")
    assert bare["HOME"]
    away = {"PYTHONPATH": "/x", "PYTHONDONTWRITEBYTECODE": "1", "PMI_RANK": "3"}
    kept = usual.variables({**away, "HOME": "/h", "PIP_CERT": "c"})
    assert not {*away} & {*kept}
    assert kept["HOME"] == "/h"
    assert kept["PIP_CERT"] == "c"
