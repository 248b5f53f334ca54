"""What users' functions may do to the Balancer, and what all ranks raise then; and arrays that need care."""

import itertools
import json
import time
from functools import partial

import numpy as np
import pytest

import lb_mpi
from lb_mpi.mpi.common import communicator
from tests.clock import spin
from tests.misbehaviour import RAISES, RETURNS
from tests.mpi.doors import CALLS, DOORS, USES, on_root
from tests.mpi.sizes import COMM, LAST, RANK, SIZE, several
from tests.mpi.test_balancer import numbers, pack
from tests.mpi.test_random_rows import choose_way
from tests.pile import Pile

pytestmark = pytest.mark.mpi


WRONG = {**RAISES, **{f"returns {k}": lambda *_, r=r: r() for k, r in RETURNS.items()}}


def check(misbehave, call, guilty):
    """All ranks raise, and name a guilty rank; who has raised SystemExit or KeyboardInterrupt raises it."""
    guilty.clear()
    with pytest.raises((lb_mpi.BalanceError, SystemExit, KeyboardInterrupt)) as caught:
        misbehave()
    ranks = [rank for rank, was in enumerate(COMM.allgather(bool(guilty))) if was]
    assert ranks, f"{call}: raised, but nobody misbehaved"
    if isinstance(caught.value, lb_mpi.BalanceError):
        assert str(caught.value).startswith(f"rank {ranks[0]}, "), f"{call}: {caught.value}, of ranks {ranks}"
    else:
        assert RANK in ranks, call
        assert call.split()[-1] == type(caught.value).__name__


@pytest.mark.parametrize("everywhere", [False, True])
def test_whatever_is_raised_or_returned_is_an_error_on_all(everywhere):
    """Wherever they are computed: the rows of the last rank, or all rows, misbehave."""
    rows, guilty = numbers(40, 2) + 1000.0 * (everywhere or RANK == LAST), []
    with lb_mpi.Balancer(COMM, when="always") as balancer:
        for name, wrong in WRONG.items():

            def function(block, wrong=wrong):
                if block.max() < 500.0:
                    return block
                guilty.append(RANK)
                return wrong()

            check(lambda: balancer.map_rows(function, rows), f"function {name}", guilty)
            assert np.array_equal(balancer.map_rows(np.copy, rows), rows)  # as new


@several
def test_whatever_pack_and_unpack_do_is_an_error_on_all():
    objects, guilty = [{"n": k} for k in range(20)], []
    with lb_mpi.Balancer(COMM, when="always") as balancer:  # which has measured no speeds: all are equal
        for name, wrong in WRONG.items():

            def broken(item, wrong=wrong):
                guilty.append(RANK)
                return wrong()

            def migrate(pack=broken):
                balancer.migrate(objects, costs=np.full(20, 100.0 * (RANK == LAST)), pack=pack, unpack=json.loads)

            check(migrate, f"pack {name}", guilty)
            if name in RAISES:  # what unpack returns is the user's

                def torn(text, wrong=wrong):
                    guilty.append(RANK)
                    return wrong()

                def unpacking(unpack=torn):
                    balancer.migrate(objects, costs=np.full(20, 100.0 * (RANK == 0)), pack=pack, unpack=unpack)

                check(unpacking, f"unpack {name}", guilty)
        assert len(COMM.allgather(balancer.migrate(objects, pack=pack, unpack=json.loads))) == SIZE


