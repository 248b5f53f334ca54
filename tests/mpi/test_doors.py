"""Any shape of a graph will do at every door that is opened by all ranks, and what is none is refused alike."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.graph import mesh
from tests.mpi.doors import DOORS as ALL_DOORS

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


@pytest.mark.parametrize("door", ALL_DOORS)
def test_traffic_of_the_caller_is_not_disturbed(door: str, tmp_path: Path) -> None:
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


ARRAY_DOORS: dict[str, Callable[[Any, Path], Any]] = {
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


def ring() -> Any:
    return lb_mpi.distribute(COMM, f"ring:{4 * SIZE}", method="block")


def in_a(door: Any, call: Callable[[Any], Any]) -> Any:
    with door:
        return call(door)


@pytest.mark.parametrize("name", ARRAY_DOORS)
def test_arrays_that_know_more_are_refused_by_one_rule_and_files_in_memory_are_not(name: str, tmp_path: Path) -> None:
    """A unit, a mask or an index is never lost without a word."""
    door, folder = ARRAY_DOORS[name], COMM.bcast(tmp_path) / "saves"
    for kind, instead in ((Metres, f"np.asarray({name})"), (np.ma.MaskedArray, f"{name}.filled(0.0)")):
        with pytest.raises(TypeError) as caught:
            door(np.arange(4.0).view(kind), folder)
        expected = f"{name} of type {kind.__name__}: expected a numpy array (no subclass, such as {instead})"
        assert expected in str(caught.value)
    mapped: Any = np.memmap(tmp_path / "rows", mode="w+", shape=(4, 2))
    mapped[:] = np.arange(8.0).reshape(4, 2) + RANK
    found = door(mapped, folder)
    if found is not None:
        assert np.array(found).tolist() == np.asarray(mapped).tolist()
