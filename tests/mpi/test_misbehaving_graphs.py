"""What a user's kernel, graph or values may do that they shouldn't: an error on all ranks, and then all is as new."""

import os

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.graph import mesh
from lb_mpi.mpi.graph import speed
from lb_mpi.mpi.graph.halo import MOST_KINDS
from lb_mpi.mpi.graph.speed import multiply_add
from tests.misbehaviour import RAISES, RETURNS
from tests.mpi.doors import on_root, raised_by_all
from tests.mpi.sizes import COMM, LAST, RANK, SIZE

pytestmark = pytest.mark.mpi


def check_named(words, cause, guilty=LAST):
    """All name the cause; those who are innocent, the rank, too."""
    assert all(cause in text for text in words), words
    others = [text for rank, text in enumerate(words) if rank != guilty]
    assert all(f": rank {guilty}: " in text for text in others), words


def cause_of(name):
    """Return what the error says of RAISES[name]."""
    return {"Unspeakable": "its text can't be had", "ValueError": "misbehaving"}.get(name, name)


@pytest.fixture(autouse=True)
def as_new():
    """After every test a plan works."""
    yield
    with deal() as plan:
        np.testing.assert_array_equal(plan.exchange(plan.vertices), [*plan.vertices, *plan.ghosts])


def deal():
    return lb_mpi.distribute(COMM, on_root(mesh(1, 4 * SIZE)), method="block")


# --- kernels ---


@pytest.mark.parametrize("name", RAISES)
def test_a_kernel_that_raises(name):
    quick = {"messages": False, "rounds": 1, "round_s": 0.001}
    for guilty in ({LAST}, set(range(SIZE))):
        kernel = RAISES[name] if RANK in guilty else multiply_add
        words = raised_by_all(lambda kernel=kernel: lb_mpi.measure(COMM, kernel, **quick))
        if guilty == {LAST}:
            check_named(words, cause_of(name))
        assert all(cause_of(name) in text for text in words)


def test_a_kernel_that_returns_anything():
    returns = [*RETURNS.values()]

    def kernel(n):
        multiply_add(n)
        return returns[n % len(returns)]()

    assert lb_mpi.measure(COMM, kernel, messages=False, rounds=1, round_s=0.001).size == SIZE


def test_a_fit_that_fails_on_one_rank(monkeypatch):
    """Only the first rank of a pair fits: rank 0, of two."""
    if SIZE > 1:
        monkeypatch.setattr(speed, "MESSAGE_BYTES", (1, 64))
        if RANK == 0:
            monkeypatch.setattr(speed, "fit_message", RAISES["MemoryError"])
        check_named(raised_by_all(lambda: lb_mpi.measure(COMM, rounds=1, round_s=0.001)), "MemoryError", guilty=0)


# --- graphs ---


class NoPath(os.PathLike[str]):
    """The path of a graph that raises when it's looked at."""

    def __init__(self, misbehave):
        self.misbehave = misbehave

    def __fspath__(self):
        return str(self.misbehave())


def test_graphs_that_are_none():
    kinds = {None: "TypeError", 5: "TypeError", "nosuch.graph": "FileNotFoundError", "/": "IsADirectoryError"}
    for bad, kind in kinds.items():
        words = raised_by_all(lambda bad=bad: lb_mpi.distribute(COMM, on_root(bad)))
        assert all(text.startswith(kind) for text in words), words
        check_named(words, str(bad), guilty=0)
    for name, misbehave in RAISES.items():
        words = raised_by_all(lambda bad=misbehave: lb_mpi.distribute(COMM, on_root(NoPath(bad))))
        check_named(words, cause_of(name), guilty=0)


@pytest.mark.parametrize("name", ["MemoryError", "KeyboardInterrupt"])
def test_pieces_that_cannot_be_made(name, monkeypatch):
    """Those of the ranks before have been sent by then."""
    from lb_mpi.distributing.halo import Pieces

    made = Pieces.__getitem__

    def some(self, rank):
        return RAISES[name]() if rank == LAST else made(self, rank)

    monkeypatch.setattr(Pieces, "__getitem__", some)
    check_named(raised_by_all(deal), name, guilty=0)
    monkeypatch.undo()


# --- values ---


class NoArray:
    """Values that raise when they are looked at."""

    def __init__(self, misbehave):
        self.misbehave = misbehave

    def __array__(self, *_, **__):
        return self.misbehave()


def frozen(n):
    """Values with ghosts that can't be written to."""
    values = np.zeros(n + (RANK > 0) + (RANK < LAST) if SIZE > 1 else 99)
    values.flags.writeable = False
    return values


BAD_VALUES = {
    "list": (lambda n: [1.0] * (n + 7), "values"),
    "what rebalance returns": (lambda n: (np.zeros(n),), "(values,) = plan.rebalance(values)"),
    "read-only": (frozen, "values"),
    "no array": (lambda n: NoArray(lambda: np.zeros(n)), "values of type NoArray"),
    **{name: (lambda n, m=misbehave: [NoArray(m)] * max(n, 1), cause_of(name)) for name, misbehave in RAISES.items()},
}


def test_values_that_are_none():
    for make, cause in BAD_VALUES.values():
        for guilty in ({LAST}, set(range(SIZE))):
            plan = deal()
            n = len(plan.vertices)
            values = make(n) if RANK in guilty else np.zeros(n)
            words = raised_by_all(lambda plan=plan, values=values: [plan.exchange(values) for _ in range(SIZE)])
            assert all(cause in text for text in words)
            if guilty == {LAST}:
                check_named(words, cause)
            with pytest.raises(lb_mpi.Error, match="plan after a failure"):
                plan.exchange(np.zeros(n))
            plan.close()
            with pytest.raises(lb_mpi.Error, match="plan after a failure"):
                plan.exchange(np.zeros(n))


# --- kinds of values ---


def test_few_kinds_are_kept():
    with deal() as plan:
        n = len(plan.vertices)
        for turn in range(2):
            for width in range(1, 3 * MOST_KINDS):
                values = np.repeat(plan.vertices[:, None] + turn, width, axis=1)
                around = plan.exchange(values)
                np.testing.assert_array_equal(around[n:, width - 1], plan.ghosts + turn)
                plan.exchange(plan.vertices)  # used again and again, so kept
            assert len(plan._channels) == MOST_KINDS
            assert (np.dtype(np.int64), ()) in plan._channels


def test_messages_are_counted_in_values():
    """An MPI 3 can't count to 2^31: a message of bytes would end at 2 GiB."""
    counts = []

    class Counting(MPI.Intracomm):
        def Send_init(self, buf, dest, tag=0):
            counts.append((buf[1], buf[2].size))
            return super().Send_init(buf, dest, tag)

    with deal() as plan:
        plan._presence.comm = Counting(plan._presence.comm)
        plan.exchange(np.zeros((len(plan.vertices), 10, 3)))
    assert counts == [(1, 240)] * len(plan.part.ranks)
