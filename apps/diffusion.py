"""Diffusion of load as Jin and Wang describe it, on real ranks: each rank is a node, and knows its neighbours only.

mpiexec -n 25 python -m apps.diffusion --graph mesh:5x5
mpiexec -n 25 python -m apps.diffusion --graph mesh:5x5 --scheme sos --tolerance 0.01
mpiexec -n 4 python -m apps.diffusion --graph ring:4 --scheme cg --json
mpiexec -n 4 python -m apps.diffusion --graph 2/1,3/2,4/3 --speeds 2,1,1,4 --times 10,4,6,1

Section 4 of the paper: a, each rank computes the weights of its edges; b, until the imbalance of eq. 9 is small, it sends
its time to each neighbour, without waiting, receives theirs, and levels; c, it exchanges d, the sum of its times, which
gives the flow over each edge, and the work is transferred.  Steps and flow are those of `lb_mpi.balance`, to the last bit.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from apps.command import app, run
from lb_mpi.checks import integer, number
from lb_mpi.cli.balance import STEPPING, add_options, describe, figures, read_ranks
from lb_mpi.cli.run.options import GRAPH
from lb_mpi.diffusion.diffusion import Balance, cancel_cycles, edges_at, scheme_of
from lb_mpi.diffusion.setup import OneRank, Setup, Value, prepare
from lb_mpi.graph import Floats, Ints, most_square_mesh
from lb_mpi.graph_files import as_graph
from lb_mpi.mpi.common.collective import agree, allgather, bcast
from lb_mpi.mpi.common.communicator import Presence, duplicate, presence_of, wait
from lb_mpi.mpi.common.tags import Tag


class _Ends(OneRank):
    """The edges of one rank; only cg adds up numbers of all ranks."""

    def __init__(self, comm: MPI.Intracomm, neighbours: Ints, tau: Floats) -> None:
        super().__init__(comm.rank, neighbours, tau)
        self._comm = comm

    def sums(self, *values: Value) -> list[float]:
        """Add up in the order of the ranks, as on a whole graph."""
        found: list[float] = np.ascontiguousarray(np.array(allgather(self._comm, values)).T).sum(axis=1).tolist()
        return found


def exchange_rows(presence: Presence, neighbours: Sequence[int], mine: Floats) -> Floats:
    """Send (n,) numbers, or row k of (deg, n), to neighbour k; return (deg, n), row k from neighbour k.

    Jin and Wang's exchange: a non-blocking send to each neighbour, then a receive from each.
    """
    comm, wait, tag = presence.comm, presence.wait, int(Tag.NEIGHBOUR)
    rows = [mine] * len(neighbours) if mine.ndim == 1 else np.ascontiguousarray(mine)
    theirs = np.empty((len(neighbours), mine.shape[-1]))
    sends = [comm.Isend(row, rank, tag) for row, rank in zip(rows, neighbours, strict=True)]
    for row, rank in zip(theirs, neighbours, strict=True):
        wait(comm.Irecv(row, rank, tag).Test, (theirs, rows, sends))
    for send in sends:
        wait(send.Test, (rows, sends))
    return theirs


def diffuse(comm: MPI.Intracomm, setup: Setup, load: float, mean: float, tolerance: float, max_steps: int) -> Balance:
    """Collective: level this rank's load with its neighbours' loads; `mean` is the balanced time.

    Returns what `lb_mpi.balance` returns, but of this rank: (deg,) flow to its neighbours, and (1,) its load afterwards.
    """
    own = duplicate(comm)
    presence, near = presence_of(own), setup.graph.neighbours(comm.rank)
    # a: the weights of this rank's edges
    ends = _Ends(own, near, setup.tau[edges_at(setup.graph, comm.rank)])
    scheme = scheme_of(setup, ends, load / float(setup.speeds[comm.rank]), mean, comm.rank)

    def exchange(value: float) -> None:
        ends.received = exchange_rows(presence, near.tolist(), np.array([value]))[:, 0]

    def levels() -> tuple[float, bool]:
        """The imbalance of all ranks, and whether one of them has to give more than it has."""
        ratio = scheme.time / mean if mean > 0.0 else scheme.time
        most = np.array([ratio, -scheme.time])
        wait(own, own.Iallreduce(MPI.IN_PLACE, most, MPI.MAX), most)
        return max(0.0, float(most[0]) - 1.0), float(most[1]) > 0.0

    # b: level with the neighbours until the times agree
    imbalance = []
    while True:
        level, short = levels()
        imbalance.append(level)
        converged = level <= tolerance and not short
        if converged or len(imbalance) > max_steps:
            break
        exchange(scheme.shared)
        scheme.step()
    # c: the flow, and the transfer of work
    exchange(scheme.potential)
    flow = scheme.flow()
    if setup.scheme == "dimension_exchange":
        flow = _without_cycles(own, setup, flow)
    given = exchange_rows(presence, near.tolist(), np.maximum(flow, 0.0).reshape(-1, 1))[:, 0]
    after = float(load - ends.outflow(np.maximum(flow, 0.0) - given))
    presence.close()
    return Balance(len(imbalance) - 1, converged, imbalance, flow, np.array([after]))


def _without_cycles(comm: MPI.Intracomm, setup: Setup, flow: Floats) -> Floats:
    """The (deg,) flow of this rank, when work that only circles has been removed from that of all ranks."""
    whole = cancel_cycles(setup.graph, _merged(setup, allgather(comm, flow)))
    mine = edges_at(setup.graph, comm.rank)
    return np.where(setup.graph.edges()[0][mine] == comm.rank, 1.0, -1.0) * whole[mine]


def _merged(setup: Setup, flows: list[Floats]) -> Floats:
    """(E,) the flow over all edges, from the (deg,) flow of each rank; both ends of an edge agree."""
    whole, tails = np.zeros(setup.graph.n_edges), setup.graph.edges()[0]
    for rank, flow in enumerate(flows):
        mine = edges_at(setup.graph, rank)
        outward = tails[mine] == rank
        whole[mine[outward]] = flow[outward]
    return whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the app."""
    parser.add_argument("--graph", help=f"the process graph: {GRAPH} (default: the most square mesh of all ranks)")
    add_options(parser, STEPPING)


def main(comm: MPI.Intracomm, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Level the ranks, and show what moved."""
    name = options.graph or "mesh:{}x{}".format(*most_square_mesh(comm.size))

    def begin() -> tuple[Setup, Floats, Floats] | None:
        if comm.rank:
            return None
        number("tolerance", options.tolerance, above=0.0)
        integer("steps", options.steps, 0)
        graph = as_graph(name)
        if graph.n != comm.size:
            raise ValueError(f"graph {name} has {graph.n} vertices: expected {comm.size}, one for each rank")
        ranks = read_ranks(options, graph.n)
        setup = prepare(graph, ranks.speeds, options.scheme)
        return setup, ranks.loads, setup.mean_times(ranks.loads)

    setup, loads, mean = bcast(comm, agree(comm, begin))
    found = diffuse(comm, setup, float(loads[comm.rank]), float(mean[comm.rank]), options.tolerance, options.steps)
    flows, after = allgather(comm, found.flow), allgather(comm, float(found.loads[0]))
    whole = Balance(found.steps, found.converged, found.imbalance, _merged(setup, flows), np.array(after))
    result = figures(name, setup, loads, whole)
    return result, describe(result) if comm.rank == 0 else []


COMMAND = app("diffusion", "diffusion of load between neighbours, on real ranks; each rank is a node", add_arguments, main)

if __name__ == "__main__":
    run(COMMAND)
