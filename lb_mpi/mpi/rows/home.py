"""A call of `map_rows` at home: each rank computes its own rows in one block, and one reduction ends the call.

No rows are lent, so no protocol is needed: a rank that fails says so in the reduction, and all ranks raise.
"""

from __future__ import annotations

import os
import time

from lb_mpi import signs
from lb_mpi.balancing.decider import Decider
from lb_mpi.balancing.deciding import Decided
from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.balancing.round import Learned, Timed
from lb_mpi.mpi.common.carrier import end_child
from lb_mpi.mpi.common.communicator import Presence
from lb_mpi.mpi.common.failure import Failed, of_rows
from lb_mpi.mpi.common.reducing import Reducing
from lb_mpi.mpi.common.waiting import Interrupts
from lb_mpi.mpi.rows.computing import Computing
from lb_mpi.record.events import Phase

HOME_S = 2e-3  # of waiting without naps: ranks that stay at home end at nearly the same time


def call_at_home(
    computing: Computing, knowledge: Knowledge, decider: Decider, presence: Presence, interrupts: Interrupts,
    failed: Failed | None,
) -> tuple[Decided, Failed | None]:  # fmt: skip
    """Compute the rows of this rank, unless it has failed; return the decision of all ranks, and its failure."""
    watch, record, began, learned = computing.watch, computing.record, time.perf_counter(), Learned()
    if computing.rows.n and failed is None:
        failed = _compute(computing, learned, presence.rank, interrupts)
    ended = time.perf_counter()
    watch.measured.rows_s += ended - began
    if watch.slow.rests:
        record.enter(Phase.RESTING, ended)
        while (rest_s := watch.slow.due()) and not interrupts.pending:
            time.sleep(rest_s)
            signs.turn()
            presence.answer()
        watch.rested(time.perf_counter() - ended)
    if failed is None and interrupts.pending:
        failed = of_rows(KeyboardInterrupt(), presence.rank, "between rows")
    measured = watch.collect()
    learned.failed = failed is not None
    report = knowledge.learn(learned, measured.rows_s, measured.ticks, quick=decider.held)
    reducing = Reducing(presence.comm, decider.report(computing.report(report)))
    record.enter(Phase.WAITING, time.perf_counter())
    presence.answer()
    presence.wait(reducing.done, reducing, quick_s=HOME_S)
    record.enter(Phase.PROTOCOL, time.perf_counter())
    return decider.decide(reducing.answer), failed


def _compute(computing: Computing, learned: Learned, rank: int, interrupts: Interrupts) -> Failed | None:
    """Compute all rows of this rank; return its failure.  Ctrl-C is raised in the function at once."""
    process, last, words = os.getpid(), computing.rows.n - 1, "between rows"
    try:
        with interrupts.allowed():
            words = f"its rows 0..{last}" if last else "its row 0"
            _, ticks = computing.own(slice(0, last + 1))
        learned.timed.append(Timed(slice(0, computing.rows.n_units), rank, ticks, helped=False))
    except BaseException as error:
        end_child(process)
        return of_rows(error, rank, words)
    if os.getpid() != process:
        end_child(process)
    return None
