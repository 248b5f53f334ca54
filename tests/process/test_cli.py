"""python -m lb_mpi, without MPI: words, keys, exit codes."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lb_mpi
from lb_mpi.__main__ import main
from lb_mpi.cli.commands import COMMANDS
from lb_mpi.cli.run.command import EXIT_CODES
from lb_mpi.cli.run.progress import recorded
from lb_mpi.cli.simulate.command import SUBJECTS
from lb_mpi.errors import Error
from tests.process.started import LIMIT_S, needs_mpiexec
from tools.documents import ROOT, blocks

pytestmark = pytest.mark.one_mpi


def answer(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_warning_is_one_line():
    command = [sys.executable, "-m", "lb_mpi", "partition", "mesh:2x2", "-k", "9"]
    done = subprocess.run(command, capture_output=True, text=True)
    (line,) = [line for line in done.stderr.splitlines() if "compiling kernels" not in line]
    assert line.startswith("python -m lb_mpi partition: warning: 5 of 9 parts are empty")


def test_a_folder_that_has_been_removed_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["run", "--", "true"]) == 2
    assert capsys.readouterr().err == "python -m lb_mpi run: error: the current folder has been removed\n"


@pytest.mark.parametrize("arguments", ["allocate --tasks 3 --time 1", "-h", "run -h", "partition mesh:2x2 -k 2 -o -"])
def test_output_that_nobody_reads_or_there_is_no_room_for(arguments):
    command = [sys.executable, "-m", "lb_mpi", *arguments.split()]
    reader, writer = os.pipe()
    os.close(reader)
    for output, code, says in (
        (writer, 141, ""),
        (os.open("/dev/full", os.O_WRONLY), 1, "standard output: No space left on device\n"),
    ):
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True)
        os.close(output)
        assert done.returncode == code
        assert done.stderr.endswith(says)
        assert done.stderr.count("\n") == (1 if says else 0)
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr == "") == (0, "-o" not in command), "the figures of a file on stdout go to stderr"


@needs_mpiexec
@pytest.mark.parametrize(("closed", "says"), [("<&-", (False, True)), (">&-", (False, True)), ("2>&-", (False, False))])
def test_run_starts_a_program_with_a_closed_standard_file_and_prints_nothing_elsewhere(closed, says):
    run = [sys.executable, "-m", "lb_mpi", "run", "-n", "1", "--", "true"]
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *run], capture_output=True, timeout=LIMIT_S)
    assert (done.returncode, (bool(done.stdout), bool(done.stderr))) == (0, says)


@needs_mpiexec
def test_two_runs_are_not_recorded_in_one_folder(tmp_path, capfd):
    record = str(tmp_path / "record")
    run = ["run", "-q", "-n", "1", "--record", record, "--", "true"]
    with recorded(record):
        assert main(run) == 2
    assert capfd.readouterr().err == f"python -m lb_mpi run: error: --record {record}: another run is recorded there\n"
    assert main(run) == 0


def test_under_mpiexec_rank_0_alone_runs_a_command(capsys, monkeypatch):
    says = "python -m lb_mpi allocate runs in one process: rank 0 does it, not rank {}\n"
    for rank, expected in enumerate(("", says.format(1), says.format(2))):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
        assert main(["allocate", "--tasks", "3", "--time", "1"]) == 0
        out, err = capsys.readouterr()
        assert (bool(out), err) == (rank == 0, expected)


@pytest.mark.parametrize(("line", "meant"), [
    ("allocate --tasks 3 --time 1 --cpa 2", "--cap"),
    ("partition mesh:4x4 -k 2 --method=multilvel", "multilevel"),
    ("partition mseh:4x4 -k 2", "mesh"),
    ("cluster uup", "up"),
    ("run --restart 3 -- python program.py", "--restarts"),
    ("throttle --speed 0.5 --reprot program", "--report"),
    ("pool --ass joblib program.py", "--as"),
    ("simulate rows --scheme dirct", "direct"),
    ("fly", ""), ("allocate --quick --tasks 3 --time 1", ""), ("run --root 1", ""), ("partition x -k 2", ""),
    ("partition mesh:4x4 -k 2 --method best", ""),
])  # fmt: skip
def test_a_misspelt_option_or_word_is_named_with_what_was_meant_if_it_resembles_one(capsys, line, meant):
    with contextlib.suppress(SystemExit):
        main(line.split())
    said = capsys.readouterr().err
    assert f"; did you mean {meant}?" in said if meant else "did you mean" not in said


def test_files_are_refused_before_the_work_and_named_after_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    work = ["partition", "no.graph", "-k", "2"]  # an error of the work would name this
    for path, why in (("nodir/x", "No such file or directory"), (".", "Is a directory")):
        assert main([*work, "-o", path]) == 2
        assert capsys.readouterr().err == f"python -m lb_mpi partition: error: -o {path}: {why}\n"
    assert main(["partition", "mesh:2x2", "-k", "2", "-o", "-"]) == 0
    out, err = capsys.readouterr()
    assert (len(out.split()), "cut 2" in err) == (4, True)
    assert not Path("-").exists()
    assert main(["partition", "mesh:2x2", "-k", "2", "-o", "x.part"]) == 0
    assert capsys.readouterr().out.endswith("\nx.part (0.0 kB)\n")
    assert main(["simulate", "tasks", "--hosts", "2", "--tasks", "9", "--record", "record"]) == 0
    Path("record", "rank000001.lbrec").unlink()
    assert main(["report", "record"]) == 0
    assert "of 1 of 2 ranks only, " in capsys.readouterr().out
    for more in (["--trace", "report.html"], ["-o", "-", "--trace", "-"]):
        assert main(["report", "record", *more]) == 2
        assert f"error: --trace {more[-1]}: expected another file than that of the page\n" in capsys.readouterr().err
    assert main(["report", "record", "--trace", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["displayTimeUnit"] == "ms"
    assert "perfetto" not in err
    left = sorted(path.name for path in Path().iterdir())
    assert main(["simulate", "tasks", "--hosts", "2", "--tasks", "9", "--record", ""]) == 0
    assert sorted(path.name for path in Path().iterdir()) == left


def test_what_a_command_line_means(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for line, code, said in (
        ("help allocate", 0, "usage: python -m lb_mpi allocate "),
        ("help", 0, "usage: python -m lb_mpi COMMAND"),
        ("", 0, "commands, each with --help"),
        ("-V", 0, f"lb_mpi {lb_mpi.__version__}\n"),
        ("--version", 0, f"lb_mpi {lb_mpi.__version__}\n"),
        ("alocate --tasks 3", 2, "COMMAND = 'alocate': expected run, profile, report, "),
        ("alocate --help", 2, "; did you mean allocate? (see --help)\n"),
        ("simulate", 2, "SUBJECT"),
        ("simulate maze", 2, "SUBJECT"),
        ("profile", 2, "PROGRAM"),
        ("throttle --speed 1", 2, "no PROGRAM"),
        ("throttle true", 2, "one of the arguments --speeds --speed is required"),
        ("cluster --name run", 2, "required: COMMAND"),
        ("cluster down --nme x", 2, "did you mean --name?"),
        ("cluster run --help", 0, "usage: python -m lb_mpi cluster run [options] -- PROGRAM"),
        ("run -- nosuch", 127, "error: nosuch: not found: expected a command"),
    ):
        assert main(line.split()) == code
        out, err = capsys.readouterr()
        assert said in out + err, line
        assert all(len(one) <= 80 for one in out.splitlines())


def test_a_command_uses_one_thread_of_blas():
    script = "import os; from lb_mpi.__main__ import main; main(['warmup', '-h']); print(os.environ['OPENBLAS_NUM_THREADS'])"
    for variables, expected in (({}, "1"), ({"OPENBLAS_NUM_THREADS": "2"}, "2")):
        env = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"} | variables
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == expected


def test_help_needs_no_numba():
    script = "import sys; sys.modules['numba'] = None; from lb_mpi.__main__ import main; sys.exit(main(['arrange', '-h']))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


SCRIPT = """
import dataclasses, sys

