"""Each method of a problem does what it shouldn't, on one rank or on all: every rank raises who and why, and goes on.

So do random searches, or they are exact, or have found; LB_MPI_RANDOM: how many.
"""

import itertools
import os
import random
import signal

import numpy as np
import pytest

import lb_mpi
from lb_mpi.mpi.common import parcels
from tests.misbehaviour import RAISES, RETURNS, NotForPickling
from tests.mpi.sizes import COMM, LAST, RANK, SIZE
from tests.pile import Pile, value_of
from tests.protocol.explore import for_each_seed

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


@pytest.mark.parametrize("where", ["one", pytest.param("all", marks=pytest.mark.one_mpi)])
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
        cell("work", RAISES["ValueError"], here=RANK == LAST)


# --- at random ----------------------------------------------------------------------------------------------------

HOW_MANY = int(os.environ.get("LB_MPI_RANDOM", "20"))
FIRST = int(os.environ.get("LB_MPI_RANDOM_FIRST", "0"))
FAILING = ("", "", "start", "work", "load", "split", "absorb", "result", "merge")


class Drawn(Pile):
    """A pile that may be empty, whose parts are padded, and of which one method fails, sooner or later, on some ranks."""

    def __init__(self, draw):
        super().__init__(draw.choice([1, 2, 10, 100, 1000, 3000]))
        self.wanted = draw.choice([0, 0, draw.randint(1, self.limit)])
        self.empty = draw.random() < 0.1
        self.padding = draw.choice([0, 0, 0, 100_000])
        self.failing = draw.choice(FAILING)
        self.how = draw.choice(sorted(RAISES))
        only = draw.choice([None, draw.randrange(SIZE)])
        self.calls = draw.choice([1, 2, 30]) if only in (None, RANK) else -1  # of the failing method until it fails
        self.failed = False

    def on_call(self, method):
        if method == self.failing:
            self.calls -= 1
            if self.calls == 0:
                self.failed = True
                RAISES[self.how]()

    def start(self):
        if self.empty:
            self.on_call("start")
        else:
            super().start()

    def work(self, units):
        return super().work(min(units, 20))

    def split(self):
        part = super().split()
        return None if part is None else bytes(self.padding) + part

    def absorb(self, payload):
        super().absorb(payload[self.padding :])


def search_at_random(seed):
    draw = random.Random(seed)
    options = {
        "route": ("ring", "random")[seed // 3 % 2],  # the same on all ranks
        "threshold": draw.choice([0, 1.0, np.float32(5)]),
        "balance": draw.random() < 0.8,
        "quantum": draw.choice([None, None, 1, np.int64(7), 500]),
        "seed": np.uint8(seed % 256),
        "emulated_speed": draw.choice([1, 1, np.float32(0.5)]),
    }
    tree = Drawn(draw)
    sense = (None, "min", "max")[seed % 3]  # the ranks draw differently by now
    if sense is not None:
        tree.bound = options["bound"] = lb_mpi.Bound(sense)
    reported, left = "", False
    try:
        result = lb_mpi.search(COMM, tree, **options)
    except lb_mpi.SearchError as error:
        reported = str(error)
    except LEAVES.get(tree.how, ()):
        left = True
    if tree.bound is not None:
        assert len(set(COMM.allgather(tree.bound.best))) == 1
    answers = COMM.allgather((reported, left, tree.failed))
    if any(failed for _, _, failed in answers):
        assert all(left == (failed and tree.how in LEAVES) for _, left, failed in answers), answers
        texts = {reported for reported, left, _ in answers if not left}
        assert len(texts) <= 1, answers
        lowest = next(rank for rank, (_, _, failed) in enumerate(answers) if failed)
        assert all(text.startswith(f"rank {lowest}: {tree.how}") for text in texts), answers
        return
    assert not reported
    everything = list(range(1, tree.limit + 1))
    assert result.found == (not tree.empty and tree.wanted > 0)
    if tree.empty:
        assert result.value == []
    elif result.found:
        assert tree.wanted in result.value
        assert len(set(result.value)) == len(result.value)
    else:
        assert sorted(result.value) == everything
    assert sum(rank.done for rank in result.ranks) == len(result.value)
    if sense is not None and result.value:
        assert tree.bound.best == (min if sense == "min" else max)(map(value_of, result.value))


@pytest.mark.every_size
def test_random_searches_are_exact_or_an_error_on_all_ranks():
    for_each_seed(range(FIRST, FIRST + HOW_MANY), search_at_random)
