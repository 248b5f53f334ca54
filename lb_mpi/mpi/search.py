"""Search on real MPI: carries `lb_mpi.searching.searcher.Searcher` on a communicator."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from mpi4py import MPI

from lb_mpi import checks
from lb_mpi.emulate import throttle
from lb_mpi.graph import ring_order
from lb_mpi.mpi.collective import agree, agree_on, duplicate
from lb_mpi.mpi.interrupts import Interrupts, held
from lb_mpi.mpi.mailbox import Mailbox
from lb_mpi.mpi.search_result import RankStats, SearchResult, collect
from lb_mpi.mpi.waiting import Nap, barrier
from lb_mpi.searching.bound import Bound, check_bound
from lb_mpi.searching.guard import Guard, check_problem
from lb_mpi.searching.problem import Problem
from lb_mpi.searching.quantum import Quantum
from lb_mpi.searching.reporting import ROOT, Report
from lb_mpi.searching.searcher import Options, Searcher

__all__ = ["RankStats", "SearchResult", "search"]


def search(
    comm: MPI.Intracomm,
    problem: Problem,
    *,
    bound: Bound | None = None,
    threshold: float = 0.125,
    balance: bool = True,
    emulated_speed: float = 1.0,
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
    threshold : J, in the unit of `problem.load()`: only a load above it is split.
    balance : False: every rank is dealt one share, and nothing moves afterwards (for comparison).
    emulated_speed : emulate a rank of this relative speed, above 0 and at most 1 (see `lb_mpi.throttle`); may differ by
        rank.
    quantum : units of work between two looks at the mailbox; None: adaptive, polling costs under 2 %.
    pause_s : shortest and longest pause in seconds before an idle rank drafts again.
    longest_nap_s : a waiting rank sleeps, 10 us at first and up to this many seconds, at most 1.
    seed : of the jitter of the pauses and of random routes, >= 0.
    route : of drafts: "ring" or "random", the same on all ranks; None: the ring on up to 32 ranks.
    on_turn : called between work quanta and, on idle ranks, whenever they wake: for problems whose ranks tell each other
        more than the parts of work (see `apps.maze_marks`).  May differ by rank.
    on_report : called on rank 0 as on_report({rank: Report}, seconds) about every `report_every_s` seconds; what other
        ranks pass doesn't count.

    Returns a `SearchResult`, the same on all ranks.

    Raises ValueError or TypeError on every rank when an argument is wrong on any.  Whatever the problem, on_turn or
    on_report raises on any rank, Ctrl-C included, and whatever the problem returns against its law, is a SearchError on
    every rank that names rank and cause; but the rank on which it was SystemExit or KeyboardInterrupt raises that itself.
    """
    own = duplicate(comm)
    try:
        settings = agree(
            own,
            lambda: _settings(
                problem,
                Options(threshold, pause_s, balance, seed, report_every_s, route),
                bound=bound,
                emulated_speed=emulated_speed,
                quantum=quantum,
                longest_nap_s=longest_nap_s,
                on_report=on_report if own.rank == ROOT else None,
                on_turn=on_turn,
            ),
        )
        agree_on(own, bound=None if settings.bound is None else settings.bound.sense, route=settings.options.route)
        if not own.bcast(settings.on_report is not None):
            settings = settings._replace(options=settings.options._replace(report_every_s=math.inf))
        with held() as interrupts:
            return _run(own, problem, settings, interrupts)
    finally:
        own.Free()


class _Settings(NamedTuple):
    options: Options
    bound: Bound | None
    slow: throttle
    quantum: Quantum
    nap: Nap
    on_report: Callable[[dict[int, Report], float], None] | None
    on_turn: Callable[[], None] | None


def _settings(
    problem: object,
    options: Options,
    *,
    bound: object,
    emulated_speed: float,
    quantum: int | None,
    longest_nap_s: float,
    on_report: Callable[[dict[int, Report], float], None] | None,
    on_turn: Callable[[], None] | None,
) -> _Settings:
    """Hold the arguments against what is expected."""
    check_problem(problem)
    return _Settings(
        options.checked(),
        check_bound(bound),
        throttle(checks.emulated_speed(emulated_speed)),
        Quantum(quantum),
        Nap(checks.number("longest_nap_s", longest_nap_s, above=0.0, most=1.0, unit="seconds")),
        checks.function("on_report", on_report, optional=True),
        checks.function("on_turn", on_turn, optional=True),
    )


def _run(comm: MPI.Intracomm, problem: Problem, settings: _Settings, interrupts: Interrupts) -> SearchResult:
    options, bound, slow, quantum, nap, on_report, on_turn = settings
    mailbox = Mailbox(comm)
    guard = Guard(problem, interrupts.allowed)
    ring = ring_order(comm.size) if options.route_on(comm.size) == "ring" else range(comm.size)
    searcher = Searcher(comm.rank, ring, guard, options, bound)
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
        arrived = mailbox.take()
        sends = searcher.turn(began - start, arrived)
        for destination, message in sends:
            mailbox.post(destination, message)
        turned = time.perf_counter()
        searcher.attempt(call_back, began - start)
        aside_s = time.perf_counter() - turned  # that it takes long is no reason to call it seldom
        if arrived or sends:
            nap.reset()
        if searcher.working:
            if rest_s := slow.due():
                time.sleep(rest_s)  # in slices: the emulated slow rank still serves its messages
                continue
            cpu = time.thread_time()
            polled = time.perf_counter()
            done = searcher.work(quantum.units)
            worked = time.perf_counter() - polled
            cpu = time.thread_time() - cpu
            slow.charge(cpu)
            quantum.observe(done, worked, polled - began - aside_s)
            cpu_s, work_s, poll_s = cpu_s + cpu, work_s + worked, poll_s + (polled - began)
        elif not searcher.over and not arrived:
            nap.take(searcher.wake_at - (time.perf_counter() - start))
    seconds = time.perf_counter() - start

    mailbox.drain()
    if searcher.sharing is not None:
        searcher.sharing.level(comm.allgather(searcher.sharing.bound.best))
    stats = RankStats(
        units=searcher.units,
        balances=searcher.drafting.received,
        drafts=searcher.drafting.seq,
        messages=mailbox.sent,
        seconds=seconds,
        emulated_speed=slow.speed,
        cpu_s=cpu_s,
        busy_fraction=cpu_s / slow.speed / seconds,
        poll_fraction=poll_s / (poll_s + work_s) if work_s else 0.0,
    )
    return collect(mailbox, searcher, stats)
