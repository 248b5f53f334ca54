"""Rows that migrate in order: the sequence of all rows is the same before and after, only the ends of ranges move."""

import json
import os

import numpy as np
import pytest

import lb_mpi
from lb_mpi.mpi.rows import migrating
from tests.clock import pass_time
from tests.mpi.sizes import COMM, LAST, RANK, SIZE
from tests.protocol.mutate import rejects

N = int(os.environ.get("LB_MPI_RANDOM", "15" if SIZE < 6 else "5"))
pytestmark = pytest.mark.mpi

DTYPES = ("i1", ">f4", "c16", "?", "U3", "M8[s]", "V5", [("id", "i8"), ("at", "f4", (2,))])
SIZES = ("even", "any", "some empty", "one rank", "none", "few")


def lengths(kind, rng):
    """The number of rows of each rank."""
    drawn = rng.integers(0, 60, SIZE)
    if kind == "some empty":
        drawn *= rng.integers(0, 2, SIZE)
    elif kind == "one rank":
        drawn = np.where(np.arange(SIZE) == rng.integers(SIZE), 100, 0)
    elif kind != "any":
        drawn = {"even": np.full(SIZE, 30), "none": np.zeros(SIZE), "few": rng.integers(0, 2, SIZE)}[kind]
    return drawn.astype(int).tolist()


def table(numbers, dtype, shape):
    """Rows that tell their global numbers."""
    rows = np.frombuffer(np.random.default_rng(7).bytes(1 << 16), np.uint8)
    one = np.dtype((dtype, shape)) if shape else np.dtype(dtype)
    offsets = (numbers[:, None] * 31 + np.arange(one.itemsize)) % len(rows)
    found = np.zeros((len(numbers), *shape), dtype)
    found.view(np.uint8).reshape(len(numbers), one.itemsize)[...] = rows[offsets] & 1  # 0 or 1 in each byte: valid values
    return found


def costs_of(kind, n, rng):
    """Costs of all n rows."""
    if kind == "equal":
        return None
    drawn = {"zero": np.zeros(n), "heavy": rng.pareto(1.1, n), "some zero": rng.random(n) * rng.integers(0, 2, n)}
    return drawn[kind]


def same(one, other):
    if isinstance(one, tuple):
        return type(other) is tuple and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return bool(one == other)


def migrated(seed):
    """Return what is wrong after some migrations of random rows, the same on all ranks; "": nothing."""
    rng = np.random.default_rng(seed)
    n_of = lengths(str(rng.choice(SIZES)), rng)
    kind, dtype = str(rng.choice(["array", "tuple", "objects"])), DTYPES[rng.integers(len(DTYPES))]
    shape = ((), (3,), (2, 2), (0,))[rng.integers(4)]
    scheme, when = str(rng.choice(["direct", "fos"])), (("always", "auto", 0.1)[rng.integers(3)])
    numbers = np.arange(sum(n_of))
    options = {}

    def rows_of(numbers):
        if kind == "objects":
            return [{"row": k, "more": [k] * (k % 3)} for k in numbers.tolist()]
        rows = table(numbers, dtype, shape)
        return (numbers, rows) if kind == "tuple" else rows

    if kind == "objects":
        options = {"pack": lambda one: json.dumps(one).encode(), "unpack": json.loads}
    ends = np.cumsum(n_of)
    mine = numbers[ends[RANK] - n_of[RANK] : ends[RANK]]
    rows, wrong = rows_of(mine), ""
    with lb_mpi.Balancer(COMM, scheme=scheme, when=when) as balancer:
        for _ in range(3):
            costs = costs_of(str(rng.choice(["equal", "zero", "heavy", "some zero"])), len(numbers), rng)
            before = rows
            rows = balancer.migrate(before, costs=None if costs is None else costs[mine], order="kept", **options)
            counts, last = balancer.counts, balancer.last
            if counts is None or counts.sum() != len(numbers) or (counts < 0).any():
                wrong = f"counts {counts} of {len(numbers)} rows"
                break
            ends = np.cumsum(counts)
            mine = numbers[ends[RANK] - counts[RANK] : ends[RANK]]
            if not same(rows, rows_of(mine)):
                wrong = f"rank {RANK} has not its rows {mine[:1]}..{mine[-1:]} of {kind} of {dtype} {shape}"
            elif not last.acted and rows is not before:
                wrong = "nothing has moved, and there are other rows"
            elif last.acted:
                work = np.ones(len(numbers)) if costs is None else costs
                loads = [part.sum() for part in np.split(work, ends[:-1])]
                if max(loads) > 1.03 * work.sum() / SIZE + work.max():
                    wrong = f"loads {loads} with a heaviest row of {work.max()}"
            if wrong := "; ".join(filter(None, COMM.allgather(wrong))):
                break
    return wrong


@pytest.mark.every_size
def test_the_sequence_of_rows_stays():
    first = int(os.environ.get("LB_MPI_SEED", "0"))
    for seed in range(first, first + 2 * N):
        wrong = migrated(seed)
        assert not wrong, f"seed {seed}: {wrong}"


