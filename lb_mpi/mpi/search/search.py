"""Search on real MPI: runs `lb_mpi.searching.searcher.Searcher` on a communicator."""

from __future__ import annotations

import math
import os
import pickle
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeVar

from mpi4py import MPI

from lb_mpi import signs
from lb_mpi.checks import boolean, show
from lb_mpi.emulate import throttle, throttled
from lb_mpi.errors import Stopped
from lb_mpi.files import warn
from lb_mpi.graph import ring_order
from lb_mpi.mpi.common.calls import at_work, interrupts
from lb_mpi.mpi.common.carrier import Port, carry
from lb_mpi.mpi.common.collective import agree, agree_on, allgather, bcast, gather, opened, raise_on_all
from lb_mpi.mpi.common.communicator import presence_of
from lb_mpi.mpi.common.failure import of_search
from lb_mpi.mpi.common.parcels import Parcels, body, parcel
from lb_mpi.mpi.common.recorder import align, recorder, running, worlds
from lb_mpi.mpi.common.saves import Signals, newest, noted
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.record.events import Driver, Phase, Step
from lb_mpi.record.record import OFF, Record
from lb_mpi.record.report import RankWork, Report
from lb_mpi.saving.folder import Folder, PartFile, Saved, check_path
from lb_mpi.searching.bound import Bound, check_bound
from lb_mpi.searching.drafting import Kind, Message, Send, State
from lb_mpi.searching.guard import (
    MOST_ON_RING,
    Guard,
    Options,
    Quantum,
    check_new,
    check_problem,
    check_route,
    check_savable,
    searched,
)
from lb_mpi.searching.problem import Problem
from lb_mpi.searching.saves import Receipt, SavedSearch, do, unpack_parts
from lb_mpi.searching.searcher import ROOT, DraftRecord, Job, Reason, Searcher, Work, step

T = TypeVar("T")
KIND = "search"  # of the saves
IN_PROBLEM = "in a problem of a search"
LIMITED = "limit_s ended the search: a better result may exist"
_HEADER = struct.Struct("<iiqqdq")  # kind, source, seq, pid, load, bytes of payload


