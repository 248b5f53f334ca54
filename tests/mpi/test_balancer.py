"""The Balancer on real MPI: what comes back, whatever is lent, and what happens when something is wrong."""

import copy
import itertools
import json
import math
import time
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import lb_mpi
from lb_mpi.diffusion.setup import ROWS_SCHEMES
from lb_mpi.graph import mesh
from lb_mpi.mpi.common import waiting
from lb_mpi.mpi.common.reducing import Reducing
from lb_mpi.mpi.rows.computing import Stopwatch
from tests.clock import spin
from tests.mpi.sizes import COMM, LAST, RANK, SIZE, several

SPEEDS = [0.8, 0.4, 0.2, 0.2]
pytestmark = pytest.mark.mpi

def slow_square(rows):
    """Ten microseconds of CPU time a row on rank 0, more on the others (as on slower machines); row by row."""
    spin(10e-6 * len(rows) * (1 + RANK % 4))
    return np.sin(rows) * rows


@pytest.fixture
def balancer():
    with lb_mpi.Balancer(COMM, when="always") as made:
        yield made


def until_rows_move(balancer, call):
    """Call until rows are lent: on a busy machine, which ranks share with others, decisions may be 64 calls apart."""
    moved = 0
    for _ in range(200):
        call()
        moved += balancer.last.rows_moved
        if moved or SIZE == 1:
            break
    assert (moved > 0) == (SIZE > 1)


def numbers(n, *shape, seed=0):
    return np.random.default_rng(1000 * seed + RANK).standard_normal((n, *shape))


class Weather(NamedTuple):
    temperature: NDArray[np.float64]
    wet: NDArray[np.bool_]


def filled(dtype, *shape):
    """200 rows, all different as far as the type allows."""
    rows = np.zeros((200, *shape), dtype)
    numbers = (np.arange(rows.size) + 1000 * RANK).reshape(rows.shape)
    for column in [rows[name] for name in rows.dtype.names] if rows.dtype.names else [rows]:
        column[...] = numbers.reshape(*numbers.shape, *[1] * (column.ndim - numbers.ndim)).astype(column.dtype)
    return rows


def in_place(block):
    for column in [block[name] for name in block.dtype.names] if block.dtype.names else [block]:
        if column.dtype.kind in "iufc":
            column *= column.dtype.type(2)
    return block


def at_work(function):
    """The function, which takes longer on ranks after the first, so that rows are lent."""

    def working(block, *more, **options):
        spin(40e-6 * len(block[0] if isinstance(block, tuple | list) else block) * (1 + RANK % 4))
        return function(block, *more, **options)

    return working


def columns_of(form):
    arrays = [numbers(150, 4), np.arange(150, dtype=np.int16), numbers(150) > 0]
    return form(arrays), numbers(150, seed=1), numbers(150, 2, 2, seed=2).astype("f4")


def of_several(form):
    def function(block, lat, w):
        assert type(block) is form
        a, b, c = block
        return form([a * lat[:, None] + w.sum(axis=(1, 2))[:, None], b + np.int16(1), c ^ (lat > 0)])

    return function


def powers(block, factor, w, note, *, power, table=None):
    assert (note, table) == (None, {"a": [1]})
    return (factor * block * w[:, None]) ** power


