"""Search on real MPI: carries `lb_mpi.searching.searcher.Searcher` on a communicator."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from mpi4py import MPI

from lb_mpi import checks
from lb_mpi.emulate import Varying, throttle, throttled
from lb_mpi.graph import ring_order
from lb_mpi.mpi.common.carrier import Carrier, Part
from lb_mpi.mpi.common.collective import agree, agree_on, allgather, barrier, bcast, opened
from lb_mpi.mpi.common.parcels import Parcels
from lb_mpi.mpi.common.presence import Presence, Tag, presence_of
from lb_mpi.mpi.common.recorder import align, recorder, running, worlds
from lb_mpi.mpi.common.waiting import Interrupts, interrupts
from lb_mpi.mpi.search import messages
from lb_mpi.mpi.search.result import RankStats, SearchResult, collect
from lb_mpi.mpi.search.saving import Saving, saved
from lb_mpi.record.events import Phase
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
        with saved(own, save, problem, settings.bound) as saving, running(recorder(own)):
            return _run(own, problem, settings, saving)


class _Settings(NamedTuple):
    options: Options
    bound: Bound | None
    slow: throttle
    quantum: Quantum
    longest_nap_s: float
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
        checks.number("longest_nap_s", longest_nap_s, above=0.0, most=1.0, unit="seconds"),
        checks.function("on_report", on_report, optional=True),
        checks.function("on_turn", on_turn, optional=True),
    )


class _Rank(Part):
    """One rank of a search."""

    def __init__(
        self, searcher: Searcher, guard: Guard, parcels: Parcels, settings: _Settings, saving: Saving | None
    ) -> None:
        self.searcher, self._guard, self._parcels, self._saving = searcher, guard, parcels, saving
        self._settings, self._quantum = settings, settings.quantum
        self.record = recorder(parcels.comm)
        self._drafts = Drafts(self.record, searcher.rank, worlds(parcels.comm))
        self._drafts.use(settings.options)
        self.start = time.perf_counter()
        self.cpu_s = self.work_s = self.poll_s = 0.0
        self._began = self._aside_s = self._report_at = 0.0

    @property
    def over(self) -> bool:
        return self.searcher.over

    @property
    def wake_at(self) -> float:
        return self.start + self.searcher.wake_at

    def turn(self, now: float) -> bool:
        searcher = self.searcher
        self._began = now
        arrived = messages.take(self._parcels)
        sends = searcher.turn(now - self.start, arrived)
        if self._saving is not None:
            sends += self._saving.serve(searcher)
        messages.send(self._parcels, sends)
        turned = time.perf_counter()
        searcher.attempt(self._call_back, now - self.start)
        self._aside_s = time.perf_counter() - turned  # the callbacks' own time is not polling cost
        if arrived or sends:
            self._drafts.turn(turned, [message for _, message in arrived], sends)
        return bool(arrived or sends)

    def look(self, presence: Presence, waited_s: float) -> None:
        self.searcher.attempt(presence.look, waited_s)  # where warnings are errors, all are told

    def interrupted(self, interrupts: Interrupts, _waited_s: float) -> None:
        self.searcher.attempt(interrupts.check)

    def work(self, _interrupts: Interrupts) -> bool:
        searcher, job = self.searcher, self.searcher.job
        if not isinstance(job, Work):
            return job is not None
        cpu, polled = time.thread_time(), time.perf_counter()
        self.record.enter(Phase.OWN, polled)
        done = searcher.attempt(self._guard.work, self._quantum.units) or 0
        searcher.done(job, done)
        self.record.doing(searcher.units)
        worked = time.perf_counter() - polled
        cpu = time.thread_time() - cpu
        self._settings.slow.charge(cpu)
        poll_s = polled - self._began
        self._quantum.observe(done, worked, poll_s - self._aside_s)
        self.cpu_s, self.work_s, self.poll_s = self.cpu_s + cpu, self.work_s + worked, self.poll_s + poll_s
        return True

    def _call_back(self, now: float) -> None:
        settings = self._settings
        with interrupts().allowed():  # raises a Ctrl-C that was held back, too
            if settings.on_turn is not None:
                settings.on_turn()
            if settings.on_report is not None and now >= self._report_at:
                self._report_at = now + settings.options.report_every_s
                settings.on_report(self.searcher.reports, now)


def _run(comm: MPI.Intracomm, problem: Problem, settings: _Settings, saving: Saving | None) -> SearchResult:
    parcels = Parcels(comm, Tag.DRAFTING)
    guard = Guard(problem, interrupts().allowed)
    found = None if saving is None else saving.found.saved
    ring = ring_order(comm.size) if settings.options.route_on(comm.size) == "ring" else range(comm.size)
    searcher = Searcher(comm.rank, ring, guard, settings.options, settings.bound, found)
    barrier(comm)
    rank = _Rank(searcher, guard, parcels, settings, saving)
    Carrier(presence_of(comm), rank.record, settings.slow, longest_nap_s=settings.longest_nap_s).carry(rank, interrupts())
    ended = time.perf_counter()
    rank.record.enter(Phase.WAITING, ended)  # for the last one to hear that it is over
    parcels.drain()
    if searcher.sharing is not None:
        searcher.sharing.level(allgather(comm, searcher.sharing.bound.best))
    whole = step(
        searcher, rank.start, ended, settings.slow.speed * throttled(), rank.cpu_s, busy_s=rank.work_s,
        serving_s=rank.poll_s, messages=parcels.n_sent,
    )  # fmt: skip
    rank.record.step(whole)
    align(comm, rank.record)
    return collect(parcels, searcher, whole, None if saving is None else saving.stopped)
