"""Quick calls: which calls are quick, that all ranks agree on it, and that they come back to full calls in time."""

import numpy as np
import pytest

from lb_mpi.balancing.decider import LATE_S
from lb_mpi.balancing.deciding import BalanceReason, Levels, Policy, RankReport, Trigger
from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.balancing.neighbours import NeighbourPlanner
from lb_mpi.balancing.transfers import plan
from lb_mpi.cli.simulate.rows import Cluster, SimulatedCall, simulate
from lb_mpi.errors import ProtocolError
from lb_mpi.graph import parse
from tests.protocol.deciding import QUICK, decided

LEVEL = Levels(0.0, 1.0, 1.0, 1.0)


def cluster(speeds: object = (4e3, 1e3, 2e3, 1e3), **options: object) -> Cluster:
    return Cluster(parse("mesh:2x2"), speeds, network=QUICK, **options)  # type: ignore[arg-type]


def is_quick(call: SimulatedCall) -> bool:
    return call.reason == BalanceReason.UNCHANGED.words


def same(_call: int) -> list[np.ndarray]:
    return [np.ones(400)] * 4


@pytest.mark.parametrize("scheme", ["direct", "fos", "sos"])
def test_most_calls_are_quick_while_nothing_changes(scheme: str) -> None:
    calls = simulate(cluster(scheme=scheme), same, 60)
    assert np.mean([is_quick(call) for call in calls[20:]]) > 0.8
    assert max(call.seconds / call.bound_s for call in calls[20:]) < 1.05


@pytest.mark.parametrize("scheme", ["direct", "fos"])
def test_a_change_of_speeds_is_followed_by_full_calls_at_once(scheme: str) -> None:
    ranks = cluster(scheme=scheme)
    calls = simulate(ranks, same, 40)
    ranks.speeds[0] /= 4.0
    later = simulate(ranks, same, 30)
    quick = [is_quick(call) for call in [*calls[-1:], *later]]
    assert not any(quick[2:5]), quick
    assert np.median([call.seconds / call.bound_s for call in later[10:]]) < 1.08


def test_nothing_is_quick_where_every_decision_acts() -> None:
    assert not any(is_quick(call) for call in simulate(cluster(when="always"), same, 20))


def test_a_plan_that_one_rank_follows_a_call_early_is_noticed() -> None:
    ranks = cluster()
    simulate(ranks, same, 30)
    other = plan(parse("ring:4"), np.array([0.4, 0.1, 0.3, 0.2]), [1.0] * 4, [1.0] * 4)
    ranks.known_by[0].follow(other)
    with pytest.raises(ProtocolError):
        ranks.call(same(0))


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_makes_another_call_quick_than_the_others_is_noticed(rank: int) -> None:
    ranks = cluster()
    while not ranks.deciders[0].quick_left:
        ranks.call(same(0))
    ranks.deciders[rank].quick_left = 0
    with pytest.raises((ProtocolError, ValueError)):  # its reduction has another length with "direct"
        ranks.call(same(0))


def decide(policy: Policy, n: int, levels: Levels = LEVEL, late: tuple[int, ...] = ()) -> list[int]:
    """The quick calls after each of `n` decisions; the last of those after the decisions `late` takes too long."""
    quick = [0]
    for number in range(n):
        too_long = quick[-1] > 0 and number - 1 in late
        quick.append(policy.decide(4, levels, 0.0, quick[-1], late=too_long).quick)
    return quick[1:]


def test_more_and_more_calls_are_quick_up_to_a_most() -> None:
    assert decide(Policy(Trigger()), 9) == [0, 3, 9, 21, 45, 63, 63, 63, 63]
    assert decide(Policy(Trigger(when=0.1)), 4) == [3, 9, 21, 45]


def test_a_chance_to_balance_is_a_full_call() -> None:
    policy = Policy(Trigger(every=4))
    numbers_of_calls, number, quick = [], 0, 0
    for _ in range(12):
        number += 1 + quick
        decision = policy.decide(4, LEVEL, 0.0, quick)
        quick = decision.quick
        if decision.reason is not BalanceReason.LATER and decision.reason is not BalanceReason.UNMEASURED:
            numbers_of_calls.append(number)
    assert numbers_of_calls
    assert all(number % 4 == 0 for number in numbers_of_calls)
    assert number > 30


def test_more_and_more_full_calls_follow_quick_ones_that_take_too_long() -> None:
    assert decide(Policy(Trigger()), 14, late=(1, 2, 4)) == [0, 3, 9, 0, 3, 0, 0, 0, 3, 9, 21, 45, 63, 63]
    assert max(decide(Policy(Trigger()), 200, late=tuple(range(200)))) == 9


def test_losses_add_up_in_quick_calls_too() -> None:
    trigger = Trigger()
    trigger.paid(0.1)
    policy = Policy(trigger)
    quick = decide(policy, 12, Levels(0.5, 1.012, 1.1, 1.0))  # 12 ms are lost in each call
    assert max(quick) > 0
    acted = [policy.decide(4, Levels(0.5, 1.012, 1.1, 1.0), 0.0, n).act for n in (quick[-1], 0)]
    assert any(acted)  # the skipped losses have reached the cost of 0.1 s


def test_a_call_that_takes_too_long_is_the_last_quick_one() -> None:
    deciders = [NeighbourPlanner(Knowledge(rank, [0, 1], [1 - rank]), 2, Trigger(1e9)) for rank in range(2)]

    def left(elapsed_s: float, queued_s: float = 0.0, *, failed: bool = False, results: int = 7) -> int:
        """Quick calls that follow one in which rank 1 needs so many seconds."""
        usual = RankReport(results=7, work=1.0, busy_s=1.0, ticks=1.0, elapsed_s=1.0)
        other = usual._replace(
            work=1.5, elapsed_s=elapsed_s, queued_s=queued_s, failed=failed, results=results
        )  # fmt: skip
        one, _ = decided(deciders, [usual, other])
        assert failed or one.imbalance_before == pytest.approx(0.2)  # at home, of the last full call
        return deciders[0].quick_left

    def many() -> int:
        while (n := left(1.0)) < 8:
            pass
        return n

    n = many()
    assert left(1.04) == n - 1
    assert left(9.0, 8.0) == n - 2  # a long call tells nothing while the ranks queue
    assert left(1.06 + 2 * LATE_S) == 0
    many()
    assert left(1.0, results=8) == 0
    many()
    assert left(1.0, failed=True) == 0