WORK, WEIGHTS, OPTIONS = np.empty((200, 3)), np.sin(np.arange(101)), {"power": 2, "table": {"a": [1]}}
OF_LAST = numbers(120 if RANK == LAST else 0, 2)
PARTICLE = np.dtype([("id", "i4"), ("x", "f8", (2,)), ("alive", "?")])
FORMS = {  # rows and more, the function, options
    **{dtype: ((filled(dtype, 3),), in_place, {}) for dtype in ("f8", ">f4", "c8", "i1", "u2", "?", "M8[s]", "S5")},
    "records": ((filled(PARTICLE),), in_place, {}),
    "gaps between fields": ((filled(PARTICLE)[["alive", "id"]],), in_place, {}),
    "flat": ((filled("f8"),), in_place, {}),
    "cube": ((np.broadcast_to(filled("f8", 3)[:, :, None], (200, 3, 4)),), np.negative, {}),
    "strided": ((np.asfortranarray(filled("f8", 3))[:, ::2],), in_place, {}),
    "empty": ((np.zeros((200, 0)),), in_place, {}),
    "a tuple and more": (columns_of(tuple), of_several(tuple), {}),
    "a list and more": (columns_of(list), of_several(list), {}),
    "many arrays": (([numbers(60)] * 100,), lambda block: [3.0 * one for one in block], {}),
    "another form": ((numbers(100 + RANK, 3),), lambda rows: np.stack([rows.sum(1), rows[:, 0]], 1)[..., None], {}),
    "another dtype, all on the last": ((OF_LAST,), lambda rows: rows.sum(axis=1).astype("f4"), {}),
    "a named tuple, all on the last": ((OF_LAST,), lambda rows: Weather(rows.sum(axis=1), rows[:, 0] > 0.0), {}),
    "a tuple out": ((OF_LAST,), lambda rows: (rows > 0.0, rows.sum(1), np.asfortranarray(rows)), {"block_rows": 7}),
    "a list out": ((OF_LAST,), lambda rows: [rows > 0.0, rows.sum(axis=1)], {"block_rows": 7}),
    "several in and one out": (((numbers(60), numbers(60, 3)),), lambda block: block[0][:, None] * block[1], {}),
    "its own array": ((numbers(40, 3),), lambda block: np.multiply(block, 2.0, out=WORK[: len(block)]), {"block_rows": 4}),
    "scalars and options": ((numbers(80, 2), 3, numbers(80, seed=1), None), powers, OPTIONS),
    "gaps between rows": ((numbers(60, 101, 3)[:, :, 0],), lambda rows: np.array([row @ WEIGHTS for row in rows]), {}),
    "sums over gaps": ((numbers(60, 101, 3)[:, :, 0],), lambda rows: np.einsum("ij,ij->i", rows, rows), {}),
}  # fmt: skip


@pytest.mark.one_mpi
@pytest.mark.parametrize("name", FORMS)
def test_results_are_those_of_the_function_whatever_it_takes_and_returns(name, balancer):
    (rows, *more), function, options = FORMS[name]
    before = copy.deepcopy(rows)
    given = {key: value for key, value in options.items() if key != "block_rows"}
    expected = copy.deepcopy(function(copy.deepcopy(rows), *more, **given))
    working = at_work(function)

    def call():
        result = balancer.map_rows(working, rows, *more, **options)
        assert type(result) is (tuple if isinstance(expected, Weather) else type(expected))
        for mine, right in zip(*((one,) if isinstance(one, np.ndarray) else one for one in (result, expected)), strict=True):
            assert (mine.dtype, mine.shape) == (right.dtype, right.shape)
            assert mine.tolist() == right.tolist() if name == "gaps between fields" else mine.tobytes() == right.tobytes()
        assert repr(rows) == repr(before)

    until_rows_move(balancer, call)


def test_rows_that_nobody_has_come_back(balancer):
    rows = numbers(0, 3)
    assert balancer.map_rows(lambda block: block.sum(axis=1), rows).tobytes() == rows.tobytes()


@pytest.mark.one_mpi
def test_results_that_differ_between_ranks_or_blocks(balancer):
    rows = numbers(60, 2)
    for _ in range(3):
        if SIZE > 1:
            words = rf"lambda> returned array of float32 .* on rank {LAST}: expected array .* on rank 0 \(.*py:\d+\)$"
            with pytest.raises(lb_mpi.BalanceError, match=words):
                balancer.map_rows(lambda block: block.astype("f4" if RANK == LAST else "f8"), rows)
        calls = itertools.count()
        words = rf"rank {LAST}, .*returned array of float64 \(n, 1\): expected array of float64 \(n, 2\), as for .* before"
        with pytest.raises(lb_mpi.BalanceError, match=words):
            balancer.map_rows(lambda b: b[:, :1] if RANK == LAST and next(calls) else b, rows, block_rows=5)  # noqa: B023
    assert np.array_equal(balancer.map_rows(slow_square, rows), np.sin(rows) * rows)


def pack(item):
    return json.dumps(item).encode()


