"""Under mpiexec, a job whose rank is asked to exit, or interrupted, ends as a whole, and says that it has failed."""

import json
import os
import signal
import socket
import sys
import time

import pytest

from lb_mpi.cli.run import processes
from tests.process.started import LIMIT_S, on_ranks, started
from tools import limited
from tools.environment import ROOT, here

PROGRAM = """
import sys
import lb_mpi
from mpi4py import MPI
from tests.pile import Pile

class Leaving(Pile):
    def work(self, units):
        if MPI.COMM_WORLD.rank == 1:
            raise {error}
        super().work(1)
        return 0 if len(self.items) > 1 else self.items.append(1) or 0

try:
    lb_mpi.search(MPI.COMM_WORLD, Leaving(10**9), threshold=1.0)
except {kind}:
    assert MPI.COMM_WORLD.rank == 1
    raise
except lb_mpi.SearchError as error:
    assert MPI.COMM_WORLD.rank != 1
    assert str(error).startswith("rank 1: {kind}"), error
    raise
"""
FAILING = """
import lb_mpi
from lb_mpi.mpi.pool import ranks
from mpi4py import MPI

def full(*_):
    raise MPI.Exception(MPI.ERR_NO_MEM)

COMM, made = MPI.COMM_WORLD, ranks.window_of
if COMM.rank in ({ranks},):
    ranks.window_of = full
try:
    lb_mpi.Pool(COMM)
except MPI.Exception:
    ranks.window_of = made
    with lb_mpi.Pool(COMM) as pool:
        found = pool.map(abs, [-1, -1])
    if COMM.rank == 0:
        print(sum(found), "went on")
"""
INTERRUPTING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}" and os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


# Rank 1 gets SIGINT in MPI_Init, where it waits for rank 0.
BEGINNING = """
import os, signal, sys, time
{first}
rank, seen = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")), sys.argv[1]
if rank == "1" and os.fork() == 0:
    while "libmpi" not in open(f"/proc/{{os.getppid()}}/maps").read():
        time.sleep(0.01)
    time.sleep(0.5)
    os.kill(os.getppid(), signal.SIGINT)
    open(seen, "w").close()
    os._exit(0)
while rank == "0" and not os.path.exists(seen):
    time.sleep(0.01)
from mpi4py import MPI
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
MPI.COMM_WORLD.Barrier()
"""


# They leave operations pending, whose buffers MPI_Finalize still writes to.  With Open MPI, Python then crashed at its end.
LEFT = (
    "test_saved_searches.py::test_damage_is_a_warning_and_the_save_before_is_read",
    "test_save.py::test_rows_come_back_on_any_number_of_ranks",
    "test_save.py::test_a_handler_of_the_users_stays_and_errors_pass_through",
)


@pytest.mark.skipif(here().mpi != "openmpi", reason="only there has Python crashed")
def test_buffers_of_a_failed_call_outlive_python():
    tests = [str(ROOT / "tests" / "mpi" / name) for name in LEFT]
    code, text = on_ranks(2, "-m", "pytest", "--with-mpi", "-q", "-p", "no:cacheprovider", *tests)
    assert code == 0, text


@pytest.mark.parametrize("error", ["SystemExit(0)", "KeyboardInterrupt()"])
@pytest.mark.parametrize("runner", [(), ("-m", "mpi4py")])
def test_a_rank_that_leaves_takes_the_others_along(tmp_path, runner, error):
    program = PROGRAM.format(error=error, kind=error.partition("(")[0])
    code, text = on_ranks(2, *runner, str(tmp_path / "program.py"), text=program, env={"PYTHONPATH": str(ROOT)})
    assert code not in (0, processes.HUNG), text
    assert "SearchError: rank 1: " in text
    assert "AssertionError" not in text


@pytest.mark.parametrize(("ranks", "fails", "expected"), [("0, 1", False, "2 went on\n"), ("1", True, "rank 1: Exception:")])
def test_mpi_that_fails_in_a_blocking_call_is_an_error_or_ends_the_job(tmp_path, ranks, fails, expected):
    """A rank whose MPI failed in a collective call left the others in it for ever."""
    code, text = on_ranks(2, str(tmp_path / "program.py"), text=FAILING.format(ranks=ranks), env={"PYTHONPATH": str(ROOT)})
    assert (code not in (0, processes.HUNG)) == fails, text
    assert expected in text


