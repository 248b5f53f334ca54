"""Diffusion on real ranks, written down as Jin and Wang describe it."""

import numpy as np
from mpi4py import MPI

from lb_mpi.diffusion.setup import OneRank, Setup, ThreeTerm
from lb_mpi.graph import Floats, Graph
from lb_mpi.mpi.common.presence import duplicate, presence_of
from lb_mpi.mpi.rows.plans import exchange_rows
from tests.diffusing import pairs_of


def diffuse(comm: MPI.Intracomm, graph: Graph, setup: Setup, loads: Floats, tolerance: float) -> tuple[int, Floats]:
    """Collective: steps until all ranks are within the tolerance, and this rank's (deg,) flow."""
    rank, presence = comm.rank, presence_of(duplicate(comm))
    neighbours, (tails, heads) = graph.neighbours(rank), graph.edges()
    mean, speed = float(setup.mean_times(loads)[rank]), float(setup.speeds[rank])
    ends = OneRank(rank, neighbours, setup.tau[(tails == rank) | (heads == rank)])
    one = ThreeTerm(ends, float(loads[rank] / speed), speed, mean, pairs_of(setup))

    def hear(value: float) -> None:
        ends.heard = exchange_rows(presence, neighbours.tolist(), np.array([value]))[:, 0]

    steps = 0
    while comm.allreduce(0.0 <= one.time <= (1.0 + tolerance) * mean, MPI.LAND) is False:
        hear(one.time)
        one.step()
        steps += 1
    hear(one.potential)
    flow = one.flow()
    presence.close()
    return steps, flow
