"""Beginnings: who may begin what on the ranks of a pool.   (pure)

One thing at a time uses these ranks: a map, or the tasks of executors.  A thread that wants to begin something, or to close
the pool, finds the ranks in a state, and does what `TABLE` says.
"""

from __future__ import annotations

from enum import Enum, auto


class PoolState(Enum):
    """The state of a pool's ranks, as the thread that asks sees it."""

    IDLE = auto()  # nothing is under way
    MAP = auto()  # a map whose results are taken one by one
    MAP_OF_ALL = auto()  # the same in a pool whose methods all ranks call: only together could they complete it
    IN_MAP = auto()  # this thread is in a task or callback of a map
    TASKS = auto()  # asynchronous tasks of pools, or the last ones of executors that are closed
    EXECUTOR = auto()  # tasks of an executor of the user's, which is open
    IN_TASKS = auto()  # this thread is in a callback of such a task
    ENDING = auto()  # the threads of executors end
    UNUSABLE = auto()  # closed, or a rank has failed


class Wish(Enum):
    """The purpose for which a thread claims the ranks."""

    MAP = 0  # to begin a map
    TASKS = 1  # to begin tasks of an executor
    CLOSE = 2  # to close the pool: what is left of a map is dropped, and asynchronous tasks are completed


class Act(Enum):
    """The way to a wish."""

    GO = auto()  # it is fulfilled; tasks of executors join those under way
    COMPLETE = auto()  # complete the map, then go
    WAIT = auto()  # wait until the tasks have ended, then look again
    REFUSE = auto()  # raise `REASONS`
    RAISE = auto()  # raise that the pool is closed, or the failure


TABLE: dict[PoolState, tuple[Act, Act, Act]] = {  # by Wish
    #                      a map         tasks         close
    PoolState.IDLE:       (Act.GO,       Act.GO,       Act.GO),
    PoolState.MAP:        (Act.COMPLETE, Act.COMPLETE, Act.GO),
    PoolState.MAP_OF_ALL: (Act.REFUSE,   Act.REFUSE,   Act.GO),
    PoolState.IN_MAP:     (Act.REFUSE,   Act.REFUSE,   Act.REFUSE),
    PoolState.TASKS:      (Act.WAIT,     Act.GO,       Act.GO),
    PoolState.EXECUTOR:   (Act.REFUSE,   Act.GO,       Act.GO),
    PoolState.IN_TASKS:   (Act.REFUSE,   Act.GO,       Act.REFUSE),
    PoolState.ENDING:     (Act.WAIT,     Act.WAIT,     Act.GO),
    PoolState.UNUSABLE:   (Act.RAISE,    Act.RAISE,    Act.GO),
}  # fmt: skip

_MAP = "a map of these ranks is under way: expected no other in a task or in a loop over its results"
REASONS = {
    PoolState.MAP_OF_ALL: _MAP,
    PoolState.IN_MAP: _MAP,
    PoolState.EXECUTOR: "these ranks work for an lb_mpi.Executor, which is open: expected its shutdown before",
    PoolState.IN_TASKS: "a callback of an asynchronous task of these ranks: expected the map after it",
}


def act(state: PoolState, wish: Wish) -> Act:
    """Return what a thread with this wish does."""
    return TABLE[state][wish.value]