def grow(items):
    spin(20e-6 * len(items) * (1 + RANK % 4))
    return [{**item, "n": item["n"] + 1, "x" * (item["n"] % 3): 0} for item in items]


def test_dtypes_and_shapes_may_differ_between_calls():
    pair = np.dtype([("a", "f4"), ("b", "i2")])  # np.record's of the same fields is equal to it
    with lb_mpi.Balancer(COMM, when="always") as balancer:
        for call, kind in enumerate(("f4", pair, "i8", (np.record, pair)) * 3):
            rows = filled(np.dtype(kind), 1 + call % 2)[: 40 if RANK == 0 else 2]

            def function(block, kind=rows.dtype.type):
                assert block.dtype.type is kind
                time.sleep(1e-4 * len(block))
                return block

            results = balancer.map_rows(function, rows)
            np.testing.assert_array_equal(results, rows)
            assert results.dtype == rows.dtype
        if SIZE > 1:
            assert sum(one.rows_moved for one in balancer.history)


class Pack:
    __hash__ = None

    def __call__(self, item):
        return pack(item)


def test_objects_with_pack_and_unpack(balancer):
    rows = [{"id": 1000 * RANK + k, "n": k} for k in range(120)]

    def call():
        assert balancer.map_rows(grow, rows, pack=pack, unpack=json.loads) == grow(rows)

    until_rows_move(balancer, call)
    owned = balancer.migrate(rows, costs=np.ones(120) * (1 + RANK), pack=Pack(), unpack=json.loads)
    everything = sorted(item["id"] for items in COMM.allgather(owned) for item in items)
    assert everything == sorted(1000 * rank + k for rank in range(SIZE) for k in range(120))


def test_a_function_that_waits_instead_of_computing():
    def function(rows):
        time.sleep(1e-4 * len(rows) * (1 + RANK % 2))
        return rows + 1

    rows = numbers(60, 2)

    def call():
        assert np.array_equal(balancer.map_rows(function, rows), rows + 1)

    with lb_mpi.Balancer(COMM) as balancer:
        until_rows_move(balancer, call)
        assert balancer.speeds.shape == (SIZE,)
        assert balancer.speeds.mean() == pytest.approx(1.0)


@pytest.mark.parametrize("reported", [True, False])
def test_a_function_that_sleeps_takes_as_long_as_it_sleeps(reported, monkeypatch):
    def refuse(*_):
        raise OSError

    if not reported:  # by the system, how long it queues
        monkeypatch.setattr(waiting.os, "open", refuse)
    watch = Stopwatch(1.0)
    watch.begin()
    assert math.isnan(watch.call(time.sleep, (1e-3,))[1])  # it may have been compiled
    ticks = [watch.call(time.sleep, (5e-3,))[1] for _ in range(3)]
    assert max(ticks) >= 5e-3  # a rank that queues for a core just as the clocks are read may lose some
    measured = watch.collect()
    assert measured.called_s >= measured.ticks >= 5e-3
    watch.end()


@pytest.mark.one_mpi
def test_policies():
    rows = numbers(100, 2)
    for when, every, acted in (("always", 1, 6), ("always", 3, 2), (1e9, 1, 0), (1e-9, 2, 3)):
        with lb_mpi.Balancer(COMM, when=when, every=every) as balancer:
            count = 0
            for _ in range(6):
                balancer.map_rows(slow_square, rows)
                count += balancer.last.acted
                assert balancer.last.acted == balancer.last.reason.startswith("balanced")
        assert count == (acted if SIZE > 1 else 0)


