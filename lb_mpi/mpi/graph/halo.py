"""The halo exchange: every rank gets the values of its ghosts from the ranks that own them, in one call.

All indices are computed once (`lb_mpi.distributing.halo`).  Buffers and persistent requests are made once for each kind
of values (dtype and shape of one value); those of the MOST_KINDS kinds used last are kept.  Messages count values, not
bytes, so a message may exceed 2 GiB.

A rank with invalid values notifies all ranks before it raises, and a rank that waits for it then also raises (see
`lb_mpi.mpi.common.communicator`).
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike, NDArray

from lb_mpi.balancing.deciding import BalanceReason, When
from lb_mpi.checks import integer
from lb_mpi.columns import LISTS, Order, Pack, Unpack, agreed, all_axes, check_column, layout, order_of, ordered
from lb_mpi.distributing.allocation import Allocation
from lb_mpi.distributing.halo import GraphPart
from lb_mpi.distributing.recorded import Halos
from lb_mpi.emulate import throttle
from lb_mpi.graph import Floats, Ints
from lb_mpi.mpi.common.calls import call, interrupts
from lb_mpi.mpi.common.collective import agree, agree_on, allgather, gather
from lb_mpi.mpi.common.communicator import duplicate, presence_of, wait
from lb_mpi.mpi.common.recorder import recorder, worlds
from lb_mpi.mpi.common.reducing import Reducing
from lb_mpi.mpi.common.tags import MOST, Tag
from lb_mpi.mpi.common.waiting import Clocks
from lb_mpi.mpi.graph.rebalance import NAME, PlanSetting, check_given, rebalance
from lb_mpi.partitioning.quality import MappingCost
from lb_mpi.rebalancing.balance import PlanBalance
from lb_mpi.rebalancing.record import Rebalanced
from lb_mpi.rebalancing.slabs import range_after
from lb_mpi.record.events import Driver, Step, Way
from lb_mpi.record.history import History
from lb_mpi.record.report import Report
from lb_mpi.table import counted

if TYPE_CHECKING:
    from scipy.sparse import csr_array

EXCHANGE = "plan.exchange"  # the name of the call
NOTICED_S = 0.1  # to load the compiled code, that a report names
MOST_KINDS = 16
MOST_BYTES = 2**31 - 1  # of one value: the largest datatype in MPI 3
_MOST_AXES = 64  # of numpy's arrays

_Kind = tuple[Any, tuple[int, ...]]


class _Channel(NamedTuple):
    tag: int
    value: MPI.Datatype
    mine: NDArray[Any]  # to send, rank by rank
    theirs: NDArray[Any]  # the ghosts
    receives: list[MPI.Prequest]  # one for each rank in part.ranks
    requests: list[MPI.Prequest]  # these, and one send for each rank

    def free(self) -> None:
        for request in self.requests:
            request.Free()
        self.value.Free()


class _Orders:
    """The orders in memory of all ranks' values: an exchange that is under way."""

    def __init__(self, comm: MPI.Intracomm, n_local: int, array: NDArray[Any]) -> None:
        self._ndim = array.ndim
        self._mine, self._all = np.zeros(8 + _MOST_AXES, np.int8), np.zeros((comm.size, 8 + _MOST_AXES), np.int8)
        self._mine[:8].view(np.int64)[0] = n_local
        self._mine[8 : 8 + array.ndim] = all_axes(order_of(array), array.ndim)
        self.request = comm.Iallgather(self._mine, self._all)

    @property
    def least(self) -> int:
        """The smallest number of vertices of a rank."""
        return int(self._all[:, :8].copy().view(np.int64).min())

    @property
    def agreed(self) -> Order:
        """The order for a rank that can't know it."""
        counts, axes = self._all[:, :8].copy().view(np.int64)[:, 0].tolist(), self._all[:, 8 : 8 + self._ndim].tolist()
        return agreed([(n, (tuple(order),)) for n, order in zip(counts, axes, strict=True)])[0]


