"""A rank other than the root: it follows the root's orders, and runs tasks of executors."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

from lb_mpi.errors import Error
from lb_mpi.mpi.common.communicator import at_work
from lb_mpi.mpi.common.failure import describe
from lb_mpi.mpi.common.late import call as in_call
from lb_mpi.mpi.common.parcels import Buffer, body
from lb_mpi.mpi.common.recorder import running
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import own_s
from lb_mpi.mpi.pool import arrays
from lb_mpi.mpi.pool.maps import WorkerMap
from lb_mpi.mpi.pool.messages import NO_MAP, START, Frame, StartOrder, exact, failure_of, results_parcel
from lb_mpi.mpi.pool.orders import Order
from lb_mpi.mpi.pool.running import Process
from lb_mpi.mpi.pool.session import TASK, PoolSend, Session, SessionActor, SessionPort, TaskResults
from lb_mpi.mpi.pool.streams import WorkerStream
from lb_mpi.pooling.account import RankTasks
from lb_mpi.pooling.scheduler import BATCH_S
from lb_mpi.record.events import Phase
from lb_mpi.record.record import OFF


class Serving(SessionActor):
    """A rank other than the root, until its next order that is no TASK."""

    @property
    def over(self) -> bool:
        """True when the next order is no TASK."""
        order = self.session.orders.first
        return order is not None and order.tag != Tag.TASK

    @property
    def job(self) -> Order | None:
        """The next order, if it is a batch of tasks."""
        return None if self.over else self.session.orders.first

    def done(self, job: Order, result: Buffer) -> list[PoolSend]:
        """Send the results of a batch."""
        self.session.orders.follow()
        return [(self.session.ranks.root, TaskResults(result))]


class ServingPort(SessionPort):
    """Runs tasks of executors."""

    def run(self, job: Order) -> Buffer:
        """Run a batch of tasks; return the parcel of their results."""
        session, batch = self.session, pickle.loads(body(job.parcel))
        with in_call(TASK, watched=True) as interrupts, running(session.record, Phase.OWN), interrupts.allowed():
            return results_parcel(NO_MAP, *run_batch(session, *batch))


# --- the root's orders -----------------------------------------------------------------------------------------------


def follow(session: Session, function: Callable[..., Any] | None = None) -> WorkerMap:
    """Begin the map of the next order; `function`: None uses the one sent by the root."""
    header, data = session.orders.read(Tag.START)
    start = StartOrder(*START.unpack_from(header))
    return (WorkerStream if start.lazy else WorkerMap)(session, start, data, function)


def serve(session: Session) -> None:
    """Follow all orders of the root until it closes the pool; lb_mpi.Error if an error has ended the root's block."""
    with session.presence.notifying():
        while True:
            session.work(Serving(session), ServingPort(session))
            order = session.orders.first
            if order is None or order.tag != Tag.START:
                if text := bytes(session.orders.read(Tag.CLOSE)[1]).decode(errors="replace"):
                    raise session.presence.on_all(Error(text), session.ranks.root)
                return
            try:
                _, error = follow(session).finish()
            except OSError as short:  # of shared memory for this map: the root may go on with a smaller one
                if not session.presence.is_of_all(short):
                    raise
                continue
            if isinstance(error, KeyboardInterrupt):
                raise error


# --- tasks of an executor, on the root, too ---------------------------------------------------------------------------


def run_batch(
    session: Session, number: int, tasks: list[bytes], places: dict[str, str]
) -> tuple[RankTasks, list[Frame]]:
    """Run tasks for BATCH_S seconds, and at least one, and return their results; the root sends the others again.

    number : of the first task; -1: not counted.
    places : where their large arrays are on this host.
    """
    arrays.locate(places)
    session.clocks.begin()
    before = session.clocks.before()
    frames, began, process = list[Frame](), time.perf_counter(), Process.now()
    with at_work(session.presence.comm):
        for k, data in enumerate(tasks):
            frames.append(_outcome(session.ranks.rank, k, data))
            process.restore()
            if time.perf_counter() > began + BATCH_S:
                break
    busy_s, after = time.perf_counter() - began, session.clocks.after()
    done = RankTasks(len(frames), busy_s, own_s(before, after))
    if session.record is not OFF and number >= 0:
        speed = session.ranks.emulated_speeds[session.ranks.rank]
        session.account.ran_submitted(number, done.tasks, before.wall_s, after.wall_s, done.work_s, speed)
    return done, frames


def _outcome(rank: int, k: int, data: bytes) -> Frame:
    try:
        function, args, kwargs = pickle.loads(data)
        return Frame(k, k + 1, exact(function(*args, **kwargs)))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        if "main thread" in describe(error) and threading.current_thread() is not threading.main_thread():
            error.add_note("Rank 0 runs its tasks in a thread: expected lb_mpi.Executor(root_works=False) for such tasks.")
        return Frame(k, k, pickle.dumps(failure_of(error, rank), pickle.HIGHEST_PROTOCOL))