@pytest.mark.parametrize("scheme", ROWS_SCHEMES)
@pytest.mark.every_size
def test_migrate_conserves_rows_and_levels_costs(scheme):
    rng = np.random.default_rng(RANK)
    n = 300 if RANK == 0 else 20
    ids = np.arange(n) + 10_000 * RANK
    rows = (ids, rng.random((n, 3)), rng.integers(0, 9, n).astype("i1"))
    everything = COMM.allgather(rows)
    with lb_mpi.Balancer(COMM, scheme=scheme, when="always", tolerance=0.01) as balancer:
        owned = balancer.migrate(rows, costs=np.ones(n))
        last = balancer.last
    assert type(owned) is tuple
    right = {key: (x.tobytes(), c) for part in everything for key, x, c in zip(*part, strict=True)}
    assert all(right[key] == (x.tobytes(), c) for key, x, c in zip(*owned, strict=True))
    assert sorted(np.concatenate(COMM.allgather(owned[0])).tolist()) == sorted(right)
    source = owned[0] // 10_000
    kept = owned[0][source == RANK]
    assert source.tolist() == [RANK] * len(kept) + sorted(source[len(kept) :].tolist())
    assert kept.tolist() == sorted(kept.tolist())
    if SIZE > 1:
        assert last.rows_moved > 0
        assert last.imbalance_before > 0.5
        assert last.imbalance_after < 0.05
        assert len(owned[0]) == pytest.approx(len(right) / SIZE, rel=0.06)