@pytest.mark.parametrize(("command", "module"), [
    ("apps.uts --tree T1L", "numba"), ("lb_mpi profile program.py", "lb_mpi.cli.profile.script"),
    ("lb_mpi pool program.py", "lb_mpi.mpi.pool.script"),
])  # fmt: skip
def test_ctrl_c_while_a_command_is_being_imported_ends_all_ranks(tmp_path, command, module):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING.format(module=module))
    code, text = on_ranks(2, "-m", *command.split(), env={"PYTHONPATH": str(tmp_path)})
    assert code not in (0, processes.HUNG), text
    assert "Traceback" not in text or command.startswith("apps")


@pytest.mark.parametrize("runner", [(), ("-m", "mpi4py")])
def test_ctrl_c_while_mpi_begins_ends_all_ranks(tmp_path, runner):
    program = tmp_path / "program.py"
    program.write_text(BEGINNING.format(first="import lb_mpi"))
    code, text = on_ranks(2, *runner, str(program), str(tmp_path / "seen"), env={"PYTHONPATH": str(ROOT)})
    assert code not in (0, processes.HUNG), text


@pytest.mark.parametrize("runner", [(), ("-m", "mpi4py")])
def test_ctrl_c_while_mpi_begins_is_reported_by_launch_run(tmp_path, runner):
    program = tmp_path / "program.py"
    program.write_text(BEGINNING.format(first=""))
    (tmp_path / "sitecustomize.py").write_text("import os; os.write(2, b'mine\\n')")
    with (tmp_path / "said").open("w+b") as said:
        command = [sys.executable, *runner, str(program), str(tmp_path / "seen")]
        argv = [sys.executable, str(ROOT / "launch" / "run"), "-n", "2", "--", *command]
        env = {**here().variables(), "PYTHONPATH": str(tmp_path)}
        code = limited.run(argv, LIMIT_S, env=env, stdout=said, stderr=said)
        said.seek(0)
        text = said.read().decode()
    assert code not in (0, processes.HUNG), text
    assert f"run: rank 1 on host {socket.gethostname()} was killed by signal 2 (Interrupt)\n" in text
    assert text.count("mine\n") >= 2  # a sitecustomize of the user's still runs


def test_an_error_on_one_rank_ends_a_run_whose_other_ranks_wait_in_mpi(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import lb_mpi\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n1 / comm.rank\ncomm.recv()\n")
    with (tmp_path / "said").open("w+b") as said:
        argv = [sys.executable, str(ROOT / "launch" / "run"), "-n", "2", "--", sys.executable, str(program)]
        code = limited.run(argv, LIMIT_S, env=here().variables(), stdout=said, stderr=said)
        said.seek(0)
        text = said.read().decode()
    assert code == 1, text
    assert "ZeroDivisionError" in text


ENDINGS = {
    "finalize": (
        "balancer = lb_mpi.Balancer(comm)\nwith balancer:\n    MPI.Finalize()",
        "lb_mpi.errors.Error: Balancer after MPI.Finalize(): expected its calls, and close(), before that",
    ),
    "late ctrl-c": (
        "def press(*_):\n    signal.raise_signal(signal.SIGINT)\n"
        "commit = calls.Failures.end_commit\n"
        "calls.Failures.end_commit = lambda one: (press() if comm.rank else None, commit(one))\n"
        "assert lb_mpi.search(comm, lb_mpi.TreeSearch(1, lambda k: [])).value == 1\nprint('returned', flush=True)",
        "KeyboardInterrupt (in the last call of lb_mpi)",
    ),
}


@pytest.mark.parametrize("n", [1, 2])
def test_an_executor_never_entered_lets_mpi_be_finalized(tmp_path, n):
    program = str(tmp_path / "program.py")
    made = "from mpi4py import MPI\nimport lb_mpi\nexecutor = lb_mpi.Executor(MPI.COMM_WORLD)\n"
    tasks = "done = executor.submit(abs, -1)\n" if n == 1 else ""
    ends = "MPI.Finalize()\nprint('finalized', flush=True)\n" + ("assert done.result(0) == 1\n" if tasks else "")
    code, text = on_ranks(n, program, text=made + tasks + ends, env={"PYTHONPATH": str(ROOT)})
    if n == 1:  # else the program is wrong, and MPICH may abort behind the reason
        assert (code, text.count("finalized\n")) == (0, 1), text
    assert ("rank 1 has ended its program without working for the pool or executor" in text) == (n > 1)


@pytest.mark.parametrize("what", ENDINGS)
def test_a_program_that_ends_with_something_open_or_pending_says_so(tmp_path, what):
    last, expected = ENDINGS[what]
    program = tmp_path / "program.py"
    head = "import signal\nfrom mpi4py import MPI\nimport lb_mpi\nfrom lb_mpi.mpi.common import calls\n"
    program.write_text(f"{head}comm = MPI.COMM_WORLD\n{last}")
    code, text = on_ranks(2, str(program), env={"PYTHONPATH": str(ROOT)})
    assert code not in (0, processes.HUNG), text
    assert expected in text
    assert text.count("returned") == 2 * (what == "late ctrl-c")


@pytest.mark.parametrize("how", ["open('/nowhere')", "agree(comm, lambda: open('/nowhere'))"], ids=["alone", "agreed"])
def test_what_the_system_refuses_a_command_on_one_rank_is_said_once_and_ends_all(tmp_path, how):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom mpi4py import MPI\nfrom lb_mpi.cli.run.command import Command, execute\n"
        "from lb_mpi.mpi.common.collective import agree\ncomm = MPI.COMM_WORLD\n"
        f"def run(_):\n    if comm.rank or 'agree' in {how!r}:\n        {how}\n    comm.Barrier()\n"
        "sys.exit(execute(Command('x', '', 'text', '{}', lambda _: None, run, ranks=True), [], 'x'))\n"
    )
    code, text = on_ranks(2, str(program), env={"PYTHONPATH": str(ROOT)})
    assert code not in (0, processes.HUNG), text
    assert text.count("/nowhere: No such file or directory") == 1, text
    assert "Traceback" not in text


