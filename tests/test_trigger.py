"""When to balance; and the whole loop of measuring, deciding and lending, on imaginary ranks."""

import math

import numpy as np
import pytest

from lb_mpi.balancing.estimate import Observation, RowCosts, Worths, blocks, smooth
from lb_mpi.balancing.judge import WIDTH, Judge, Report
from lb_mpi.balancing.migrate import pick, plan
from lb_mpi.balancing.trigger import HOME, Trigger
from lb_mpi.diffusion.diffusion import Diffusion, prepare
from lb_mpi.graph import mesh, most_square_mesh

NAN = math.nan


def test_auto_weighs_the_saving_against_the_cost() -> None:
    trigger = Trigger("auto", tolerance=0.05)
    trigger.cost_s = 0.3
    assert not trigger.decide(NAN, NAN, NAN).act
    assert trigger.decide(0.5, now_s=1.5, balanced_s=1.0).act
    assert not trigger.decide(0.2, now_s=1.2, balanced_s=1.0).act
    assert not trigger.decide(0.04, now_s=104.0, balanced_s=100.0).act
    assert trigger.decide(0.2, now_s=1.2, balanced_s=1.0).act  # for the second time
    assert not trigger.decide(0.5, now_s=1.5, balanced_s=1.0, moving_s=0.3).act
    often = Trigger("auto", every=2)
    often.cost_s = 0.3
    assert [often.decide(0.2, 1.2, 1.0).act for _ in range(4)] == [False, True, False, True]


def test_what_balancing_has_not_reached_is_not_tried_for_again() -> None:
    trigger = Trigger("auto")
    trigger.cost_s = 0.05
    decisions = []
    for _ in range(40):
        decisions.append(trigger.decide(0.3, now_s=1.3, balanced_s=1.0).act)
        if decisions[-1]:
            trigger.settle(now_s=1.3)
    assert decisions[0]
    assert sum(decisions[20:]) <= 6
    assert trigger.decide(9.0, now_s=10.0, balanced_s=1.0).act


def test_what_has_come_true_is_expected_again() -> None:
    trigger = Trigger("auto")
    for _ in range(50):  # costs move on while they are balanced: half of the saving comes true
        assert trigger.decide(0.3, now_s=1.3, balanced_s=1.0).act
        trigger.settle(now_s=1.15)
    assert 0.4 < trigger.trust < 0.6


def test_always_and_bound() -> None:
    assert Trigger("always").decide(0.0, 1.0, 1.0).act
    assert not Trigger("always").decide(NAN, NAN, NAN).act
    bound = Trigger(0.2)
    bound.cost_s = 1e9
    assert bound.decide(0.21, 1.21, 1.0).act
    assert not bound.decide(0.2, 1.2, 1.0).act
    assert "bound" in bound.decide(0.1, 1.1, 1.0).words


@pytest.mark.parametrize("when", ["never", 0.0, -1.0, NAN, math.inf, True, None, [1]])
def test_bad_when(when: object) -> None:
    with pytest.raises(ValueError, match="when"):
        Trigger(when)  # type: ignore[arg-type]


@pytest.mark.parametrize("every", [0, -1, 1.0, True, "2", None])
def test_bad_every(every: object) -> None:
    with pytest.raises(ValueError, match="every"):
        Trigger(every=every)  # type: ignore[arg-type]


def test_a_smaller_measurement_is_believed_at_once() -> None:
    assert smooth(NAN, 3.0) == 3.0
    assert smooth(3.0, 2.0) == 2.0
    assert 2.0 < smooth(2.0, 3.0) < 3.0


@pytest.mark.parametrize("n", [0, 1, 5, 8, 100, 1001])
def test_blocks_cover_every_row_once_and_their_cuts_move(n: int) -> None:
    cuts = set()
    for turn in range(50):
        parts = blocks(n, 8, turn)
        assert [row for part in parts for row in range(part.start, part.stop)] == list(range(n))
        assert all(part.stop > part.start for part in parts)
        assert len(parts) <= 9
        cuts |= {part.start for part in parts}
    assert len(cuts) >= min(n, 50)


