"""Search on real MPI: carries `lb_mpi.searching.searcher.Searcher` on a communicator."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from mpi4py import MPI

from lb_mpi.emulate import throttle
from lb_mpi.errors import SearchError
from lb_mpi.graph import ring_order
from lb_mpi.mpi.collective import agree, duplicate
from lb_mpi.mpi.mailbox import Mailbox
from lb_mpi.mpi.waiting import Nap, barrier
from lb_mpi.searching.problem import Problem
from lb_mpi.searching.quantum import Quantum
from lb_mpi.searching.searcher import Options, Reason, Report, Searcher


class RankStats(NamedTuple):
    """What one rank did in a search."""

    units: int  # units of work done
    balances: int  # parts of work received from others
    drafts: int  # DRAFTING tokens started
    messages: int  # messages sent, of all kinds
    seconds: float  # wall-clock time from the common start to the end
    cpu_s: float  # CPU time of the user's work
    busy_fraction: float  # cpu_s / speed / seconds
    poll_fraction: float  # time spent with messages between work quanta / (that + time of the quanta)


class SearchResult(NamedTuple):
    """What a search found, the same on all ranks."""

    value: Any  # the ranks' results, merged in rank order
    found: bool  # ended by an answer (False: all work was done)
    seconds: float  # wall-clock time of the slowest rank
    lower_bound_s: float  # CPU seconds of user work in this run / sum of speeds
    ranks: list[RankStats]

    @property
    def balances(self) -> int:
        """Parts of work that were moved."""
        return sum(rank.balances for rank in self.ranks)

    @property
    def messages(self) -> int:
        """Messages sent, of all kinds."""
        return sum(rank.messages for rank in self.ranks)

    @property
    def cpu_s(self) -> float:
        """CPU seconds of user work on all ranks."""
        return sum(rank.cpu_s for rank in self.ranks)


def search(
    comm: MPI.Intracomm,
    problem: Problem,
    *,
    threshold: float = 0.125,
    balance: bool = True,
    speed: float = 1.0,
    quantum: int | None = None,
    pause_s: tuple[float, float] = (1e-4, 1e-2),
    longest_nap_s: float = 0.5e-3,
    seed: int = 0,
    on_report: Callable[[dict[int, Report], float], None] | None = None,
    report_every_s: float = 0.25,
    on_turn: Callable[[], None] | None = None,
) -> SearchResult:
    """Search `problem` on all ranks of `comm`, balanced by drafting (Xu, Zhang, Sun 1991; see `lb_mpi.searching.drafting`).

    Collective.  Every rank passes its own, equally made `problem` (see `lb_mpi.Problem`); rank 0's is started, the
    others get their work from it.  Works on a duplicate of `comm`, so traffic of the caller is never disturbed.

    Parameters
    ----------
    threshold : J, in the unit of `problem.load()`: only a load above it is split.
    balance : False: every rank is dealt one share, and nothing moves afterwards (for comparison).
    speed : emulate a rank of this relative speed, 0 < speed <= 1 (see `lb_mpi.throttle`); may differ by rank.
    quantum : units of work between two looks at the mailbox; None: adaptive, polling costs under 2 %.
    pause_s : shortest and longest pause in seconds before an idle rank drafts again.
    longest_nap_s : a waiting rank sleeps, 10 us at first and up to this many seconds.
    seed : of the jitter of the pauses.
    on_turn : called between work quanta and, on idle ranks, whenever they wake: for problems whose ranks tell each other
        more than the parts of work (see `apps.maze_marks`).
    on_report : on rank 0: called as on_report({rank: Report}, seconds) about every `report_every_s` seconds.

    Returns a `SearchResult`, the same on all ranks.

    Raises ValueError or TypeError on every rank when an argument is wrong on any; SearchError on every rank when the
    problem has raised on any.
    """
    own = duplicate(comm)
    wants_report = own.bcast(on_report is not None)
    try:
        slow = agree(own, lambda: throttle(speed))
        options = Options(threshold, pause_s, balance, seed, report_every_s if wants_report else float("inf"))
        work_quantum = agree(own, lambda: Quantum(quantum))
        agree(own, lambda: _check(problem, options, longest_nap_s))
        return _run(own, problem, options, slow, work_quantum, Nap(longest_nap_s), on_report, on_turn)
    finally:
        own.Free()


def _check(problem: object, options: Options, longest_nap_s: float) -> None:
    if not isinstance(problem, Problem):
        missing = [name for name in dir(Problem) if name[0] != "_" and not hasattr(problem, name)]
        raise TypeError(f"problem = {problem!r}: expected start, work, load, split, ...; it lacks {', '.join(missing)}")
    options.check()
    if not 0 < longest_nap_s <= 1:
        raise ValueError(f"longest_nap_s = {longest_nap_s!r}: expected a number above 0 and at most 1 (seconds)")


def _run(
    comm: MPI.Intracomm,
    problem: Problem,
    options: Options,
    slow: throttle,
    quantum: Quantum,
    nap: Nap,
    on_report: Callable[[dict[int, Report], float], None] | None,
    on_turn: Callable[[], None] | None,
) -> SearchResult:
    mailbox = Mailbox(comm)
    searcher = agree(comm, lambda: Searcher(comm.rank, ring_order(comm.size), problem, options))
    error: Exception | None = None
    cpu_s = work_s = poll_s = 0.0
    reported_at = 0.0
    barrier(comm)
    start = polled = time.perf_counter()

    while not searcher.over:
        began = time.perf_counter()
        arrived = mailbox.take()
        try:
            sends = searcher.turn(began - start, arrived)
        except Exception as caught:  # the user's load, split or absorb has raised (or the protocol has a bug)
            error, sends = caught, searcher.fail()
        turned = time.perf_counter()
        if on_turn is not None and error is None and not searcher.over:
            try:
                on_turn()
            except Exception as caught:
                error = caught
                sends += searcher.fail()
        aside_s = time.perf_counter() - turned  # that it takes long is no reason to call it seldom
        for destination, message in sends:
            mailbox.post(destination, message)
        if on_report is not None and began - start >= reported_at + options.report_every:
            reported_at = began - start
            on_report(searcher.reports, reported_at)
        if arrived or sends:
            nap.reset()
        if searcher.working:
            if rest_s := slow.due():
                time.sleep(rest_s)  # in slices: the emulated slow rank still serves its messages
                continue
            cpu = time.thread_time()
            polled = time.perf_counter()
            try:
                done = problem.work(quantum.units)
            except Exception as caught:
                error = caught
                for destination, message in searcher.fail():
                    mailbox.post(destination, message)
                continue
            worked = time.perf_counter() - polled
            cpu = time.thread_time() - cpu
            slow.charge(cpu)
            quantum.observe(done, worked, polled - began - aside_s)
            searcher.units += done
            cpu_s, work_s, poll_s = cpu_s + cpu, work_s + worked, poll_s + (polled - began)
        elif not searcher.over and not arrived:
            nap.take(searcher.wake_at - (time.perf_counter() - start))
    seconds = time.perf_counter() - start

    mailbox.drain()
    stats = RankStats(
        units=searcher.units,
        balances=searcher.drafting.received,
        drafts=searcher.drafting.seq,
        messages=int(mailbox.sent.sum()),
        seconds=seconds,
        cpu_s=cpu_s,
        busy_fraction=cpu_s / slow.speed / seconds,
        poll_fraction=poll_s / (poll_s + work_s) if work_s else 0.0,
    )
    return _collect(comm, problem, searcher, stats, slow.speed, error)


def _collect(
    comm: MPI.Intracomm, problem: Problem, searcher: Searcher, stats: RankStats, speed: float, error: Exception | None
) -> SearchResult:
    told = None
    result = None
    if error is None:
        try:
            result = problem.result()
        except Exception as caught:
            error = caught
    if error is not None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        told = f"rank {comm.rank}: {type(error).__name__}: {error} ({where.filename}:{where.lineno}, in {where.name})"
    barrier(comm)
    everyone = comm.allgather((told, stats, speed, result))
    errors = [told for told, *_ in everyone if told is not None]
    if errors:
        raise SearchError("; ".join(errors)) from error
    value = everyone[0][3]
    for *_, other in everyone[1:]:
        value = problem.merge(value, other)
    ranks = [stats for _, stats, _, _ in everyone]
    return SearchResult(
        value=value,
        found=searcher.reason is Reason.FOUND,
        seconds=max(rank.seconds for rank in ranks),
        lower_bound_s=sum(rank.cpu_s for rank in ranks) / sum(speed for _, _, speed, _ in everyone),
        ranks=ranks,
    )
