"""Jin and Wang's exchange between neighbours, and diffusion by it, on real ranks: the same numbers as on a whole graph."""

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.diffusion.diffusion import Diffusion
from lb_mpi.diffusion.setup import prepare
from lb_mpi.graph import Graph, mesh, most_square_mesh, parse
from lb_mpi.mpi.common.presence import duplicate, presence_of
from lb_mpi.mpi.rows.plans import exchange_rows
from tests.mpi.diffusing import diffuse

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
pytestmark = pytest.mark.mpi


def graphs() -> list[Graph]:
    return [mesh(*most_square_mesh(SIZE)), parse(f"ring:{SIZE}"), parse(f"complete:{SIZE}"), mesh(1, SIZE)]


@pytest.mark.every_size
def test_neighbours_numbers_arrive_in_order() -> None:
    presence = presence_of(duplicate(COMM))
    for graph in graphs():
        neighbours = graph.neighbours(RANK)
        for turn in range(20):
            theirs = exchange_rows(presence, neighbours.tolist(), np.array([100.0 * turn + RANK, 1.0]))
            np.testing.assert_array_equal(theirs[:, 0], 100.0 * turn + neighbours)
            for_each = np.array([[100.0 * RANK + k] for k in neighbours.tolist()]).reshape(-1, 1)
            theirs = exchange_rows(presence, neighbours.tolist(), for_each)
            np.testing.assert_array_equal(theirs[:, 0], 100.0 * neighbours + RANK)
    presence.close()


def test_a_cartesian_communicator() -> None:
    grid = COMM.Create_cart([SIZE])
    graph = mesh(1, SIZE)
    with lb_mpi.Balancer(grid, scheme="fos") as balancer:
        assert balancer.map_rows(lambda rows: rows + 1.0, np.ones(3)).tolist() == [2.0] * 3
    with lb_mpi.distribute(grid, mesh(3, 4) if RANK == 0 else None, method="block") as plan:
        np.testing.assert_array_equal(plan.exchange(plan.vertices)[len(plan.vertices) :], plan.ghosts)
    lb_mpi.measure(grid, messages=False, rounds=1, round_s=0.001)
    lb_mpi.reorder_ranks(grid, graph, [1.0] * SIZE).Free()
    grid.Free()


def test_traffic_of_the_caller_is_not_disturbed() -> None:
    neighbours = mesh(1, SIZE).neighbours(RANK).tolist()
    request = COMM.Irecv(received := np.zeros(1), MPI.ANY_SOURCE, MPI.ANY_TAG)
    presence = presence_of(duplicate(COMM))
    exchange_rows(presence, neighbours, np.ones(1))
    assert not request.Test()
    COMM.Send(np.array([7.0]), RANK)
    request.Wait()
    presence.close()
    assert received[0] == 7.0


@pytest.mark.parametrize("scheme", ["fos", "sos"])
@pytest.mark.every_size
def test_steps_and_flows_are_those_of_the_whole_graph(scheme: str) -> None:
    for seed, graph in enumerate(graphs()):
        rng = np.random.default_rng(seed)
        speeds = 10.0 ** rng.uniform(-0.5, 0.5, SIZE)
        loads = speeds * rng.uniform(5, 15, SIZE)
        tails, heads = graph.edges()
        for tolerance in (0.05, 1e-6):
            whole = Diffusion(setup := prepare(graph, speeds, scheme), loads)
            while not whole.converged(tolerance):
                whole.step()
            steps, flow = diffuse(COMM, graph, setup, loads, tolerance)
            assert steps == whole.steps
            all_ends = COMM.allgather(dict(zip(graph.neighbours(RANK).tolist(), flow.tolist(), strict=True)))
            there = [all_ends[tail][head] for tail, head in zip(tails.tolist(), heads.tolist(), strict=True)]
            back = [all_ends[head][tail] for tail, head in zip(tails.tolist(), heads.tolist(), strict=True)]
            np.testing.assert_array_equal(there, -np.array(back))  # both ends agree
            np.testing.assert_array_equal(there, whole.flow())
