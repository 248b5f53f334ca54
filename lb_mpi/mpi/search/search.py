"""Search on real MPI: carries `lb_mpi.searching.searcher.Searcher` on a communicator."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from mpi4py import MPI

from lb_mpi import checks, signs
from lb_mpi.emulate import Varying, throttle, throttled
from lb_mpi.graph import ring_order
from lb_mpi.mpi.common.collective import agree, agree_on, allgather, barrier, bcast, opened
from lb_mpi.mpi.common.interrupts import Interrupts, interrupts
from lb_mpi.mpi.common.parcels import Parcels
from lb_mpi.mpi.common.presence import presence_of
from lb_mpi.mpi.common.recorder import align, recorder, running, worlds
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import Nap
from lb_mpi.mpi.search import messages as search_messages
from lb_mpi.mpi.search.result import RankStats, SearchResult, collect
from lb_mpi.mpi.search.saving import Saving, saved
from lb_mpi.record.events import Phase
from lb_mpi.record.record import Record
from lb_mpi.searching.bound import Bound, check_bound
from lb_mpi.searching.guard import Guard, check_problem, check_route, check_savable
from lb_mpi.searching.options import Options
from lb_mpi.searching.problem import Problem
from lb_mpi.searching.quantum import Quantum
from lb_mpi.searching.recorded import Drafts, step
from lb_mpi.searching.reporting import ROOT, Report
from lb_mpi.searching.searcher import Searcher, Work

__all__ = ["RankStats", "SearchResult", "search"]


def search(
    comm: MPI.Intracomm,
    problem: Problem,
    *,
    bound: Bound | None = None,
    save: str | os.PathLike[str] | None = None,
    save_every_s: float = 30.0,
    threshold: float = 0.125,
    balance: bool = True,
    emulated_speed: float | Varying = 1.0,
    quantum: int | None = None,
    pause_s: tuple[float, float] = (1e-4, 1e-2),
    longest_nap_s: float = 0.5e-3,
    seed: int = 0,
    route: str | None = None,
    on_report: Callable[[dict[int, Report], float], None] | None = None,
    report_every_s: float = 0.25,
    on_turn: Callable[[], None] | None = None,
) -> SearchResult:
    """Search `problem` on all ranks of `comm`, balanced by drafting (Xu, Zhang, Sun 1991; see `lb_mpi.searching.drafting`).

    On more than 32 ranks drafts walk over random ranks, and may stand with some (see `lb_mpi.searching.walking`).

    Collective.  Every rank passes its own, equally made `problem` (see `lb_mpi.Problem`); rank 0's is started, the
    others get their work from it.  Works on a duplicate of `comm`, so traffic of the caller is never disturbed.

    Parameters
    ----------
    bound : for branch and bound, this rank's end of a bound that all ranks share, each its own (see `lb_mpi.Bound`).
    save : a folder, the same for all ranks, where the search is saved, so that the same call goes on from there when the
        program had died: with any number of ranks.  The problem needs two methods more (see `lb_mpi.Savable`).  SIGTERM
        and SIGUSR1 then end the search after a save.
    save_every_s : seconds between the end of a save and the next one; meanwhile all ranks keep still, for as long as it
        takes to write what they have.  inf: only at a signal.
    threshold : J, in the unit of `problem.load()`: only a load above it is split.
    balance : False: every rank is dealt one share, and nothing moves afterwards (for comparison).
    emulated_speed : emulate a rank of this relative speed, above 0 and at most 1 (see `lb_mpi.throttle`); may differ by
        rank.
    quantum : units of work between two looks for messages; None: adaptive, polling costs under 2 %.
    pause_s : shortest and longest pause in seconds before an idle rank drafts again.
    longest_nap_s : a waiting rank sleeps, 10 us at first and up to this many seconds, at most 1.
    seed : of the jitter of the pauses and of random routes, >= 0.
    route : of drafts: "ring" or "random", the same on all ranks; None: the ring on up to 32 ranks, but "random" for a
        problem whose work belongs to certain ranks (see `lb_mpi.searching.problem.Owning`).
    on_turn : called between work quanta and, on idle ranks, whenever they wake: for what a program does beside the search.
        May differ by rank.
    on_report : called on rank 0 as on_report({rank: Report}, seconds) about every `report_every_s` seconds; what other
        ranks pass doesn't count.

    Returns a `SearchResult`, the same on all ranks.

    Raises ValueError or TypeError on every rank when an argument is wrong on any.  Whatever the problem, on_turn or
    on_report raises on any rank, Ctrl-C included, and whatever the problem returns against its law, is a SearchError on
    every rank that names rank and cause; but the rank on which it was SystemExit or KeyboardInterrupt raises that itself.
    With `save`: Stopped on every rank when a signal has ended it; ValueError for what was saved of another problem,
    SaveError when nothing of it can be read, OSError when another run saves there.  A save that fails, for want of room
    say, is a RuntimeWarning on the rank that fails: the search goes on, and the saves before are kept.
    """
    with opened(comm, "lb_mpi.search", watched=True) as own:
        settings = agree(
            own,
            lambda: _settings(
                problem,
                Options(
                    threshold, pause_s, balance, seed, report_every_s, route, None if save is None else save_every_s
                ),
                (bound, emulated_speed, quantum, longest_nap_s, on_report if own.rank == ROOT else None, on_turn),
            ),
        )
        sense = None if settings.bound is None else settings.bound.sense
        agree_on(own, bound=sense, route=settings.options.route, save=None if save is None else str(save))
        if not bcast(own, settings.on_report is not None):
            settings = settings._replace(options=settings.options._replace(report_every_s=math.inf))
        record = recorder(own)
        with saved(own, save, problem, settings.bound) as saving, running(record):
            return _run(own, problem, settings, interrupts(), saving, record)


class _Settings(NamedTuple):
    options: Options
    bound: Bound | None
    slow: throttle
    quantum: Quantum
    nap: Nap
    on_report: Callable[[dict[int, Report], float], None] | None
    on_turn: Callable[[], None] | None


def _settings(problem: object, options: Options, others: tuple[Any, ...]) -> _Settings:
    """Hold the arguments against what is expected."""
    check_problem(problem)
    if options.save_every_s is not None:
        check_savable(problem)
    bound, emulated_speed, quantum, longest_nap_s, on_report, on_turn = others
    return _Settings(
        check_route(problem, options.checked()),
        check_bound(bound),
        throttle(emulated_speed, "emulated_speed"),
        Quantum(quantum),
        Nap(checks.number("longest_nap_s", longest_nap_s, above=0.0, most=1.0, unit="seconds")),
        checks.function("on_report", on_report, optional=True),
        checks.function("on_turn", on_turn, optional=True),
    )


def _run(
    comm: MPI.Intracomm,
    problem: Problem,
    settings: _Settings,
    interrupts: Interrupts,
    saving: Saving | None,
    record: Record,
) -> SearchResult:
    options, bound, slow, quantum, nap, on_report, on_turn = settings
    parcels, presence = Parcels(comm, Tag.DRAFTING), presence_of(comm)
    guard = Guard(problem, interrupts.allowed)
    found = None if saving is None else saving.found.saved
    ring = ring_order(comm.size) if options.route_on(comm.size) == "ring" else range(comm.size)
    searcher = Searcher(comm.rank, ring, guard, options, bound, found)
    drafts = Drafts(record, comm.rank, worlds(comm))
    drafts.use(options)
    cpu_s = work_s = poll_s = report_at = 0.0

    def call_back(now: float) -> None:
        nonlocal report_at
        with interrupts.allowed():  # raises a Ctrl-C that was held back, too
            if on_turn is not None:
                on_turn()
            if on_report is not None and now >= report_at:
                report_at = now + options.report_every_s
                on_report(searcher.reports, now)

    barrier(comm)
    start = time.perf_counter()
    while not searcher.over:
        began = time.perf_counter()
        record.enter(Phase.PROTOCOL, began)
        arrived = search_messages.take(parcels)
        sends = searcher.turn(began - start, arrived)
        if saving is not None:
            sends += saving.serve(searcher)
        search_messages.send(parcels, sends)
        turned = time.perf_counter()
        searcher.attempt(call_back, began - start)
        aside_s = time.perf_counter() - turned  # that it takes long is no reason to call it seldom
        if arrived or sends:
            nap.reset()
            drafts.turn(turned, [message for _, message in arrived], sends)
        signs.turn()
        searcher.attempt(presence.look, nap.waited_s)  # where warnings are errors, all are told
        if isinstance(job := searcher.job, Work):
            nap.reset()
            if rest_s := slow.due():
                record.enter(Phase.RESTING, turned + aside_s)
                time.sleep(rest_s)  # in slices: the emulated slow rank still serves its messages
                continue
            cpu = time.thread_time()
            polled = time.perf_counter()
            record.enter(Phase.OWN, polled)
            done = searcher.attempt(guard.work, quantum.units) or 0
            searcher.done(job, done)
            record.doing(searcher.units)
            worked = time.perf_counter() - polled
            cpu = time.thread_time() - cpu
            slow.charge(cpu)
            quantum.observe(done, worked, polled - began - aside_s)
            cpu_s, work_s, poll_s = cpu_s + cpu, work_s + worked, poll_s + (polled - began)
        elif not searcher.over and not arrived and job is None:
            record.enter(Phase.WAITING, turned + aside_s)
            nap.take(searcher.wake_at - (time.perf_counter() - start))
    ended = time.perf_counter()
    record.enter(Phase.WAITING, ended)  # for the last one to hear that it is over
    parcels.drain()
    if searcher.sharing is not None:
        searcher.sharing.level(allgather(comm, searcher.sharing.bound.best))
    whole = step(
        searcher, start, ended, slow.speed * throttled(), cpu_s, busy_s=work_s, serving_s=poll_s, messages=parcels.n_sent
    )
    record.step(whole)
    align(comm, record)
    return collect(parcels, searcher, whole, None if saving is None else saving.stopped)
