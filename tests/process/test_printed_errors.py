"""What ranks print when they end by an error that all have raised."""

import sys

import pytest

import lb_mpi
from tests.process.started import needs_mpiexec, on_ranks

failure = pytest.importorskip("lb_mpi.mpi.common.failure", exc_type=ImportError)


def test_the_rank_that_knows_the_cause_prints_it_whole_and_the_others_a_line():
    error = lb_mpi.BalanceError("rank 1, row 3: KeyError")
    assert failure.line(error, 1, 4) == ""
    assert failure.line(failure.quiet(error), 2, 4) == "rank 2: lb_mpi.errors.BalanceError: rank 1, row 3: KeyError"
    assert failure.line(failure.quiet(ValueError("x = 3")), 2, 4) == "rank 2: ValueError: x = 3"
    assert failure.line(lb_mpi.Stopped("saved"), 0, 4) == "rank 0: lb_mpi.errors.Stopped: saved"
    assert failure.line(KeyboardInterrupt(), 0, 4) == ""
    assert failure.line(KeyboardInterrupt(), 1, 4).startswith("rank 1: KeyboardInterrupt (")
    assert failure.located(TypeError("no pickle")) == "TypeError: no pickle"  # not raised: its place is not known


def test_one_rank_alone_says_all_of_it():
    assert failure.line(failure.quiet(lb_mpi.BalanceError("x")), 0, 1) == ""


def test_only_who_calls_the_pool_that_is_none_gets_the_hint(monkeypatch):
    monkeypatch.setattr(failure, "_hints", [])
    failure.hint(lb_mpi.Pool, "put `if pool:` before")
    for name in ("map", "no_method_of_a_pool"):
        with pytest.raises(AttributeError) as caught:
            getattr(None, name)
        assert ("put `if pool:` before" in failure.line(caught.value, 1, 4)) == (name == "map")
    assert failure.line(AttributeError("settings.txt has no attribute 'map'"), 1, 4) == ""


PRINTED = {
    "lb_mpi.Balancer(comm, scheme='nope')": "ValueError: scheme = 'nope': expected one of",
    "lb_mpi.Balancer(comm, tolerance=-1.0 if comm.rank == 1 else 0.1)": "ValueError: rank 1: tolerance = -1.0: expected",
    "lb_mpi.search(comm, lambda node: [node])": "expected an lb_mpi.Problem; for a function from a node to its",
    "lb_mpi.Pool(4)": "comm = 4: expected an mpi4py intracommunicator; the number of ranks is that of mpiexec -n",
    "lb_mpi.Pool().map(lambda x: 1 // x, range(-1, 3))": "lb_mpi.errors.TaskError: task 1 on rank",
    "lb_mpi.Pool().map(abs, range(9)); raise KeyboardInterrupt": "KeyboardInterrupt (",
    "with lb_mpi.Pool(root=0) as pool: pool.map(abs, [])": "this rank has worked for the pool; put `if pool:` before",
    "with lb_mpi.Executor() as executor: executor.submit(abs, 1)": "has worked for the executor; put `if executor:` before",
}


@needs_mpiexec
@pytest.mark.parametrize(
    "statement", [pytest.param(one, marks=[pytest.mark.one_mpi] * ("Pool()" not in one)) for one in PRINTED]
)
def test_an_error_has_one_traceback(tmp_path, statement):
    script = tmp_path / "program.py"
    text = f"import lb_mpi; from mpi4py import MPI; comm = MPI.COMM_WORLD\n{statement}\n"
    code, said = on_ranks(2, "-m", "mpi4py", str(script), text=text)
    assert code not in (0, 124), said
    assert PRINTED[statement] in said
    worked = "has worked for" in PRINTED[statement]  # the root has done its part
    assert said.count(f'File "{script}", line 2, in <module>') == (0 if worked else 1), said


@needs_mpiexec
@pytest.mark.parametrize(("call", "words"), [
    ("lb_mpi.search(comm, lb_mpi.TreeSearch(0, abs))", "abs returned 0: expected a list of nodes"),
    ("lb_mpi.Pool().map(open, [__file__])", "can't be pickled"),
])  # fmt: skip
def test_what_a_check_has_found_is_said_once_without_our_frames(tmp_path, call, words):
    script = tmp_path / "program.py"
    code, said = on_ranks(1, str(script), text=f"import lb_mpi; from mpi4py import MPI; comm = MPI.COMM_WORLD\n{call}\n")
    assert code == 1
    assert said.count(words) == said.count("Traceback") == said.count("File ") == 1, said


@needs_mpiexec
@pytest.mark.parametrize("make", ["lb_mpi.Pool(root=0)", "lb_mpi.Executor()"])
def test_a_rank_that_ends_without_an_answer_is_named_by_the_root(tmp_path, make):
    text = f"import lb_mpi; pool = {make}\nif pool: print(list(pool.map(abs, range(9)))); pool.shutdown()\n"
    code, said = on_ranks(2, str(tmp_path / "program.py"), text=text)
    assert code not in (0, 124), said
    assert "rank 1 has ended its program without working for the pool or executor: expected its `with` block" in said


def test_a_hook_of_the_users_stays(monkeypatch):
    mine = sys.__excepthook__.__class__
    monkeypatch.setattr(sys, "excepthook", mine)
    failure.install()
    assert sys.excepthook is mine
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    failure.install()
    assert sys.excepthook is failure.hook