class Quality(NamedTuple):
    """The quality of a distribution."""

    cut: float  # weights of all edges between parts
    cost: MappingCost | None = None  # seconds of computing and communicating; None: unknown
    cost_by_cut: MappingCost | None = None  # of the partition by cut alone, if the aim was another
    connected: bool = False  # the graph is known to be in one piece
    slabs: bool = False  # the parts are contiguous ranges, in the order of the ranks


class HaloPlan:
    """A rank's part of a graph, ready to exchange values with its neighbours; returned by `lb_mpi.distribute`.

        with lb_mpi.distribute(comm, graph) as plan:
            heat = begin(plan.vertices)                    # (n_local, ...) any dtype
            for step in range(steps):
                around = plan.exchange(heat)               # (n_local + n_ghosts, ...): the same, then the ghosts
                heat = compute(around, plan.indptr, plan.indices, plan.weights)
                (heat,) = plan.rebalance(heat)             # optional: vertices move if a rank has become slower

    The neighbours of the owned vertex v are indices[indptr[v]:indptr[v + 1]].  These are indices into `around`, in the
    order of the neighbours' global numbers, so a sum in this order is the same to the last bit in any distribution.

    `allocation.counts` is the number of vertices of mean weight that each rank was meant to get.  The parts may deviate
    from it by up to `imbalance` (3 %), since a lighter cut is worth more than a few vertices.

    Attributes
    ----------
    range : with method="slabs", (begin, end) of the owned vertices: their numbers are begin..end-1; otherwise None.
    cost : an `lb_mpi.MappingCost`, the time of the partition; None if it is not known, as without `unit_s`.
    cost_by_cut : with aim="time", the `lb_mpi.MappingCost` of the partition by cut alone; otherwise None.
    cut : weight of all edges between parts.
    parts : on the root of `distribute`, (n,) the rank of each vertex as distributed; None elsewhere.
    last : a `Rebalanced` that says what the last call of `rebalance` did and why; None before the first call.
    history : the same for all calls.

    The arrays of this rank's part are read-only.  After a call of `rebalance` that has moved vertices they are new ones;
    `parts`, `allocation`, `cost` and `cost_by_cut` are still those of the first distribution.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        part: GraphPart,
        quality: Quality,
        allocation: Allocation | None = None,
        parts: Ints | None = None,
        slow: throttle | None = None,
    ) -> None:
        """Make the plan of this rank's part; collective; works on a duplicate of `comm`."""
        self.range: tuple[int, int] | None = None
        self.part = part
        self.cut, self.cost, self.cost_by_cut, connected, slabs = quality  # on all ranks
        self.allocation = allocation  # target numbers of vertices of mean weight; None: not computed
        self.parts = parts
        own = duplicate(comm)
        n_slabs = 0  # vertices on all ranks, if the parts are slabs
        if slabs:
            lengths = allgather(own, part.n_local)
            end = sum(lengths[: comm.rank + 1])
            self.range, n_slabs = (end - part.n_local, end), sum(lengths)
        self._presence = presence_of(own)
        self._presence.name, self._presence.usual_call = "plan", EXCHANGE
        record = recorder(own)
        how = {"vertices": part.n_local, "weight": float(part.vertex_weights.sum()), "cut": float(self.cut)}
        record.use("exchange", how)
        slow = slow or throttle(1.0)  # an emulated slow rank
        relative = math.nan  # the speeds are unknown
        if allocation is not None:  # whose counts are in proportion to the ranks' speeds
            counts = allocation.counts
            relative = float(counts[comm.rank] / counts.mean()) if counts.any() else 1.0
        cpu_share = (lambda: slow.cpu_share) if slow.rests else None
        self._setting = PlanSetting(self._presence, Reducing(own), slow, record, connected, n_slabs)
        self._halos, self._clocks = Halos(record, relative, cpu_share), Clocks()
        self._record, self._worlds = record, worlds(own)
        self._balance = PlanBalance(part.vertex_weights, math.inf if slabs else float(self.cut))
        self._balance.loads_kernels = own.size > 1 and not slabs
        mine, total = np.array([part.n_ghosts]), np.zeros(1, dtype=np.int64)
        wait(own, own.Iallreduce(mine, total), (mine, total))
        self.n_halo = int(total[0])  # values in an exchange, on all ranks
        self._some_have_one = True  # vertex or none; False: all ranks know the order of their values
        self._channels: dict[_Kind, _Channel] = {}  # the one used last is last; the same order on all ranks

    def __repr__(self) -> str:
        """Show the size of this rank's part."""
        vertices, ghosts = counted(len(self.vertices), "vertex", "vertices"), counted(len(self.ghosts), "ghost")
        return f"<lb_mpi.HaloPlan: {vertices} and {ghosts} on this rank, cut {self.cut:g}>"

    @property
    def vertices(self) -> Ints:
        """(n_local,) global numbers of the owned vertices, ascending."""
        return self.part.vertices

    @property
    def ghosts(self) -> Ints:
        """(n_ghosts,) global numbers of the ghosts: vertices of other ranks with a neighbour on this rank."""
        return self.part.ghosts

    @property
    def indptr(self) -> Ints:
        """(n_local+1,) positions in `indices` where the neighbours of each owned vertex begin."""
        return self.part.indptr

    @property
    def indices(self) -> Ints:
        """(nnz,) the neighbours: 0..n_local-1 are owned vertices, larger numbers are ghosts."""
        return self.part.indices

    @property
    def weights(self) -> Floats:
        """(nnz,) weights of the edges, in the order of `indices`."""
        return self.part.weights

    @property
    def vertex_weights(self) -> Floats:
        """(n_local,) weights of the owned vertices."""
        return self.part.vertex_weights

    @property
    def halo_bytes(self) -> int:
        """The bytes that all ranks together send to exchange one double per vertex."""
        return 8 * self.n_halo

    def matrix(self) -> csr_array:
        """Return this rank's rows of the graph as a (n_local, n_local + n_ghosts) matrix of the weights; not collective.

            product = plan.matrix() @ plan.exchange(x)     # of the whole matrix, without its diagonal

        It shares the arrays of the plan, which are read-only: change a copy.  Ask again after a call of `rebalance` that
        has acted.
        """
        from scipy.sparse import csr_array

        shape = len(self.vertices), len(self.vertices) + len(self.ghosts)
        return csr_array((self.weights, self.indices, self.indptr), shape=shape)

    def exchange(self, values: Any) -> NDArray[Any]:
        """Return the `values` of the owned vertices, followed by those of the ghosts.  Collective.

        Parameters
        ----------
        values : (n_local, ...) array of any dtype except Python objects, or a list of rows of one shape; dtype and shape
            of one value must be the same on all ranks.  Or an (n_local + n_ghosts, ...) array, whose last n_ghosts rows
            are overwritten.

        Returns a new (n_local + n_ghosts, ...) array with the same order in memory (C, Fortran, ...), on every number of
        ranks.  Where a rank owns one vertex or none, its order is that of the rank with the most vertices.

        Raises TypeError or ValueError for invalid values.  The ranks that wait for a rank with such values, or for one
        that exchanges values of another kind, raise `lb_mpi.Error`.  After an error the plan can only be closed.
        """
        self._presence.begin(EXCHANGE)
        self._halos.begin(*self._now())
        try:
            return self._exchange(values)
        except BaseException as error:
            self._presence.send_failure(error)
            raise
        finally:
            self._halos.end(*self._now())

    def rebalance(
        self,
        *values: Any,
        costs: ArrayLike | None = None,
        when: When = "auto",
        every: int = 1,
        tolerance: float = 0.05,
        imbalance: float = 0.03,
        pack: Pack | None = None,
        unpack: Unpack | None = None,
    ) -> tuple[Any, ...]:
        """Move vertices between neighbouring ranks if it saves time; return the `values` of this rank's new vertices.

            heat, degree = plan.rebalance(heat, degree)

        Collective.  In some calls, the opportunities, the ranks exchange measurements and decide; all other calls end at
        once and return the same objects.  Vertices and their rows of the graph move to ranks whose parts touch that of the
        old owner, until all ranks need about the same time for a step; `plan.vertices` and the other arrays of the plan are
        then new.
        Results of a program do not depend on it, to the last bit, if `exchange` is all that couples the ranks.

        Parameters
        ----------
        values : any number of values of the owned vertices, which move with them: arrays (n_local, ...) of any dtype
            except Python objects; scipy.sparse CSR matrices with n_local rows, whose column numbers stay as they are;
            lists of n_local objects, with `pack` and `unpack`.  Dtypes and shapes of one value must be the same on all
            ranks.
        costs : (n_local,) the cost of each vertex, >= 0 and at most 1e100 in sum, in any unit that is the same on all
            ranks; less than 1e-100 counts as 0.  None: as given in an earlier call, at first the vertex weights.  Costs
            move with their vertices.  What they do not explain counts as the speed of the rank, but if no costs were given,
            and vertices have just moved, as the costs of these.  Costs of a call between two opportunities are kept
            unchecked, and used at the next opportunity if that call has none.
        when : when vertices move.  "auto": once it would have saved, had it been made when the imbalance began, what
            the last move cost (before the first one: seven steps); after a move in vain twice as much, then four times, up
            to 64; "always": at every opportunity; a number above 0: if the imbalance is above this bound, but after a move
            in vain as with "auto".
        every : number of calls, >= 1, from one opportunity to the next.  With "auto", opportunities may be rarer if they
            cost much compared with a step.  Calls between two opportunities ignore all arguments but `costs`: a new
            `when`, too, counts from the next one on.
        tolerance : with "auto", an imbalance up to this one is good enough, above 0; 0.05 means 5 %.
        imbalance : about the imbalance that is left, above 0.
        pack, unpack : functions from an object to bytes and back, for lists of objects.

        In any case, vertices move only if the slowest rank is expected to become faster.  Except with "always", a move is
        undone once the parts before it would have saved what a move costs.  It then was in vain, as one for which no better
        parts were found; one that has saved its cost makes up for one in vain.

        Returns a tuple of the values, in the order of `plan.vertices`: new arrays with the same order in memory, new
        matrices, new lists; the same objects if this rank keeps its vertices.

        The speed of a rank is the cost of its vertices / the seconds that it computes between two calls.  The time in
        `exchange` does not count, since it waits there; where the program itself waits, use `waiting`.  The median of the
        last five calls is used (of 10, 20, ... 320 after moves in vain), or the last one alone if two in a row differ
        from it by 25 %.  The time before the first call does not count, as functions may have been compiled in it.  A rank
        keeps at least one vertex.

        Raises, at an opportunity, ValueError or TypeError on every rank if an argument is wrong on any rank or differs, and
        BalanceError on every rank if `pack` or `unpack` fails on any rank (but what is no Exception, such as SystemExit or
        KeyboardInterrupt, is raised again on its rank).  After these errors the old plan and all values are valid.
        A Ctrl-C that comes too late to stop all ranks is raised in the next call but `exchange`.
        """
        self._presence.begin(NAME)
        began, part, balance = time.perf_counter(), self.part, self._balance
        before, later = self._now(), False
        self._halos.begin(*before)
        spent = self._halos.own_s, self._halos.queued_s

        try:
            later = balance.opportunities.skips()
            if later:
                balance.skip(spent, costs)
                last, seconds = balance.opportunities.before, time.perf_counter() - began
                words = BalanceReason.LATER.words
                self.history.append(Rebalanced(False, words, last, last, 0, 0, self.cut, 0, seconds))
                with self._presence.notifying():
                    interrupts().check()
                return values
            options, n = (when, every, tolerance, imbalance), len(part.vertices)
            given = check_given(self._presence.rank, balance, n, options, costs, values, pack, unpack)
            with call(""):  # with Ctrl-C held back until the plan has changed
                moved = rebalance(self._setting, part, balance, spent, given, self.cut)
                if moved is None:
                    return values
                self._some_have_one = True
                if moved.part is not part:
                    self._free()
                    self.part = moved.part
                    if self.range is not None:
                        self.range = range_after(self.range[0], self.vertices, moved.given, self._presence.rank)
                self.cut, self.n_halo = moved.cut, moved.n_ghosts
                for rank, n in moved.given.items():
                    self._record.move(Way.MOVE, self._worlds[rank], n)
                self._halos.moved(began, time.perf_counter(), self._step(began))
                return moved.values
        finally:
            # Between two opportunities, the call itself counts as computing.
            self._halos.go_on(*(before if later else self._now()))

    def _step(self, began: float) -> Step:
        last = self.history[-1]
        return Step(
            Driver.REBALANCE, began, time.perf_counter(), 0.0, 0.0, before=last.imbalance_before,
            after=last.imbalance_after, moved=last.vertices_moved, acted=1, reason=self._record.reason(last.reason),
            home=len(self.vertices), serving_s=last.seconds,
        )  # fmt: skip

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for other ranks in this block, as in a reduction: its time does not count as computing."""
        self._halos.begin(*self._now())
        try:
            yield
        finally:
            self._halos.go_on(*self._now())

    @property
    def history(self) -> History[Rebalanced]:
        """The records of the calls of `rebalance`."""
        return self._balance.history

    @property
    def last(self) -> Rebalanced | None:
        """The record of the last call of `rebalance`; None before the first call."""
        return self.history[-1] if self.history else None

    def owners(self, root: int = 0) -> Ints | None:
        """Return, on the root, (n,) the rank of each vertex; None on other ranks.  Collective."""
        self._presence.begin("lb_mpi.HaloPlan.owners")
        comm = self._presence.comm
        with call("lb_mpi.HaloPlan.owners"), self._presence.notifying():
            given = agree(comm, lambda: integer("root", root, 0, comm.size - 1))
            agree_on(comm, root=given)
            everyone = gather(comm, self.vertices, given)
        if comm.rank != given:
            return None
        owners = np.empty(sum(map(len, everyone)), dtype=np.int64)
        for rank, vertices in enumerate(everyone):
            owners[vertices] = rank
        return owners

    def report(self) -> Report:
        """Return the size and times of each rank's part so far, the same on all ranks; collective; prints as a table."""
        self._presence.begin("lb_mpi.HaloPlan.report")
        part, comm = self.part, self._presence.comm
        with call("lb_mpi.HaloPlan.report"), self._presence.notifying():
            mine = self._halos.rank(comm.rank, part.n_local, part.n_ghosts)
            ranks, loading_s = zip(*allgather(comm, (mine, self._balance.loading_s)), strict=True)
            history = self.history
            vertices = counted(history.n_moved, "vertex", "vertices")
            note = f"{vertices} moved in {counted(history.n_acted, 'rebalancing')}" if history.n_acted else ""
            if (most_s := max(loading_s)) >= NOTICED_S:
                note += f"\nto load the compiled code took up to {most_s:.1f} s, which count as idle"
            return Report(Driver.EXCHANGE, self._halos.n, ranks, note=note.strip())

    def _exchange(self, values: Any) -> NDArray[Any]:
        array = self._check(values)
        part, comm = self.part, self._presence.comm
        n_local, n_ghosts = part.n_local, part.n_ghosts
        channel = self._channel((array.dtype, array.shape[1:]))
        np.take(array, part.send, axis=0, out=channel.mine, mode="clip")
        orders = _Orders(comm, n_local, array) if self._some_have_one and array.ndim > 1 and comm.size > 1 else None
        requests = channel.requests
        if requests:
            MPI.Prequest.Startall(requests)
        if requests or orders:

            def done() -> bool:
                return MPI.Prequest.Testall(requests) and (orders is None or orders.request.Test())

            self._presence.wait(done, (channel, orders), late=lambda: self._stray(channel))
        if orders is not None:
            self._some_have_one = orders.least < 2
        order = order_of(array) if len(array) > 1 or orders is None else orders.agreed
        if array.ndim == 1:  # a rank with one vertex can't know whether the numbers lie backwards
            order = ()
        around = ordered((n_local + n_ghosts, *array.shape[1:]), array.dtype, order)
        around[:n_local] = array[:n_local]
        around[n_local:] = channel.theirs
        if n_ghosts and len(array) > n_local:
            array[n_local:] = channel.theirs
        return around

    def _check(self, values: Any) -> NDArray[Any]:
        if isinstance(values, tuple):
            returned = "rebalance returns a tuple, as in (values,) = plan.rebalance(values)"
            raise TypeError(f"values of type tuple: expected a numpy array{LISTS}; {returned}")
        array = check_column("values", values, LISTS, lists=True)
        n_local, n_all = self.part.n_local, self.part.n_local + self.part.n_ghosts
        if len(array) not in (n_local, n_all):
            expected = f"{counted(n_local, 'row')}, for the owned vertices, or {n_all} with ghosts"
            raise ValueError(f"values of shape {array.shape}: expected {expected}")
        if len(array) == n_all and n_all > n_local and not array.flags.writeable:
            raise ValueError("values with room for ghosts that can't be written to: expected a writeable array")
        return array

    def _channel(self, kind: _Kind) -> _Channel:
        channel = self._channels.pop(kind, None)
        if channel is None:
            if len(self._channels) == MOST_KINDS:
                self._channels.pop(next(iter(self._channels))).free()
            channel = self._open(*kind)
        self._channels[kind] = channel
        return channel

    def _open(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> _Channel:
        part, comm = self.part, self._presence.comm
        size = dtype.itemsize * math.prod(shape)
        if size > MOST_BYTES:
            raise ValueError(f"values of {size} bytes each: expected at most {MOST_BYTES}")
        tag = Tag.HALO + zlib.crc32(repr((layout(dtype), shape)).encode()) % (MOST + 1 - Tag.HALO)
        mine, outbox = _memory(len(part.send), dtype, shape)
        theirs, inbox = _memory(part.n_ghosts, dtype, shape)
        value = MPI.BYTE.Create_contiguous(size).Commit()
        receives, sends = [], []
        for k, rank in enumerate(part.ranks.tolist()):
            begin, end = part.receive_indptr[k : k + 2].tolist()
            receives.append(comm.Recv_init([inbox[size * begin : size * end], end - begin, value], rank, tag))
            begin, end = part.send_indptr[k : k + 2].tolist()
            sends.append(comm.Send_init([outbox[size * begin : size * end], end - begin, value], rank, tag))
        return _Channel(tag, value, mine, theirs, receives, receives + sends)

    def _stray(self, channel: _Channel) -> str | None:
        """Name the lowest rank that has sent something else than the expected values; None if there is none."""
        status, comm = MPI.Status(), self._presence.comm
        for rank, request in zip(self.part.ranks.tolist(), channel.receives, strict=True):
            # Messages of a rank keep their order: had it sent the expected ones first, they would have arrived.
            other = comm.Iprobe(rank, MPI.ANY_TAG, status) and Tag.HALO <= status.Get_tag() != channel.tag
            if other and not request.Get_status():
                return f"rank {rank} exchanges values of another dtype or shape than rank {comm.rank}"
        return None

    def close(self) -> None:
        """Free the MPI resources; collective.  Further calls do nothing."""
        self._close()

    def _now(self) -> tuple[float, float, float]:
        """Read the clocks: seconds now, of CPU time, and waited for a core while the process had none."""
        self._clocks.begin()
        now = self._clocks.read()
        return now.wall_s, now.cpu_s, 0.0 if now.queued_s is None else now.queued_s - now.others_s

    def _free(self) -> None:
        for channel in self._channels.values():
            channel.free()
        self._channels.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close(error)

    def _close(self, error: BaseException | None = None) -> None:
        self._halos.close(time.perf_counter(), time.thread_time())
        self._clocks.end()
        with call("", last=True):
            self._presence.close(self._free, error=error)


def _memory(n: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """A new (n, *shape) array, and its memory as bytes, since MPI does not accept every dtype."""
    memory = np.empty(n * dtype.itemsize * math.prod(shape), dtype=np.uint8)
    return np.ndarray((n, *shape), dtype, buffer=memory.data), memory