def search(
    comm: MPI.Intracomm,
    problem: Problem,
    *,
    bound: Bound | None = None,
    save: str | os.PathLike[str] | None = None,
    save_every_s: float = 30.0,
    limit_s: float = math.inf,
    threshold: float = 0.125,
    balance: bool = True,
    emulated_speed: float | Callable[[], float] = 1.0,
    quantum: int | None = None,
    seed: int = 0,
    route: str | None = None,
    trace: bool = False,
) -> SearchResult:
    """Search `problem` on all ranks of `comm`, balanced by drafting (Xu, Zhang, Sun 1991), a kind of work stealing.

    A rank without work sends a draft, which is a request for work (see `lb_mpi.searching.drafting`).  Drafts go round a
    ring of all ranks; on more than 32 ranks, or on several hosts, they visit random ranks, and may wait at some (see
    `lb_mpi.searching.walking`).

    Collective.  Every rank passes a `problem` made in the same way (see `lb_mpi.Problem`), a new one for each search (but
    a TreeSearch starts anew).  Only that of rank 0 is started, and the other ranks get their work from it.  The search works
    on a duplicate of `comm`, so the caller's messages are never disturbed.

    Parameters
    ----------
    bound : for branch and bound: this rank's copy of the best value that all ranks share (see `lb_mpi.Bound`),
        a new one for each search.
    save : a folder, the same for all ranks, in which the search is saved.  If the program dies, the same call in a new
        run, on any number of ranks, continues from the last save.  The problem needs two more methods (see
        `lb_mpi.Savable`).  With `save`, SIGTERM and SIGUSR1 end the search after a save.
    save_every_s : seconds between the end of a save and the next one; inf: saves only at a signal.  During a save all
        ranks pause until all have written their work.
    limit_s : seconds, above 0, from the start of the search, after which it ends on all ranks with the best result so far
        (see `SearchResult.timed_out`); inf: when all work is done.  That of rank 0 counts.  With `save`, the search is
        saved before it ends, so that the same call in a new run continues it.
    threshold : a rank gives away work only if its `problem.load()` is above this value, which has the same unit (J in
        the paper), >= 0.
    balance : False: every rank receives one share at the beginning, and no work moves afterwards (for comparison).
    emulated_speed : makes this rank as slow as a machine of this relative speed, above 0 and at most 1 (see
        `lb_mpi.throttle`), or a function that returns the speed of the moment; may differ by rank.
    quantum : units of work, >= 1, between two polls for messages; None: adaptive, so that polling costs less than 2 %.
    seed : integer >= 0, of the random numbers for pauses and random routes.
    route : of drafts: "ring" or "random", the same on all ranks; None: "ring" on up to 32 ranks of one host, otherwise
        "random"; always "random" for a problem whose work belongs to certain ranks (see
        `lb_mpi.searching.problem.Owning`).
    trace : True: note each turn of this rank with messages, in `SearchResult.trace`; may differ by rank.

    Returns a `SearchResult`, the same on all ranks but for the `trace`.

    Raises ValueError or TypeError on every rank if an argument is wrong on any rank.  If the problem
    raises any exception (also Ctrl-C) on any rank, or the problem returns a value that violates the `Problem`
    protocol, every rank raises a SearchError that names the rank and the cause; but what is no Exception,
    such as SystemExit or KeyboardInterrupt, is raised again on its rank.

    With `save`, raises Stopped on every rank if a signal has ended the search (a SIGTERM that comes when all work is
    done ends the process instead, as it does outside of a search), ValueError if the folder has saves of
    another problem, SaveError if none of its saves can be read, and OSError if another run saves there.  If a save
    fails, for example because the disk is full, the rank that fails issues a RuntimeWarning; the search continues, and
    earlier saves are kept.
    """
    with opened(comm, "lb_mpi.search", watched=True) as own:

        def check() -> _Settings:
            check_problem(problem)
            check_new("problem", problem)
            check_new("bound", bound)
            if save is not None:
                check_savable(problem)
            options = Options(
                threshold, balance=balance, seed=seed, route=route, save_every_s=save_every_s, limit_s=limit_s
            ).checked()
            return _Settings(
                check_route(problem, options if save is not None else options._replace(save_every_s=None)),
                check_bound(bound),
                throttle(emulated_speed, "emulated_speed"),
                Quantum(quantum),
                boolean("trace", trace),
            )

        settings = agree(own, check)
        sense = None if settings.bound is None else settings.bound.sense
        agree_on(own, bound=sense, route=settings.options.route, save=None if save is None else str(save))
        for one in (problem, bound):
            searched(one)
        record = recorder(own)
        with saved(own, save, problem, settings.bound) as saving, running(record):
            options = _choose_route(own, settings.options)
            return _run(own, problem, settings._replace(options=options), saving, record)


def _choose_route(comm: MPI.Intracomm, options: Options) -> Options:
    """Collective: return the options with the route of drafts that suits these ranks, unless they name one."""
    n_hosts = 1
    if options.route is None and comm.size <= MOST_ON_RING:
        n_hosts = len(set(allgather(comm, MPI.Get_processor_name())))
    return options._replace(route=options.route_on(comm.size, n_hosts))


class _Settings(NamedTuple):
    options: Options
    bound: Bound | None
    slow: throttle
    quantum: Quantum
    trace: bool


class SearchPort(Port[Message, Any]):
    """The messages and jobs of one rank of a search."""

    def __init__(
        self, rank: int, guard: Guard, parcels: Parcels, settings: _Settings, saving: Saving | None, record: Record
    ) -> None:
        self._rank, self._guard, self._parcels, self._saving = rank, guard, parcels, saving
        self._slow, self._quantum, self.record = settings.slow, settings.quantum, record
        self._bound = settings.bound
        self.drafts = DraftRecord(record, rank, worlds(parcels.comm), settings.options)
        self.start = time.perf_counter()
        self.units = 0  # of work
        self.cpu_s = self.work_s = self.poll_s = 0.0
        self._polls_since = 0.0

    def arrived(self) -> list[tuple[int, Message]]:
        """Return the messages; a signal is one, too: this rank asks itself to save and stop."""
        self._polls_since = time.perf_counter()
        arrived = receive(self._parcels)
        self.drafts.arrived(arrived)
        if self._saving is not None and self._saving.ask():
            arrived.append((self._rank, Message(Kind.ASK, self._rank)))
        return arrived

    def post(self, sends: list[Send]) -> None:
        """Start to send messages."""
        send(self._parcels, sends)
        self.drafts.sent(sends)

    def run(self, job: Job) -> Any:
        """Work for a quantum, and return the units done; or do the job of a save."""
        if not isinstance(job, Work):
            assert self._saving is not None
            done = do(job, self._saving)
            signs.turn()
            return done
        cpu, began = time.thread_time(), time.perf_counter()
        self.record.enter(Phase.OWN, began)
        done = 0
        try:
            done = self._guard.work(self._quantum.units)
        finally:
            worked, cpu = time.perf_counter() - began, time.thread_time() - cpu
            self._slow.charge(cpu)
            self.units += done
            self.record.doing(self.units)
            if self._bound is not None and self.record is not OFF:
                self.record.bounded(self._bound.best, self._guard.load())
            poll_s = began - self._polls_since
            self._quantum.observe(done, worked, poll_s)
            self.cpu_s, self.work_s, self.poll_s = self.cpu_s + cpu, self.work_s + worked, self.poll_s + poll_s
        return done


