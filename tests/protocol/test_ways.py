"""Rows at home or lent: the faster way is kept, on all ranks, and left when the ranks become uneven."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from statistics import StatisticsError, median

import numpy as np
import pytest

from lb_mpi.balancing import decider as decider_module
from lb_mpi.balancing import ways as module
from lb_mpi.balancing.decider import RootPlanner
from lb_mpi.balancing.deciding import BalanceReason, RankReport, RoundProblem, Trigger, words_of
from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.balancing.neighbours import NeighbourPlanner
from lb_mpi.balancing.ways import LONGEST, RECENT, SHORTEST, SURE, TRIAL, Choice, Stay, Ways
from lb_mpi.cli.simulate import rows as simulate_module
from lb_mpi.cli.simulate.rows import Cluster, SimulatedCall
from lb_mpi.graph import Floats, parse
from lb_mpi.knowledge import KnownSpeeds
from lb_mpi.virtual import Network
from tests.protocol.deciding import decided
from tests.protocol.mutate import Mutant, rejects

Numbers = Callable[[int], float]  # of a call


def play(
    ways: Ways, n: int, home_s: Numbers, lending_s: Numbers, uneven: Numbers, predicted_s: Numbers | None = None
) -> tuple[list[bool], list[Choice]]:  # fmt: skip
    """Make n calls, which take these seconds in both ways; which were at home, and the choices."""
    at_home, choices, last_s, imbalances = [], [], math.nan, deque[float](maxlen=RECENT)
    for k in range(n):
        home, seconds = ways.home, (home_s if ways.home else lending_s)(k)
        at_home.append(home)
        before = last_s if k else math.nan
        if ways.learning:
            choice, _ = None, ways.learned(before, uneven(k))
        elif home:
            imbalances.append(uneven(k))
            choice = ways.stayed(before, uneven(k), (1.0 + median(imbalances)) * seconds, seconds)
        else:
            imbalances.clear()
            choice = ways.lent(before, (predicted_s or home_s)(k))
        choices += [choice] if choice else []
        last_s = seconds
    return at_home, choices


def always(value: float) -> Numbers:
    return lambda _: value


def auto() -> Ways:
    """Ways after the first calls, in which the ranks were uneven."""
    ways = Ways(0.05, auto=True)
    ways.lend()
    return ways


def test_the_first_calls_are_at_home_until_the_ranks_are_clearly_uneven() -> None:
    for n, imbalance in ((1, 0.4), (2, 0.2), (3, 0.12), (6, 0.051)):
        ways = Ways(0.05, auto=True)
        at_home, _ = play(ways, 40, always(10.0), always(11.0), always(imbalance), always(20.0))
        assert not ways.learning
        assert at_home == [False, *[True] * (n - 1), *[False] * (41 - n - 1)]
    ways = Ways(0.05, auto=True)
    at_home, _ = play(ways, 40, always(10.0), always(11.0), lambda k: math.nan if k % 2 else 0.04)
    assert at_home == [False, True] * 5 + [False] + [True] * 29
    assert not ways.learning
    ways = Ways(0.05, auto=True)
    assert not any(ways.learned(1.0, 0.4, pays=False)[0] for _ in range(6))
    assert ways.home


def test_the_faster_way_is_kept_for_longer_and_longer() -> None:
    for home_s, lending_s, predicted_s in ((10.0, 14.9, 9.0), (14.9, 10.0, 9.0), (10.0, 10.1, 10.4)):
        at_home, choices = play(auto(), 600, always(home_s), always(lending_s), always(0.3), always(predicted_s))
        slower = [home is (home_s > lending_s) for home in at_home]
        assert np.mean(slower[TRIAL:]) < 0.12
        ended = [choice for choice in choices if choice.way in (Stay.HOME, Stay.LENDING)]
        assert (ended[-1].home_s, ended[-1].lending_s) == (home_s, lending_s)
        kept = [choice.n_calls for choice in ended]
        assert kept[-1] == LONGEST
        assert all(after in (2 * before, LONGEST, SHORTEST) for before, after in itertools.pairwise(kept))
        runs = [len(list(calls)) for _, calls in itertools.groupby(slower)]
        assert max(runs[1:-1:2]) <= 2 * LONGEST + TRIAL + 1  # where predictions were wrong, every second trial is left out


def test_a_way_that_was_slower_than_predicted_is_tried_more_rarely() -> None:
    for home_s, lending_s, predicted_s in ((10.0, 14.9, 10.0), (14.9, 10.0, 9.0)):
        _, choices = play(auto(), 600, always(home_s), always(lending_s), always(0.3), always(predicted_s))
        assert 4 <= len([choice for choice in choices if choice.way in (Stay.TRY_HOME, Stay.TRY_LENDING)]) <= 7


def test_ranks_that_are_even_at_home_stay_there_without_trials() -> None:
    at_home, choices = play(auto(), 500, always(10.0), always(11.0), always(0.02))
    assert [choice.way for choice in choices] == [Stay.TRY_HOME, Stay.HOME]
    assert all(at_home[TRIAL + 1 :])


def test_unequal_ranks_pay_for_no_trial() -> None:
    at_home, choices = play(auto(), 300, always(20.0), always(11.0), always(1.0))
    assert not any(at_home)
    assert not choices
    at_home, _ = play(Ways(0.05, auto=False), 100, always(5.0), always(11.0), always(0.0))
    assert not any(at_home)


def test_home_is_tried_though_each_call_is_followed_by_a_new_plan() -> None:
    ways = auto()
    choice = next(filter(None, (ways.lent(1.2, 1.0, planned=True) for _ in range(60))))
    assert choice == Choice(Stay.TRY_HOME, TRIAL, 1.0, 1.2)


def test_calls_with_lending_are_compared_with_the_same_calls_at_home() -> None:
    ways = auto()
    assert not any(ways.lent(1.0, 0.5 if k % 3 == 0 else 3.0, planned=k % 2 > 0) for k in range(60))


def test_a_trial_that_is_clearly_slower_ends_early() -> None:
    at_home, _ = play(auto(), 600, always(10.0), always(20.0), always(0.3))
    runs = [len(list(calls)) for home, calls in itertools.groupby(at_home) if not home]
    assert max(runs[1:]) <= TRIAL - 1


def test_a_change_of_the_imbalance_ends_the_stay_at_home_within_a_few_calls() -> None:
    for when in (60, 61, 75, 100):
        def uneven(k: int, when: int = when) -> float:
            return 0.02 if k < when else 1.5

        lending_s = [12.0] * when + [14.0] * (200 - when)
        at_home, choices = play(auto(), 200, lambda k: 10.0 * (1.0 + uneven(k)), lending_s.__getitem__, uneven)
        assert all(at_home[when - 10 : when + SURE - 1])
        assert not any(at_home[when + SURE :])
        assert choices[-1].way is Stay.LENDING
    for when in (300, 330):  # though lending has disappointed before
        home_s, uneven = [10.0] * when + [25.0] * 100, [0.3] * when + [1.5] * 100
        at_home, _ = play(auto(), 400, home_s.__getitem__, always(14.9), uneven.__getitem__)
        assert sum(at_home[when:]) <= SURE


def test_a_way_that_has_become_the_faster_one_is_found() -> None:
    """Though nothing but a trial shows it."""
    for when in range(300, 440, 10):
        lending_s = [14.9] * when + [8.0] * 300
        at_home, _ = play(auto(), len(lending_s), always(10.0), lending_s.__getitem__, always(0.3))
        assert sum(at_home[when:]) <= 2 * LONGEST + 1


def test_ranks_that_only_seem_uneven_do_not_change_their_way_again_and_again() -> None:
    rng = np.random.default_rng(1)
    drawn = rng.lognormal(-1.0, 1.0, 1000)
    at_home, _ = play(auto(), 1000, always(10.0), always(14.0), lambda k: float(drawn[k]))
    assert np.mean(at_home) > 0.85


def test_rows_are_lent_at_once_where_speeds_are_known() -> None:
    for known in (None, KnownSpeeds((2.0, 1.0), (0.1, 0.1))):
        decider = RootPlanner(Knowledge(0, range(2), [1]), parse("mesh:1x2"), Trigger(), known)
        for _ in range(2):
            assert decider.ways.learning is (known is None)
            decider.restart()  # after a failure, or after `migrate`


def test_the_words_name_the_numbers() -> None:
    assert str(Choice(Stay.HOME, 32, 13.12e-3, 14.9e-3)) == "at home 13.1 ms, with lending 14.9 ms: for 32 calls"
    assert str(Choice(Stay.TRY_HOME, 6, 13.1e-3, 0.2)) == "at home 13.1 ms as predicted, with lending 200 ms: for 6 calls"
    assert {way.name for way in Stay} <= {reason.name for reason in BalanceReason}


# --- all ranks ----------------------------------------------------------------------------------------------------------


class Dear(Cluster):
    """Ranks on a machine where a call with lending takes `dear` times as long."""

    dear = 1.3

    def call(self, costs: Sequence[Floats], begin_s: Floats | None = None) -> SimulatedCall:
        self.at_home = self.deciders[0].ways.home
        assert {one.ways.home for one in self.deciders} == {self.at_home}
        call = super().call(costs, begin_s)
        self._last_s *= 1.0 if self.at_home else self.dear
        return call._replace(seconds=self._last_s)


def dear(speeds: Sequence[float], scheme: str = "direct", factor: float = 1.3) -> Dear:
    ranks = Dear(parse("mesh:2x2"), speeds, network=Network((1e-6, 1e-5)), scheme=scheme, noise=0.02, seed=1)
    ranks.dear = factor
    return ranks


def calls(ranks: Dear, n: int) -> tuple[list[bool], list[SimulatedCall]]:
    done = [(ranks.call([np.ones(200)] * 4), ranks.at_home) for _ in range(n)]
    return [home for _, home in done], [call for call, _ in done]


@pytest.mark.parametrize("scheme", ["direct", "fos"])
def test_where_lending_is_dear_rows_stay_at_home_until_a_rank_gets_slow(scheme: str) -> None:
    ranks = dear([1000.0] * 4, scheme)
    at_home, done = calls(ranks, 100)
    assert np.mean([call.seconds / call.bound_s for call in done]) < 1.12
    assert np.mean([call.seconds / call.bound_s for call in done[20:]]) < 1.06
    assert sum(call.rows_moved for call, home in zip(done, at_home, strict=True) if home) == 0
    ranks.speeds[0] /= 4.0  # 3.25 times the bound at home
    at_home, done = calls(ranks, 60)
    assert not any(at_home[SURE + 2 : 30])
    assert np.mean([call.seconds / call.bound_s for call in done[8:]]) < 1.3 * 1.2


def test_where_ranks_are_unequal_rows_are_lent_though_it_is_dear() -> None:
    at_home, done = calls(dear([1000.0, 500.0, 250.0, 250.0]), 100)
    assert not any(at_home)
    assert np.mean([call.seconds / call.bound_s for call in done[8:]]) < 1.3 * 1.05


def test_one_of_many_ranks_that_gets_fast_is_found_at_home() -> None:
    """By its own times its rows might have become cheap: 3.6 % would be gained, within the tolerance, instead of 28 %."""
    cluster, rows, ratios = Cluster(parse("mesh:5x5"), np.ones(25)), [np.full(24, 1e-3)] * 25, []
    for k in range(60):
        cluster.speeds[12] = 1.0 if k < 8 else 8.0
        done = cluster.call(rows)
        ratios.append(done.seconds / done.bound_s)
    assert np.mean(ratios[45:]) < 1.1


def test_a_rank_with_cheap_rows_is_taken_for_a_fast_one_only_until_rows_are_lent() -> None:
    cluster, rows = Cluster(parse("mesh:2x2"), np.ones(4)), [np.full(64, 1e-3 * cost) for cost in (1.0, 1.0, 1.0, 0.1)]
    assert sum(cluster.call(rows).acted for _ in range(40)) <= 3


def test_all_ranks_choose_the_same() -> None:
    """Whatever each has measured alone."""
    rng = np.random.default_rng(2)
    deciders = [NeighbourPlanner(Knowledge(rank, [0, 1], [1 - rank]), 2, Trigger()) for rank in range(2)]
    chosen = set()
    for k in range(300):
        if k == 10:
            for decider in deciders:
                decider.ways.lend()
        reports = [
            RankReport(False, 7, 7, 1.0, busy, 1.0, 0.0, 0, 0, began_s=0.2 * rank, last_s=rng.uniform(1.0, 1.3))
            for rank, busy in enumerate(rng.uniform(0.8, 1.2, 2))
        ]
        decisions = [one.decision for one in decided(deciders, reports)]
        assert words_of(decisions[0], 0) == words_of(decisions[1], 0)
        assert len({(one.ways.home, one.quick_left) for one in deciders}) == 1
        chosen.add(decisions[0].reason)
    assert {BalanceReason.TRY_HOME, BalanceReason.LENDING, BalanceReason.HOME, BalanceReason.TRY_LENDING} < chosen
    assert BalanceReason.FIRST in chosen


def test_a_failure_at_home_ends_the_stay() -> None:
    deciders = [NeighbourPlanner(Knowledge(rank, [0, 1], [1 - rank]), 2, Trigger()) for rank in range(2)]
    for decider in deciders:
        decider.ways.lend()
        decider.ways.home, decider.ways._left = True, LONGEST
    reports = [RankReport(failed, 7, 7, math.nan, 1.0, 1.0, 0.0, 0, 0) for failed in (False, True)]
    assert {one.problem for one in decided(deciders, reports)} == {RoundProblem.FAILED}
    assert all(decider.ways.learning and not decider.ways.home for decider in deciders)


def test_a_rank_that_waited_for_a_core_longer_than_it_was_busy_has_a_speed() -> None:
    """Its first call of the function, which may compile it, is not in its busy seconds."""
    decider = NeighbourPlanner(Knowledge(0, [0, 1], [1]), 2, Trigger())
    decider.ways.home = True
    decider.report(RankReport(False, 7, 7, math.nan, 1.0, 1.0, 0.0, 0, 0, coreless_s=1.0))
    decider.report(RankReport(False, 7, 7, math.nan, 1.0, 1.0, 0.0, 0, 0, coreless_s=9.0))
    assert decider._speed == 1.0


def find_fault() -> None:
    test_the_first_calls_are_at_home_until_the_ranks_are_clearly_uneven()
    test_a_failure_at_home_ends_the_stay()
    test_all_ranks_choose_the_same()
    test_the_faster_way_is_kept_for_longer_and_longer()
    test_a_way_that_was_slower_than_predicted_is_tried_more_rarely()
    test_ranks_that_are_even_at_home_stay_there_without_trials()
    test_unequal_ranks_pay_for_no_trial()
    test_home_is_tried_though_each_call_is_followed_by_a_new_plan()
    test_calls_with_lending_are_compared_with_the_same_calls_at_home()
    test_a_trial_that_is_clearly_slower_ends_early()
    test_a_change_of_the_imbalance_ends_the_stay_at_home_within_a_few_calls()
    test_a_way_that_has_become_the_faster_one_is_found()
    test_ranks_that_only_seem_uneven_do_not_change_their_way_again_and_again()
    test_one_of_many_ranks_that_gets_fast_is_found_at_home()
    test_a_rank_with_cheap_rows_is_taken_for_a_fast_one_only_until_rows_are_lent()
    test_where_lending_is_dear_rows_stay_at_home_until_a_rank_gets_slow("direct")


MUTANTS: list[Mutant] = [
    # the first calls: chance is believed, or a small difference never is; at home though ranks are uneven, or for ever
    (module, "Ways.learned", "FIRST / self._n_learned", "0.0"),
    (module, "Ways.learned", "FIRST / self._n_learned", "FIRST"),
    (module, "Ways.learned", "            self.lend()\n", "            pass\n"),
    (module, "Ways.learned", "pays and imbalance", "imbalance"),
    (module, "Ways.learned", "self.learning, self._left, self._usual = False, 0, imbalance", "pass"),
    (module, "Ways.learned", "if math.isnan(imbalance)", "if False"),
    (module, "Ways.learned", "            self.home = False\n", ""),
    # a rank decides from its own times only
    (decider_module, "Decider.decide", "last_s = most.last_s or math.nan", "last_s = 1.0 + self._began_s"),
    (decider_module, "Decider._end_quick", "stayed(last_s, own, most.home_s", "stayed(last_s, own, self._began_s"),
    # a rank that has become fast seems to have cheap rows: at home, in a trial of lending, for want of numbers of rows
    (decider_module, "Decider._end_quick", "even_s, own = total.even_s,", "even_s, own = total.work / total.speed,"),
    (decider_module, "Decider.decide", "balanced_s if policy.lending else min(balanced_s, total.even_s)", "balanced_s"),
    (simulate_module, "Cluster._end", "home=len(self.known_by[rank].costs or ())", "home=0"),
    # and its plan is never as good as that
    (decider_module, "Decider.decide", "balanced_s if policy.lending else min", "min"),
    # the way at home forgets a failure
    (decider_module, "Decider.decide", "if most.failed or", "if most.failed and not self.ways.home or"),
    # it never leaves home: never, only for a trial in its time, only for a change
    (module, "Ways.stayed", "(not uneven and (self._left", "True or (not uneven and (self._left"),
    (module, "Ways.stayed", "uneven = len(self._own) == SURE and", "uneven = False and"),
    (module, "Ways.stayed", "self._left > 0 or above", "True or above"),
    # it lends at home, or helps
    (module, "Ways._try", "way is Stay.TRY_HOME, True", "False, True"),
    (module, "Ways._try", "way is Stay.TRY_HOME, True", "self.home, True"),
    # times of both ways are mixed
    (module, "Ways._note", "self._stayed if self.home else self._lent", "self._lent"),
    (module, "Ways._try", "        seconds.clear()\n", ""),
    (module, "Ways.stayed", "        if uneven:  #", "        if False:  #"),
    # the slower way is kept; for as long each time; trials at any cost
    (module, "Ways._compare", "home_s <= lending_s", "home_s > lending_s"),
    (module, "Ways._extend", "min(LONGEST, 2 * self._n_chosen) if self.home is self._home_chosen else SHORTEST", "SHORTEST"),
    (module, "Ways._extend", "min(LONGEST, 2 * self._n_chosen)", "2 * self._n_chosen"),
    (module, "Ways._compare", "if not slower and", "if"),
    (module, "Ways._compare", "            self._usual = min(self._own)\n", "            self._usual = 0.0\n"),
    (module, "Ways.lent", "if home_s > most_s or not self._promises(Stay.TRY_HOME, home_s, most_s)", "if False"),
    (module, "Ways.lent", "if planned and not lending", "if planned"),
    (module, "Ways.lent", "median(self._home_s),", "self._home_s[-1],"),
    (module, "Ways.stayed", "above(slowest_s, even_s) <= self._tolerance", "False"),
    # predictions that were wrong are believed as before, or never again, or after each call
    (module, "Ways._promises", "predicted_s + self._error_s[way]", "predicted_s"),
    (module, "Ways._promises", "        self._error_s[way] *= FADE\n", ""),
    (module, "Ways._promises", "        self._extend()\n", ""),
]  # fmt: skip
test_known_wrong_variants_are_caught = rejects(find_fault, MUTANTS, StatisticsError, StopIteration, right=False)
