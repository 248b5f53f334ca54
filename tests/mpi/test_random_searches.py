"""Random searches: exact, found, or an error that names who has failed; then the next one.  LB_MPI_RANDOM: how many."""

import os
import random

import numpy as np
import pytest

import lb_mpi
from tests.misbehaviour import RAISES
from tests.mpi.sizes import COMM
from tests.pile import Pile, value_of
from tests.protocol.explore import for_each_seed

HOW_MANY = int(os.environ.get("LB_MPI_RANDOM", "20"))
FIRST = int(os.environ.get("LB_MPI_RANDOM_FIRST", "0"))
FAILING = ("", "", "start", "work", "load", "split", "absorb", "result", "merge")
LEAVES = {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}
pytestmark = [pytest.mark.mpi, pytest.mark.every_size]


class Tree(Pile):
    """A pile that may be empty, whose parts are padded, and of which one method fails, sooner or later, on some ranks."""

    def __init__(self, draw):
        super().__init__(draw.choice([1, 2, 10, 100, 1000, 3000]))
        self.wanted = draw.choice([0, 0, draw.randint(1, self.limit)])
        self.empty = draw.random() < 0.1
        self.padding = draw.choice([0, 0, 0, 100_000])
        self.failing = draw.choice(FAILING)
        self.how = draw.choice(sorted(RAISES))
        only = draw.choice([None, draw.randrange(COMM.size)])
        self.calls = draw.choice([1, 2, 30]) if only in (None, COMM.rank) else -1  # of the failing method until it fails
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


def one(seed):
    draw = random.Random(seed)
    options = {
        "route": ("ring", "random")[seed // 3 % 2],  # the same on all ranks
        "threshold": draw.choice([0, 1.0, np.float32(5)]),
        "balance": draw.random() < 0.8,
        "quantum": draw.choice([None, None, 1, np.int64(7), 500]),
        "seed": np.uint8(seed % 256),
        "emulated_speed": draw.choice([1, 1, np.float32(0.5)]),
    }
    tree = Tree(draw)
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


def test_random_searches_are_exact_or_an_error_on_all_ranks():
    for_each_seed(range(FIRST, FIRST + HOW_MANY), one)