class Turn(NamedTuple):
    """A turn of one rank in which messages have arrived, or are sent: (rank, message) each."""

    at: float  # `time.perf_counter()` of this rank's host, at the beginning
    state: State  # of the rank, at the end
    arrived: list[tuple[int, Message]]
    sends: list[Send]


class _Traced(Searcher):
    """A searcher that notes its turns with messages; the search began at `start`."""

    def __init__(self, start: float, *given: Any) -> None:
        super().__init__(*given)
        self.start, self.trace = start, list[Turn]()

    def turn(self, now: float, arrived: Iterable[tuple[int, Message]]) -> list[Send]:
        """See `Searcher`."""
        received = [*arrived]
        sends = super().turn(now, received)
        if received or sends:
            self.trace.append(Turn(self.start + now, self.drafting.state, received, sends))
        return sends


def _run(
    comm: MPI.Intracomm, problem: Problem, settings: _Settings, saving: Saving | None, record: Record
) -> SearchResult:
    parcels = Parcels(comm, Tag.DRAFTING)
    guard = Guard(problem, interrupts())
    found = None if saving is None else saving.saved
    ring = ring_order(comm.size) if settings.options.route_on(comm.size) == "ring" else range(comm.size)
    port = SearchPort(comm.rank, guard, parcels, settings, saving, record)
    given = comm.rank, ring, guard, settings.options, settings.bound, found
    searcher = _Traced(port.start, *given) if settings.trace else Searcher(*given)
    with at_work(comm, IN_PROBLEM):
        carry(settings.slow.around(searcher), port, presence_of(comm), record, interrupts(), start=port.start)
    ended = time.perf_counter()
    record.enter(Phase.WAITING, ended)  # waiting for the last rank
    parcels.drain()
    if searcher.sharing is not None:
        searcher.sharing.level(allgather(comm, searcher.sharing.bound.best))
    whole = step(
        searcher, port.start, ended, settings.slow.speed * throttled(), port.cpu_s, busy_s=port.work_s,
        serving_s=port.poll_s, messages=port.drafts.n_sent.total(),
        reason=record.reason(LIMITED) if searcher.reason is Reason.TIMED_OUT else -1,
    )  # fmt: skip
    record.step(whole)
    align(comm, record)
    return collect(comm, searcher, whole, port.drafts.n_sent, saving)


# --- saves: each rank writes its state, and rank 0 commits when all have written (see `lb_mpi.saving.folder`) -----------
#
# The format is independent of the MPI library: another MPI can read it, with any number of ranks.


class States(Sequence[bytes]):
    """The saved states of all ranks, each read when accessed, except those that were `kept`."""

    def __init__(self, folder: Folder, saved: Saved, kept: dict[int, bytes]) -> None:
        self._folder, self._saved, self._kept = folder, saved, kept

    def __len__(self) -> int:
        return len(self._saved.parts)

    def __getitem__(self, index: Any) -> Any:
        """Return the state of one rank, or of a slice of them; SaveError if it is damaged."""
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        rank = range(len(self))[index]
        return self._kept[rank] if rank in self._kept else unpack_parts(self._folder.read(self._saved, name(rank)))[0]


