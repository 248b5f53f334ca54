"""Any shape of a graph will do at every door that is opened by all ranks, and what is none is refused alike."""

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.graph import mesh

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
pytestmark = pytest.mark.mpi


def arranged(graph: Any) -> None:
    lb_mpi.reorder_ranks(COMM, graph, np.arange(1.0, SIZE + 1)).Free()


DOORS: dict[str, Callable[[Any], Any]] = {
    "Balancer": lambda graph: lb_mpi.Balancer(COMM, graph=graph).close(),
    "reorder_ranks": arranged,
    "distribute": lambda graph: lb_mpi.distribute(COMM, graph, method="block").close(),
}


@pytest.mark.parametrize("door", DOORS)
def test_any_shape_of_a_graph(door: str) -> None:
    path = nx.path_graph(SIZE)
    for graph in (f"mesh:1x{SIZE}", path, mesh(1, SIZE).to_scipy()):
        DOORS[door](graph)
    for wrong, kind in (("grid:3x3", OSError), (np.eye(3), TypeError), ("mesh:0x3", ValueError)):
        with pytest.raises(kind) as caught:
            DOORS[door](wrong if RANK == 0 else path)
        expected = {OSError: "there is none of this name", TypeError: "scipy.sparse matrix", ValueError: "mesh:0x3"}[kind]
        assert expected in str(caught.value)


def test_what_a_door_returns_shows_its_rank_and_its_state() -> None:
    place = f"rank {RANK} of {SIZE}"
    with lb_mpi.Pool(COMM) as pool:
        assert repr(pool) == f"<lb_mpi.Pool: {place}, open>"
    assert repr(pool) == f"<lb_mpi.Pool: {place}, closed>"
    with lb_mpi.Balancer(COMM) as balancer:
        balancer.map_rows(np.cos, np.ones(5))
        assert repr(balancer) == f"<lb_mpi.Balancer: {place}, 1 call, open>"
    assert repr(balancer) == f"<lb_mpi.Balancer: {place}, 1 call, closed>"
    executor = lb_mpi.Executor(COMM)
    assert repr(executor) == f"<lb_mpi.Executor: {place}, open>"
    with executor:
        pass
    assert repr(executor) == f"<lb_mpi.Executor: {place}, shut down>"
    with lb_mpi.distribute(COMM, f"ring:{8 * SIZE}", method="block") as plan:
        assert repr(plan).startswith("<lb_mpi.HaloPlan: 8 vertices and ")
