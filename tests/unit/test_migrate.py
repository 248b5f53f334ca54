"""From flow to items: nothing is lost, nobody gives more than it has, the longest time falls, and no item swings."""

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb_mpi.balancing.knowledge import pick
from lb_mpi.balancing.transfers import Plan, plan
from lb_mpi.diffusion.diffusion import Diffusion, cancel_cycles, outflow
from lb_mpi.diffusion.setup import prepare
from lb_mpi.graph import Floats, Graph, Ints, parse

NAMES = ("mesh:1x2", "mesh:1x6", "mesh:2x3", "ring:5", "hypercube:3", "complete:4")


def move(graph: Graph, flow: Floats, owner: Ints, costs: Floats, speeds: Floats) -> Ints:
    """Who owns each item after all ranks have sent theirs."""
    transfers = plan(graph, flow, np.bincount(owner, costs, graph.n), speeds)
    after = owner.copy()
    for rank in range(graph.n):
        mine = np.flatnonzero(owner == rank)
        own = transfers.of(rank)
        picked = pick(costs[mine], own)
        sent = [item for items in picked.items for item in items.tolist()]
        assert len(set(sent)) == len(sent)  # no item twice
        assert own.amounts.sum() == pytest.approx(costs[mine][sent].sum() + picked.unsent, abs=1e-9 * costs.sum())
        for items, destination in zip(picked.items, own.destinations, strict=True):
            after[mine[items]] = destination
    return after


def times_of(graph: Graph, owner: Ints, costs: Floats, speeds: Floats) -> Floats:
    return np.asarray(np.bincount(owner, costs, graph.n) / speeds)


@st.composite
def flows(draw: st.DrawFn) -> tuple[Graph, Floats, Floats, Floats]:
    """A graph, any flow on it (cycles, too), loads, speeds."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n = draw(st.integers(1, 15))
    graph = Graph.from_networkx(nx.gnp_random_graph(n, draw(st.floats(0, 1)), seed=draw(st.integers(0, 10**6))))
    scale = draw(st.sampled_from([0.0, 0.1, 1.0]))
    return graph, scale * rng.normal(size=graph.n_edges), rng.exponential(size=n), 10 ** rng.uniform(-1, 1, n)


@given(flows())
def test_a_plan_does_what_the_flow_does(case: tuple[Graph, Floats, Floats, Floats]) -> None:
    graph, flow, loads, speeds = case
    transfers = plan(graph, flow, loads, speeds)
    given_away = np.bincount(transfers.sources, transfers.amounts, graph.n)
    received = np.bincount(transfers.destinations, transfers.amounts, graph.n)
    assert (transfers.amounts > 0).all()
    assert (given_away <= loads + 1e-12).all()  # nobody gives more than it has
    assert not (set(transfers.sources.tolist()) & set(transfers.destinations.tolist()))  # nobody gives and receives
    wanted = outflow(graph, flow)
    if (wanted <= loads).all():
        assert np.allclose(given_away - received, wanted, atol=1e-9)
    pairs = list(zip(transfers.sources.tolist(), transfers.destinations.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    assert transfers.sources.tolist() == sorted(transfers.sources.tolist())


@given(flows(), st.sampled_from([1.0, 1e-14]))
def test_a_plan_is_the_same_without_the_cycles(case: tuple[Graph, Floats, Floats, Floats], least: float) -> None:
    """To the last bit: ranks plan from flows with cycles, others check them without."""
    graph, flow, loads, speeds = case
    flow[::2] *= least  # cycles too small to move anything, too
    one, other = (plan(graph, it, loads, speeds) for it in (flow, cancel_cycles(graph, flow)))
    np.testing.assert_array_equal(one.table(), other.table())


def test_a_transfer_is_no_longer_than_what_its_destination_has_itself() -> None:
    """What a plan is wrong by is made good by rows of the borrower's own: nothing of such a loan need stay at home."""
    of_one = [plan(parse("ring:2"), np.array([0.4]), [1.0, own], [1.0, 2.0]).longest_s for own in (0.0, 0.1, 0.4, 0.6)]
    assert of_one == pytest.approx([0.2, 0.15, 0.0, 0.0])


def one_transfer(*amounts: float) -> Plan:
    """From rank 0 to ranks 1, 2, ... of the same speed, which are all planned to end together."""
    n = len(amounts)
    return Plan(np.zeros(n, dtype=np.int64), np.arange(n) + 1, np.array(amounts), np.zeros(n), np.ones(n), np.array(amounts))