class Saving:
    """The saves of a search on one rank, a `Store`; their numbers follow that of `found`, the save to resume from."""

    def __init__(
        self, comm: MPI.Intracomm, folder: Folder, found: tuple[int, SavedSearch] | None, meta: dict[str, Any],
        signals: Signals,
    ) -> None:  # fmt: skip
        self.saved = found[1] if found else None
        self._folder, self._rank, self._signals = folder, comm.rank, signals
        self._base = self._number = found[0] if found else 0
        self._meta = meta
        self._asked = False

    def ask(self) -> bool:
        """Return True once after a signal: this rank then asks itself to save."""
        asks = bool(self._signals.came) and not self._asked
        self._asked = self._asked or asks
        return asks

    def open(self, number: int) -> bool:
        """Make a directory; return False, with a warning, if that fails."""
        return self._tried(lambda: self._folder.begin(self._base + number)) is not None

    def write(self, number: int, state: bytes) -> tuple[int, int] | None:
        """Write this rank's state; return None, with a warning, if that fails."""
        part = self._tried(lambda: self._folder.write(self._base + number, name(self._rank), [state]))
        return None if part is None else part[1:]

    def commit(self, number: int, receipts: Sequence[Receipt] | None) -> None:
        """Write the manifest; warn if that fails.  None: there is nothing to commit."""
        if receipts is None:
            return
        parts = [PartFile(name(each.rank), each.n_bytes, each.crc) for each in receipts]
        better = max if self._meta["bound"] == "max" else min
        meta = {**self._meta, "best": better(each.best for each in receipts)}
        if self._tried(lambda: self._folder.commit(self._base + number, meta, parts)):
            self._number = self._base + number
            signs.saved(self._number)

    def stopped(self, comm: MPI.Intracomm) -> NoReturn:
        """Collective: raise Stopped after a search that a signal has ended."""
        self._signals.reported = True
        number, came = bcast(comm, (self._number, self._signals.came))
        by = "a signal" if came is None else came.name
        if not number:
            text = f"stopped by {by}, but nothing could be saved: the next run starts anew"
        else:
            text = f"saved as {self._folder.path}/save-{number:08d}, stopped by {by}: run the same again to go on"
        raise presence_of(comm).on_all(Stopped(text))

    def _tried(self, call: Callable[[], Any]) -> Any:
        try:
            return call() or True
        except (OSError, ValueError) as error:
            warn(f"rank {self._rank}: the search is not saved this time: {error}")
            return None


@contextmanager
def saved(
    comm: MPI.Intracomm, path: str | os.PathLike[str] | None, problem: object, bound: Bound | None
) -> Iterator[Saving | None]:
    """Collective: find the save to resume from, lock the folder and watch for signals in the block; None without `path`.

    A damaged save is skipped with a warning.  ValueError on all ranks for the save of another problem, SaveError if no
    save can be read, OSError if another run saves there.
    """
    if path is None:
        yield None
        return
    folder, kind = Folder(agree(comm, lambda: check_path("save", path)).absolute(), KIND), type(problem)
    meta = {"problem": f"{kind.__module__}.{kind.__qualname__}", "bound": None if bound is None else bound.sense}
    try:
        agree(comm, lambda: folder.lock() if comm.rank == ROOT else None)
        found = newest(comm, folder, lambda saved: _read(comm, folder, saved, meta), "save", stacklevel=7)
        with noted(comm) as signals:
            yield Saving(comm, folder, found, meta, signals)
    finally:
        folder.close()