@pytest.mark.skipif(here().mpi == "openmpi", reason="its mpiexec passes no more output on, and kills ranks after a second")
@pytest.mark.parametrize("waits", ["Barrier()", "Recv(bytearray(1), 1)"])
def test_ctrl_c_under_profile_shows_what_was_seen(tmp_path, waits):
    """Rank 1 computes, where Ctrl-C is raised; the others are in a call of MPI that does not return."""
    program, file = tmp_path / "program.py", tmp_path / "profile.json"
    program.write_text(
        "import pathlib, sys; from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
        "sum(range(10**7 * (MPI.COMM_WORLD.rank == 1)))  # for which the others wait\n"
        "pathlib.Path(sys.argv[1], str(MPI.COMM_WORLD.rank)).touch()\n"
        f"while MPI.COMM_WORLD.rank == 1:\n    pass\nMPI.COMM_WORLD.{waits}\n"
    )
    begun = tmp_path / "begun"
    begun.mkdir()
    argv = [sys.executable, "-m", "lb_mpi", "profile", "-o", str(file), str(program), str(begun)]
    command, variables = here().job(3, argv)
    with started(command, env={**os.environ, **variables}, cwd=ROOT, start_new_session=True) as process:
        until = time.monotonic() + LIMIT_S
        while len([*begun.iterdir()]) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0
    assert "Traceback" not in said
    assert "the others wait for rank 1 during " in said
    profile = json.loads(file.read_text())
    assert (profile["most_waited_for"], profile["stopped"], "perfect balance" in said) == (1, True, False)
    assert "the program was stopped by a signal: this is the time until then" in profile["notes"]
    (call,) = [line for line in profile["ranks"][2]["lines"] if line["line"] == 7]
    assert call["waited_s"].keys() == {"1"}, call


LEAVES_A_PLAN = """
import sys
import lb_mpi
from mpi4py import MPI
from lb_mpi.graph import mesh
comm = MPI.COMM_WORLD
with lb_mpi.distribute(comm, mesh(4, 6) if comm.rank == 0 else None, method="block") as plan:
    for turn in range(100):
        plan.exchange(plan.vertices)
        if comm.rank == 1 and turn == 3:
            raise ZeroDivisionError("on purpose")
print("not reached", flush=True)
"""

INITIALIZES_LATE = """
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
import numpy as np
import lb_mpi
lb_mpi.Balancer
MPI.Init()
with lb_mpi.Balancer(MPI.COMM_WORLD) as balancer:
    if balancer.map_rows(np.copy, np.ones(3)).sum() == 3.0:
        print("right", flush=True)
MPI.Finalize()
"""


@pytest.mark.parametrize("python", [[], ["-m", "mpi4py"]], ids=["python", "python -m mpi4py"])
def test_leaving_a_plan(tmp_path, python):
    code, said = on_ranks(2, *python, str(tmp_path / "leaving.py"), text=LEAVES_A_PLAN)
    assert code not in (0, 124), said
    assert "ZeroDivisionError: on purpose" in said
    assert "not reached" not in said
    assert "hung" not in said


def test_lb_mpi_may_be_imported_before_mpi_is_initialised(tmp_path):
    code, said = on_ranks(2, str(tmp_path / "late.py"), text=INITIALIZES_LATE)
    assert (code, said.replace("\n", "")) == (0, "rightright"), said  # unbuffered, "right" and the end of a line are apart