def test_costs_of_single_rows_are_told_apart_in_time() -> None:
    rng = np.random.default_rng(3)
    true = rng.choice([1.0, 5.0], 64)
    costs, worth = RowCosts(0, 64), np.ones(1)
    errors = []
    for turn in range(60):
        for part in blocks(64, 8, turn):
            costs.observe(part, 0, float(true[part].sum()), worth)
        errors.append(float(np.abs(costs.work(worth) - true).mean()))
    assert costs.known
    assert errors[-1] < 0.5 * errors[0]


def test_worths_fit_all_ratios_that_were_seen() -> None:
    rng = np.random.default_rng(1)
    true = rng.uniform(0.2, 5.0, 6)
    worths = Worths(6)
    assert worths.fit().tolist() == [1.0] * 6
    for own, other in ((0, 1), (2, 1), (2, 3), (4, 3), (4, 5)):
        worths.tell(own, Observation(other, 1.0, math.log(true[other] / true[own])))
    fitted = worths.fit()
    assert fitted / fitted[0] == pytest.approx(true / true[0], rel=0.05)
    assert np.log(fitted).mean() == pytest.approx(0.0, abs=1e-12)


def test_rows_that_another_rank_has_measured_tell_the_ratio_of_ticks() -> None:
    costs, worth = RowCosts(0, 10), np.array([1.0, 1.0])
    assert costs.observe(slice(0, 10), 0, 10.0, worth) is None
    lent = np.array([2, 5, 7])
    seen = costs.observe(lent, 1, 0.75, worth)  # rank 1 needs a quarter of the ticks: each is worth four
    assert seen is not None
    assert seen.other == 1
    assert math.exp(seen.log_ratio) == pytest.approx(4.0)
    assert costs.work(np.array([1.0, 4.0])) == pytest.approx(np.ones(10))
    assert costs.observe(lent, 1, 0.75, np.array([1.0, 4.0])) is None  # nothing new
    costs.observe(slice(0, 10), 0, NAN, worth)
    assert costs.work(np.array([1.0, 4.0])) == pytest.approx(np.ones(10))


class Imagined:
    """Ranks whose ticks have true worths, which need `tick_s` seconds for one, and rows with true costs in work."""

    def __init__(self, worths: list[float], tick_s: list[float], rows: list[np.ndarray], when: str = "auto") -> None:
        self.true, self.tick_s, self.rows = np.array(worths), np.array(tick_s), rows
        self.size = len(rows)
        self.judge = Judge(self.size, Trigger(when))
        self.costs = [RowCosts(rank, len(mine)) for rank, mine in enumerate(rows)]
        self.away: list[dict[int, np.ndarray]] = [{} for _ in rows]
        self.turn = 0

    @property
    def balanced_s(self) -> float:
        return float(sum(mine.sum() for mine in self.rows) / (self.true / self.tick_s).sum())

    def round(self) -> float:
        """One call of map: its seconds."""
        self.turn += 1
        ticks, told = np.zeros(self.size), [[] for _ in range(self.size)]
        worth = self.judge.worth
        lent = 0
        for home, mine in enumerate(self.rows):
            kept = np.ones(len(mine), dtype=bool)
            for by, index in self.away[home].items():
                kept[index] = False
                taken = float(mine[index].sum()) / self.true[by]
                ticks[by] += taken
                lent += len(index)
                if len(index):
                    told[home].append(self.costs[home].observe(index, by, taken, worth))
            index = np.flatnonzero(kept)
            for part in blocks(len(index), 8, self.turn):
                taken = float(mine[index[part]].sum()) / self.true[home]
                ticks[home] += taken
                told[home].append(self.costs[home].observe(index[part], home, taken, worth))
        busy_s = ticks * self.tick_s
        reports = np.empty((self.size, WIDTH))
        for rank, costs in enumerate(self.costs):
            report = Report(0.0, 1.0, float(costs.work(worth).sum()), busy_s[rank], ticks[rank], 0.0, lent, 0.0)
            reports[rank] = report.numbers([seen for seen in told[rank] if seen is not None])
        verdict = self.judge.hear(reports)
        self.reason = int(verdict.reason)
        self.acted = verdict.reason in (3, 4, 5, HOME)
        if self.acted:
            self._rebalance()
        return float(busy_s.max())

    def _rebalance(self) -> None:
        graph = mesh(*most_square_mesh(self.size))
        loads = [float(costs.work(self.judge.worth).sum()) for costs in self.costs]
        diffusion = Diffusion(prepare(graph, self.judge.speeds, "direct"), loads)
        diffusion.step()
        transfers = plan(graph, diffusion.flow(), loads, self.judge.speeds)
        for rank, costs in enumerate(self.costs):
            mine = transfers.of(rank)
            items = pick(costs.work(self.judge.worth), mine).items
            self.away[rank] = dict(zip(mine.destinations.tolist(), items, strict=True))
        self.judge.balanced(lending=len(transfers.amounts) > 0)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("size", [2, 4, 9])
