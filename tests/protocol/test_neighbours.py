"""Plans made by neighbours: the law in every order that small graphs allow, on larger ones in drawn orders, and mutants."""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from lb_mpi.balancing import neighbours as module
from lb_mpi.balancing.deciding import Observation, RankReport, RoundProblem, Trigger
from lb_mpi.balancing.knowledge import Knowledge, RowCosts
from lb_mpi.balancing.neighbours import NEAR, momentum
from lb_mpi.balancing.transfers import Plan
from lb_mpi.cli.simulate.rows import Cluster, plan_together, simulate
from lb_mpi.errors import ProtocolError
from lb_mpi.graph import Graph, mesh, parse
from lb_mpi.reduction import Reduction, reduced
from tests.protocol.deciding import QUICK, decided
from tests.protocol.explore import Exploration, State, bytes_of
from tests.protocol.mutate import rejects
from tests.protocol.neighbour_mutants import MUTANTS

Ready = Callable[[int], int]  # chooses one of n events


class Ranks(NamedTuple):
    """All ranks after a round."""

    graph: Graph
    known_by: list[Knowledge]
    deciders: list[Any]
    work: list[float]


def ranks(graph: Graph, seed: int, *, scheme: str = "fos") -> Ranks:
    """Ranks with drawn loads, speeds and work of a tick, of which the observations on all edges tell, after two rounds."""
    rng = np.random.default_rng(seed)
    tick_work = np.exp(rng.uniform(-1.5, 0.0, graph.n))
    slow, load = rng.uniform(1.0, 3.0, graph.n), rng.uniform(1.0, 4.0, graph.n)
    load[(rng.random(graph.n) < 0.4) & (seed % 2 == 1)] = 0.0  # work may pass such a rank, but it has none to lend
    near = [graph.neighbours(rank).tolist() for rank in range(graph.n)]
    known_by = [Knowledge(rank, [rank, *theirs], theirs) for rank, theirs in enumerate(near)]
    deciders = [module.NeighbourPlanner(one, graph.n, Trigger("always"), momentum(graph, scheme)) for one in known_by]
    for late in range(2):
        reports = []
        for rank, knowledge in enumerate(known_by):
            ratios = np.log(tick_work / tick_work[rank])
            observed = tuple(Observation(knowledge.known.index(other), 1.0, float(ratios[other])) for other in near[rank])
            ticks = load[rank] / tick_work[rank]
            reports.append(
                RankReport(False, 7, 0, ticks, ticks * slow[rank], ticks, 0.0, 0, 0, began_s=0.1 * rank if late else np.nan,
                           observed=observed[::2] if rank % 2 else observed)
            )  # fmt: skip
        decided(deciders, reports)
    for knowledge, ticks in zip(known_by, load / tick_work, strict=True):
        knowledge.costs = RowCosts(0, 1)
        knowledge.costs.ticks[:] = ticks
    return Ranks(graph, known_by, deciders, (load / tick_work).tolist())


