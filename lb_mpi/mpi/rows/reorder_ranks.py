"""An arrangement put to use: a communicator whose ranks sit where diffusion converges fastest."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike

from lb_mpi import checks
from lb_mpi.arranging.arrange import arrange
from lb_mpi.graph import Floats, Graph
from lb_mpi.metrics import check_speeds
from lb_mpi.mpi.common.collective import agree, agree_on, opened, wait
from lb_mpi.mpi.rows.exchange import fingerprint
from lb_mpi.mpi.rows.process_graph import graph_of_ranks


def reorder_ranks(
    comm: MPI.Intracomm,
    graph: Any,
    speeds: ArrayLike,
    *,
    objective: str = "uniform",
    method: str = "swap",
    seed: int = 0,
) -> MPI.Intracomm:
    """A new communicator of the same processes: its rank k is the one that ought to sit at vertex k of `graph`.

    Collective.  `speeds` (P,) are those of the ranks of `comm`, the same on all ranks; the others as for `lb_mpi.arrange`.
    Rank 0 computes, the others are told.  Free the communicator when it isn't needed any more; `comm` stays as it is.

        placed = lb_mpi.reorder_ranks(comm, graph, comm.allgather(my_speed))
        balancer = lb_mpi.Balancer(placed, ...)

    ValueError or TypeError on every rank when an argument is wrong on any, or not the same on all.
    """
    with opened(comm, "lb_mpi.reorder_ranks") as own:
        layout, checked, number = agree(own, lambda: _check(own.size, graph, speeds, seed))
        options: dict[str, Any] = {"objective": objective, "method": method, "seed": number}
        agree_on(own, graph=fingerprint(layout), speeds=checked.tolist(), **options)
        on_root = own.rank == 0
        found = agree(own, lambda: arrange(layout, checked, **options).vertices if on_root else None)
        places = np.empty(own.size, dtype=np.int64) if found is None else found
        wait(own, own.Ibcast(places), places)
        return MPI.Intracomm(own.Split(0, int(places[own.rank])))  # all ranks are here


def _check(size: int, graph: Any, speeds: ArrayLike, seed: int) -> tuple[Graph, Floats, int]:
    return graph_of_ranks(graph, size), check_speeds(speeds, size), checks.seed(seed)
