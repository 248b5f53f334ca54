"""Static balancing: the root assigns the vertices of a task graph to ranks, and sends each rank its part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike

from lb_mpi import checks
from lb_mpi.checks import choice, function, integer, number
from lb_mpi.distributing.allocation import Allocation, allocate
from lb_mpi.distributing.halo import Piece, Pieces, block_parts, part_of, random_parts
from lb_mpi.emulate import throttle
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.graph_files import as_graph
from lb_mpi.machine import Machine
from lb_mpi.metrics import check_parts, check_speeds, usual_arithmetic
from lb_mpi.mpi.common.collective import agree, agree_on, allgather, bcast, opened
from lb_mpi.mpi.common.communicator import wait
from lb_mpi.mpi.common.speeds import known_speeds
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.graph.halo import HaloPlan, Quality
from lb_mpi.mpi.graph.rebalance import load_kernels
from lb_mpi.mpi.graph.speed import Kernel, confirmed, measure
from lb_mpi.partitioning.partition import AIMS, EFFORTS, partition
from lb_mpi.partitioning.quality import check_machine, cut, mapping_cost
from lb_mpi.rebalancing.balance import MOST_COSTS, NEGLIGIBLE
from lb_mpi.rebalancing.slabs import slabs

METHODS = ("static", "slabs", "multilevel-spectral", "block", "random")
PARTITIONERS = {"static": "multilevel", "multilevel-spectral": "multilevel-spectral"}
WITHOUT_SPEEDS = ("block", "random")


@usual_arithmetic
def distribute(
    comm: MPI.Intracomm,
    graph: Any,
    *,
    root: int = 0,
    method: str = "static",
    speeds: ArrayLike | None = None,
    machine: Machine | None = None,
    kernel: Kernel | None = None,
    unit_s: float | None = None,
    imbalance: float = 0.03,
    effort: str = "good",
    seed: int = 0,
    parts: ArrayLike | None = None,
    aim: str = "cut",
    emulated_speed: float | Callable[[], float] = 1.0,
) -> HaloPlan:
    """Distribute the vertices of a task graph over the ranks of `comm` by their speeds, with few edges cut.

    Collective.  Works on duplicates of `comm`.  `root` must be the same on all ranks.  `kernel` and `emulated_speed`
    are used on every rank, all other arguments on the root only.  The graph's vertex weights are work; its edge weights
    are the bytes exchanged.  The root decides, and needs memory for the whole graph; the other ranks sleep until they
    receive their part.

    Parameters
    ----------
    comm : an mpi4py intracommunicator of P ranks.
    graph : on the root, a graph of n vertices in any form that `lb_mpi.as_graph` accepts: an `lb_mpi.Graph`, a networkx
        graph, a symmetric scipy.sparse matrix, a name or the path of a file.
    root : number of the rank that has the graph.
    method : "static": numbers of vertices by `lb_mpi.allocate`, then parts by `lb_mpi.partition`; a rank whose help would
        not make the step shorter gets no vertices.  "slabs": such numbers too, but each rank gets a contiguous range of
        vertices, in the order of the ranks, of which `HaloPlan.rebalance` moves only the ends: for programs that exchange
        halos themselves, and need rows in their order (`HaloPlan.range`).  For comparison:
        "multilevel-spectral", the same with this method of `partition`; and two methods that ignore speeds, "block"
        (equal numbers of vertices, in the order of the graph) and "random" (equal numbers, at random).
    speeds : (P,) speeds of the ranks, above 0, in any unit; None: those of the `machine`; without one, those that an
        earlier pool, plan or `measure` of `comm` has found, if a short measurement confirms them and no `kernel` is given;
        otherwise they are measured.
    machine : an `lb_mpi.Machine`, measured earlier with the same ranks on the same hosts; None: measured as needed.
    kernel : typical work with which speeds are measured (see `lb_mpi.measure`); on all ranks or on none.
    unit_s : seconds, above 0, that work of vertex weight 1 takes on the fastest rank.  If given, the allocation also
        considers the costs of messages (those of the machine, or measured), and the plan has a `cost`.  None: the
        allocation considers speeds only.  All values for a rank are sent in one message, so an exchange along an edge
        costs the time for its bytes, not the latency.
    imbalance : how far the weight of a part may exceed its target, >= 0; 0.03 means 3 %.
    effort : of the partitioner: "fast", "good" or "best".
    seed : integer >= 0, of the random numbers of the partitioner and of "random".
    parts : (n,) the rank of each vertex, 0..P-1; if given, nothing is measured or computed.  With method="slabs", they
        must be ascending.
    aim : "cut", or "time", which needs `unit_s` (see `lb_mpi.partition`); with "time" the plan also has a
        `cost_by_cut`.
    emulated_speed : makes this rank as slow as a machine of this relative speed, above 0 and at most 1, where speeds
        are measured and where its time is recorded, or a function that returns the speed of the moment; may differ by
        rank.  What the program computes between the calls is not slowed down: use `lb_mpi.throttle`.

    Returns this rank's `lb_mpi.HaloPlan`; close it, or use it in a `with` statement.

    Raises ValueError or TypeError on every rank if an argument is wrong on any rank.
    """
    with opened(comm, "lb_mpi.distribute") as own:
        first = agree(own, lambda: integer("root", root, 0, own.size - 1))
        agree(own, lambda: function("kernel", kernel, optional=True))
        slow = agree(own, lambda: throttle(emulated_speed, "emulated_speed"))
        agree_on(own, root=first, kernel=None if kernel is None else "a function")
        on_root = own.rank == first
        tasks = agree(own, lambda: as_graph(graph) if on_root else None)
        hosts = tuple(allgather(own, MPI.Get_processor_name()))
        options = _Options(hosts, method, speeds, machine, unit_s, imbalance, effort, seed, parts, aim)
        wanted = agree(own, lambda: options.check(tasks) if tasks is not None else None)
        of_speeds, of_messages, partitions = bcast(own, wanted, first)
        known = known_speeds(own, slow.speed) if of_speeds and kernel is None else None
        if known is not None and confirmed(own, known, hosts, slow):
            of_speeds, options = False, options._replace(speeds=known.speeds)
        if of_speeds or of_messages:
            rounds = 5 if of_speeds else 1
            measured = measure(own, kernel, messages=of_messages, rounds=rounds, emulated_speed=slow.speed)
            options = options._replace(machine=measured)
        decided = agree(own, lambda: _load(partitions) if tasks is None else _decide(tasks, options))
        quality, allocation = bcast(own, decided and decided[2:], first)
        piece = _scatter(own, decided and decided[1], first)
        part = agree(own, lambda: part_of(piece, own.rank))
        return HaloPlan(own, part, quality, allocation, decided and decided[0], slow)


class _Options(NamedTuple):
    """The arguments that are used on the root only."""

    hosts: tuple[str, ...]
    method: str
    speeds: ArrayLike | None
    machine: Machine | None
    unit_s: float | None
    imbalance: float
    effort: str
    seed: int
    parts: ArrayLike | None
    aim: str

    @property
    def partitions(self) -> bool:
        """True if the parts are those of a partitioner."""
        return self.parts is None and self.method in PARTITIONERS

    def check(self, graph: Graph) -> tuple[bool, bool, bool]:
        """Check the arguments for this graph; return whether speeds and messages must be measured; and `partitions`."""
        n = graph.n
        weight = float(graph.vertex_weights.sum())
        if weight and not NEGLIGIBLE <= weight <= MOST_COSTS:
            raise ValueError(f"graph with vertex weights of sum {weight}: expected 0, or {NEGLIGIBLE} to {MOST_COSTS}")
        choice("method", self.method, METHODS)
        choice("effort", self.effort, EFFORTS)
        choice("aim", self.aim, AIMS)
        checks.seed(self.seed)
        number("imbalance", self.imbalance, least=0.0)
        if self.unit_s is not None:
            number("unit_s", self.unit_s, above=0.0, unit="seconds")
        if self.speeds is not None:
            check_speeds(self.speeds, len(self.hosts))
        if self.machine is not None:
            check_machine(self.machine, len(self.hosts), None)
            for rank, (measured, here) in enumerate(zip(self.machine.hosts, self.hosts, strict=True)):
                if measured != here:
                    raise ValueError(f"machine with rank {rank} on host {measured}: expected {here} (measure it anew)")
        if self.parts is not None:
            parts = check_parts(self.parts, n, len(self.hosts))
            falls = np.flatnonzero(np.diff(parts) < 0)
            if self.method == "slabs" and len(falls):
                v = int(falls[0]) + 1
                raise ValueError(
                    f"parts[{v}] = {parts[v]} after {parts[v - 1]} with method = 'slabs': expected ascending parts"
                )
        if self.aim != "cut" and not self.partitions:
            given = "parts" if self.parts is not None else f"method = {self.method!r}"
            raise ValueError(f"aim = {self.aim!r} with {given}: expected 'cut'")
        if self.parts is not None or self.method in WITHOUT_SPEEDS:
            return False, False, False
        if self.aim == "time" and self.unit_s is None:
            raise ValueError("aim = 'time' without unit_s: expected the seconds of a unit of work on the fastest rank")
        unknown = self.machine is None
        return unknown and self.speeds is None, unknown and self.unit_s is not None, self.partitions

    def costs(self) -> Machine | None:
        """The costs of work and messages; None if they are not known."""
        if self.machine is None or self.unit_s is None:
            return None
        speeds = check_speeds(self.machine.speeds if self.speeds is None else self.speeds, len(self.hosts))
        return Machine(self.hosts, speeds, self.machine.latency_s, self.machine.s_per_byte)


def _load(partitions: bool) -> None:
    """Load the kernels with which vertices move, if the root `partitions`: it loads most of them, too, meanwhile."""
    if partitions:
        load_kernels()


def _decide(graph: Graph, options: _Options) -> tuple[Ints, Pieces, Quality, Allocation | None]:
    """Return (n,) the rank of each vertex; the ranks' pieces; the quality; and the allocation."""
    size, allocation, by_cut = len(options.hosts), None, None
    machine = options.costs()
    if options.parts is not None:
        owners = check_parts(options.parts, graph.n, size)
    elif options.method == "block":
        owners = block_parts(graph.n, size)
    elif options.method == "random":
        owners = random_parts(graph.n, size, options.seed)
    else:
        allocation = allocation_of(graph, size, options.speeds, options.machine, options.unit_s)
        owners = _by_counts(graph, allocation, options)
        if options.aim == "time" and machine is not None:
            from lb_mpi.kernels import held_interrupts  # here, since it imports numba
            from lb_mpi.partitioning.shorten import shorten

            effort, seed = options.effort, options.seed
            by_cut = mapping_cost(graph, owners, machine, unit_s=options.unit_s)
            with held_interrupts():
                owners = shorten(graph, owners, machine, unit_s=options.unit_s, effort=effort, seed=seed)
    _load(options.partitions)
    cost = None if machine is None else mapping_cost(graph, owners, machine, unit_s=options.unit_s)
    quality = Quality(cut(graph, owners, size), cost, by_cut, graph.components()[0] == 1, options.method == "slabs")
    return owners, Pieces(graph, owners, size), quality, allocation


