"""Neighbour exchange and diffusion on real ranks: the same numbers as on a whole graph."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi import metrics
from lb_mpi.diffusion.diffusion import Diffusion, balance, cancel_cycles, outflow
from lb_mpi.diffusion.setup import SCHEMES, prepare
from lb_mpi.graph import Floats, Graph, mesh, most_square_mesh, parse
from lb_mpi.mpi.common.presence import duplicate, presence_of
from lb_mpi.mpi.rows import root as root_module
from lb_mpi.mpi.rows.process_graph import METHODS, NeighbourExchange
from lb_mpi.mpi.rows.root import Diffused, Diffuser
from tests.mpi.sizes import parameters

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
LAST = SIZE - 1
pytestmark = pytest.mark.mpi


STEPPING = [scheme for scheme in SCHEMES if scheme != "direct"]


def diffuse(
    comm: MPI.Intracomm, graph: Graph, loads: Floats, speeds: Floats, scheme: str = "fos", tolerance: float = 0.05
) -> Diffused:
    diffuser = Diffuser(own := duplicate(comm), graph, scheme, tolerance=tolerance)
    found = diffuser.diffuse(loads, speeds)
    presence_of(own).close(diffuser.close)
    return found


def graphs() -> list[Graph]:
    return [mesh(*most_square_mesh(SIZE)), parse(f"ring:{SIZE}"), parse(f"complete:{SIZE}"), mesh(1, SIZE)]


@contextmanager
def opened(comm: MPI.Intracomm, graph: Graph, method: str = METHODS[0]) -> Iterator[NeighbourExchange]:
    own = duplicate(comm)
    exchange = NeighbourExchange(own, graph, method)
    yield exchange
    presence_of(own).close(exchange.close)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.every_size
def test_neighbours_values_arrive_in_order(method: str) -> None:
    for graph in graphs():
        neighbours = graph.neighbours(RANK)
        with opened(COMM, graph, method) as exchange:
            for turn in range(20):
                np.testing.assert_array_equal(exchange.exchange(100.0 * turn + RANK), 100.0 * turn + neighbours)


def test_a_cartesian_communicator() -> None:
    """Open MPI dies of a topology on top of another one."""
    grid = COMM.Create_cart([SIZE])
    graph = mesh(1, SIZE)
    with opened(grid, graph) as exchange:
        np.testing.assert_array_equal(exchange.exchange(float(RANK)), graph.neighbours(RANK))
    with lb_mpi.Balancer(grid, scheme="fos") as balancer:
        assert balancer.map_rows(lambda rows: rows + 1.0, np.ones(3)).tolist() == [2.0] * 3
    with lb_mpi.distribute(grid, mesh(3, 4) if RANK == 0 else None, method="block") as plan:
        np.testing.assert_array_equal(plan.exchange(plan.vertices)[len(plan.vertices) :], plan.ghosts)
    lb_mpi.measure(grid, messages=False, rounds=1, round_s=0.001)
    lb_mpi.reorder_ranks(grid, graph, [1.0] * SIZE).Free()
    grid.Free()


def test_an_mpi_without_persistent_collectives() -> None:
    class Older(MPI.Distgraphcomm):
        def Neighbor_allgather_init(self, *_: object, **__: object) -> MPI.Prequest:
            raise NotImplementedError

    graph = mesh(*most_square_mesh(SIZE))
    with opened(COMM, graph) as exchange:
        assert exchange._topology is not None
        run = exchange._neighbourhood(Older(exchange._topology))
        exchange._mine[()] = RANK + 0.5
        run()
        np.testing.assert_array_equal(exchange._theirs, graph.neighbours(RANK) + 0.5)


def test_traffic_of_the_caller_is_not_disturbed() -> None:
    graph = mesh(1, SIZE)
    request = COMM.Irecv(received := np.zeros(1), MPI.ANY_SOURCE, MPI.ANY_TAG)
    with opened(COMM, graph, "paper") as exchange:
        exchange.exchange(1.0)
        assert not request.Test()
        COMM.Send(np.array([7.0]), RANK)
        request.Wait()
    assert received[0] == 7.0


def spread(seed: int, decades: float) -> tuple[Floats, Floats]:
    """Loads and speeds."""
    rng = np.random.default_rng(seed)
    speeds = 10.0 ** rng.uniform(-decades / 2, decades / 2, SIZE)
    return speeds * rng.uniform(5, 15, SIZE), speeds


USUAL = [(scheme, None) for scheme in STEPPING]
CASES = [*USUAL, ("fos", "scaled"), ("fos", "uniform"), ("cg", "paper")]


@pytest.mark.parametrize(("scheme", "tau"), parameters(CASES, every_size=USUAL))
def test_steps_and_flows_are_those_of_the_whole_graph(scheme: str, tau: str | None) -> None:
    for seed, graph in enumerate(graphs()):
        loads, speeds = spread(seed, 1.0)
        tails, heads = graph.edges()
        for tolerance, exchange in ((0.05, "paper"), (1e-6, "neighbourhood")):
            setup = prepare(graph, speeds, scheme, tau)
            whole = Diffusion(setup, loads)
            imbalance = [whole.imbalance]
            while not (whole.converged(tolerance)):
                whole.step()
                imbalance.append(whole.imbalance)
            diffuser = Diffuser(own := duplicate(COMM), graph, scheme, tau, tolerance, exchange=exchange)
            diffuser.diffuse(np.ones(SIZE), np.ones(SIZE))  # other speeds, first
            found = diffuser.diffuse(loads, speeds)
            presence_of(own).close(diffuser.close)
            for here, there in zip(found.imbalance, imbalance, strict=True):
                assert math.isinf(here) or here == pytest.approx(there, rel=1e-15, abs=1e-12)
            flow = np.concatenate(COMM.allgather(found.flow[graph.neighbours(RANK) > RANK]))
            all_ends = COMM.allgather(dict(zip(graph.neighbours(RANK).tolist(), found.flow.tolist(), strict=True)))
            back = [all_ends[head][tail] for tail, head in zip(tails.tolist(), heads.tolist(), strict=True)]
            np.testing.assert_array_equal(flow, -np.array(back))  # both ends agree
            if scheme == "dimension_exchange":
                flow = cancel_cycles(graph, flow)
            np.testing.assert_array_equal(flow, whole.flow())
            after = loads - outflow(graph, flow)
            assert after.sum() == pytest.approx(loads.sum(), rel=1e-12)
            assert metrics.imbalance(np.maximum(after, 0), speeds) <= tolerance + 1e-12


@pytest.mark.parametrize("scheme", STEPPING)
def test_after_the_most_steps_it_ends_as_it_is(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = mesh(1, SIZE)
    loads, speeds = spread(3, 1.0)
    for max_steps in (0, 1, 5):
        monkeypatch.setattr(root_module, "MAX_STEPS", max_steps)
        whole = balance(graph, loads, speeds, scheme=scheme, tolerance=1e-14, max_steps=max_steps)
        found = diffuse(COMM, graph, loads, speeds, scheme, tolerance=1e-14)
        assert (len(found.imbalance) - 1, found.imbalance[-1] <= 1e-14) == (whole.steps, whole.converged)
        if scheme != "dimension_exchange":
            mine = dict(zip(zip(*(ends.tolist() for ends in graph.edges()), strict=True), whole.flow, strict=True))
            expected = [mine[RANK, k] if k > RANK else -mine[k, RANK] for k in graph.neighbours(RANK).tolist()]
            np.testing.assert_array_equal(found.flow, expected)


@pytest.mark.parametrize("scheme", STEPPING)
def test_nothing_to_do_and_nothing_at_all(scheme: str) -> None:
    graph = mesh(*most_square_mesh(SIZE))
    for load in (0.0, 3.0):
        found = diffuse(COMM, graph, np.full(SIZE, load), np.ones(SIZE), scheme)
        assert found.imbalance == [0.0]
        assert not found.flow.any()
    if SIZE > 1:  # all of it on one rank
        loads = np.zeros(SIZE)
        loads[0] = 1.0
        found = diffuse(COMM, graph, loads, np.ones(SIZE), scheme)
        assert found.imbalance[-1] <= 0.05
        assert COMM.allreduce(loads[RANK] - found.flow.sum(), MPI.MAX) * SIZE <= 1.05 + 1e-12


@pytest.mark.parametrize("scheme", STEPPING)
@pytest.mark.every_size
def test_components_are_balanced_by_themselves(scheme: str) -> None:
    apart = Graph.from_edges(SIZE, np.arange(0, SIZE - 1, 2), np.arange(1, SIZE, 2))
    loads, speeds = spread(5, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        whole = balance(apart, loads, speeds, scheme=scheme, tolerance=1e-6)
    found = diffuse(COMM, apart, loads, speeds, scheme, tolerance=1e-6)
    assert (len(found.imbalance) - 1, found.imbalance[-1] <= 1e-6) == (whole.steps, True)
