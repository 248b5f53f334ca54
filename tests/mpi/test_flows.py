"""From loads to a plan that all ranks know; what goes wrong on the root alone is an error on all."""

import math

import numpy as np
import pytest

import lb_mpi
from lb_mpi.balancing import transfers
from lb_mpi.balancing.decider import RootPlanner
from lb_mpi.balancing.deciding import Trigger
from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.balancing.transfers import Plan, plan
from lb_mpi.diffusion.diffusion import balance
from lb_mpi.graph import parse
from lb_mpi.mpi.common.communicator import duplicate, presence_of
from lb_mpi.mpi.common.reducing import Reducing
from lb_mpi.mpi.rows.plans import plan_together
from lb_mpi.reduction import N_DIGITS, Reduction
from tests.misbehaviour import RAISES
from tests.mpi.sizes import COMM, RANK, SIZE

LOADS = np.random.default_rng(0).uniform(0, 9, SIZE)
pytestmark = pytest.mark.mpi


@pytest.fixture
def own():
    """A communicator of our own."""
    made = duplicate(COMM)
    yield made
    presence_of(made).close()


def planner(comm, graph):
    knowledge = Knowledge(comm.rank, range(comm.size), graph.neighbours(comm.rank).tolist())
    return RootPlanner(knowledge, graph, Trigger(tolerance=1e-3))


def make_plan(comm, made, load, speeds):
    made._tick_rate = float(speeds[RANK])
    return plan_together(presence_of(comm), made, made.plan(load))


def columns(of):
    return [column.tolist() for column in (of.sources, of.destinations, of.amounts, of.margins, of.shares, of.seconds)]


@pytest.mark.every_size
def test_a_plan_is_that_of_the_whole_graph_on_all_ranks(own):
    graph = parse(f"complete:{SIZE}")
    made = planner(own, graph)
    for speeds in (np.ones(SIZE), np.linspace(1, 2, SIZE), np.linspace(1, 2.001, SIZE)):
        whole = balance(graph, LOADS, speeds, scheme="direct", tolerance=1e-3)
        found, steps = make_plan(own, made, LOADS[RANK], speeds)
        assert COMM.allgather(columns(found)) == [columns(found)] * SIZE  # to the last bit, which speeds lose in units
        np.testing.assert_allclose(columns(found), columns(plan(graph, whole.flow, LOADS, speeds)), rtol=1e-9, atol=1e-9)
        assert steps == 1


@pytest.mark.every_size
def test_numbers_of_all_ranks_are_the_same_for_few_and_for_many(own, monkeypatch):
    numbers = 2.0 ** np.random.default_rng(3).uniform(-1070, 1020, (SIZE, 8))
    numbers[0, :4] = 0.1, -0.3, 2.0**60, np.inf
    maxima = np.array([0.1, -0.1]) * (RANK + 1)
    for few in (0, SIZE):
        monkeypatch.setattr("lb_mpi.mpi.common.reducing.FEW", few)
        reducing = Reducing(own)
        for n, factor in ((8, 1.0), (0, 1.0), (8, 2.0)):
            reducing.begin(Reduction(numbers[RANK, :n], factor * maxima))
            others = [np.full(shape, 3) for shape in [(n, N_DIGITS + 1), 2] * 4]  # where numbers were that are not kept
            presence_of(own).wait(reducing.done)
            assert reducing.answer.sums == [*map(math.fsum, numbers.T[:n])]
            assert reducing.answer.maxima.tolist() == [factor * 0.1 * SIZE, -factor * 0.1]
            del others


def test_a_long_plan(own, monkeypatch):
    """Of more transfers than ranks."""
    many = np.arange(3.0 * SIZE)
    monkeypatch.setattr(transfers, "plan", lambda *_: Plan(many, many + 1, many + 2, many + 3, many + 4, many + 5))
    made = planner(own, parse(f"ring:{SIZE}") if SIZE > 2 else parse(f"mesh:1x{SIZE}"))
    assert columns(make_plan(own, made, 1.0, np.ones(SIZE))[0]) == [(many + k).tolist() for k in range(6)]


@pytest.mark.parametrize("name", RAISES)
def test_an_exception_in_the_plan_reaches_all_ranks(name, own, monkeypatch):
    """And the next call works."""
    graph = parse(f"mesh:1x{SIZE}")
    kinds = {"Unspeakable": Exception, "SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}
    kind = ValueError if name == "ValueError" else kinds.get(name, Exception) if RANK == 0 else lb_mpi.Error
    made = planner(own, graph)
    with monkeypatch.context() as patch:
        patch.setattr(transfers, "plan", RAISES[name])
        with pytest.raises(kind):
            make_plan(own, made, LOADS[RANK], np.ones(SIZE))
    make_plan(own, made, LOADS[RANK], np.ones(SIZE))
