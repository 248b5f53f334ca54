"""Static balancing: the root decides how many and which vertices of a task graph each rank gets, and sends each its part."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike

from lb_mpi.distributing.allocation import Allocation, allocate
from lb_mpi.distributing.halo import Piece, Pieces, block_parts, part_of, random_parts
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.graph_files import as_graph
from lb_mpi.machine import Machine
from lb_mpi.metrics import check_parts, check_speeds
from lb_mpi.mpi.collective import agree
from lb_mpi.mpi.halo import HaloPlan
from lb_mpi.mpi.speed import Kernel, measure
from lb_mpi.mpi.waiting import wait
from lb_mpi.partitioning.partition import partition
from lb_mpi.partitioning.quality import cut

METHODS = ("static", "block", "random")
_TAG = 1


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
    speed: float = 1.0,
) -> HaloPlan:
    """Deal out the vertices of a task graph to the ranks of `comm`, each as much as it can do, with few edges cut.

    Collective.  Works on duplicates of `comm`.  All arguments but `comm`, `root`, `kernel`, `speed` count on the root only.
    The graph's vertex weights are work, its edge weights the bytes that are exchanged.  The root, which needs memory
    for the whole graph, decides; the others receive their part, and sleep until it comes.

    Parameters
    ----------
    graph : on the root: an `lb_mpi.graph.Graph`, a networkx graph, a symmetric scipy.sparse matrix, or a file's path (see
        `lb_mpi.partition`).
    method : "static": counts from `lb_mpi.allocate`, then `lb_mpi.partition`.  For comparison, whatever the
        speeds: "block", equal numbers of vertices in the order of the graph; "random", equal numbers dealt at random.
    speeds : (P,) of the ranks, in any unit; None: those of the `machine`, or else they are measured.
    machine : as measured before (see `lb_mpi.machine`), with the same ranks on the same hosts.
    kernel : typical work to measure speeds with, see `lb_mpi.measure`; on all ranks, or on none.
    unit_s : seconds that work of vertex weight 1 takes on the fastest rank.  Given that, the costs of messages (the
        machine's, or measured) count in the allocation, otherwise it is by speed alone.  Values for one rank travel in
        one message, so an exchange costs the time for the bytes of an edge, not the latency.
    imbalance : how far a part may exceed its target, relatively.
    effort : of the partitioner: "fast", "good", "best".
    seed : of the partitioner, and of "random".
    parts : (n,) the rank of each vertex; given that, nothing is measured or computed.
    speed : emulate a rank of this relative speed, 0 < speed <= 1, where speeds are measured; may differ by rank.

    Returns this rank's `lb_mpi.mpi.halo.HaloPlan`; close it, or use it in a `with` statement.

    ValueError or TypeError on every rank when an argument is wrong on any.
    """
    if not isinstance(comm, MPI.Intracomm):
        raise TypeError(f"comm = {comm!r}: expected an mpi4py intracommunicator")
    own = comm.Dup()
    try:
        agree(own, lambda: _check_root(root, own.size))
        on_root = own.rank == root
        tasks = agree(own, lambda: as_graph(graph) if on_root else None, patient=True)
        wants = _Wants(False, False)
        if on_root:
            measured = method == "static" and parts is None and machine is None
            wants = _Wants(measured and speeds is None, measured and unit_s is not None)
        hosts = tuple(own.allgather(MPI.Get_processor_name()))
        check = _Check(tasks.n if tasks else 0, hosts, method, speeds, machine, unit_s, imbalance, parts)
        agree(own, lambda: check.all() if on_root else None)
        wants = own.bcast(wants, root)
        if wants.speeds or wants.messages:
            machine = measure(own, kernel, messages=wants.messages, rounds=5 if wants.speeds else 1, speed=speed)

        def decide() -> tuple[Ints, Allocation | None] | None:
            if tasks is None:
                return None
            if parts is not None:
                return check_parts(parts, tasks.n, own.size), None
            if method == "block":
                return block_parts(tasks.n, own.size), None
            if method == "random":
                return random_parts(tasks.n, own.size, seed), None
            allocation = allocation_of(tasks, own.size, speeds, machine, unit_s)
            return _partition(tasks, allocation, imbalance, effort, seed), allocation

        decided = agree(own, decide, patient=True)
        pieces, cut_weight, allocation, owners = None, 0.0, None, None
        if tasks is not None and decided is not None:
            owners, allocation = decided
            pieces, cut_weight = Pieces(tasks, owners, own.size), cut(tasks, owners, own.size)
        cut_weight, allocation = own.bcast((cut_weight, allocation), root)
        part = part_of(_scatter(own, pieces, root), own.rank)
        return HaloPlan(own, part, cut_weight, allocation, owners)
    finally:
        own.Free()


class _Wants(NamedTuple):
    """What has to be measured."""

    speeds: bool
    messages: bool


class _Check(NamedTuple):
    """The arguments on the root, before anything is measured."""

    n: int  # vertices
    hosts: tuple[str, ...]
    method: str
    speeds: ArrayLike | None
    machine: Machine | None
    unit_s: float | None
    imbalance: float
    parts: ArrayLike | None

    def all(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method = {self.method!r}: expected one of {', '.join(METHODS)}")
        if self.speeds is not None:
            check_speeds(self.speeds, len(self.hosts))
        if self.machine is not None and not isinstance(self.machine, Machine):
            raise TypeError(f"machine = {self.machine!r}: expected an lb_mpi.machine.Machine")
        if self.machine is not None:
            self._check_machine(self.machine)
        for name, value in (("unit_s", 1.0 if self.unit_s is None else self.unit_s), ("imbalance", self.imbalance)):
            lowest = 0.0 if name == "imbalance" else math.ulp(0.0)
            if not isinstance(value, int | float) or not lowest <= value < math.inf:
                raise ValueError(f"{name} = {value!r}: expected a finite number {'>=' if lowest == 0.0 else '>'} 0")
        if self.parts is not None:
            check_parts(self.parts, self.n, len(self.hosts))

    def _check_machine(self, machine: Machine) -> None:
        if machine.size != len(self.hosts):
            raise ValueError(f"machine of {machine.size} ranks: expected {len(self.hosts)}")
        for rank, (measured, here) in enumerate(zip(machine.hosts, self.hosts, strict=True)):
            if measured != here:
                raise ValueError(f"machine with rank {rank} on host {measured}: expected {here} (measure it anew)")


def _check_root(root: object, size: int) -> None:
    if isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < size:
        raise ValueError(f"root = {root!r}: expected 0..{size - 1}")


def allocation_of(
    graph: Graph, size: int, speeds: ArrayLike | None, machine: Machine | None, unit_s: float | None
) -> Allocation:
    """How many vertices of mean weight each of `size` ranks should get; see `distribute`."""
    fast = check_speeds(machine.speeds if speeds is None and machine is not None else np.asarray(speeds), size)
    mean = float(graph.vertex_weights.mean()) or 1.0
    if unit_s is None or machine is None or graph.n < 2:
        return allocate(graph.n, mean * fast.max() / fast)
    edge_bytes = float(graph.weights.mean()) if graph.n_edges else 0.0
    others = max(size - 1, 1)
    exchange: Floats = edge_bytes * machine.s_per_byte.sum(axis=1) / others
    return allocate(
        graph.n,
        unit_s * mean * fast.max() / fast,
        edge_probability=2.0 * graph.n_edges / (graph.n * (graph.n - 1.0)),
        exchange=exchange,
    )


def _partition(graph: Graph, allocation: Allocation, imbalance: float, effort: str, seed: int) -> Ints:
    """(n,) the rank of each vertex; ranks that are to get nothing don't take part in the partition."""
    ranks = np.flatnonzero(allocation.counts)
    targets = allocation.counts[ranks].astype(float)
    owners: Ints = ranks[
        partition(graph, len(ranks), targets=targets, imbalance=imbalance, effort=effort, seed=seed)
    ]
    return owners


def _scatter(comm: MPI.Intracomm, pieces: Pieces | None, root: int) -> Piece:
    """This rank's piece.  The root makes one after the other: it never holds a second graph."""
    size = np.empty(2, dtype=np.int64)
    comm.Scatter(None if pieces is None else pieces.sizes(), size, root)
    if pieces is None:
        n, nnz = size.tolist()
        vertices, indptr, neighbours, owners = (np.empty(length, np.int64) for length in (n, n + 1, nnz, nnz))
        piece = Piece(vertices, indptr, neighbours, owners, np.empty(nnz), np.empty(n))
        for request in [comm.Irecv(array, root, _TAG) for array in piece]:
            wait(request)
        return piece
    for rank in range(comm.size):
        if rank != root:
            for request in [comm.Isend(array, rank, _TAG) for array in pieces[rank]]:
                wait(request)
    return pieces[root]
