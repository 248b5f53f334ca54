"""Running the tasks of a map on one rank: the user's function, item by item."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

from lb_mpi.mpi.common.waiting import own_s
from lb_mpi.mpi.pool.messages import UNCHANGING, copied, failure_of, kept, pickled_error, unpicklable
from lb_mpi.mpi.pool.serving import Process
from lb_mpi.mpi.pool.session import Session
from lb_mpi.pooling.intervals import Interval
from lb_mpi.record.events import Phase


class MapCall(NamedTuple):
    """The function of a map, and the way to call it: function(item)."""

    function: Callable[..., Any]
    star: bool = False  # function(*item)
    keep_exceptions: bool = False  # exceptions are results


class Ran(NamedTuple):
    """The outcome of a chunk."""

    n: int  # number of its first tasks that have results: all of them unless one has failed
    values: Any  # their results, on the root; pickled on the other ranks
    failed: BaseException | None
    wall_s: float
    work_s: float  # of its own
    cpu_s: float


def run_tasks(
    session: Session, call: MapCall, phase: Phase, tasks: Interval, some: Callable[[int, int], list[Any]]
) -> Ran:
    """Run tasks, up to the first that raises; `some(lo, hi)` returns items.

    On the root, results are copied before the next call may change them; the other ranks pickle them.
    """
    function, star, keep = call
    values, failed, process, before = list[Any](), None, Process.now(), session.clocks.before()
    session.record.enter(phase, before.wall_s)
    try:
        arguments = some(tasks.lo, tasks.hi)
        for argument in arguments:
            try:
                value = function(*argument) if star else function(argument)
            except Exception as error:
                if not keep:
                    raise
                value = error if pickled_error(error) else RuntimeError(failure_of(error, -1).text)
            if type(value) not in UNCHANGING:
                if session.ranks.is_root:
                    value = copied(value)
                elif len(values) + 1 < len(arguments):  # the last one is pickled below, before any other call
                    value = kept(value)
            values.append(value)
    except BaseException as error:
        failed = error
    process.restore()
    after = session.clocks.after()
    cpu_s = after.cpu_s - before.cpu_s
    session.throttle.charge(cpu_s)
    session.record.enter(Phase.PACKING, after.wall_s)
    packed: Any = values
    if values and not session.ranks.is_root:
        try:
            packed = pickle.dumps(values, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            failed = unpicklable(values.pop(), error)
            packed = pickle.dumps(values, pickle.HIGHEST_PROTOCOL)
    return Ran(len(values), packed, failed, after.wall_s - before.wall_s, own_s(before, after), cpu_s)
