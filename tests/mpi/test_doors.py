"""Any shape of a graph will do at every door that is opened by all ranks, and what is none is refused alike."""


import numpy as np
import pytest
from mpi4py import MPI
from scipy import sparse

import lb_mpi
from lb_mpi.graph import mesh
from tests.mpi.doors import DOORS as ALL_DOORS
from tests.mpi.sizes import COMM, RANK, SIZE

pytestmark = pytest.mark.mpi


def arranged(graph):
    lb_mpi.reorder_ranks(COMM, graph, np.arange(1.0, SIZE + 1)).Free()


LOADS = np.arange(1.0, 9.0)
GRAPHS = {0: mesh(2, 4), 1: mesh(1, SIZE)}  # of anything, of the ranks
DOORS = {  # the graph that it needs, and a call with it
    "Balancer": (1, lambda graph: lb_mpi.Balancer(COMM, graph=graph).close()),
    "reorder_ranks": (1, arranged),
    "distribute": (0, lambda graph: lb_mpi.distribute(COMM, graph, method="block").close()),
    "as_graph": (0, lambda graph: lb_mpi.as_graph(graph).indices),
    "partition": (0, lambda graph: lb_mpi.partition(graph, 2, effort="fast")),
    "partition_metrics": (0, lambda graph: lb_mpi.partition_metrics(graph, [0, 1] * 4, 2).cut),
    "arrange": (0, lambda graph: lb_mpi.arrange(graph, LOADS, method="fill").positions),
    "balance": (0, lambda graph: lb_mpi.balance(graph, LOADS, LOADS[::-1], tolerance=0.5).flow),
}


def shapes(graph, folder):
    """A mesh in every shape in which a graph can be given; the files are in a folder that all ranks see."""
    lists = [[int(j) + 1 for j in graph.neighbours(k)] for k in range(graph.n)]
    if RANK == 0:
        head = f"{graph.n} {len(graph.indices) // 2}\n"
        (folder / "a.graph").write_text(head + "".join(" ".join(map(str, some)) + "\n" for some in lists))
        entries = "".join(f"{j + 1} {i + 1}\n" for i, j in zip(*graph.edges(), strict=True))
        for name in ("a.mtx", "a.txt"):
            size = f"{graph.n} {graph.n} {len(graph.indices) // 2}"
            (folder / name).write_text(f"%%MatrixMarket matrix coordinate pattern symmetric\n{size}\n{entries}")
    COMM.Barrier()
    return {
        "Graph": graph,
        **({"networkx": graph.to_networkx()} if SIZE == 1 else {}),  # which takes long to import
        "csr array": graph.to_scipy(),
        "coo matrix": sparse.coo_matrix(graph.to_scipy()),
        "name": "mesh:2x4" if graph is GRAPHS[0] else f"mesh:1x{SIZE}",
        "lists": "/".join(",".join(map(str, some)) for some in lists) or graph,
        "METIS": str(folder / "a.graph"),
        "Matrix Market": folder / "a.mtx",
        "Matrix Market, by its content": folder / "a.txt",
    }


@pytest.mark.one_mpi
@pytest.mark.parametrize("door", DOORS)
def test_any_shape_of_a_graph(door, folder):
    of, call = DOORS[door]
    expected = call(GRAPHS[of])
    for shape, graph in shapes(GRAPHS[of], folder).items():
        assert np.array_equal(call(graph), expected), shape
    for wrong, kind, words in (
        ("grid:3x3", OSError, "there is none of this name"),
        (np.eye(3), TypeError, "scipy.sparse matrix"),
        (8, TypeError, "graph = 8: expected an lb_mpi"),
        ("mesh:0x3", ValueError, "mesh:0x3"),
    ):
        with pytest.raises(kind, match=words):
            call(wrong if RANK == 0 or door not in ("Balancer", "reorder_ranks", "distribute") else GRAPHS[of])


def test_what_a_door_returns_shows_its_rank_and_its_state():
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


@pytest.mark.parametrize("door", ALL_DOORS)
def test_traffic_of_the_caller_is_not_disturbed(door, tmp_path):
    request = COMM.Irecv(received := np.zeros(1), MPI.ANY_SOURCE, MPI.ANY_TAG)
    with ALL_DOORS[door][1](COMM, COMM.bcast(tmp_path / "saves")) as call:
        call()
    came = request.Test()
    COMM.Barrier()  # a faster rank must not send before that test
    assert not came
    COMM.Send(np.array([7.0]), (RANK + 1) % SIZE)
    request.Wait()
    assert received[0] == 7.0


class Metres(np.ndarray):
    """An array with a unit."""


ARRAY_DOORS = {
    "items": lambda array, _: in_a(lb_mpi.Pool(COMM), lambda pool: pool.map(np.copy, array)),
    "rows": lambda array, _: in_a(lb_mpi.Balancer(COMM), lambda balancer: balancer.map_rows(np.copy, array)),
    "rows[0]": lambda array, _: in_a(lb_mpi.Balancer(COMM), lambda balancer: balancer.migrate((array, np.copy(array)))[0]),
    "more[0]": lambda array, _: in_a(
        lb_mpi.Balancer(COMM), lambda balancer: balancer.map_rows(lambda rows, more: more, np.ones(len(array)), array)
    ),
    "values": lambda array, _: in_a(ring(), lambda plan: plan.exchange(array)[: len(array)]),
    "values[0]": lambda array, _: in_a(ring(), lambda plan: plan.rebalance(array)[0]),
    "x": lambda array, folder: (lb_mpi.save(COMM, folder, 1, x=array), lb_mpi.load(COMM, folder))[1][1]["x"],
}


def ring():
    return lb_mpi.distribute(COMM, f"ring:{4 * SIZE}", method="block")


def in_a(door, call):
    with door:
        return call(door)


@pytest.mark.parametrize("name", ARRAY_DOORS)
def test_arrays_that_know_more_are_refused_by_one_rule_and_files_in_memory_are_not(name, tmp_path):
    """A unit, a mask or an index is never lost without a word."""
    door, folder = ARRAY_DOORS[name], COMM.bcast(tmp_path) / "saves"
    for kind, instead in ((Metres, f"np.asarray({name})"), (np.ma.MaskedArray, f"{name}.filled(0.0)")):
        with pytest.raises(TypeError) as caught:
            door(np.arange(4.0).view(kind), folder)
        expected = f"{name} of type {kind.__name__}: expected a numpy array (no subclass, such as {instead})"
        assert expected in str(caught.value)
    mapped = np.memmap(tmp_path / "rows", mode="w+", shape=(4, 2))
    mapped[:] = np.arange(8.0).reshape(4, 2) + RANK
    found = door(mapped, folder)
    if found is not None:
        assert np.array(found).tolist() == np.asarray(mapped).tolist()