def name(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"rank-{rank:06d}"


def _read(comm: MPI.Intracomm, folder: Folder, saved: Saved, meta: dict[str, Any]) -> SavedSearch:
    """Read this rank's share; ValueError for the save of another search, SaveError if it is damaged."""
    for key, value in meta.items():
        if saved.meta.get(key) != value:
            where = f"save {saved.number} in {folder.path}"
            raise ValueError(f"{key} = {show(value)}: expected {show(saved.meta.get(key))}, as in {where}")
    mine = range(comm.rank, len(saved.parts), comm.size)
    parts = {rank: unpack_parts(folder.read(saved, name(rank))) for rank in mine}
    states = States(folder, saved, {rank: state for rank, (state, *_) in parts.items()})
    return SavedSearch(states, mine, [part for _, *kept in parts.values() for part in kept], saved.meta["best"])


# --- the result -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchResult:
    """The result of a search, the same on all ranks."""

    value: Any  # the ranks' results, merged in rank order
    found: bool  # True if an answer ended the search
    seconds: float  # wall-clock time of the slowest rank
    lower_bound_s: float  # CPU seconds of user work in this run / sum of speeds
    ranks: list[RankWork]  # of each rank, in order
    messages: dict[str, int]  # messages sent on all ranks, by kind (see `lb_mpi.searching.drafting.Kind`)
    timed_out: bool = False  # True if `limit_s` ended the search: a better result may exist
    trace: Sequence[Turn] = ()  # the turns of this rank, if `search` was called with trace=True

    @property
    def done(self) -> int:
        """The number of nodes, or other units of work, of all ranks."""
        return sum(rank.done for rank in self.ranks)

    @property
    def balances(self) -> int:
        """The number of parts of work that were moved between ranks."""
        return sum(rank.received for rank in self.ranks)

    @property
    def cpu_s(self) -> float:
        """The CPU seconds of the user's work on all ranks."""
        return sum(rank.useful_s * rank.speed for rank in self.ranks)

    def report(self) -> Report:
        """Return the work of each rank; prints as a table."""
        messages = ", ".join(f"{n:,} {kind}" for kind, n in self.messages.items())
        limited = f"\n{LIMITED}" if self.timed_out else ""
        return Report(Driver.SEARCH, 1, tuple(self.ranks), note=f"messages: {messages or 'none'}{limited}")


def collect(
    comm: MPI.Intracomm, searcher: Searcher, whole: Step, sent: Counter[Kind], saving: Saving | None
) -> SearchResult:
    """Collective, after all ranks have ended the search: return the result, or raise the error.

    Only rank 0 merges, so that there is one value and one failure; results are sent as pickles.
    """
    stopped = searcher.reason is Reason.STOPPED
    if stopped and saving is not None:
        _raise_on_all(comm, searcher)
        saving.stopped(comm)
    mine = None
    if searcher.error is None and not stopped:
        mine = searcher.attempt(_called, lambda: pickle.dumps(searcher.problem.result(), pickle.HIGHEST_PROTOCOL))
    work = RankWork.of(comm.rank, whole._replace(busy_s=max(whole.busy_s, whole.useful_s)))
    everyone = gather(comm, (mine, work, sent), ROOT)
    results = [result for result, _, _ in everyone if result is not None]
    with at_work(comm, IN_PROBLEM):  # on rank 0
        merged = searcher.attempt(_called, lambda: _merged(searcher, results)) if len(results) == comm.size else None
    total = sum((counts for _, _, counts in everyone), Counter[Kind]())
    messages = {kind.name: total[kind] for kind in Kind if total[kind]}
    pickled, ranks, messages = bcast(comm, (merged, [one for _, one, _ in everyone], messages), ROOT)
    value = None if pickled is None else searcher.attempt(_called, lambda: pickle.loads(pickled))
    _raise_on_all(comm, searcher)
    return SearchResult(
        value=value,
        found=searcher.reason is Reason.FOUND,
        seconds=max(each.seconds for each in ranks),
        lower_bound_s=sum(each.useful_s * each.speed for each in ranks) / sum(each.speed for each in ranks),
        ranks=ranks,
        messages=messages,
        timed_out=searcher.reason is Reason.TIMED_OUT,
        trace=searcher.trace if isinstance(searcher, _Traced) else (),
    )


def _called(call: Callable[[], T]) -> T:
    """Call the user's code, in which Ctrl-C is raised at once: pickling may be their code, too."""
    with interrupts():
        return call()


def _merged(searcher: Searcher, results: list[bytes]) -> bytes:
    value, *others = map(pickle.loads, results)
    for other in others:
        value = searcher.problem.merge(value, other)
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _raise_on_all(comm: MPI.Intracomm, searcher: Searcher) -> None:
    raise_on_all(comm, None if searcher.error is None else of_search(searcher.error, searcher.rank))


# --- messages as parcels: a header, then the payload ------------------------------------------------------------------


def send(parcels: Parcels, sends: Iterable[Send]) -> None:
    """Start to send messages; return at once."""
    for destination, (kind, source, seq, pid, load, payload) in sends:
        header = _HEADER.pack(kind, source, seq, pid, load, len(payload))
        parcels.send(destination, Tag.DRAFTING, parcel(header, [payload]))


def receive(parcels: Parcels) -> list[tuple[int, Message]]:
    """Return the (source, message) pairs that have arrived, in order for each source."""
    arrived = []
    for sender, _, buffer in parcels.receive():
        kind, source, seq, pid, load, n = _HEADER.unpack_from(buffer.data)
        arrived.append((sender, Message(Kind(kind), source, seq, pid, load, bytes(body(buffer)[:n]))))
    return arrived