class Drawn(Exploration):
    """Ranks that plan together; numbers to NEAR arrive when those of all neighbours have."""

    def __init__(self, near: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.near, self.rows = near, defaultdict[tuple[int, int], deque[Any]](deque)
        self.widths = [0] * len(near)  # numbers in the last message to the neighbours

    def key_of_message(self, message: Any) -> Hashable:
        return bytes_of(message)

    def answer(self, everyone: Sequence[Reduction]) -> Reduction:
        return reduced(everyone)

    def law(self, state: State) -> None:
        for rank, near in enumerate(self.near):
            assert all(len(self.rows[other, rank]) <= 2 for other in near), "a rank is ahead by more than a step"

    def post(self, state: State, source: int, sends: Any) -> State:
        for message in [message for target, message in sends if target == NEAR]:
            self.widths[source] = message.shape[-1]
            numbers = np.broadcast_to(message, (len(self.near[source]), message.shape[-1]))
            for row, other in zip(numbers, self.near[source], strict=True):
                self.rows[source, other].append(row.copy())
        state = super().post(state, source, [(target, message) for target, message in sends if target != NEAR])
        for rank in {source, *self.near[source]}:
            wires = [self.rows[other, rank] for other in self.near[rank]]
            if state.actors[rank].awaited == (NEAR,) and not state.wires.get((NEAR, rank)) and all(wires):
                theirs = np.array([wire.popleft() for wire in wires]).reshape(len(wires), self.widths[rank])
                state = state._replace(wires={**state.wires, (NEAR, rank): (theirs,)})
        return state


def first_of(_n: int) -> int:
    """Return 0: the ranks go on in their order."""
    return 0


def drive(all_ranks: Ranks, choose: Ready) -> list[tuple[Plan, int]]:
    """Run the plans of all ranks, one turn at a time, in the chosen order; ProtocolError if they wait for ever."""
    making = [decider.plan() for decider in all_ranks.deciders]
    Drawn([all_ranks.graph.neighbours(rank).tolist() for rank in range(all_ranks.graph.n)]).play(making, choose)
    return [one.value for one in making]


def check_plans(all_ranks: Ranks, plans: Sequence[tuple[Plan, int]]) -> None:
    """AssertionError unless both ends of each edge know who lends, no rank lends more than it has, and all get level."""
    assert len({steps for _, steps in plans}) == 1
    amounts = {}
    for rank, (plan, _) in enumerate(plans):
        mine = plan.of(rank)
        assert (np.diff(mine.amounts) <= 0.0).all()
        assert (np.diff(plan.sources) >= 0).all()
        assert (mine.amounts >= 0.0).all()
        assert not (len(mine.amounts) and plan.to(rank)), "a rank lends and borrows"
        knowledge = all_ranks.known_by[rank]
        work = all_ranks.work[rank] * knowledge.tick_work[knowledge.index]
        assert mine.amounts.sum() <= work * (1.0 + 1e-9), f"rank {rank} lends {mine.amounts.sum()} of {work}"
        amounts.update({(rank, int(to)): amount for to, amount in zip(mine.destinations, mine.amounts, strict=True)})
    expected = {(source, rank) for rank, (plan, _) in enumerate(plans) for source in plan.to(rank)}
    assert expected == set(amounts), f"{expected} are awaited, {set(amounts)} are sent"
    for rank, (plan, _) in enumerate(plans):
        for source, believed in zip(plan.sources.tolist(), plan.amounts, strict=True):
            assert source == rank or amounts[source, rank] == believed, "the two ends of a loan differ"
    for rank, knowledge in enumerate(all_ranks.known_by):
        for other in {*knowledge.neighbours, *plans[rank][0].of(rank).destinations.tolist()}:
            theirs = all_ranks.known_by[other]
            index = knowledge.known.index(other)
            assert knowledge.tick_work[index] == theirs.tick_work[theirs.index]
            assert knowledge.speeds[index] == theirs.speeds[theirs.index]
    own = [(one, one.index) for one in all_ranks.known_by]
    before = np.array([all_ranks.work[one.rank] * one.tick_work[at] + one.late[at] for one, at in own])
    after = before.copy()
    for (source, destination), amount in amounts.items():
        after[source] -= amount
        after[destination] += amount
    speeds = np.array([one.speeds[at] for one, at in own])
    for rank, (plan, _) in enumerate(plans):
        mine = plan.of(rank)
        to = mine.destinations
        n_owners = np.array([len(plans[other][0].to(other)) for other in to.tolist()])
        assert mine.margins == pytest.approx(after[rank] - speeds[rank] * after[to] / speeds[to], abs=1e-9)
        assert mine.shares == pytest.approx(n_owners * speeds[rank] / speeds[to])
    if all_ranks.graph.components()[0] == 1:
        worst = (after / speeds).max() / (before.sum() / speeds.sum())
        assert worst <= 1.051, worst


GRAPHS = ("mesh:1x2", "mesh:1x3", "ring:4", "complete:4", "mesh:3x3", "mesh:1x8", "torus:4x5")


@pytest.mark.parametrize("scheme", ["fos", "sos"])
@pytest.mark.parametrize("name", GRAPHS)
def test_any_order_gives_the_same_lawful_plans(name, scheme):
    graph = parse(name)
    for seed in range(3 if graph.n < 8 else 1):
        first = drive(drawn := ranks(graph, seed, scheme=scheme), first_of)
        check_plans(drawn, first)
        rng = random.Random(seed)
        orders: list[Ready] = [lambda n: n - 1, rng.randrange, lambda n, rng=rng: rng.randrange(min(2, n))]
        for choose in orders:
            other = drive(ranks(graph, seed, scheme=scheme), choose)
            assert repr([(plan.table().tolist(), steps) for plan, steps in other]) == repr(
                [(plan.table().tolist(), steps) for plan, steps in first]
            ), seed


def test_ranks_without_neighbours_plan_nothing():
    for graph in (Graph.from_edges(3, [], []), Graph.from_edges(3, [0], [2]), mesh(1, 1)):
        drawn = ranks(graph, 0)
        check_plans(drawn, drive(drawn, first_of))


def test_work_per_tick_is_found_along_the_edges():
    """Pairs of ranks tell their ratio; in a few plans all of them fit."""
    graph = mesh(1, 6)
    drawn = ranks(graph, 5)
    tick_work = np.exp(np.random.default_rng(5).uniform(-1.5, 0.0, graph.n))
    for _ in range(6):
        drive(drawn, first_of)
    found = np.array([knowledge.tick_work[knowledge.index] for knowledge in drawn.known_by])
    assert np.abs(np.log(found / tick_work) - np.log(found / tick_work).mean()).max() < 0.05


def test_all_ranks_decide_the_same():
    """Whatever they measured alone: the costs of a plan, failures, rows that differ, times before a call."""
    for seed in range(20):
        rng = random.Random(seed)
        drawn = ranks(parse("ring:4"), seed)
        for _ in range(4):
            for decider in drawn.deciders:
                decider.follow(Plan(*np.zeros((6, 0))), rng.random())
            bad = rng.choice([0, 0, 0, 1, 2])
            reports = [
                RankReport(bad == 1 and rank == 2, 7 + (bad == 2 and rank == 1), 0, rng.random(), rng.random(), 1.0,
                           rng.random(), rank, 100 * rank, began_s=rng.random())
                for rank in range(4)
            ]  # fmt: skip
            first, *_ = decided(drawn.deciders, reports)
            assert len({repr(decider.policy.trigger.cost_s) for decider in drawn.deciders}) == 1, seed
            assert first.problem is (RoundProblem.NONE, RoundProblem.FAILED, RoundProblem.DIFFER)[bad]
            if not bad:
                assert (first.rows, first.bytes) == (6, 600)
            late_s = [float(one.late[one.index] / one.speeds[one.index]) for one in drawn.known_by]
            assert min(late_s) >= 0.0


def test_what_a_rank_reports_and_what_follows():
    """A rank that comes late has less time, up to that of all; old ratios fade."""
    deciders = [
        module.NeighbourPlanner(Knowledge(rank, [rank, 1 - rank], [1 - rank]), 2, Trigger("always")) for rank in (0, 1)
    ]
    for k in range(60):
        reports = [
            RankReport(False, 7, 0, 4.0, 4.0, 4.0, 0.0, 0, 0, began_s=(0.1 if k == 0 else 99.0) * rank, queued_s=0.5,
                       elapsed_s=1.0, observed=(Observation(1, 1.0, 0.0 if k > 4 else 9.0 - 18.0 * rank),))
            for rank in (0, 1)
        ]  # fmt: skip
        decided(deciders, reports)
        late = [float(decider._knowledge.late[0]) for decider in deciders]
        assert late == pytest.approx([0.0, 0.1] if k == 0 else [0.0, late[1]], abs=1e-8)
        assert late[1] <= 20.0
    for decider in deciders:
        decider._knowledge.costs = RowCosts(decider._knowledge.rank, 1)
        decider._knowledge.costs.ticks[:] = 4.0
    plan_together([decider.plan() for decider in deciders], mesh(1, 2), QUICK)
    assert abs(np.log(deciders[0]._knowledge.tick_work[1] / deciders[0]._knowledge.tick_work[0])) < 0.5
    largest = module.NeighbourPlanner(Knowledge(4, [4, 7, 9], [7, 9]), 10, Trigger())._pass_on(
        np.array([1.0, 3.0]), 5.0, 1.0, nothing=0.0
    )
    assert next(largest).sends[0][0] == 9, "the largest flow gets the first lots, so it is made of the fewest"


def find_fault() -> None:
    """Raise AssertionError if a rule is broken; the quick checks come first."""
    test_what_a_rank_reports_and_what_follows()
    test_all_ranks_decide_the_same()
    for name in GRAPHS[:4]:
        test_any_order_gives_the_same_lawful_plans(name, "fos")
    test_work_per_tick_is_found_along_the_edges()
    check_plans(drawn := ranks(mesh(1, 16), 1, scheme="sos"), drive(drawn, first_of))
    for name in GRAPHS[4:]:
        test_any_order_gives_the_same_lawful_plans(name, "fos")
    test_any_order_gives_the_same_lawful_plans(GRAPHS[-1], "sos")


test_known_wrong_variants_are_caught = rejects(find_fault, MUTANTS, ValueError, IndexError, RuntimeWarning, right=False)


@pytest.mark.parametrize("graph", ["mesh:1x16", "cube:21"])
def test_work_travels_over_many_edges_in_one_round(graph):
    layout = parse(graph)
    cluster = Cluster(layout, np.full(layout.n, 1000.0), scheme="sos", network=QUICK)
    costs = [np.full(200, 9.0 if 2 * rank < layout.n else 1.0) for rank in range(layout.n)]
    calls = simulate(cluster, lambda _call: costs, 10)
    assert calls[0].alone_s / calls[0].bound_s > 1.5
    assert np.median([call.seconds / call.bound_s for call in calls[5:]]) < 1.10


def test_a_rank_forgets_distant_ranks_but_not_what_they_measured():
    knowledge = Knowledge(3, [3, 2, 4], [2, 4])
    knowledge.note_others({2: (9.0, 9.0), 7: (2.0, 5.0), 8: (4.0, 6.0)})
    assert knowledge.known == [3, 2, 4, 7, 8]
    knowledge.costs = RowCosts(0, 3)
    knowledge.costs.ticks[:], knowledge.costs.measured_by[:] = 1.0, [0, 1, 4]
    knowledge.note_others({9: (8.0, 7.0)})
    assert knowledge.known == [3, 2, 4, 8, 9]
    assert knowledge.tick_work.tolist() == [1.0, 1.0, 1.0, 4.0, 8.0]
    assert knowledge.speeds.tolist() == [1.0, 1.0, 1.0, 6.0, 7.0]
    assert knowledge.costs.work(knowledge.tick_work).tolist() == [1.0, 1.0, 4.0]
    knowledge.note_others({})
    assert knowledge.known == [3, 2, 4, 8]


def test_days_of_work_on_a_hundred_thousand_ranks_add_up():
    decider, size = module.NeighbourPlanner(Knowledge(0, [0, 1], [1]), 100_000, Trigger()), 100_000
    mine = decider.report(RankReport(False, 1, 0, 3e5, 3e5, 3e5, 0.0, 10**9, 10**15))
    whole = decider.decide(Reduction([size * each for each in mine.sums], mine.maxima))
    assert (whole.rows, whole.bytes) == (10**14, 10**20)
    assert (whole.imbalance_before, whole.imbalance_after) == pytest.approx((0.0, 0.0), abs=1e-9)


def test_ranks_that_are_not_plan_together_are_noticed():
    drawn = ranks(mesh(1, 2), 0)
    with pytest.raises(ProtocolError):
        plan_together([drawn.deciders[0].plan(), drawn.deciders[1].levels(1.0)], drawn.graph, QUICK)