@pytest.mark.every_size
def test_neighbours_migrate_rows_to_any_rank_at_once():
    n = 300 if RANK == 0 else 20
    rows = np.arange(n) + 10_000 * RANK
    everything = sorted(np.concatenate(COMM.allgather(rows)).tolist())
    with lb_mpi.Balancer(COMM, scheme="fos", graph=mesh(1, SIZE), when="always", tolerance=0.01) as balancer:
        near = [RANK, *balancer.graph.neighbours(RANK).tolist()]
        first = balancer.migrate(rows, costs=np.ones(n))
        assert balancer.last.imbalance_after < 0.1
        assert {k // 10_000 for k in first.tolist()} <= {RANK, 0}  # from the owner to its last stop
        if SIZE > 1:  # the sum of one rank is finite
            with pytest.raises(ValueError, match="costs: expected numbers whose sum over all ranks is finite"):
                balancer.migrate(np.arange(4), costs=np.full(4, 4e307))
        assert balancer.speeds.shape == (SIZE,)
        assert np.flatnonzero(~np.isnan(balancer.speeds)).tolist() == sorted(near)
    assert sorted(np.concatenate(COMM.allgather(first)).tolist()) == everything


@pytest.mark.every_size
def test_neighbours_find_speeds_and_use_no_root():
    """What a call and a plan send: sums and maxima over all ranks, everything else to neighbours only."""
    rows = numbers(200, 3)
    with lb_mpi.Balancer(COMM, scheme="fos", when="always", emulated_speed=SPEEDS[RANK % 4]) as balancer:
        until_rows_move(balancer, lambda: balancer.map_rows(slow_square, rows))
        reported = COMM.allgather((balancer.last.acted, balancer.last.reason, balancer.last.steps, balancer.last.rows_moved,
                               balancer.last.imbalance_after, balancer.last.predicted_gain_s))  # fmt: skip
        assert len(set(reported)) == 1
        for failing in (0, LAST):
            marked = rows.copy()
            marked[0, 0] = np.nan if failing == RANK else 0.0  # whichever rank computes this row
            with pytest.raises(lb_mpi.BalanceError):
                balancer.map_rows(lambda block: block[1:] if np.isnan(block).any() else block, marked)
            result = balancer.map_rows(slow_square, rows)
            assert result.tobytes() == (np.sin(rows) * rows).tobytes()
        empty = balancer.map_rows(slow_square, rows[:0] if RANK == LAST else rows)
        assert empty.shape == (0 if RANK == LAST else 200, 3)


@pytest.mark.one_mpi
@pytest.mark.parametrize("scheme", ["direct", "fos"])
@pytest.mark.parametrize("after", [0, 12])
@pytest.mark.parametrize("keyword", [False, True])
@several
def test_scalars_that_differ_between_ranks(scheme, after, keyword):
    """A row would be computed with the number of another rank."""
    given = ((50, np.float64(0.5), "a"), (LAST, 0.5, "a"))[RANK == LAST]

    def function(block, *more, **options):
        return block

    def call(balancer, given):
        names = dict(zip(("first", "half", "name"), given, strict=True))
        balancer.map_rows(function, numbers(50, 2), *(() if keyword else given), **(names if keyword else {}))

    with lb_mpi.Balancer(COMM, scheme=scheme) as balancer:
        for _ in range(after):
            call(balancer, (50, 0.5, "a"))
        name = "first" if keyword else r"more\[0\]"
        with pytest.raises(TypeError, match=f"^{name} = {LAST} on rank {LAST}: expected 50, as on ranks? 0.*$"):
            call(balancer, given)
        call(balancer, (1, 0.5, None))


@pytest.mark.every_size
def test_a_rank_that_waits_for_a_decision_leaves_messages_of_the_next_call(monkeypatch):
    """Rank 0 has all rows, and lends in the next call while the last rank has not yet received the decision on this one."""
    rows = numbers(60 if RANK == 0 else 0, 2)
    begin, done, begun = Reducing.begin, Reducing.done, [0.0]

    def begins(reducing, mine):
        begun[0] = time.monotonic()
        begin(reducing, mine)

    def late(reducing):
        return (RANK < LAST or time.monotonic() > begun[0] + 0.02) and done(reducing)

    def slow(rows):
        spin(2e-4 * len(rows))
        return rows + 1.0

    monkeypatch.setattr(Reducing, "begin", begins)
    monkeypatch.setattr(Reducing, "done", late)
    with lb_mpi.Balancer(COMM, when=0.5) as balancer:  # it acts on the first calls, and follows that plan on the others
        for _ in range(8):
            assert np.array_equal(balancer.map_rows(slow, rows), rows + 1.0)


def test_the_report_has_rows_seconds_and_idle_of_each_rank(balancer):
    n = 40 + RANK
    for _ in range(3):
        balancer.map_rows(slow_square, numbers(n, 2))
    report = balancer.report()
    assert COMM.allgather(str(report)) == [str(report)] * SIZE
    assert [one.rank for one in report.ranks] == list(range(SIZE))
    assert [one.owned for one in report.ranks] == [40 + rank for rank in range(SIZE)]
    assert sum(one.done for one in report.ranks) == 3 * sum(40 + rank for rank in range(SIZE))
    assert all(0.0 < one.busy_s <= one.seconds or one.done == 0 for one in report.ranks)
    assert all(0.0 <= one.idle <= 1.0 for one in report.ranks)
    assert report.n == 3
    assert 0.0 < report.lower_bound_s <= report.seconds
    assert len(str(report).splitlines()) == SIZE + 4


class Cells(NamedTuple):
    heat: NDArray[np.float64]
    kind: NDArray[np.int64]


def test_a_named_tuple_reaches_the_function_and_comes_back_from_migrate():
    kind = np.arange(40 if RANK == 0 else 1)
    rows = Cells(np.sin(kind), kind)
    with lb_mpi.Balancer(COMM, when="always", emulated_speed=SPEEDS[RANK % 4]) as balancer:
        for _ in range(3):
            result = balancer.map_rows(lambda cells: cells.heat * cells.kind, rows)
            assert result.tobytes() == (rows.heat * rows.kind).tobytes()
        for order in ("appended", "kept"):
            moved = balancer.migrate(rows, costs=np.full(len(rows.heat), 1.0 + RANK), order=order)
            assert type(moved) is Cells
            assert moved.heat.tobytes() == np.sin(moved.kind).tobytes()
        if SIZE > 1:
            with pytest.raises(TypeError, match=r"rows = Cells of .* expected tuple|rows = tuple of .*expected Cells"):
                balancer.map_rows(lambda cells: cells[0], rows if RANK else tuple(rows))


@several
def test_rows_moved_are_rows_not_blocks():
    """All blocks but the last have `block_rows` rows; with a huge number all rows are one block."""
    for block_rows, n in ((25, 310), (2**45, 4), (2**70, 4)):
        rows, at_home, moved = np.full((n if RANK == 0 else 3, 2), float(RANK)), 0, 0
        here = [0]

        def function(block, here=here):
            time.sleep(1e-4 * len(block))
            here[0] += int((block[:, 0] == RANK).sum())
            return block

        with lb_mpi.Balancer(COMM, when="always", emulated_speed=0.1 if RANK == 0 else 1.0) as balancer:
            for _ in range(6):
                here[0] = 0
                balancer.map_rows(function, rows, block_rows=block_rows)
                moved += balancer.last.rows_moved
                at_home += COMM.allreduce(len(rows) - here[0])
            assert moved == at_home == balancer.history.n_moved
