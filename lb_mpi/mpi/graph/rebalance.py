"""Rebalancing on real ranks: the arguments of a call, and the port of `lb_mpi.rebalancing.actor`."""

from __future__ import annotations

import functools
import struct
import time
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike

from lb_mpi import columns
from lb_mpi.actor import ALL
from lb_mpi.balancing.deciding import Trigger
from lb_mpi.checks import number, show
from lb_mpi.columns import Chunk, Reader, chunks_of, packed
from lb_mpi.distributing.halo import GraphPart, Piece
from lb_mpi.emulate import throttle
from lb_mpi.graph import Floats
from lb_mpi.metrics import check_loads
from lb_mpi.mpi.common.calls import at_work, call, interrupts
from lb_mpi.mpi.common.carrier import Port, carry
from lb_mpi.mpi.common.collective import raise_difference, raise_on_all
from lb_mpi.mpi.common.communicator import QUICK_S, Presence
from lb_mpi.mpi.common.failure import Failed, of_argument, of_rows
from lb_mpi.mpi.common.parcels import Buffer, Parcels
from lb_mpi.mpi.common.recorder import running
from lb_mpi.mpi.common.reducing import Reducing
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.graph.values import Rows, Values
from lb_mpi.rebalancing.actor import Rebalancing
from lb_mpi.rebalancing.balance import MOST_COSTS, PlanBalance
from lb_mpi.rebalancing.deciding import ARGUMENTS, Arguments, totals_of
from lb_mpi.rebalancing.jobs import Ask, Build, Built, Choose, Job, Pack, Repair, run
from lb_mpi.rebalancing.messages import RebalanceKind, RebalanceMessage
from lb_mpi.rebalancing.moving import Moving
from lb_mpi.rebalancing.record import Rebalanced, reason_of
from lb_mpi.record.record import Record

NAME = "plan.rebalance"  # of the call
_HEADER = struct.Struct("<qqqd")  # kind, vertices or arrays (-1: the sender has failed), entries of their rows, number
_BROKEN = -1


class RebalanceHead(NamedTuple):
    """The header of a parcel."""

    kind: int
    n: int = 0
    nnz: int = 0
    number: float = 0.0


NO_VALUES = Values((), 0)


class Given(NamedTuple):
    """The arguments of a rank in a call, checked; or its error."""

    arguments: Arguments = ARGUMENTS
    costs: Floats | None = None
    values: Values = NO_VALUES
    failed: Failed | None = None

    @property
    def words(self) -> dict[str, str]:
        """The arguments that must be equal on all ranks, as text."""
        named = {name: show(value) for name, value in self.arguments._asdict().items()}
        return {"costs": "None" if self.costs is None else "an array", **named, "values": self.values.words}

    @property
    def checksum(self) -> int:
        """A checksum of that."""
        return zlib.crc32(repr((*self.arguments, self.costs is None, self.values.words)).encode())


def check_given(
    rank: int, balance: PlanBalance, n: int, options: tuple[Any, ...], costs: ArrayLike | None, values: Sequence[Any],
    pack: columns.Pack | None, unpack: columns.Unpack | None,
) -> Given:  # fmt: skip
    """Check what this rank with n vertices has given, before Ctrl-C is held back: this may run code of the caller's classes.

    options : when, every, tolerance, imbalance.  The first time, kernels are loaded, too.
    """
    try:
        interrupts().check()
        if balance.loads_kernels:
            balance.loading_s += load_kernels()
            balance.loads_kernels = False
        arguments = check_arguments(*options)
        latest = balance.waiting if costs is None else costs
        checked = None if latest is None else check_costs(latest, n)
        return Given(arguments, checked, Values(values, n, pack=pack, unpack=unpack))
    except Exception as error:
        return Given(failed=of_argument(error))
    except BaseException as error:
        return Given(failed=of_rows(error, rank, "the arguments of rebalance"))


def check_arguments(when: Any, every: Any, tolerance: Any, imbalance: Any) -> Arguments:
    """Check the arguments; ValueError or TypeError."""
    try:
        return _checked(when, every, tolerance, imbalance)
    except TypeError:  # what can't be remembered is checked each time
        return _checked.__wrapped__(when, every, tolerance, imbalance)


@functools.lru_cache(16, typed=True)
def _checked(when: Any, every: Any, tolerance: Any, imbalance: Any) -> Arguments:
    trigger = Trigger(when, every, tolerance)
    return Arguments(trigger.when, trigger.every, trigger.tolerance, number("imbalance", imbalance, above=0.0))


def check_costs(costs: ArrayLike, n: int) -> Floats:
    """Check the (n,) costs of vertices: finite numbers >= 0, not too large in sum."""
    found = check_loads(costs, n, name="costs")
    with np.errstate(over="ignore"):
        if found.sum() > MOST_COSTS:
            raise ValueError(f"costs with sum {found.sum()}: expected at most {MOST_COSTS}")
    return found


