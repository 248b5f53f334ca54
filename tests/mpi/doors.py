"""The table of doors: what is made before, and a good call of all ranks; tests of all doors are parametrized with it.

And what tests of doors need: arguments of the root alone, and the errors of all ranks.
"""

from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

import lb_mpi
from lb_mpi.graph import parse
from lb_mpi.mpi.common.failure import describe
from tests.mpi.sizes import RANK, SIZE
from tests.pile import Pile

ROWS = np.ones((4, 2))


def on_root(value, root=0):
    return value if MPI.COMM_WORLD.rank == root else None


def raised_by_all(action):
    """The errors of all ranks, in words; each rank must have raised one."""
    words = "nothing"
    try:
        action()
    except BaseException as error:
        words = describe(error)
    everyone = MPI.COMM_WORLD.allgather(words)
    assert "nothing" not in everyone, everyone
    return everyone


def alone(call):
    """A call that needs nothing before."""

    @contextmanager
    def opened(comm, folder):
        yield lambda: call(comm, folder)

    return opened


def within(made, use):
    """A call of what was made before."""

    @contextmanager
    def opened(comm, _folder):
        with made(comm) as one:
            yield lambda: use(one)

    return opened


def plan(comm):
    return lb_mpi.distribute(comm, on_root(parse(f"complete:{SIZE}")), parts=on_root(np.arange(SIZE)))


def ask(asked):
    """The first answer needs no other rank, the second one does."""
    asked()
    asked()


def leave(comm, _folder):
    with lb_mpi.asked_to_stop(comm):
        pass


USES = {  # what is made before, and its use
    "Pool.map": (lb_mpi.Pool, lambda one: one.map(abs, 5)),
    "Pool.close": (lb_mpi.Pool, lambda one: one.close()),
    "Balancer.map_rows": (lb_mpi.Balancer, lambda one: one.map_rows(np.sqrt, ROWS)),
    "Balancer.migrate": (lb_mpi.Balancer, lambda one: one.migrate(ROWS)),
    "Balancer.report": (lb_mpi.Balancer, lambda one: one.report()),
    "Balancer.close": (lb_mpi.Balancer, lambda one: one.close()),
    "plan.exchange": (plan, lambda one: one.exchange(one.vertices)),
    "plan.rebalance": (plan, lambda one: one.rebalance(one.vertices)),
    "plan.owners": (plan, lambda one: one.owners()),
    "plan.close": (plan, lambda one: one.close()),
    "asked": (lb_mpi.asked_to_stop, ask),
}
NAMES = {  # in warnings of a late rank, where it is not that of the door
    "Pool.map": "a map of lb_mpi.Pool", "Pool.close": "close of lb_mpi.Pool", "plan.close": "close of a plan",
    "plan.owners": "lb_mpi.HaloPlan.owners", "asked": "lb_mpi.asked_to_stop",
}  # fmt: skip
CALLS = {  # of all ranks, which need nothing before
    "Pool": lambda comm, _: lb_mpi.Pool(comm).close(),
    "Balancer": lambda comm, _: lb_mpi.Balancer(comm).close(),
    "search": lambda comm, _: lb_mpi.search(comm, Pile(30)),
    "distribute": lambda comm, _: lb_mpi.distribute(comm, on_root("mesh:4x6"), method="block").close(),
    "measure": lambda comm, _: lb_mpi.measure(comm, messages=False, rounds=1, round_s=0.01),
    "reorder_ranks": lambda comm, _: lb_mpi.reorder_ranks(comm, f"mesh:1x{SIZE}", [1.0] * SIZE).Free(),
    "save": lambda comm, folder: lb_mpi.save(comm, folder, 1, index=[RANK], rows=ROWS[:1]),
    "load": lambda comm, folder: lb_mpi.load(comm, folder),
    "asked_to_stop": leave,
}
DOORS = {  # the name in warnings of a late rank, and a call when all is made
    **{door: (f"lb_mpi.{door}", alone(call)) for door, call in CALLS.items()},
    **{door: (NAMES.get(door, door if "plan" in door else f"lb_mpi.{door}"), within(*USES[door])) for door in USES},
}