MUTANTS = [
    # Rows that arrive from lower ranks are appended.
    ("migrate", "joined = sorted([comm.rank, *moves.sources])", "joined = [comm.rank, *moves.sources]"),
    # An end is found among the rows of a rank as if they were the first ones.
    ("_ends", "before = 0.0 if comm.rank == 0 else float(reached[comm.rank - 1])", "before = 0.0"),
    # The numbers of rows are those before.
    ("migrate", "counts = np.diff(ends, prepend=0)", "pass"),
]


def find_fault():
    for seed in range(20):
        try:
            wrong = migrated(seed)
        except Exception as error:
            wrong = repr(error)
        assert not any(COMM.allgather(bool(wrong)))


few = pytest.mark.skipif(SIZE < 3, reason="one rank's order is always kept, and two have one end")
test_mutants_are_found = few(pytest.mark.one_mpi(rejects(find_fault, [(migrating, *one) for one in MUTANTS], right=False)))


@pytest.mark.one_mpi
@pytest.mark.every_size
def test_only_ends_that_must_move_do():
    """The last rank has much more to do; the ranks far in front of it give nothing away and get nothing."""
    if SIZE < 3:
        return
    costs = np.full(100, 1.2 if RANK == LAST else 1.0)
    with lb_mpi.Balancer(COMM, when="always") as balancer:
        balancer.migrate(np.arange(100), costs=costs, order="kept")
        assert balancer.counts[-1] < 100 < balancer.counts[-2]
        balanced = balancer.counts.copy()
        balancer.migrate(np.arange(balanced[RANK]), costs=np.full(balanced[RANK], 1.0 / balanced[RANK]), order="kept")
        np.testing.assert_array_equal(balancer.counts, balanced)


@pytest.mark.every_size
@pytest.mark.parametrize(("order", "speed", "slope"), [("kept", 0.3 if RANK == 0 else 1.0, 0), ("appended", 1.0, 1)])
def test_rows_move_by_the_speeds_and_costs_that_map_has_measured(order, speed, slope):
    """Rank 0 is slow, or a row of rank k costs k + 1 times one of rank 0."""

    def slow(rows):
        pass_time(20e-6 * float((1 + slope * (rows // 200)).sum()))
        return rows

    rows = np.arange(200) + 200 * RANK
    with lb_mpi.Balancer(COMM, when="always", emulated_speed=speed) as balancer:
        for _ in range(20):  # decisions on a busy machine may be rare
            for _ in range(3):
                rows = balancer.map_rows(slow, rows)
            rows = balancer.migrate(rows, order=order)
            last = balancer.last
            if last.rows_moved or SIZE == 1:
                break
        found = np.concatenate(COMM.allgather(balancer.map_rows(slow, rows))).tolist()
    assert (found if order == "kept" else sorted(found)) == list(range(200 * SIZE))
    assert SIZE == 1 or (last.rows_moved > 0 and last.imbalance_after < last.imbalance_before)


@pytest.mark.every_size
@pytest.mark.parametrize("order", migrating.ORDERS)
def test_costs_that_were_measured_decide_where_rows_go_and_go_with_them(order):
    """The first 60 rows, all on rank 0, cost ten, and the others one.  The ranks are alike."""
    rows = np.arange(200) + 200 * RANK

    def costs():
        return np.where(rows < 60, 10.0, 1.0)

    with lb_mpi.Balancer(COMM, when="always") as balancer:
        balancer._knowledge.own(costs())  # as if a map had measured them
        for _ in range(3):
            rows = balancer.migrate(rows, order=order)
            loads = COMM.allgather(costs().sum())
            assert max(loads) <= 1.03 * np.mean(loads) + 10.0
            np.testing.assert_allclose(balancer._knowledge.measured(len(rows)), costs())


def test_history_and_report_have_migrations_apart():
    rows = np.arange(60 if RANK == LAST else 3)
    with lb_mpi.Balancer(COMM, when="always") as balancer:
        balancer.map_rows(np.copy, rows)
        assert balancer.counts is None
        assert "migrated" not in str(balancer.report())
        moved = balancer.migrate(rows, costs=np.ones(len(rows)), order="kept")
        balancer.migrate(moved, costs=np.ones(len(moved)), order="appended")
        assert balancer.counts is None
        lent, first, _ = balancer.history
        assert "migrated" not in lent.reason
        if SIZE > 1:
            assert first.reason == "rows migrated: as requested at every decision"
            assert first.rows_moved > 0
            calls = [one for one in balancer.history if one.reason.startswith("rows migrated")]
            n_calls, n_rows = len(calls), sum(one.rows_moved for one in calls)
            assert balancer.report().note == f"{n_rows} rows migrated in {n_calls} call{'s' * (n_calls > 1)}"
        else:
            assert first.reason == "no rows migrated: moving any would not help"
