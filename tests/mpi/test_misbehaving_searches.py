"""Each method of a problem does what it shouldn't, on one rank or on all: every rank raises who and why, and goes on."""

import itertools
import os
import signal

import pytest

import lb_mpi
from lb_mpi.mpi.common import parcels
from tests.misbehaviour import RAISES, RETURNS, NotForPickling
from tests.mpi.sizes import COMM, LAST, RANK, SIZE
from tests.pile import Pile

LEAVES = {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}  # raised as they are where they came from
METHODS = ("start", "work", "load", "split", "absorb", "found", "result", "merge")
ON_RANK_0 = ("start", "split", "merge")  # only there, or there for sure
REFUSED = {  # what may not be returned
    "work": set(RETURNS),
    "load": set(RETURNS) - {"int"},
    "split": set(RETURNS) - {"None"},
    "found": set(RETURNS),
    "result": {"generator", "unpicklable"},
    "merge": {"generator", "unpicklable"},
}
pytestmark = pytest.mark.mpi


class Endless(lb_mpi.Problem):
    """Rank 0 never runs out of work, the others soon do: it goes on until something is called that misbehaves."""

    found = False

    def __init__(self):
        self.left = 0.0

    def start(self):
        self.left = float("inf")

    def work(self, units):
        self.left -= 1.0
        return 1

    def load(self):
        return min(self.left, 4.0)

    def split(self):
        return bytes(1)

    def absorb(self, payload):
        self.left = 3.0

    def result(self):
        """Nothing."""

    def merge(self, one, other):
        """Nothing."""


def cell(method, misbehave, *, here):
    """A search that ends by itself only when the method is called after its end."""
    kind = Pile if method in ("result", "merge") else Endless
    if here:
        names = {method: property(misbehave) if method == "found" else lambda *_: misbehave()}
        kind = type("Misbehaving", (kind,), names)
    return lb_mpi.search(COMM, kind(30) if issubclass(kind, Pile) else kind(), threshold=1.0)


def raised(expected, method, misbehave, *, here):
    """Return what this rank raises; "" when the search has come to an end."""
    try:
        cell(method, misbehave, here=here)
    except lb_mpi.SearchError as error:
        return str(error)
    except expected as error:
        assert here
        return type(error).__name__
    return ""


def called(method):
    return SIZE > 1 or method not in ("split", "absorb", "merge")


def well():
    assert sorted(lb_mpi.search(COMM, Pile(30), threshold=1.0).value) == list(range(1, 31))


@pytest.mark.parametrize("where", ["one", "all"])
@pytest.mark.parametrize("method", [*filter(called, METHODS)])
def test_exceptions_of_a_problem_reach_all_ranks(method, where):
    one = 0 if method in ON_RANK_0 else LAST
    for name, misbehave in RAISES.items():
        here = where == "all" or one == RANK
        answers = COMM.allgather(raised(LEAVES.get(name, ZeroDivisionError), method, misbehave, here=here))
        well()
        for rank, answer in enumerate(answers):
            left = name in LEAVES and answer == name
            assert left or f": {name}" in answer, (name, rank, answer)
            if where == "one":
                assert left == (name in LEAVES and rank == one), (name, rank, answer)
                assert left or answer.startswith(f"rank {one}: {name}"), (name, rank, answer)


@pytest.mark.one_mpi
@pytest.mark.parametrize("method", [*filter(called, REFUSED)])
def test_invalid_results_of_a_problem_reach_all_ranks(method):
    one = 0 if method in ON_RANK_0 else LAST
    for name in sorted(REFUSED[method]):
        answers = COMM.allgather(raised(ZeroDivisionError, method, lambda *_: RETURNS[name](), here=one == RANK))  # noqa: B023
        well()
        for answer in answers:
            assert answer.startswith(f"rank {one}: "), (name, answer)


def test_results_are_merged_on_rank_0_and_sent_to_all():
    """A result that rank 0 can't read, or one that can't be sent, is a failure on all."""
    result = cell("merge", lambda: "words", here=RANK == 0)
    assert SIZE == 1 or result.value == "words"

    class Unreadable:
        def __reduce__(self):
            return fail_to_load, ()

    with pytest.raises(lb_mpi.SearchError, match=r"rank 0: ArithmeticError: can't be read"):
        cell("result", Unreadable, here=RANK == LAST)
    with pytest.raises(lb_mpi.SearchError, match=rf"rank {LAST}: ZeroDivisionError: no pickle"):
        cell("result", NotForPickling, here=RANK == LAST)
    well()


def fail_to_load():
    raise ArithmeticError("can't be read")


@pytest.mark.parametrize("when", [1, 2, 10])
def test_ctrl_c_in_the_midst_of_receiving_reaches_all(monkeypatch, when):
    receive, calls = parcels.Parcels.receive, itertools.count(1)

    def interrupted(self):
        if RANK == LAST and next(calls) == when:
            os.kill(os.getpid(), signal.SIGINT)
        return receive(self)

    monkeypatch.setattr(parcels.Parcels, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt if RANK == LAST else lb_mpi.SearchError) as caught:
        lb_mpi.search(COMM, Endless(), threshold=1.0)
    assert RANK == LAST or str(caught.value).startswith(f"rank {LAST}: KeyboardInterrupt")
    monkeypatch.undo()
    well()


def test_large_payloads_are_announced(monkeypatch):
    monkeypatch.setattr(parcels, "POLL_BYTES", 64)
    for _ in range(5):
        well()
    with pytest.raises(lb_mpi.SearchError, match="misbehaving"):
        cell("work", RAISES["Exception"], here=RANK == LAST)
