"""Rows have the same order in memory on every rank and on every way, so their sums have the same bits wherever they live."""


import numpy as np
import pytest

import lb_mpi
from lb_mpi import columns
from lb_mpi.graph import Graph, parse
from lb_mpi.mpi.graph import halo, values
from lb_mpi.mpi.pool import messages
from lb_mpi.mpi.rows import migrating
from lb_mpi.mpi.rows import rows as rows_module
from lb_mpi.mpi.save import save
from tests.arrays import draw, draw_counts
from tests.mpi.doors import on_root
from tests.mpi.sizes import COMM, RANK, SIZE, several
from tests.protocol.mutate import mutated

pytestmark = [pytest.mark.mpi, pytest.mark.one_mpi]
CASES = 8


def starts(counts):
    """This rank's numbers, and the owner of each row."""
    end = sum(counts[: RANK + 1])
    return np.arange(end - counts[RANK], end), np.repeat(np.arange(SIZE), counts)


def migrated(drawn, counts, order):
    numbers, _ = starts(counts)
    with lb_mpi.Balancer(COMM, when="always") as balancer:
        costs = np.full(len(numbers), 1.0 + RANK)
        new, rows = balancer.migrate((numbers, drawn.rows(numbers)), costs=costs, order=order)
        return drawn.wrong(rows, new) if balancer.last is not None and balancer.last.acted else ""


def mapped(drawn, counts):
    numbers, _ = starts(counts)
    wrong = False
    with lb_mpi.Balancer(COMM, when="always", emulated_speed=1.0 / (1 + RANK)) as balancer:
        for _ in range(3):
            wrong |= balancer.map_rows(lambda block: checked(drawn, block), drawn.rows(numbers)).any()
        rows = drawn.rows(numbers)
        both = balancer.map_rows(np.copy, rows), rows.copy(order="K")
    if wrong:
        return f"{drawn}: the function gets another order than that of the rows"
    orders = {tuple(np.argsort(np.abs(one.strides)).tolist()) for one in both}
    plain = min(rows.shape) > 1 and not any(drawn.broadcast)
    return f"{drawn}: results whose axes have another order than those of the rows" if plain and len(orders) > 1 else ""


def checked(drawn, block):
    """For each row, whether the block differs from its rows in the order in memory."""
    same = columns.order_of(block) == columns.order_of(drawn.rows(np.arange(len(drawn.values))))
    return np.full(len(block), len(block) > 1 and not same)


def exchanged(drawn, counts):
    numbers, parts = starts(counts)
    graph = parse(f"complete:{len(parts)}") if len(parts) < 20 else Graph.from_edges(len(parts), [0], [len(parts) - 1])
    with lb_mpi.distribute(COMM, on_root(graph), parts=on_root(parts)) as plan:
        for _ in range(2):
            around = plan.exchange(drawn.rows(numbers))
    return drawn.wrong(around, np.concatenate([plan.vertices, plan.ghosts]), numbers_in_order=False)


def rebalanced(drawn, counts):
    numbers, parts = starts(counts)
    with lb_mpi.distribute(COMM, on_root(parse(f"mesh:1x{len(parts)}")), parts=on_root(parts)) as plan:
        rows = drawn.rows(numbers)
        for _ in range(4):
            (rows,) = plan.rebalance(rows, costs=np.ones(len(rows)), when="always")
            if plan.last is not None and plan.last.acted:
                break
        return drawn.wrong(rows, plan.vertices) if not np.array_equal(plan.vertices, numbers) else ""