def test_a_call_of_the_same_balancer_in_its_function_is_refused():
    rows = numbers(12, 2)
    with lb_mpi.Balancer(COMM) as balancer:
        calls = [
            lambda block: balancer.map_rows(np.copy, block), balancer.migrate, lambda _: balancer.report(),
            lambda _: balancer.close(),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(lb_mpi.BalanceError, match="Error: a call of this Balancer is under way: expected none"):
                balancer.map_rows(call, rows)
        objects = [{"n": k} for k in range(12)]
        with pytest.raises(lb_mpi.BalanceError, match="a call of this Balancer is under way"):
            balancer.map_rows(lambda _: balancer.report(), objects, pack=pack, unpack=json.loads)
        assert np.array_equal(balancer.map_rows(np.copy, rows), rows)


@several
@pytest.mark.parametrize("n_before", [0, 1])
@pytest.mark.parametrize(("one", "other"), [  # the other: of the last rank
    ("Balancer.map_rows", "Balancer.close"), ("Balancer.report", "Balancer.close"), ("plan.exchange", "plan.close"),
    ("Balancer.map_rows", "Balancer.migrate"), ("plan.rebalance", "plan.exchange"),
])  # fmt: skip
def test_a_rank_in_another_call_is_an_error_on_all_ranks(one, other, n_before, monkeypatch):
    monkeypatch.setattr(communicator, "OTHER_AFTER_S", 0.02)
    made, call = USES[one]
    opened = made(COMM)
    for _ in range(n_before):
        call(opened)
    with pytest.raises(lb_mpi.Error, match=r"rank . is in .*, rank . in .*: expected the same calls on all ranks"):
        (USES[other][1] if RANK == LAST else call)(opened)
    opened.close()


MAKING = [name for name in CALLS if name != "asked_to_stop"]  # a communicator, on which ranks meet at once


@several
@pytest.mark.parametrize(("one", "other"), [*itertools.pairwise(MAKING)])
def test_ranks_that_meet_in_different_calls_name_them(one, other, tmp_path):
    """Their first collective operations were taken for each other."""
    with pytest.raises(lb_mpi.Error, match=rf"rank {LAST} is in lb_mpi.{other}, rank 0 in lb_mpi.{one}: expected"):
        CALLS[other if RANK == LAST else one](COMM, tmp_path)
    COMM.Barrier()


def in_rows(call, *, home):
    with lb_mpi.Balancer(COMM) as balancer:
        choose_way(balancer, home=home)
        balancer.map_rows(lambda block: (call(), block)[1], numbers(12, 2))


def in_search(call):
    lb_mpi.search(COMM, lb_mpi.TreeSearch(0, lambda node: [] if call() or node else [1]))


def in_merge(call):
    problem = Pile(30)
    problem.on_call = lambda method: call() if method == "merge" else None
    lb_mpi.search(COMM, problem)


def in_migrate(call):
    with lb_mpi.Balancer(COMM, when="always") as balancer:
        balancer.migrate([b""] * (20 if RANK == 0 else 2), pack=lambda row: (call(), row)[1], unpack=bytes)


def in_rebalance(call):
    with lb_mpi.distribute(COMM, on_root("mesh:4x6"), method="block") as plan:
        for _ in range(3):
            time.sleep(2e-3 if RANK else 3e-2)
            values = [b""] * len(plan.vertices)
            plan.rebalance(values, when="always", pack=bytes, unpack=lambda data: (call(), data)[1])


@several
@pytest.mark.parametrize(("where", "use"), [
    ("a function of map_rows", partial(in_rows, home=False)), ("a function of map_rows", partial(in_rows, home=True)),
    ("a problem of a search", in_search), ("a problem of a search", in_merge), ("pack or unpack", in_migrate),
    ("pack or unpack", in_rebalance),
])  # fmt: skip
@pytest.mark.parametrize("door", ["Pool.map", "Balancer.map_rows", "plan.exchange", "plan.close", "Pool", "save"])
def test_a_collective_call_in_a_function_is_an_error(door, where, use, tmp_path):
    """Ranks call it different numbers of times."""
    with DOORS[door][1](COMM, COMM.bcast(tmp_path / "saves")) as call:
        with pytest.raises(lb_mpi.Error, match=f"a collective call in {where}, on ranks that it would wait for without end"):
            use(call)
        call()


def test_wrong_results_are_refused_with_what_was_expected():
    rows = numbers(10, 2)
    wrong = [
        (lambda block: np.ma.masked_array(block, block > 0), "a MaskedArray of float64"),
        (lambda block: block.view(np.matrix), "a matrix of float64"),
        (lambda block: block[1:], r"an array of float64 \(\d+, 2\): expected \d+ rows?, as many .* given \(.*py:\d+\)$"),
        (lambda block: None, r"None: expected an array, or a tuple or list of arrays \(.*py:\d+\)$"),
    ]
    with lb_mpi.Balancer(COMM) as balancer:
        for function, words in wrong:
            with pytest.raises(lb_mpi.BalanceError, match=rf"^rank \d, .*lambda> returned {words}"):
                balancer.map_rows(function, rows)


@pytest.mark.parametrize("n", [1, 7, 64, 100])
def test_blocks_of_one_shape_give_the_bits_of_these_calls(n):
    weights = np.random.default_rng(7).standard_normal((33, 33))
    rows, size = numbers(n, 33), 8

    def function(block):
        assert len(block) in (size, n % size)
        spin(2e-5 * len(block) * (1 + RANK % 4))
        return np.asarray(block @ weights)

    expected = np.concatenate([rows[first : first + size] @ weights for first in range(0, n, size)])
    with lb_mpi.Balancer(COMM, when="always") as balancer:
        for _ in range(8):
            assert balancer.map_rows(function, rows, block_rows=size).tobytes() == expected.tobytes()
