"""The process graph that a Balancer takes, and communicators that are arranged on one."""

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.graph import Graph, cube, host_graph, mesh, most_square_mesh, parse
from lb_mpi.mpi.rows.process_graph import fingerprint, process_graph
from tests.mpi.sizes import COMM, RANK, SIZE, parameters
from tests.mpi.test_balancer import numbers, slow_square

pytestmark = pytest.mark.mpi
SPEEDS = np.random.default_rng(7).uniform(1, 10, SIZE)


@pytest.mark.every_size
def test_process_graphs():
    with lb_mpi.Balancer(COMM) as balancer:
        assert balancer.graph.n == SIZE
    with lb_mpi.Balancer(COMM, graph=parse(f"complete:{SIZE}")) as balancer:
        assert balancer.graph.n_edges == SIZE * (SIZE - 1) // 2
    dims = MPI.Compute_dims(SIZE, 3)
    cart = COMM.Create_cart(dims, periods=[True, False, True])
    with lb_mpi.Balancer(cart, when="always") as balancer:
        neighbours = set()
        for axis in range(3):
            neighbours |= set(cart.Shift(axis, 1)) - {MPI.PROC_NULL, cart.rank}
        assert set(balancer.graph.neighbours(cart.rank).tolist()) == neighbours
        rows = numbers(50, 2)
        for _ in range(3):
            assert np.array_equal(balancer.map_rows(slow_square, rows), np.sin(rows) * rows)
    cart.Free()


@pytest.mark.every_size
def test_the_usual_process_graph_follows_the_hosts_that_several_ranks_share():
    cart = COMM.Create_cart([SIZE])
    for hosts in (["a"] * SIZE, [f"h{rank}" for rank in range(SIZE)]):
        assert fingerprint(process_graph(COMM, None, hosts)) == fingerprint(mesh(*most_square_mesh(SIZE)))
        assert fingerprint(process_graph(cart, None, hosts)) == fingerprint(mesh(1, SIZE))
        assert fingerprint(process_graph(cart, None, hosts, short=True)) == fingerprint(cube(SIZE))
    if SIZE > 2:
        hosts = [f"h{rank % 2}" for rank in range(SIZE)]
        for comm in (COMM, cart):
            assert fingerprint(process_graph(comm, None, hosts)) == fingerprint(host_graph(hosts))
            assert fingerprint(process_graph(comm, f"ring:{SIZE}", hosts)) == fingerprint(parse(f"ring:{SIZE}"))
    if SIZE > 3:  # the first two ranks of a host are neighbours
        assert 3 in process_graph(COMM, None, [f"h{rank % 3}" for rank in range(SIZE)], short=True).neighbours(0)
    cart.Free()


@pytest.mark.every_size
def test_components_are_balanced_by_themselves():
    if SIZE < 4:
        pytest.skip("needs two pairs of ranks")
    pairs = Graph.from_edges(SIZE, [0, 2], [1, 3])
    with pytest.warns(UserWarning, match=f"the graph has {SIZE - 2} components"):
        balancer = lb_mpi.Balancer(COMM, graph=pairs, when="always")
    with balancer:
        rows = numbers(100 if RANK in (0, 3) else 10)
        owned = balancer.migrate(rows, costs=np.ones(len(rows)))
    counts = COMM.allgather(len(owned))
    assert counts[:4] == [55, 55, 55, 55]
    assert all(count == 10 for count in counts[4:])


# --- arranged communicators ------------------------------------------------------------------------------------------

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
