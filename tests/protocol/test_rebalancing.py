"""A rebalancing: the law in every state of small ones, drawn orders of larger ones, and known-wrong variants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from lb_mpi.balancing.deciding import BalanceReason
from lb_mpi.errors import ProtocolError
from lb_mpi.graph import Graph, mesh, parse
from lb_mpi.rebalancing import actor as actor_module
from lb_mpi.rebalancing.actor import is_better, may_cut
from lb_mpi.rebalancing.deciding import (
    FIRST_STEPS,
    LEAST_CORE,
    ROUNDS,
    Arguments,
    GraphTotals,
    Opportunities,
    Payback,
    RankLoad,
    report,
    totals_of,
)
from lb_mpi.rebalancing.jobs import run
from lb_mpi.rebalancing.messages import RebalanceKind, RebalanceMessage
from lb_mpi.reduction import reduced
from tests.protocol.explore import for_each_seed, large
from tests.protocol.mutate import rejects
from tests.protocol.rebalancing_law import Case, Explored, play
from tests.protocol.rebalancing_mutants import MUTANTS

EVEN = Case(mesh(4, 4), np.arange(16) // 4, np.ones(16), np.ones(4))
PATH = mesh(1, 6)
TRIANGLE = parse("complete:6")
THIRDS = Case(PATH, np.array([0, 0, 1, 1, 2, 2]), np.ones(6), np.array([1.0, 0.5, 1.0]))
SMALL = {
    "two": Case(mesh(1, 4), np.array([0, 0, 0, 1]), np.ones(4), np.ones(2)),
    "two, one without vertices": Case(mesh(1, 3), np.array([0, 0, 0]), np.ones(3), np.array([1.0, np.nan])),
    "a path of three": Case(PATH, np.array([0, 0, 0, 0, 1, 2]), np.arange(6.0) + 1.0, np.array([0.2, 1.0, 1.0])),
    "three that touch": Case(TRIANGLE, np.array([0, 0, 0, 1, 1, 2]), np.ones(6), np.array([0.3, 0.3, 1.0])),
    "slabs": Case(PATH, np.array([0, 0, 0, 0, 1, 2]), np.arange(6.0) + 1.0, np.array([0.2, 1.0, 1.0]), slabs=True),
    "slabs of a graph that is not a path": Case(TRIANGLE, np.array([0, 0, 0, 0, 0, 2]), np.ones(6), np.ones(3), slabs=True),
    "undone": THIRDS._replace(origin=np.array([0, 0, 0, 2, 2, 2])),
    "undone by ranks that do not touch": THIRDS._replace(origin=np.array([2, 0, 1, 1, 2, 2])),
    "no edges": Case(Graph.from_edges(4, [], []), np.array([0, 0, 0, 1]), np.ones(4), np.ones(2)),
}


@pytest.mark.parametrize(
    ("name", "failures"),
    [pytest.param(name, n, marks=[large] * (n == 1 and "three" in name)) for name in SMALL for n in (0, 1)],
)
def test_the_law_holds_in_every_reachable_state(name: str, failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lb_mpi.rebalancing.flow.MAX_STEPS", 2)  # of a flow: orders matter here, not balance
    monkeypatch.setattr(actor_module, "TOGETHER", 0)  # with more states than if each rank computes all flows
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor_module, "TOGETHER", 16 * (seed % 3 > 0))
        actors = play(case, rng, chance=chance)
    if not actors:
        return 0
    if actors[0].links is not None and case.graph.components()[0] == 1:
        case.check_flows(actors, 0.02)
    assert actors[0].outcome.failed == any(actor.error for actor in actors)
    assert actors[0].outcome.steps < 500, "a flow that changes nothing does not end"
    return int(actors[0].outcome.moved)


def test_drawn_orders_keep_the_law() -> None:
    moved = list[int]()
    play = lambda seed: moved.append(play_drawn(seed, slabs=seed % 5 == 1, chance=0.1 if seed % 4 == 0 else 0.0))  # noqa: E731
    for_each_seed(range(60), play)
    assert sum(moved) > 100


def test_ranks_that_are_level_send_nothing_to_each_other() -> None:
    for when in ("always", "auto", 0.1):
        assert EVEN.decide(when)[1].before == 0.0
        assert not play(EVEN, np.random.default_rng(1), when=when)


def test_an_unexpected_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    message = RebalanceMessage(RebalanceKind.LABEL, np.zeros(0, dtype=np.int64))
    actor = SMALL["a path of three"].actors()[0]
    actor.turn(0.0, [(1, message), (2, message)])  # which may be early
    with pytest.raises(ProtocolError, match="expected HELLO"):
        actor.done(actor.job, run(actor.job))
    case = Case(mesh(1, 12), np.arange(12) // 2, np.ones(12), np.arange(1.0, 7.0))
    with pytest.raises(ProtocolError, match=r"messages of \[3\] at the end"):
        play(case, np.random.default_rng(1), first=[(0, 3, message)])
    monkeypatch.setattr(actor_module, "best_ends", lambda *_: np.array([0, 0, 6]))
    with pytest.raises(ProtocolError, match="not its neighbours"):
        play(SMALL["slabs"], np.random.default_rng(1))


def after_moves(*measured: tuple[float, float]) -> list[str]:
    """The reasons at opportunities at which these are measured: seconds of a step now, and with the parts before the move.

    Two ranks of loads 3 and 1 would need 2 s each; a move costs 0.5 s.
    """
    opportunities, found = Opportunities(arguments=Arguments("auto")), []
    opportunities.paid(0.5)
    for now_s, before_s in measured:
        opportunities._number, opportunities._calls, opportunities._skipped = 1, 1, 0
        most = uneven().most._replace(seconds=now_s, now_s=now_s, before_s=before_s, planned_s=2.0)
        decided = opportunities.decide(uneven()._replace(most=most), 2)
        found.append(decided.reason.name)
        if decided.act:
            opportunities.moved(10.0, decided.reason)
    return found


def test_a_move_that_has_lost_its_cost_is_undone_and_the_next_change_has_to_last_twice_as_long() -> None:
    plain, slower = (3.0, 3.0), (3.0, 2.4)
    assert after_moves(plain, plain, plain) == ["GAIN"] * 3
    assert after_moves(plain, slower, plain, plain) == ["GAIN", "UNDONE", "NO_GAIN", "GAIN"]
    assert after_moves(plain, (2.05, 1.65), (2.05, 1.95)) == ["GAIN", "WITHIN", "WITHIN"]  # has not lost 0.5 s so far
    assert after_moves(plain, (2.05, 1.65), (2.05, 1.9)) == ["GAIN", "WITHIN", "UNDONE"]
    found = after_moves(plain, slower, plain, plain, slower, *[plain] * 4)
    assert found[4:] == ["UNDONE", "NO_GAIN", "NO_GAIN", "GAIN", "NO_GAIN"]
    found = after_moves(plain, (9.0, 3.0), *[plain] * 14)  # the move has lost 6 s
    assert found[1:] == ["UNDONE", *["NO_GAIN"] * 12, "GAIN", "NO_GAIN"]
    assert after_moves(plain, (3.0, 2.6), plain, plain)[1:] == ["NO_GAIN", "GAIN", "GAIN"]  # 0.4 s so far, which count twice
    saved = after_moves(plain, slower, plain, plain, (2.05, 3.0), *[plain] * 3)
    assert saved[4:] == ["WITHIN", "NO_GAIN", "GAIN", "GAIN"]  # the patience is 1 again


def test_losses_begin_anew_when_the_speeds_have_changed_again() -> None:
    moves = Payback()
    assert not moves.pays(0.0, 9.0)
    for planned_s, lost_s in ((2.4, 0.6), (2.4, 1.2), (2.6, 0.0)):  # of 3 s; new parts would take 2 s
        moves.measure(uneven().most._replace(planned_s=planned_s), 1, 2.0)
        assert moves.lost_s == pytest.approx(lost_s)


def impatient(when: Any, tolerance: float = 0.05, every: int = 1) -> Opportunities:
    """Return opportunities after two moves for which no better parts were found; one costs 8 s."""
    opportunities = Opportunities(arguments=Arguments(when, every, tolerance))
    opportunities.paid(8.0)
    for _ in range(2):
        opportunities.dropped(BalanceReason.GAIN)
    return opportunities


def uneven(queued: float = 0.0, call_s: float = 0.0) -> GraphTotals:
    """Two ranks need 3 s and 1 s: an imbalance of 50 %; both queue for this part of their time."""
    reports = [report(RankLoad(load, 1.0, queued, 1.0), call_s=call_s) for load in (3.0, 1.0)]
    return totals_of(reduced(reports))


def test_with_a_bound_a_move_has_to_pay_after_one_in_vain() -> None:
    for when, tolerance, reason in (
        ("auto", 0.05, BalanceReason.NO_GAIN), ("auto", 0.6, BalanceReason.WITHIN), (0.4, 0.05, BalanceReason.NO_GAIN),
        (0.6, 0.05, BalanceReason.BELOW), ("always", 0.05, BalanceReason.ALWAYS),
    ):  # fmt: skip
        opportunities = impatient(when, tolerance)
        decided = opportunities.decide(uneven(), 2)
        assert decided.reason is reason, (when, tolerance)
        assert opportunities.moves.patience == (1 if when == "always" else 4)
    assert Opportunities(arguments=Arguments(0.4)).decide(uneven(), 2).reason is BalanceReason.BOUND


def test_each_decision_counts_as_an_opportunity() -> None:
    """With every=2, each second call is one, whatever was decided at the last one."""
    undone, crowded, plain = (Opportunities(arguments=Arguments("auto", 2)) for _ in range(3))
    undone.moves.saved_s = -99.0
    slower = uneven()._replace(most=uneven().most._replace(before_s=2.0))
    for opportunities, totals, reason in (
        (impatient("auto", every=2), uneven(), BalanceReason.NO_GAIN), (undone, slower, BalanceReason.UNDONE),
        (crowded, uneven(0.9), BalanceReason.CROWDED), (plain, uneven(), BalanceReason.NO_GAIN),
    ):  # fmt: skip
        assert opportunities.skips()
        assert not opportunities.skips()
        assert opportunities.decide(totals, 2).reason is reason
        assert opportunities.skips()
        assert not opportunities.skips()


def test_a_move_is_undone_while_ranks_queue_too() -> None:
    """A first move by noise left one rank with hardly a vertex for the rest of the run, since the ranks queued."""
    for saved_s, reason in ((-0.5, BalanceReason.CROWDED), (-1.5, BalanceReason.UNDONE)):
        opportunities = Opportunities()
        opportunities.paid(1.0)
        opportunities.moves.saved_s = saved_s
        totals = uneven(0.9)
        assert opportunities.decide(totals._replace(most=totals.most._replace(before_s=2.0)), 2).reason is reason


def test_the_next_opportunity_is_when_the_losses_reach_the_cost() -> None:
    """By their cost, opportunities would be 18 calls apart; a move costs 8 s, and saves a second in each call."""
    opportunities = Opportunities()
    opportunities.paid(8.0)
    assert opportunities.decide(uneven(call_s=1.0), 2).reason is BalanceReason.NO_GAIN
    assert [opportunities.skips() for _ in range(8)] == [True] * 7 + [False]


def test_a_rank_that_queues_would_be_faster_with_a_core_of_its_own() -> None:
    sums = uneven(queued=0.75).sums
    assert (sums.speed, sums.free) == (2.0, 8.0)
    for queued in (1.0, 1.5):  # always, by clocks that are read one after the other
        assert uneven(queued).sums.free == 2.0 / LEAST_CORE


def test_the_next_call_is_an_opportunity_until_all_ranks_are_measured() -> None:
    opportunities = Opportunities()
    reports = [report(RankLoad(3.0, speed), call_s=1.0) for speed in (1.0, math.nan)]
    assert opportunities.decide(totals_of(reduced(reports)), 2).reason is BalanceReason.UNMEASURED
    assert not opportunities.skips()


def test_ranks_without_work_are_level() -> None:
    totals = totals_of(reduced([report(RankLoad(0.0, 1.0), call_s=1.0)] * 2))
    decided = Opportunities().decide(totals._replace(sums=totals.sums._replace(speed=2.0)), 2)
    assert (decided.reason, decided.before) == (BalanceReason.WITHIN, 0.0)


def test_with_always_the_call_after_a_move_is_an_opportunity() -> None:
    opportunities = Opportunities(arguments=Arguments("always"))
    opportunities.moved(10.0, BalanceReason.ALWAYS)
    assert not opportunities.skips()


def test_a_move_counts_as_better_by_its_own_numbers() -> None:
    """A perfect balance takes 2 s; 3 % of imbalance may be left."""
    always, gain, cut = BalanceReason.ALWAYS, BalanceReason.GAIN, BalanceReason.CUT
    for reason, before_s, after_s, better in (
        (always, 3.0, 2.999, True), (always, 3.0, 3.0, False), (gain, 3.0, 2.9, True), (gain, 3.0, 2.98, False),
        (BalanceReason.BOUND, 3.0, 3.1, False), (BalanceReason.UNDONE, 2.1, 2.2, False), (cut, 2.01, 2.05, True),
        (cut, 2.01, 2.07, False), (cut, 2.1, 2.1, True),
    ):  # fmt: skip
        assert is_better(reason, before_s, after_s, 1.03 * 2.0) == better, (reason, before_s, after_s)
    assert [may_cut(*each) for each in ((cut, 7, 7), (cut, 6, 7), (gain, 8, 7))] == [False, True, True]


def after_a_move(cut: float, first_cut: float = 10.0, every: int = 1) -> Opportunities:
    """Return opportunities after a move that has cost 0.12 s and left a cut of this weight."""
    opportunities = Opportunities(first_cut=first_cut, arguments=Arguments(every=every))
    opportunities.paid(0.12)
    opportunities.moved(cut, BalanceReason.GAIN)
    return opportunities


@pytest.mark.parametrize(("lighter", "moves"), [
    ([0.99], 1),  # it hardly helps
    ([0.9, 0.99], 2),
    ([0.9, 0.8], 2),  # no longer heavy
])  # fmt: skip
def test_a_heavy_cut_is_made_lighter_after_each_move_that_has_held_as_long_as_it_helps(
    lighter: list[float], moves: int
) -> None:
    """A step takes 4 s, and a move 0.12 s: the parts have held after two steps."""
    opportunities, found = Opportunities(first_cut=10.0), []
    opportunities.paid(0.12)
    for cut in (11.0, 14.0, 13.5):
        opportunities.moved(cut, BalanceReason.GAIN)
        assert opportunities.skips()  # the next step is to show what it has saved
        parts = iter([*lighter, 1.0])
        for _ in range(8):
            assert not opportunities.skips()
            decided = opportunities.decide(EVEN.totals, EVEN.size)
            if decided.reason.acts:
                cut *= next(parts)
                opportunities.moved(cut, decided.reason)
            found.append(decided.reason is BalanceReason.CUT)
    held = ([False, True] * moves + 8 * [False])[:8]
    assert found == 8 * [False] + 2 * held


def test_a_heavy_cut_for_which_no_lighter_one_was_found_is_left() -> None:
    opportunities = after_a_move(14.0)
    reasons = [opportunities.decide(EVEN.totals, EVEN.size).reason for _ in range(20)]
    assert reasons.count(BalanceReason.CUT) == 1


def test_parts_stay_where_no_lighter_cut_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_module, "may_cut", lambda *_: False)
    outcome = play(SMALL["two"], np.random.default_rng(1))[0].outcome
    assert (outcome.moved, outcome.after) == (0, outcome.before)


@pytest.mark.parametrize(("every", "moves_again", "reasons"), [(1, False, "WC"), (1, True, "WWC"), (2, False, "C")])
def test_a_heavy_cut_loses_time_in_each_step_since_the_last_move(every: int, moves_again: bool, reasons: str) -> None:
    """A step loses 0.08 s by the cut, and a move costs 0.12 s."""
    opportunities, found = after_a_move(14.0, every=every), []
    for _ in reasons:
        found.append(opportunities.decide(EVEN.totals, EVEN.size).reason)
        if moves_again and len(found) == 1:
            opportunities.moved(14.0, BalanceReason.GAIN)
    assert "".join(reason.name[0] for reason in found) == reasons


def test_before_the_first_move_its_cost_is_guessed_from_the_times_of_an_opportunity_and_a_step() -> None:
    for call_s, cost_s in ((1.0, ROUNDS), (1e-3, FIRST_STEPS * 2.0)):
        assert Opportunities().decide(uneven(call_s=call_s), 2).cost_s == cost_s
    paid = Opportunities()
    paid.paid(8.0)
    assert paid.decide(uneven(call_s=1.0), 2).cost_s == 8.0


def test_after_a_first_cut_of_0_no_cut_is_heavy() -> None:
    """All vertices were on one rank, or each part was a piece of its own: that says nothing of later cuts."""
    opportunities = after_a_move(12.0, first_cut=0.0)
    for _ in range(10):
        assert opportunities.skips() or not opportunities.decide(EVEN.totals, EVEN.size).reason.acts


def opportunities_of(
    call_s: float, when: Any = "auto", every: int = 1, timed: bool = True, late: Sequence[int] = ()
) -> list[int]:
    """The opportunities in 40 calls of four ranks with steps of a second, if each takes `call_s`, the `late` ones 9 s."""
    case = Case(mesh(4, 4), np.arange(16) // 4, np.ones(16), np.full(4, 4.0 if timed else np.nan))
    opportunities, found = Opportunities(arguments=Arguments(when, every)), []
    for number in range(1, 41):
        if opportunities.skips():
            continue
        found.append(number)
        reports = [report(load, call_s=opportunities.call_s) for load in case.loads()]
        opportunities.decide(totals_of(reduced(reports)), case.size)
        opportunities.record_call(9.0 if number in late else call_s)
    return found


def test_opportunities_are_as_frequent_as_it_pays() -> None:
    assert opportunities_of(0.0) == list(range(1, 41))
    assert opportunities_of(0.1) == [1, 2, 12, 22, 32]  # a call in ten, since it costs a tenth of a step
    assert opportunities_of(0.1, late=[2, 12]) == [1, 2, 12, 22, 32]  # for want of a core, which is no price
    assert opportunities_of(10.0) == [1, 2]
    assert opportunities_of(10.0, when="always") == opportunities_of(10.0, when=0.1) == list(range(1, 41))
    assert opportunities_of(10.0, timed=False) == list(range(1, 41))


def test_opportunities_come_when_a_decision_is_due() -> None:
    assert opportunities_of(0.0, every=8) == opportunities_of(9.0, every=8, when="always") == [8, 16, 24, 32, 40]
    assert opportunities_of(0.1, every=8) == [8, 16, 32]  # not before the tenth call


@pytest.mark.parametrize("hours", [1.0, 1e4])
def test_hours_since_the_last_opportunity_do_not_saturate(hours: float) -> None:
    reports = [report(RankLoad(1.0, 1.0, 180.0 * hours, 3600.0 * hours)) for _ in range(4)]
    sums = totals_of(reduced(reports)).sums
    assert (sums.queued_s, sums.own_s) == (720.0 * hours, 14400.0 * hours)


def level_cases(scale: float) -> Iterator[Case]:
    """Yield cases of ranks that need the same time, but for the last bit."""
    for seed in range(20):
        speeds = scale * np.random.default_rng(seed).uniform(0.2, 1.0, 3)
        yield Case(mesh(1, 3), np.arange(3), 0.3 * speeds, speeds)


@pytest.mark.parametrize("scale", [1e-315, 1e-290, 1.0, 1e300])
def test_loads_and_speeds_of_any_size_give_the_same_decision(scale: float) -> None:
    case = Case(mesh(1, 4), np.array([0, 0, 0, 1]), scale * np.ones(4), scale * np.ones(2))
    assert case.decide()[1].before == pytest.approx(0.5)
    assert all(even.decide()[1].before >= 0.0 for even in level_cases(scale))  # not -1e-10, by rounding


@pytest.mark.parametrize(("queued", "slow", "when", "acts"), [
    (0.0, 0.8, "auto", True), (0.6, 0.8, "auto", False), (0.6, 0.1, "auto", True), (0.6, 0.8, 0.1, True),
])  # fmt: skip
def test_nothing_moves_while_ranks_queue_for_cores_unless_it_gains_more(
    queued: float, slow: float, when: Any, acts: bool
) -> None:
    """In each step, another rank is the slow one, since it queued for a core."""
    case = Case(parse("mesh:4x6"), np.arange(24) // 12, np.ones(24), np.array([1.0, slow]), queued=queued)
    decision = case.decide(when)[1]
    assert (decision.act, bool(play(case, np.random.default_rng(0), when=when))) == (acts, acts)
    assert acts or decision.reason is BalanceReason.CROWDED


def test_a_rank_without_work_is_not_slow_beyond_measure() -> None:
    """It had a fixed time in each step, and seemed a thousand times as slow: the flow took thousands of steps."""
    owners = np.array([0, *[1] * 11, *[2] * 12])
    case = Case(parse("mesh:4x6"), owners, np.ones(24), np.array([1e-6, 1.0, 1.0]))
    outcome = play(case, np.random.default_rng(0))[0].outcome
    assert outcome.reason.acts
    assert outcome.steps < 100
    # On a line, the work of others flows through it.
    line = Case(parse("mesh:1x24"), np.array([*[0] * 12, 1, *[2] * 11]), np.ones(24), np.array([1.0, 1e-6, 0.3]))
    assert play(line, np.random.default_rng(0))[0].outcome.steps < 2000


def test_few_ranks_compute_the_flows_that_they_would_find_by_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(mesh(20, 30), np.arange(600) // 100, np.ones(600), np.array([0.3, 1.0, 1.0, 0.5, 1.0, 1.0]))
    found = []
    for together in (5, 6):
        monkeypatch.setattr(actor_module, "TOGETHER", together)
        actors = play(case, np.random.default_rng(1))
        case.check_flows(actors, 0.02)
        found.append([list(actor.links.flows.values()) for actor in actors])
        assert actors[0].outcome.moved
    for flows, alone in zip(*found, strict=True):  # messages learn a few steps later that the flow is over
        assert flows == pytest.approx(alone, abs=2.0)


def find_fault() -> None:
    """Raise what is wrong: with each case, with drawn orders, with failures."""
    test_opportunities_are_as_frequent_as_it_pays()
    for checksums in ((7, 8, 7), (7, 7)):  # of arguments
        totals = totals_of(reduced([report(RankLoad(1.0, 1.0), checksum=one) for one in checksums]))
        assert totals.differs == (8 in checksums)
    one, other = play(SMALL["two, one without vertices"], np.random.default_rng(1))
    assert one.outcome.moved > 0
    assert other.mine.speed == pytest.approx(1.0)  # that of the only rank that has been timed
    test_a_move_that_has_lost_its_cost_is_undone_and_the_next_change_has_to_last_twice_as_long()
    test_with_a_bound_a_move_has_to_pay_after_one_in_vain()
    test_losses_begin_anew_when_the_speeds_have_changed_again()
    test_a_move_counts_as_better_by_its_own_numbers()
    for name in ("undone", "undone by ranks that do not touch"):
        assert play(SMALL[name], np.random.default_rng(1))[0].committed
    for seed in (28, 20, 29, *range(12)):  # what the first three break, others hardly do
        play_drawn(seed, slabs=seed % 2 == 1, chance=0.2 if seed % 3 == 0 else 0.0)


errors = ValueError, IndexError, KeyError, TypeError, ZeroDivisionError
test_known_wrong_variants_are_caught = rejects(find_fault, MUTANTS, *errors)
