"""Ctrl-C is raised at once in the user's code of any kind, and told with the place where it was raised."""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.mpi.pool import gathering

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
pytestmark = pytest.mark.mpi


class Endless:
    """The user's code on rank 0 that doesn't end by itself, and in which Ctrl-C comes."""

    def __init__(self) -> None:
        self.began = self.raised = False

    def __call__(self) -> None:
        if RANK or self.began:
            return
        self.began = True
        try:
            signal.raise_signal(signal.SIGINT)
            for _ in range(100):
                time.sleep(0.01)
        except KeyboardInterrupt:
            self.raised = True
            raise


class Answer:
    """A result of a task whose pickling or unpickling, by `kind`, is the user's code."""

    endless: Endless

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        if self.kind == "dumping":
            self.endless()
        return answer, (self.kind,)


def answer(kind: str) -> Answer:
    if kind == "loading":
        Answer.endless()
    return Answer(kind)


def task(endless: Endless, kind: str) -> None:
    Answer.endless = endless

    def compute(item: int) -> int | Answer:
        if kind == "task":
            endless()
        return Answer(kind) if kind in ("dumping", "loading") else item

    def call(_: object, *__: object) -> None:
        endless()

    options: dict[str, Any] = {kind: call} if kind in ("callback", "progress") else {}
    with lb_mpi.Pool(COMM) as pool:
        pool.map(compute, range(20), **options)


def rows(endless: Endless, kind: str) -> None:
    def pack(item: bytes) -> bytes:
        if kind == "pack":
            endless()
        return item

    def unpack(item: bytes) -> bytes:
        if kind == "unpack":
            endless()
        return item

    def compute(items: list[bytes]) -> list[bytes]:
        if kind == "function":
            endless()
        time.sleep(2e-3 * len(items))
        return items

    mine = [b"row"] * (60 if RANK == 0 else 0)
    with lb_mpi.Balancer(COMM) as balancer:
        while not (endless.began and RANK == 0):
            balancer.map_rows(compute, mine, pack=pack, unpack=unpack)


class Value:
    """A result whose pickling is the user's code, too."""

    def __init__(self, endless: Endless, kind: str) -> None:
        self.endless, self.kind = endless, kind

    def __reduce__(self) -> tuple[Any, ...]:
        if self.kind == "pickling":
            self.endless()
        return int, (0,)


class Counting:
    """Numbers below 2**15, as a problem that has a work method for each kind of the user's code."""

    found = False

    def __init__(self, endless: Endless, kind: str) -> None:
        self.endless, self.kind, self.stack = endless, kind, list[int]()

    def _is(self, kind: str) -> None:
        if kind == self.kind:
            self.endless()

    def start(self) -> None:
        self._is("start")
        self.stack.append(1)

    def work(self, units: int) -> int:
        self._is("work")
        if self.kind == "split" and RANK == 0 and not self.endless.began and len(self.stack) > 1:
            time.sleep(1e-3)
            return 0
        done = 0
        while self.stack and done < units:
            number, done = self.stack.pop(), done + 1
            self.stack += [2 * number, 2 * number + 1] if number < 2**14 else []
        return done

    def load(self) -> float:
        self._is("load")
        return float(len(self.stack))

    def split(self) -> bytes | None:
        self._is("split")
        half, self.stack = self.stack[::2], self.stack[1::2]
        return pickle.dumps(half)

    def absorb(self, payload: bytes) -> None:
        self.stack += pickle.loads(payload)

    def result(self) -> Value:
        self._is("result")
        return Value(self.endless, self.kind)

    def merge(self, one: int, other: int) -> int:
        self._is("merge")
        return one + other


def search(endless: Endless, kind: str) -> None:
    lb_mpi.search(COMM, Counting(endless, kind), trace=lambda *_: endless() if kind == "trace" else None)


CASES = [
    *[(task, kind) for kind in ("task", "dumping", "loading", "callback", "progress")],
    *[(rows, kind) for kind in ("function", "pack", "unpack")],
    *[(search, kind) for kind in ("start", "work", "load", "split", "result", "pickling", "merge", "trace")],
]
OF_SEVERAL = ("pack", "unpack", "split", "merge", "trace")  # on one rank, they are not called


@pytest.mark.parametrize(("door", "kind"), CASES, ids=[kind for _, kind in CASES])
def test_control_c_is_raised_at_once_in_the_users_code(
    monkeypatch: pytest.MonkeyPatch, door: Callable[[Endless, str], None], kind: str
) -> None:
    if SIZE == 1 and kind in OF_SEVERAL:
        pytest.skip("needs several ranks")
    monkeypatch.setattr(gathering, "REPORT_S", 0.0)  # so that progress is also reported before the end
    endless, error = Endless(), None
    try:
        door(endless, kind)
    except (KeyboardInterrupt, lb_mpi.Error) as caught:
        error = caught
    assert (endless.began, endless.raised) == (RANK == 0, RANK == 0)
    assert isinstance(error, KeyboardInterrupt if RANK == 0 else lb_mpi.Error), error
    if RANK:
        assert "KeyboardInterrupt" in str(error)
        assert f"{__name__.rpartition('.')[2]}.py" in str(error)
    assert np.all(COMM.allgather(signal.getsignal(signal.SIGINT) is signal.default_int_handler))
