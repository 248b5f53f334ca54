"""A rebalancing: the law in every state of small ones, drawn orders of larger ones, and known-wrong variants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lb_mpi.balancing.deciding import BalanceReason
from lb_mpi.errors import ProtocolError
from lb_mpi.graph import Graph, mesh, parse
from lb_mpi.rebalancing import actor as actor_module
from lb_mpi.rebalancing.actor import Holding, Opening, RankLoad, RebalanceKind, RebalanceMessage, opening
from tests.protocol.mutate import rejects
from tests.protocol.rebalancing_law import Case, Explored, play
from tests.protocol.rebalancing_mutants import MUTANTS

PATH = mesh(1, 6)
TRIANGLE = parse("complete:6")
SMALL = {
    "two": Case(mesh(1, 4), np.array([0, 0, 0, 1]), np.ones(4), np.ones(2)),
    "two, one without vertices": Case(mesh(1, 3), np.array([0, 0, 0]), np.ones(3), np.array([1.0, np.nan])),
    "one": Case(mesh(1, 3), np.zeros(3, dtype=np.int64), np.ones(3), np.ones(1)),
    "a path of three": Case(PATH, np.array([0, 0, 0, 0, 1, 2]), np.arange(6.0) + 1.0, np.array([0.2, 1.0, 1.0])),
    "three that touch": Case(TRIANGLE, np.array([0, 0, 0, 1, 1, 2]), np.ones(6), np.array([0.3, 0.3, 1.0])),
    "slabs": Case(PATH, np.array([0, 0, 0, 0, 1, 2]), np.arange(6.0) + 1.0, np.array([0.2, 1.0, 1.0]), slabs=True),
    "slabs of a graph that is not a path": Case(TRIANGLE, np.array([0, 0, 0, 0, 0, 2]), np.ones(6), np.ones(3), slabs=True),
    "no edges": Case(Graph.from_edges(4, [], []), np.array([0, 0, 0, 1]), np.ones(4), np.ones(2)),
}


@pytest.mark.parametrize(
    ("name", "failures"),
    [(name, n) for name in SMALL for n in (0, 1) if (name, n) != ("three that touch", 1)],  # which alone takes half a minute
)
def test_the_law_holds_in_every_reachable_state(name: str, failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_module, "MAX_STEPS", 2)  # a flow of few steps: the orders matter here, not the balance
    states, ends = Explored(SMALL[name]).explore(failures)
    assert states >= 3
    assert ends > 0


def drawn(seed: int, slabs: bool = False) -> tuple[Case, np.random.Generator]:
    """A graph, owners, costs and speeds, some of them not measured."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([1, 2, 3, 4, 6, 8]))
    graphs = [mesh(6, 9), mesh(1, 20), parse("complete:9"), Graph.from_edges(7, [0, 1, 4], [1, 2, 5])]
    graph = graphs[rng.integers(len(graphs))]
    graph = Graph(graph.indptr, graph.indices, graph.weights, rng.integers(0, 9, graph.n).astype(float))
    owners = [rng.integers(0, size, graph.n), np.arange(graph.n) * size // graph.n, np.full(graph.n, size - 1)]
    own = owners[rng.integers(3)]
    if slabs:
        own = np.sort(own)
    speeds = rng.uniform(0.2, 1.0, size)
    speeds[(rng.random(size) < 0.3) & (np.bincount(own, minlength=size) == 0)] = np.nan
    return Case(graph, own, rng.integers(1, 5, graph.n).astype(float), speeds, slabs=slabs), rng


def play_drawn(seed: int, slabs: bool, chance: float) -> int:
    """Play a drawn case under the law; return how many vertices have moved."""
    case, rng = drawn(seed, slabs)
    actors = play(case, rng, chance=chance)
    if actors[0]._flow is not None and case.graph.components()[0] == 1:
        case.check_flows(actors, 0.02)
    assert actors[0].outcome.failed == any(actor.error for actor in actors)
    return int(actors[0].outcome.moved)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_drawn_orders_keep_the_law(first: int) -> None:
    moved = 0
    for seed in range(first, first + 50):
        try:
            moved += play_drawn(seed, slabs=seed % 5 == 1, chance=0.1 if seed % 4 == 0 else 0.0)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert moved > 100


def test_ranks_that_are_level_send_nothing_to_each_other() -> None:
    case = Case(mesh(4, 4), np.arange(16) // 4, np.ones(16), np.ones(4))
    for when in ("always", "auto", 0.1):
        (*_, last) = play(case, np.random.default_rng(1), when=when)
        assert last._flow is None
        assert last.outcome.before == 0.0
        assert not last.committed


def test_ranks_that_have_not_been_timed_wait() -> None:
    case = Case(mesh(4, 4), np.arange(16) // 4, np.ones(16), np.array([1.0, 1.0, np.nan, 0.1]))
    actors = play(case, np.random.default_rng(1))
    assert [actor.outcome.decision.reason for actor in actors] == [BalanceReason.UNMEASURED] * 4


def test_an_unexpected_message_is_refused() -> None:
    case = SMALL["a path of three"]
    message = RebalanceMessage(RebalanceKind.LABEL, np.zeros(0, dtype=np.int64))
    big = Case(mesh(1, 12), np.arange(12) // 2, np.ones(12), np.ones(6))
    with pytest.raises(ProtocolError, match="of rank 3"):
        big.actors()[0].turn(0.0, [(3, message)])
    actor = case.actors()[0]
    actor.stage = actor_module.Stage.HELLO
    with pytest.raises(ProtocolError, match="expected HELLO"):
        actor.turn(0.0, [(1, message), (2, message)])
    one = case.actors()[0]
    one._links, one.owners = [1], one.owners._replace(local=np.full(4, 2))
    with pytest.raises(ProtocolError, match="not its neighbours"):
        one._pack({1: np.array([1])})


def decisions() -> list[set[BalanceReason]]:
    """The reasons of all ranks in six calls with the same plan, in which the speed of rank 1 changes."""
    holdings, found = [Holding()] * 4, []
    for speed in (1.0, 1.0, 1.01, 0.97, 0.5, 0.97):
        case = Case(mesh(4, 4), np.arange(16) // 4, np.ones(16), np.array([1.0, speed, 1.0, 1.0]))
        if not case.most(holdings).changed:
            found.append({BalanceReason.HOLDS})
            continue
        actors = play(case, np.random.default_rng(1), when=0.1)
        holdings = [actor.holding for actor in actors]
        found.append({actor.outcome.decision.reason for actor in actors})
        assert case.most([holding._replace(n_calls=0) for holding in holdings]).changed
    return found


BELOW, HOLDS, BOUND = {BalanceReason.BELOW}, {BalanceReason.HOLDS}, {BalanceReason.BOUND}
DECISIONS = [BELOW, HOLDS, HOLDS, BELOW, BOUND, BELOW]


def test_a_decision_holds_until_the_time_of_a_rank_changes() -> None:
    assert decisions() == DECISIONS


def test_marks_that_differ_are_noticed() -> None:
    marks = np.array([opening(RankLoad(1.0, 1.0), 1, Holding(), 0.05, mark=mark) for mark in (7, 8, 7)], dtype=float)
    assert Opening(*marks.max(axis=0)).differs
    assert not Opening(*marks[::2].max(axis=0)).differs


@pytest.mark.parametrize(("queued", "slow", "when", "acts"), [
    (0.0, 0.8, "auto", True), (0.6, 0.8, "auto", False), (0.6, 0.1, "auto", True), (0.6, 0.8, 0.1, True),
])  # fmt: skip
def test_nothing_moves_while_ranks_queue_for_cores_unless_it_gains_more(
    queued: float, slow: float, when: Any, acts: bool
) -> None:
    """In each step, another rank is the slow one, since it queued for a core."""
    case = Case(parse("mesh:4x6"), np.arange(24) // 12, np.ones(24), np.array([1.0, slow]), queued=queued)
    outcome = play(case, np.random.default_rng(0), when=when)[0].outcome
    assert (outcome.decision.act, outcome.moved > 0) == (acts, acts)
    assert acts or outcome.decision.reason is BalanceReason.CROWDED


def test_a_rank_without_work_is_not_slow_beyond_measure() -> None:
    """It had a fixed time in each step, and seemed a thousand times as slow: the flow took thousands of steps."""
    owners = np.array([0, *[1] * 11, *[2] * 12])
    case = Case(parse("mesh:4x6"), owners, np.ones(24), np.array([1e-6, 1.0, 1.0]))
    outcome = play(case, np.random.default_rng(0))[0].outcome
    assert outcome.decision.act
    assert outcome.steps < 100


# --- mutants ---


def find_fault() -> None:
    """Raise what is wrong: with each case, with drawn orders, with failures."""
    assert decisions() == DECISIONS
    one, other = play(SMALL["two, one without vertices"], np.random.default_rng(1))
    assert one.outcome.moved > 0
    assert other.mine.speed == pytest.approx(1.0)  # that of the only rank that has been timed
    for seed in range(60):
        play_drawn(seed, slabs=seed % 2 == 1, chance=0.2 if seed % 3 == 0 else 0.0)


errors = ValueError, IndexError, KeyError, TypeError, ZeroDivisionError
test_known_wrong_variants_are_caught = rejects(find_fault, MUTANTS, *errors)