class Moved(NamedTuple):
    """The new state of a rank after a rebalancing in which vertices have moved."""

    part: GraphPart
    values: tuple[Any, ...]
    given: dict[int, int]  # number of vertices that this rank has given away, by rank
    n_ghosts: int  # on all ranks
    cut: float


class PlanSetting(NamedTuple):
    """All that stays the same in all calls of a plan."""

    presence: Presence
    reducing: Reducing
    slow: throttle
    record: Record
    connected: bool  # the whole graph is in one piece
    slabs: int  # the number of all vertices if the parts are contiguous ranges, else 0


def rebalance(
    setting: PlanSetting, part: GraphPart, balance: PlanBalance, spent: tuple[float, float], given: Given, cut: float
) -> Moved | None:
    """Collective: decide and move at an opportunity; None: no vertex has moved.  What happened is appended to the history.

    `spent`: seconds that this rank has computed so far, and those of them without a core.
    """
    presence, reducing, slow, record, connected, slabs = setting
    comm, began, before = presence.comm, time.perf_counter(), None
    opportunities = balance.opportunities
    if given.failed is None:
        opportunities.arguments = given.arguments
        if given.costs is not None:
            before = balance.known
            balance.given(given.costs)
    balance.measure(*spent, balance.load)
    if not balance.learned:
        balance.learn(comm.rank)
    mine, numbers = balance.report(given.checksum, given.failed is not None)
    port = None
    try:
        reducing.begin(numbers)
        presence.wait(reducing.done, reducing, name=NAME)
        totals = totals_of(reducing.answer)
        if totals.most.failed:
            balance.failed(before)
            raise_on_all(comm, given.failed)
        if totals.differs:
            balance.failed(before)
            raise_difference(comm, given.words)
        decided = balance.decide(totals, comm.size)
        if not decided.act:
            seconds = time.perf_counter() - began
            opportunities.record_call(seconds)
            imbalance = decided.before
            balance.history.append(Rebalanced(False, reason_of(decided), imbalance, imbalance, 0, 0, cut, 0, seconds))
            return None
        actor = Rebalancing(
            comm.rank, comm.size, part, balance.costs, mine, totals, decided, connected=connected, slabs=slabs,
            imbalance=max(given.arguments.imbalance, (1.0 - opportunities.moves.part) * decided.before),
            undo=None if decided.undo_s is None else balance.undo,
        )  # fmt: skip
        port = RebalancePort(comm, reducing, actor, given.values)
        with call(NAME, watched=True) as interrupts, running(record):
            carry(slow.around(actor), port, presence, record, interrupts, quick_s=QUICK_S, start=began)
            outcome = actor.outcome
            if outcome.failed:
                balance.failed()  # its costs are valid on all ranks
                between = None if actor.error is None else of_rows(actor.error, comm.rank, "rebalancing")
                raise_on_all(comm, port.failed or between)
    except BaseException as error:
        presence.send_failure(error)
        if port is not None and presence.failed:
            presence.retain(port)
        raise
    acted, seconds = actor.committed, time.perf_counter() - began
    opportunities.paid(outcome.spent_s)
    balance.history.append(Rebalanced(
        acted, reason_of(decided, outcome.moved), outcome.before, outcome.after, outcome.moved, outcome.n_bytes,
        outcome.cut if acted else cut, outcome.steps, seconds,
    ))  # fmt: skip
    if not acted or actor.built is None:
        if isinstance(actor.error, Warning):  # of a late rank, after this one has agreed
            raise actor.error
        opportunities.dropped(decided.reason)
        return None
    balance.moved(actor.built, [*port.given], outcome)
    return Moved(actor.built.part, port.values, port.given, outcome.n_ghosts, outcome.cut)


_loaded = list[bool]()


def load_kernels() -> float:
    """Load the kernels of a rebalancing, once in a process; return the seconds that this has taken now.

    The first time on a machine, they are compiled.  ModuleNotFoundError if there is no numba.
    """
    if _loaded:
        return 0.0
    began = time.perf_counter()
    with interrupts():
        from lb_mpi.kernels import held_interrupts
        from lb_mpi.rebalancing.rebalance import compile_kernels

        with held_interrupts():
            compile_kernels()
    _loaded.append(True)
    return time.perf_counter() - began