def picks(costs: list[float], *amounts: float) -> list[list[int]]:
    return [items.tolist() for items in pick(np.array(costs), one_transfer(*amounts)).items]


def test_heavy_items_first_and_nearest() -> None:
    costs = [1.0, 5.0, 2.0, 0.0, 3.0]
    assert picks(costs, 8.0) == [[1, 4]]
    assert picks(costs, 6.0, 3.0) == [[0, 1], [4]]
    assert picks([2.0] * 4, 3.2) == [[0, 3]]  # 4 is nearer to 3.2 than 2
    assert picks([2.0] * 4, 2.8) == [[0]]
    assert picks([4.0, 1.0], 0.4) == [[]]
    assert picks([4.0, 1.0], 0.6) == [[1]]


def test_items_that_fit_nowhere_go_where_they_are_done_first() -> None:
    assert picks([10.0, 9.9], 7.5, 7.4) == [[0], [1]]
    assert picks([10.0], 4.0) == [[]]  # it would be done later there
    assert picks([10.0, 1.0, 1.0, 1.0, 1.0], 8.0, 4.0) == [[0], [1, 2]]  # 2 more than planned, so the others get 2 less


def test_rounding_is_carried_to_the_next_transfer() -> None:
    """Ten receivers lack half an item each: five items go, not none and not ten."""
    assert sum(len(items) for items in picks([1.0] * 20, *[0.5] * 10)) == 5


def test_a_slow_receiver_gets_no_more_than_planned() -> None:
    """Half an item too much would take a receiver of a tenth of the speed ten times as long."""
    transfers = Plan(np.array([0]), np.array([1]), np.array([2.6]), np.array([0.0]), np.array([10.0]), np.array([26.0]))
    assert [items.tolist() for items in pick(np.ones(5), transfers).items] == [[0, 1]]


def random_case(rng: np.random.Generator) -> tuple[Graph, Floats, Floats, Ints]:
    """A graph, speeds, costs of items, owners."""
    graph = parse(str(rng.choice(NAMES)))
    return graph, 10 ** rng.uniform(-1, 1, graph.n), *random_items(rng, graph.n)


def random_items(rng: np.random.Generator, n_ranks: int) -> tuple[Floats, Ints]:
    """Costs of items, owners."""
    n_items = int(rng.choice([0, 1, 3, 10, 40, 150]))
    costs = rng.choice([np.ones(n_items), rng.exponential(size=n_items), rng.pareto(1.1, n_items)], axis=0)
    return costs, rng.integers(0, int(rng.choice([1, n_ranks])), n_items)


def test_hundreds_of_migrations_lose_nothing() -> None:
    """Number, ids and total cost are conserved exactly, nobody ends below nothing, and the longest time never rises."""
    seed = 2
    rng = np.random.default_rng(seed)
    for k in range(600):
        if k % 4 == 0:  # what depends on no load is prepared once for four
            graph, speeds, *_ = random_case(rng)
            scheme, tolerance = (("direct", 1e-9), ("fos", 0.1), ("dimension_exchange", 0.1))[k // 4 % 3]
            setup = prepare(graph, speeds, scheme)
        costs, owner = random_items(rng, graph.n)
        loads = np.bincount(owner, costs, graph.n)
        diffusion = Diffusion(setup, loads)
        while not diffusion.converged(tolerance) and diffusion.steps < 500:
            diffusion.step()
        flow = diffusion.flow()
        after = move(graph, flow, owner, costs, speeds)
        everything = [np.flatnonzero(after == rank) for rank in range(graph.n)]
        assert sorted(np.concatenate(everything).tolist()) == list(range(len(costs))), (seed, k)
        assert math.fsum(math.fsum(costs[items]) for items in everything) == pytest.approx(math.fsum(costs), rel=1e-15)
        assert math.fsum(np.concatenate([costs[items] for items in everything])) == math.fsum(costs), (seed, k)
        before = times_of(graph, owner, costs, speeds).max()
        bound = max(before, float(((loads - outflow(graph, flow)) / speeds).max()))  # what the flow itself asks for
        assert times_of(graph, after, costs, speeds).max() <= bound * (1 + 1e-12), (seed, k)