def saved(drawn, counts, folder, *, index):
    numbers, _ = starts(counts)
    place = numbers if index else None
    lb_mpi.save(COMM, folder, 1, index=place, rows=drawn.rows(numbers))
    found = lb_mpi.load(COMM, folder, index=place)
    n = len(drawn.values)
    ends = np.cumsum([n // SIZE + (rank < n % SIZE) for rank in range(SIZE)])
    return drawn.wrong(found[1]["rows"], numbers if index else np.arange(n)[ends[RANK - 1] if RANK else 0 : ends[RANK]])


def pooled(drawn):
    """Of the whole array as an item, alone and within a result, and of its rows as items."""
    numbers = np.arange(len(drawn.values))
    whole = drawn.rows(numbers)
    with lb_mpi.Pool(COMM) as pool:
        found = [one for both in pool.map(boxed, [whole] * SIZE, to="all") for one in both]
        found += pool.map(same, [whole] * SIZE) or []
        sums = pool.map(sum_of_last, whole)
    wrong = [drawn.wrong(one, numbers) for one in found]
    if sums is not None and np.array(sums).tobytes() != np.array([*map(sum_of_last, whole)]).tobytes():
        wrong.append(f"{drawn}: other sums of items")
    return max(wrong, default="")


def same(item):
    return item


def boxed(item):
    return [item, item[::-1][::-1]]


def sum_of_last(item):
    return np.asarray(item.sum(axis=-1) if np.ndim(item) else item)


WAYS = {
    "migrate": lambda drawn, counts, _: migrated(drawn, counts, "appended"),
    "migrate in order": lambda drawn, counts, _: migrated(drawn, counts, "kept"),
    "map_rows": lambda drawn, counts, _: mapped(drawn, counts),
    "exchange": lambda drawn, counts, _: exchanged(drawn, counts),
    "rebalance": lambda drawn, counts, _: rebalanced(drawn, counts),
    "save": lambda drawn, counts, folder: saved(drawn, counts, folder, index=False),
    "save by index": lambda drawn, counts, folder: saved(drawn, counts, folder / "by index", index=True),
    "pool": lambda drawn, _counts, _: pooled(drawn),
}


def wrong_in(number, folder, ways=WAYS):
    """What is wrong in a case, the same text on all ranks."""
    rng = np.random.default_rng(number)
    counts = draw_counts(rng, SIZE)
    drawn = draw(rng, sum(counts))
    found = {way: COMM.allgather(WAYS[way](drawn, counts, folder / str(number))) for way in ways}
    return "; ".join(f"{way}: {text}" for way, texts in found.items() for text in texts if text)


def test_rows_have_one_order_on_all_ranks_and_ways(tmp_path):
    folder = COMM.bcast(tmp_path)
    for number in range(CASES):
        assert not wrong_in(number, folder), f"case {number}"


@pytest.mark.parametrize("dtype", [">M8[s]", ">g"])
def test_pools_keep_a_byte_order_that_numpys_pickles_lose(dtype):
    items = [np.arange(6).astype(dtype).reshape(2, 3).T[::-1]] * SIZE
    with lb_mpi.Pool(COMM) as pool:
        for both in pool.map(boxed, items, to="all"):
            assert [(one.dtype.str, one.tolist()) for one in both] == [(items[0].dtype.str, items[0].tolist())] * 2


MUTANTS = [  # the way that finds it; see tests/protocol/mutate.py
    ("save", columns, ("order_by", "if strides[axis] and other:", "if True:")),
    ("save", columns, ("order_by", "if other <= abs(strides[axis]):", "if other > abs(strides[axis]):")),
    ("pool", columns, ("order_by", "~axis if strides[axis] < 0 else axis", "axis")),
    ("pool", messages, ("exact", "None if is_unchanging(value) else EXACT)", "None)")),
    ("migrate in order", columns, ("agreed", "everyone[rank][0] > 1", "everyone[rank][0] > 0")),
    ("exchange", columns, ("agreed", "max(everyone", "min(everyone")),
    ("migrate", columns, ("ArrayColumn.join", "dtype, order)", "dtype, ())")),
    ("migrate", migrating, ("_move", "agreed(allgather(comm, (rows.n, rows.orders)), comm.rank)", "rows.orders")),
    ("exchange", halo, ("HaloPlan._exchange", "if len(array) > 1 or orders is None", "if True")),
    ("exchange", halo, ("HaloPlan._exchange", "orders.least < 2", "orders.least < 1")),
    ("rebalance", values, ("Values.join", "[(self._n, self._orders),", "[(2, self._orders),")),
    ("save", save, ("save", "agreed(everyone)", "everyone[-1][1]")),
    ("map_rows", rows_module, ("Rows.parcel", ", self.orders)", ")")),
    ("map_rows", rows_module, ("Results.room", "_fitted(like, 1 + len(shape))", "()")),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MUTANTS)))
@several
def test_mutants_of_the_order_are_found(number, tmp_path):
    way, module, change = MUTANTS[number]
    folder = COMM.bcast(tmp_path)
    with mutated(module, *change):
        assert any(wrong_in(k, folder, [way]) for k in range(36))
