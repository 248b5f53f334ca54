"""Doors as data, for tests of their arguments: what is made before, and a call, which looks at what it gets."""

from contextlib import nullcontext

import numpy as np

import lb_mpi
from lb_mpi.graph import mesh
from tests.mpi.doors import on_root
from tests.mpi.sizes import COMM, SIZE
from tests.pile import Pile

ROWS, ONE, SPEEDS, EVEN = np.arange(10.0).reshape(5, 2), np.zeros(3), np.arange(1.0, SIZE + 1), [1.0] * SIZE


def same(block, *_):
    return block


def pooled(_, **options):
    with lb_mpi.Pool(COMM, **options) as pool:
        for _ in range(2 if pool else 0):  # the first map teaches the pool how fast ranks are
            assert pool.map(abs, range(20), costs=range(20)) == (list(range(20)) if pool.is_root else None)


def mapped(pool, function=abs, items=3, **options):
    for _ in range(2):
        pool.map(function, items, **options)
    assert pool.map(abs, 3, to="all") == [0, 1, 2]


def balanced(_, **options):
    with lb_mpi.Balancer(COMM, **options) as balancer:
        for _ in range(2):
            assert (balancer.map_rows(lambda rows: rows + 1.0, np.zeros(20)) == 1.0).all()


def rows_mapped(balancer, function=same, rows=ROWS, more=(), **options):
    found = balancer.map_rows(function, rows, *more, **options)
    assert rows is not ROWS or np.array_equal(found, ROWS)


def migrated(balancer, rows=ROWS, **options):
    assert COMM.allreduce(len(balancer.migrate(rows, **options))) == 5 * SIZE


def searched(_, problem=None, **options):
    found = lb_mpi.search(COMM, problem or Pile(10), **options)
    assert len(found.value) == 10


def distributed(_, graph="mesh:3x4", **options):
    lb_mpi.distribute(COMM, graph, **{"speeds": EVEN, **(options or {"method": "block"})}).close()


def reordered(_, graph=f"mesh:1x{SIZE}", speeds=SPEEDS, **options):
    lb_mpi.reorder_ranks(COMM, graph, speeds, **options).Free()


def measured(_, kernel=None, **options):
    lb_mpi.measure(COMM, kernel, **{"messages": False, "rounds": 1, "round_s": 1e-3, **options})


def rebalanced(_, values=None, **options):
    parts = on_root(np.arange(5 * SIZE) % SIZE)
    with lb_mpi.distribute(COMM, on_root(mesh(5, SIZE)), parts=parts) as plan:  # whose first call looks at its arguments
        plan.rebalance(np.zeros(5) if values is None else values, **options)


class Saves:
    """A folder in which each save is the next one."""

    def __init__(self, folder):
        self.folder, self.step = folder, 0

    def save(self, folder=..., step=..., **given):
        arrays = {"heat": ONE, "wind": ONE, "options": {"seed": 7}, **given}
        self.step += 1
        path, number = (self.folder if folder is ... else folder), (self.step if step is ... else step)
        lb_mpi.save(COMM, path, number, **{name: one for name, one in arrays.items() if one is not ...})


def nothing(_):
    return nullcontext()


CALLS = {
    "Pool": (nothing, pooled),
    "Executor": (nothing, lambda _, **options: lb_mpi.Executor(COMM, **options).shutdown()),
    "Balancer": (nothing, balanced),
    "map": (lambda _: lb_mpi.Pool(COMM), mapped),
    "imap": (lambda _: lb_mpi.Pool(COMM), lambda pool, items=3, **options: list(pool.imap(abs, items, **options))),
    "map_rows": (lambda _: lb_mpi.Balancer(COMM, when="always"), rows_mapped),
    "migrate": (lambda _: lb_mpi.Balancer(COMM), migrated),
    "search": (nothing, searched),
    "distribute": (nothing, distributed),
    "rebalance": (nothing, rebalanced),
    "reorder_ranks": (nothing, reordered),
    "measure": (nothing, measured),
    "save": (lambda folder: nullcontext(Saves(folder)), Saves.save),
}