def _by_counts(graph: Graph, allocation: Allocation, options: _Options) -> Ints:
    """(n,) the rank of each vertex; ranks with a count of 0 get none."""
    ranks = np.flatnonzero(allocation.counts)
    if options.method == "slabs":
        return np.repeat(ranks, np.diff(slabs(graph.n, graph.vertex_weights, allocation.counts[ranks]), prepend=0))
    parts: Ints = partition(
        graph,
        len(ranks),
        targets=allocation.counts[ranks].astype(float),
        imbalance=options.imbalance,
        effort=options.effort,
        seed=options.seed,
        method=PARTITIONERS[options.method],
    )
    return ranks[parts]


def allocation_of(
    graph: Graph, size: int, speeds: ArrayLike | None, machine: Machine | None, unit_s: float | None
) -> Allocation:
    """Return the number of vertices of mean weight that each of `size` ranks should get; see `distribute`."""
    fast = check_speeds(machine.speeds if speeds is None and machine is not None else np.asarray(speeds), size)
    times = (float(graph.vertex_weights.mean()) or 1.0) * (fast.max() / fast)
    if unit_s is None or machine is None or graph.n < 2:
        return allocate(graph.n, times)
    edge_bytes = float(graph.weights.mean()) if graph.n_edges else 0.0
    others = max(size - 1, 1)
    exchange: Floats = edge_bytes * machine.s_per_byte.sum(axis=1) / others
    pairs = graph.n * (graph.n - 1.0) / 2.0
    return allocate(graph.n, unit_s * times, edge_probability=graph.n_edges / pairs, exchange=exchange)


def _scatter(comm: MPI.Intracomm, pieces: Pieces | None, root: int) -> Piece:
    """Return this rank's piece, if all ranks have memory.  The root makes one at a time, and never a second graph."""
    sizes = agree(comm, lambda: None if pieces is None else pieces.sizes())
    size = np.empty(2, dtype=np.int64)
    wait(comm, comm.Iscatter(sizes, size, root), (sizes, size))
    mine = agree(comm, lambda: _empty(*size.tolist()) if pieces is None else None)
    if pieces is None:
        assert mine is not None
        for request in [comm.Irecv(array, root, Tag.PART) for array in mine]:
            wait(comm, request, mine)
        return mine
    for rank in range(comm.size):
        if rank != root:
            piece = pieces[rank]
            for request in [comm.Isend(array, rank, Tag.PART) for array in piece]:
                wait(comm, request, piece)
    return pieces[root]


def _empty(n: int, nnz: int) -> Piece:
    vertices, indptr, neighbours, owners = (np.empty(length, np.int64) for length in (n, n + 1, nnz, nnz))
    return Piece(vertices, indptr, neighbours, owners, np.empty(nnz), np.empty(n))
