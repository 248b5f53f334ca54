"""lb_mpi.Executor in programs: their end, Ctrl-C, too few levels of threads, and CPython's suite."""

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.process.lab import until
from tests.process.started import LIMIT_S, needs_mpiexec, on_ranks, started
from tools.environment import ROOT, here

pytest.importorskip("mpi4py", reason="runs a program under mpiexec")
pytestmark = needs_mpiexec
POOL = ["-m", "lb_mpi", "pool"]


def script(folder, text):
    path = folder / "script.py"
    path.write_text(f"import os, sys, time\nimport lb_mpi\n\n{text}")
    return str(path)


AT_END = """
def say(word):
    time.sleep(0.3)
    print(word, flush=True)

if __name__ == "__main__":
    executor = lb_mpi.Executor()
    executor.submit(say, "apple")
    if "--shutdown" in sys.argv:
        executor.shutdown(wait=False)
"""


@pytest.mark.parametrize("arguments", [[], ["--shutdown"]])
@pytest.mark.parametrize(
    ("ranks", "python"), [*(pytest.param(1, python, marks=pytest.mark.one_mpi) for python in ([], POOL)), (3, POOL)]
)
def test_a_script_ends_when_its_tasks_are_done(tmp_path, ranks, python, arguments):
    assert on_ranks(ranks, *python, script(tmp_path, AT_END), *arguments) == (0, "apple\n")


LEVEL = """
import mpi4py
mpi4py.rc.thread_level = "funneled"
with lb_mpi.Executor() as executor:
    print("not reached")
"""


def test_a_level_of_threads_that_is_not_there(tmp_path):
    code, said = on_ranks(2, script(tmp_path, LEVEL))
    assert code not in (0, 124)
    assert "MPI gives MPI_THREAD_FUNNELED: lb_mpi.Executor calls it from a thread, and needs MPI_THREAD_SERIALIZED" in said
    assert "not reached" not in said


GOES_ON = """
import threading
begun = threading.Event()

def sleep(_):
    begun.set()
    try:
        time.sleep(1.0)
    finally:
        os.write(1, b"end of the task\\n")

if __name__ == "__main__":
    try:
        with lb_mpi.Executor() as executor:
            executor.submit(sleep, 0)
            begun.wait()
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_python_ends_after_the_task_that_ctrl_c_has_left_running(tmp_path):
    assert on_ranks(1, *POOL, script(tmp_path, GOES_ON)) == (0, "interrupted\nend of the task\n")


NO_GUARD = """
executor = lb_mpi.Executor(root_works=False)
def double(x):
    return 2 * x
print(*{str(executor.submit(double, k).exception()) for k in range(8)}, sep="\\n")
executor.shutdown()
"""


def test_every_task_of_a_script_without_a_guard_has_the_hint(tmp_path):
    code, said = on_ranks(3, *POOL, script(tmp_path, NO_GUARD))
    assert code == 0
    assert "lb_mpi.Executor on a rank that runs tasks: expected it under `if __name__ == '__main__':`\n" in said
    assert said.count("\n") == 1 or here().mpi == "openmpi"


WAITS = """
def sleep(_):
    open(f"{sys.argv[1]}/{os.getpid()}-{time.monotonic_ns()}", "w").close()
    time.sleep(60)

if __name__ == "__main__":
    with lb_mpi.Executor() as executor:
        executor.submit(sleep, 0)
        executor.submit(sleep, 1)
        executor.submit(sleep, 2).result()
"""


@pytest.mark.parametrize("ranks", [1, 3])
def test_ctrl_c_ends_a_script_and_leaves_nothing(tmp_path, ranks):
    begun = tmp_path / "begun"
    begun.mkdir()
    command, variables = here().job(ranks, [sys.executable, *POOL, script(tmp_path, WAITS), str(begun)])
    with started(command, env={**os.environ, **variables}, cwd=ROOT, start_new_session=True) as process:
        until(lambda: len([*begun.iterdir()]) >= ranks)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in said or here().mpi == "openmpi"  # whose mpiexec passes no more output on
    pids = [path.name.split("-")[0] for path in begun.iterdir()]
    until(lambda: not any(Path("/proc", pid).exists() for pid in pids))  # Open MPI's mpiexec ends a moment before its ranks


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.one_mpi), 3])
def test_the_suite_of_cpython(ranks):
    if importlib.util.find_spec("test.test_concurrent_futures") is None:
        pytest.skip(f"Python {sys.version.split()[0]} has come without test.test_concurrent_futures")
    code, said = on_ranks(ranks, *POOL, "-m", "tests.process.executor_suite")
    assert code == 0, said
    assert "28 of 31 cases pass" in said
