"""Ranks that cannot take part in a collective call: they run tasks, functions of map_rows or a search, or wait in a call.

Such a call would wait for them without end, so it is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from mpi4py import MPI

from lb_mpi.errors import Error


class _Busy(NamedTuple):
    """Ranks that can't take part in a collective call on other communicators of theirs."""

    ranks: MPI.Intracomm
    thread: int | None  # of this rank, in which such a call would wait for ever; None: in any but those in `free`
    why: str
    task: bool = False  # this rank runs a task of a pool, a function of map_rows, or a problem of a search
    free: frozenset[int | None] = frozenset()  # threads that ran before: the other ranks may have the same ones


busy: dict[int, _Busy] = {}  # by id: entries are compared nowhere, since a task may have lowered the recursion limit


class at_work:
    """Run the user's code on some of these ranks in this block, which may make no collective call that needs several.

    It may be used for one block after another.
    """

    __slots__ = ("_comm", "_why")

    def __init__(self, comm: MPI.Intracomm, why: str = "in a task of a pool") -> None:
        self._comm, self._why = comm, why

    def __enter__(self) -> None:  # not a generator: a chunk may be short
        busy[id(self)] = _Busy(self._comm, threading.get_ident(), self._why, True)

    def __exit__(self, *_: object) -> None:
        del busy[id(self)]


def bind(comm: MPI.Intracomm, why: str, *, here: bool) -> Callable[[], None]:
    """Note that the other ranks of `comm` wait for this one; return what ends that.

    `here`: they do so for calls in this thread; else also in those that call back, or that start from now on.
    """
    this = threading.get_ident()
    free = frozenset(one.ident for one in threading.enumerate() if one.ident != this and not one.name.startswith("lb_mpi."))
    entry = _Busy(comm, this, why) if here else _Busy(comm, None, why, free=free)
    busy[id(entry)] = entry

    def end() -> None:
        if busy.get(id(entry)) is entry:
            del busy[id(entry)]

    return end


def in_task() -> bool:
    """Return whether this thread runs a task of a pool, a function of map_rows, or a problem of a search."""
    return any(one.task and one.thread == threading.get_ident() for one in [*busy.values()])


def refuse_busy(comm: MPI.Intracomm) -> None:
    """Raise Error if other ranks of `comm` run tasks, functions of map_rows or a search, or wait for this one in a call."""
    for one in reversed([*busy.values()]):  # the innermost first; other threads begin and end tasks
        thread = threading.get_ident()
        if one.thread in (None, thread) and thread not in one.free and (one.task or one.ranks != comm):
            groups = [one.ranks.Get_group(), comm.Get_group()]
            groups.append(MPI.Group.Intersection(*groups))
            n_common = groups[-1].size
            for group in groups:
                group.Free()
            if n_common > 1:
                how = f"expected MPI.COMM_SELF, or other ranks than these {n_common}"
                raise Error(f"a collective call {one.why}, on ranks that it would wait for without end: {how}")