@pytest.mark.parametrize("uneven", [False, True])
def test_unknown_speeds_are_found_in_a_few_calls(seed: int, size: int, uneven: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = [rng.lognormal(0.0, 1.0 if uneven else 0.0, 400) for _ in range(size)]
    ranks = Imagined(list(rng.uniform(0.2, 1.0, size)), list(rng.uniform(1.0, 4.0, size)), rows)
    seconds = [ranks.round() for _ in range(12)]
    assert max(seconds[8:]) < (1.10 if uneven else 1.08) * ranks.balanced_s, (seed, np.array(seconds) / ranks.balanced_s)


def test_nothing_happens_among_equals() -> None:
    ranks = Imagined([1.0] * 6, [2.0] * 6, [np.ones(100)] * 6)
    for _ in range(10):
        ranks.round()
        assert not ranks.acted


def test_costs_that_move_are_followed() -> None:
    size, n = 8, 200
    ranks = Imagined([1.0] * size, [1.0] * size, [np.ones(n)] * size)
    ratios = []
    for turn in range(100):
        sun = 2 * math.pi * (np.arange(size * n) / (size * n) - turn / 200)
        ranks.rows = list((1.0 + 4.0 * np.maximum(0.0, np.cos(sun))).reshape(size, n))
        ratios.append(ranks.round() / ranks.balanced_s)
    assert ratios[0] > 2.0
    assert np.mean(ratios[6:]) < 1.08


def test_an_item_that_can_not_be_divided_is_no_reason_to_go_on() -> None:
    ranks = Imagined([1.0] * 3, [1.0] * 3, [np.array([100.0]), np.ones(10), np.ones(10)])
    ranks.judge.trigger.cost_s = 10.0
    acted = []
    for _ in range(30):
        ranks.round()
        acted.append(ranks.acted)
    assert sum(acted[15:]) <= 4


def test_lending_that_does_not_pay_is_given_up() -> None:
    judge = Judge(2, Trigger())
    reports = np.stack([Report(0, 1.0, 1.0, busy, 1.0, 0.0, 0, 0).numbers([]) for busy in (1.0, 0.5)])
    assert judge.hear(reports).reason != HOME
    judge.balanced(lending=True)
    for index, busy in enumerate((0.75, 0.75)):
        reports[index, :6] = [0.0, 1.0, 1.0, busy, 1.0, 2.0]
    judge.hear(reports)
    assert judge.hear(reports).reason == HOME


def test_failed_ranks_and_rows_that_differ() -> None:
    judge = Judge(2, Trigger())
    good, failed, other = (Report(*numbers, 1.0, 1.0, 1.0, 0, 0, 0).numbers([]) for numbers in ((0, 5), (1, 5), (0, 6)))
    assert judge.hear(np.stack([good, good])).error == 0.0
    assert judge.hear(np.stack([good, failed])).error == 1.0
    assert judge.hear(np.stack([good, other])).error == 2.0
