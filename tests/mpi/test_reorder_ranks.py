"""Arranged communicators on real MPI: who sits where, and mistakes on any rank."""


import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from apps.diffusion import diffuse
from lb_mpi.diffusion.diffusion import balance
from lb_mpi.diffusion.setup import prepare
from lb_mpi.graph import mesh, most_square_mesh
from tests.mpi.sizes import COMM, RANK, SIZE, parameters, several

SPEEDS = np.random.default_rng(7).uniform(1, 10, SIZE)
pytestmark = pytest.mark.mpi


WAYS = [(objective, method) for method in ("paper", "fill", "swap") for objective in ("uniform", "paper")]


@pytest.mark.one_mpi
@pytest.mark.parametrize(("objective", "method"), parameters(WAYS, every_size=[("uniform", "fill"), ("paper", "swap")]))
def test_ranks_sit_where_they_ought_to(objective, method):
    graph = mesh(*most_square_mesh(SIZE))
    placed = lb_mpi.reorder_ranks(COMM, graph, SPEEDS, objective=objective, method=method, seed=3)
    assert type(placed) is MPI.Intracomm
    assert placed.size == SIZE
    expected = lb_mpi.arrange(graph, SPEEDS, objective=objective, method=method, seed=3) if RANK == 0 else None
    assert placed.allgather(RANK) == COMM.bcast(expected).positions.tolist()
    placed.Free()


@pytest.mark.every_size
def test_diffusion_on_an_arranged_communicator_is_that_of_the_layout():
    graph = mesh(1, SIZE)
    placed = lb_mpi.reorder_ranks(COMM, graph, SPEEDS.tolist())
    layout = SPEEDS[COMM.bcast(lb_mpi.arrange(graph, SPEEDS).positions if RANK == 0 else None)]
    loads = layout * np.random.default_rng(1).uniform(5, 15, SIZE)
    assert SPEEDS[RANK] == layout[placed.rank]
    setup = prepare(graph, layout, "fos", "uniform")
    mean = float(setup.mean_times(loads)[placed.rank])
    steps = diffuse(placed, setup, float(loads[placed.rank]), mean, 1e-6, 1000).steps
    assert steps == balance(graph, loads, layout, scheme="fos", tau="uniform", tolerance=1e-6).steps
    placed.Free()


def test_an_error_while_rank_0_computes_reaches_all_ranks(monkeypatch):
    def fail(*_, **__):
        raise MemoryError("too large")

    monkeypatch.setattr("lb_mpi.arranging.arrange.arrange", fail)
    with pytest.raises(MemoryError if RANK == 0 else RuntimeError, match="too large"):
        lb_mpi.reorder_ranks(COMM, mesh(1, SIZE), SPEEDS)


@pytest.mark.one_mpi
@several
def test_a_graph_in_several_components_is_refused():
    with pytest.raises(ValueError, match="components"):
        lb_mpi.reorder_ranks(COMM, lb_mpi.Graph.from_edges(SIZE, [], []), SPEEDS)