@dataclasses.dataclass
class Options:
    steps: int = 3

if __name__ == "__main__":
    kinds = [field.type for field in dataclasses.fields(Options)]
    print(kinds, __file__, sys.argv, sys.path[0], sys._getframe().f_code.co_filename, flush=True)
"""


def test_a_script_means_under_a_command_what_it_means_under_python(tmp_path):
    """Its annotations, its path, and where it imports from: the installed command finds no numpy.py that lies about."""
    script, here = tmp_path / "script.py", tmp_path / "here"
    here.mkdir()
    for path in (script, here / "module.py"):
        path.write_text(SCRIPT)
    (here / "numpy.py").write_text("raise SystemExit('the wrong numpy')\n")
    installed = str(Path(sys.executable).parent / "lb_mpi")
    for words in (["../script.py", "7"], ["-m", "module", "7"]):
        said = set()
        for command in ([sys.executable], [installed, "pool"], [installed, "profile"]):
            done = subprocess.run([*command, *words], cwd=here, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            said.add(done.stdout)
        assert len(said) == 1, said
        assert str(said).startswith('{"[<class \'int\'>] ')
    for words in (["allocate", "--tasks", "3", "--time", "1,2"], ["run", "--check"]):
        done = subprocess.run([installed, *words], cwd=here, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


def test_each_help_fits_80_columns_and_shows_what_there_is(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["-h"]) == 0
    out = capsys.readouterr().out
    for one in COMMANDS.values():
        assert f"\n{one.group}:\n" in out
        assert f"\n  {one.name} " in out
    assert all(re.search(rf"\n  {code} +{text}\n", out) for code, text in EXIT_CODES.items())
    for line in (*COMMANDS, *(f"simulate {name}" for name in SUBJECTS), "cluster up"):
        assert main([*line.split(), "--help"]) == 0
        out = capsys.readouterr().out
        assert out.startswith("usage: ")
        assert max(map(len, out.splitlines())) <= 80, line


def test_fewer_speeds_than_ranks_are_taken_in_turns(capsys):
    given = ["simulate", "rows", "--graph", "mesh:2x2", "--calls", "2", "--costs", "constant", "--speeds"]
    turns, whole = answer(capsys, *given, "2,1"), answer(capsys, *given, "2,1,2,1")
    assert turns | {"cpu_seconds": 0} == whole | {"cpu_seconds": 0}


def test_a_failure_is_one_line_and_a_bug_keeps_its_traceback(capsys, monkeypatch):
    def fail(options):
        raise error

    monkeypatch.setitem(COMMANDS, "allocate", COMMANDS["allocate"]._replace(run=fail))
    line = ["allocate", "--tasks", "1", "--time", "1"]
    for error, code in ((Error("rank 1 is gone"), 1), (ValueError("x = 1"), 2), (OSError(5, "gone"), 2)):
        assert main(line) == code
        assert capsys.readouterr().err == f"python -m lb_mpi allocate: error: {error}\n"
    error = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        main(line)


def test_the_completion_of_the_page_completes_commands_and_options():
    (block,) = [one for one in blocks(ROOT / "docs" / "commands.md") if "bashrc" in one.mark]
    for typed, expected in ((["rep"], "report"), (["simulate"], "simulate"), (["report", "--tr"], "--trace")):
        at = f"COMP_WORDS=(lb_mpi {' '.join(typed)}) COMP_CWORD={len(typed)}"
        script = f'{block.text}\n{at}; _lb_mpi; echo "${{COMPREPLY[*]}}"'
        env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=120)
        assert ({*done.stdout.split()}, done.stderr) == ({expected}, "")  # bash shows it once