class RebalancePort(Port[Any, Job]):
    """The messages and jobs of one call on a rank."""

    def __init__(self, comm: MPI.Intracomm, reducing: Reducing, actor: Rebalancing, values: Values) -> None:
        self._comm, self._reducing, self._actor, self._values = comm, reducing, actor, values
        self._parcels = Parcels(comm, Tag.REBALANCE)
        self._reduces = False  # a reduction is under way
        self.failed: Failed | None = None  # an error of the user's functions
        self.given = dict[int, int]()  # number of vertices that leave, by rank
        self.values: tuple[Any, ...] = ()  # of the new part

    def arrived(self) -> list[tuple[int, Any]]:
        """See `Port`."""
        found: list[tuple[int, Any]] = [(source, _read(buffer)) for source, _, buffer in self._parcels.receive()]
        if self._reduces and self._reducing.done():
            self._reduces = False
            found.append((ALL, self._reducing.answer))
        return found

    commits = True

    @property
    def settled(self) -> bool:
        """See `Port`."""
        return self._actor.ready

    def idle(self) -> bool:
        """See `Port`."""
        return not self._parcels.news() and not (self._reduces and self._reducing.done())

    def post(self, sends: list[tuple[int, Any]]) -> None:
        """See `Port`."""
        for rank, message in sends:
            if rank == ALL:
                self._reducing.begin(message)
                self._reduces = True
            else:
                self._parcels.send(rank, Tag.REBALANCE, _parcel(message))

    def run(self, job: Job) -> Any:
        """See `Port`; an error is kept with the words for it."""
        try:
            if isinstance(job, Pack | Build):
                with at_work(self._comm, "in pack or unpack"):
                    return self._pack(job) if isinstance(job, Pack) else self._build(job)
            from lb_mpi.kernels import held_interrupts  # here, since it imports numba

            with held_interrupts():
                return run(job)
        except BaseException as error:
            self.failed = of_rows(error, self._comm.rank, f"{_WORDS[type(job)]} vertices")
            raise

    def _pack(self, job: Pack) -> dict[int, Buffer]:
        self.given, payloads = {rank: len(index) for rank, index in job.leaving.items()}, {}
        for rank, (piece, costs) in run(job).items():
            chunks = [*map(Chunk, (*piece, costs)), *self._values.chunks(job.leaving[rank])]
            header = _HEADER.pack(*RebalanceHead(RebalanceKind.ROWS, len(costs), len(piece.neighbours)))
            payloads[rank] = packed(header, chunks)
        return payloads

    def _build(self, job: Build) -> Built:
        opened = {source: self._open(buffer) for source, buffer in sorted(job.arrived.items())}
        built: Built = run(job._replace(arrived={source: moving for source, (moving, _) in opened.items()}))
        kept = np.flatnonzero(job.owners.local == job.rank)
        arrived = [theirs for _, theirs in opened.values()]
        self.values = self._values.given if built.positions is None else self._values.join(kept, arrived, built.positions)
        return built._replace(n_bytes=self._parcels.sent_bytes)

    def _open(self, buffer: Buffer) -> tuple[Moving, Rows]:
        _, n, nnz, _ = _HEADER.unpack_from(buffer.data)
        reader, double = Reader(buffer), np.dtype(float)
        piece = Piece(
            reader.integers(n), reader.integers(n + 1), reader.integers(nnz), reader.integers(nnz),
            reader.array(double, (nnz,)), reader.array(double, (n,)),
        )  # fmt: skip
        return Moving(piece, reader.array(double, (n,))), self._values.read(reader, n)


_WORDS = {Repair: "examining", Ask: "choosing", Choose: "choosing", Pack: "packing", Build: "unpacking"}


def _parcel(message: RebalanceMessage) -> Buffer:
    kind, payload = message
    if kind in (RebalanceKind.HELLO, RebalanceKind.PAIR, RebalanceKind.LABEL):
        if payload is None:
            return packed(_HEADER.pack(*RebalanceHead(kind, _BROKEN)), [])
        arrays = payload if kind is RebalanceKind.HELLO else (payload,)
        return packed(_HEADER.pack(*RebalanceHead(kind, len(arrays))), chunks_of(arrays))
    if kind is RebalanceKind.ROWS:
        if payload is not None and len(payload):
            found: Buffer = payload
            return found
        return packed(_HEADER.pack(*RebalanceHead(kind, _BROKEN if payload is None else 0)), [])
    return packed(_HEADER.pack(*RebalanceHead(kind, number=float(payload))), [])


def _read(buffer: Buffer) -> RebalanceMessage:
    about = RebalanceHead(*_HEADER.unpack_from(buffer.data))
    kind = RebalanceKind(about.kind)
    if kind in (RebalanceKind.HELLO, RebalanceKind.PAIR, RebalanceKind.LABEL):
        if about.n == _BROKEN:
            return RebalanceMessage(kind)
        arrays = Reader(buffer).arrays(about.n)
        return RebalanceMessage(kind, arrays if kind is RebalanceKind.HELLO else arrays[0])
    if kind is RebalanceKind.ROWS:
        return RebalanceMessage(kind, None if about.n == _BROKEN else buffer if about.n else b"")
    return RebalanceMessage(kind, about.number)

