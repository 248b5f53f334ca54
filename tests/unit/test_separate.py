"""Work and speed told apart from seconds, for balancers of other programs."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lb_mpi import Separation, separate
from lb_mpi.balancing import separate as module
from lb_mpi.graph import Floats, Ints

NAN = math.nan


def lpt(work: Floats, speeds: Floats) -> Ints:
    """The heaviest item first, each to the rank that is done with it first."""
    owner, loads = np.zeros(len(work), dtype=np.int64), np.zeros(len(speeds))
    for item in np.argsort(-work, kind="stable").tolist():
        rank = int(((loads + work[item]) / speeds).argmin())
        owner[item] = rank
        loads[rank] += work[item]
    return owner


Deal = Callable[[list[Floats], list[Ints], Floats], tuple[Ints | None, Floats]]


def by_seconds(seconds: list[Floats], owner: list[Ints], speeds: Floats) -> tuple[Ints | None, Floats]:
    """Deal out seconds, as balancers for equal ranks do."""
    return lpt(seconds[-1], np.ones(len(speeds))), speeds


def by_work(seconds: list[Floats], owner: list[Ints], speeds: Floats) -> tuple[Ints | None, Floats]:
    """Deal out work, if it pays."""
    found = separate(seconds[-3:], owner[-3:], speeds=speeds)
    return lpt(found.work, found.speeds) if found.pays else None, found.speeds


def run(seed: int, deal: Deal, n_windows: int = 10, noise: float = 0.02) -> tuple[list[float], int]:
    """Seconds of each window / the bound, and in how many of the last half items moved."""
    rng = np.random.default_rng(seed)
    size, n = int(rng.integers(2, 7)), 120
    work, speeds = rng.lognormal(0.0, 0.5, n), rng.uniform(0.1, 1.0, size)
    speeds[0] = 4.0 * speeds[1]  # so that it does matter
    owner, known = np.arange(n) % size, np.ones(size)
    times, owners, ratios, moves = list[Floats](), list[Ints](), list[float](), 0
    for window in range(n_windows):
        times.append(work / speeds[owner] * rng.lognormal(0.0, noise, size)[owner])
        owners.append(owner)
        ratios.append(np.bincount(owner, work / speeds[owner]).max() * speeds.sum() / work.sum())
        dealt, known = deal(times, owners, known)
        if dealt is not None:
            moves += window >= n_windows // 2 and bool((dealt != owner).any())
            owner = dealt
    return ratios, moves


SEEDS = range(6)


def converges(deal: Deal) -> bool:
    """From the fifth window on each is near the bound, and items rarely move."""
    for seed in SEEDS:
        ratios, moves = run(seed, deal)
        if max(ratios[4:]) > 1.15 or moves > 2:
            return False
    return True


def test_dealing_out_work_converges() -> None:
    assert converges(by_work)


def test_dealing_out_seconds_does_not_converge() -> None:
    assert not converges(by_seconds)
    assert all(max(run(seed, by_seconds)[0][4:]) > 1.15 for seed in SEEDS)


# --- wrong variants, which the same run must reject ---------------------------------------------------------------------


def inverse(self: Any, moved: Ints, seconds: Floats, owner: Ints) -> None:
    """A rank on which an item needs longer counts as faster."""
    flipped = np.array(seconds)
    flipped[moved] = self.ticks[moved] ** 2 / seconds[moved]
    _COMPARE(self, moved, flipped, owner)


def never(self: Any, moved: Ints, seconds: Floats, owner: Ints) -> None:
    """Items that move show nothing."""


def seconds_as_work(self: Any) -> Floats:
    """An item's work is its seconds, wherever it was computed."""
    return np.asarray(self.ticks)


def forgetful(*given: Any, speeds: Any = None, **options: Any) -> Separation:
    """What was known before is ignored."""
    return separate(*given, size=len(speeds), **options)


_COMPARE = module._Items._compare


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("_compare", inverse), ("_compare", never), ("work", property(seconds_as_work))],
    ids=["inverse", "never", "seconds_as_work"],
)
def test_wrong_variants_are_noticed(name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Items, name, wrong)
    assert not converges(by_work)


def test_known_speeds_are_kept_while_nothing_moves() -> None:
    seconds, owner = [[1.0, 1.0, 2.0, 2.0]] * 3, [[0, 0, 1, 1]] * 3
    assert separate(seconds, owner).speeds.tolist() == [1.0, 1.0]
    kept = separate(seconds, owner, speeds=[3.0, 1.0])
    assert kept.speeds.tolist() == [1.5, 0.5]
    assert kept.work.tolist() == [1.5, 1.5, 1.0, 1.0]
    assert not kept.linked
    assert forgetful(seconds, owner, speeds=[3.0, 1.0]).speeds.tolist() == [1.0, 1.0]


# --- properties --------------------------------------------------------------------------------------------------------


@st.composite
def windows(draw: st.DrawFn) -> tuple[Floats, Ints, Floats, Floats]:
    """Seconds without noise, owners, work and speeds; each item is computed on rank 0 and, later, elsewhere."""
    size = draw(st.integers(1, 5))
    n = size * draw(st.integers(1, 6))
    finite = st.floats(0.5, 4.0)
    work = np.array(draw(st.lists(finite, min_size=n, max_size=n)))
    speeds = np.array(draw(st.lists(finite, min_size=size, max_size=size)))
    rest = draw(st.lists(st.lists(st.integers(0, size - 1), min_size=n, max_size=n), max_size=3))
    owner = np.array([[0] * n, [k % size for k in range(n)], *rest])
    return work / speeds[owner], owner, work, speeds


@given(windows())
def test_without_noise_both_are_found(case: tuple[Floats, Ints, Floats, Floats]) -> None:
    seconds, owner, _, speeds = case
    found = separate(seconds, owner, size=len(speeds))
    assert found.linked
    assert found.speeds == pytest.approx(speeds / speeds.mean(), rel=0.3)  # a weak pull to equal speeds remains
    assert found.work / found.speeds[owner[-1]] == pytest.approx(seconds[-1], rel=0.35)


@given(windows(), st.randoms(use_true_random=False))
def test_numbers_of_items_and_ranks_mean_nothing(case: tuple[Floats, Ints, Floats, Floats], random: Any) -> None:
    seconds, owner, work, speeds = case
    found = separate(seconds, owner, size=len(speeds))
    items, ranks = list(range(len(work))), list(range(len(speeds)))
    random.shuffle(items)
    random.shuffle(ranks)
    other = separate(seconds[:, items], np.array(ranks)[owner[:, items]], size=len(speeds))
    assert other.work == pytest.approx(found.work[items], rel=1e-6)
    assert other.speeds[ranks] == pytest.approx(found.speeds, rel=1e-6)
    assert other.targets[ranks] == pytest.approx(found.targets, rel=1e-6)


@given(windows(), st.floats(0.01, 100.0))
def test_only_ratios_count(case: tuple[Floats, Ints, Floats, Floats], factor: float) -> None:
    seconds, owner, _, speeds = case
    found = separate(seconds, owner, size=len(speeds), cost_s=0.5)
    other = separate(factor * seconds, owner, size=len(speeds), cost_s=0.5 * factor)
    assert other.work == pytest.approx(factor * found.work)
    assert other.speeds == pytest.approx(found.speeds)
    assert other.seconds == pytest.approx(factor * found.seconds)


@given(windows())
@settings(max_examples=50)
def test_sums_agree(case: tuple[Floats, Ints, Floats, Floats]) -> None:
    seconds, owner, _, speeds = case
    found = separate(seconds, owner, size=len(speeds))
    assert found.speeds.mean() == pytest.approx(1.0)
    assert found.loads.sum() == pytest.approx(found.work.sum())
    assert found.targets.sum() == pytest.approx(found.work.sum())
    assert found.targets / found.speeds == pytest.approx(np.full(len(speeds), found.seconds))
    assert (found.loads / found.speeds).max() == pytest.approx((1.0 + found.imbalance) * found.seconds)
    again = separate(seconds, owner, size=len(speeds))
    assert all((getattr(again, name) == getattr(found, name)).all() for name in ("work", "speeds", "loads", "targets"))


# --- noise, and whether it pays -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("deviation", [0.01, 0.1])
@pytest.mark.parametrize("size", [2, 4, 32])
def test_noise_is_that_of_ranks_seconds(deviation: float, size: int) -> None:
    rng = np.random.default_rng(size)
    owner = np.tile(np.repeat(np.arange(size), 3), (200, 1))
    growing = np.linspace(1.0, 2.0, 200)[:, None]  # what all ranks share is no noise
    seconds = growing * rng.lognormal(0.0, deviation, (200, size))[:, owner[0]]
    expected = deviation * math.sqrt(2.0 * math.log(size))
    assert separate(seconds, owner).noise == pytest.approx(expected, rel=0.25)


def test_an_imbalance_within_the_noise_does_not_pay() -> None:
    owner = np.tile(np.arange(8), (20, 1))
    paid = 0
    for seed in range(20):
        loud = np.random.default_rng(seed).lognormal(0.0, 0.1, (20, 8))
        found = separate(loud, owner)
        assert found.imbalance > 0.05  # the tolerance
        paid += found.pays
    assert paid <= 4
    quiet = np.random.default_rng(1).lognormal(0.0, 1e-3, (20, 8))
    assert separate(quiet * np.array([*[1.0] * 7, 1.5]), owner).pays


def test_small_savings_add_up_until_they_pay() -> None:
    times = [[1.0, 2.0]] * 10  # 0.5 s could be saved in each window
    pays = [separate(times[:n], [[0, 1]] * n, cost_s=1.7).pays for n in range(1, 11)]
    assert pays.index(True) == 3
    assert separate(times[:1], [[0, 1]], cost_s=0.4).pays
    assert separate(times[:1], [[0, 1]]).gain_s == pytest.approx(0.5)
    assert not separate(times, [[0, 1]] * 10, cost_s=1e9).pays


def test_items_that_were_not_computed_keep_their_work() -> None:
    found = separate([[1.0, 2.0, NAN], [1.0, NAN, NAN]], [[0, 1, 1], [0, 1, 1]])
    assert found.work.tolist() == [1.0, 2.0, 1.5]
    assert math.isnan(found.noise)  # one rank only had items that stayed and were computed twice


def test_one_window_of_one_rank() -> None:
    found = separate([0.25, 0.75], [0, 0])
    assert (found.seconds, found.imbalance, found.pays, found.linked) == (1.0, 0.0, False, True)


@pytest.mark.parametrize(
    ("seconds", "owner", "options", "message"),
    [
        ([], [], {}, r"seconds of shape \(0,\): expected \(n,\) or \(windows, n\)"),
        ([[[1.0]]], [[[0]]], {}, r"seconds of shape \(1, 1, 1\)"),
        ([1.0, -2.0], [0, 1], {}, r"seconds\[1\] = -2.0: expected a finite number >= 0, or NaN"),
        ([[1.0], [math.inf]], [[0], [0]], {}, r"seconds\[1, 0\] = inf"),
        ([NAN, NAN], [0, 1], {}, "all are NaN"),
        (["a"], [0], {}, "seconds = .*: expected numbers"),
        ([1.0, 2.0], [0], {}, r"owner of shape \(1,\) and dtype int64: expected integers of shape \(2,\)"),
        ([1.0], [0.0], {}, "owner of shape .* and dtype float64"),
        ([1.0, 1.0], [0, -1], {}, r"owner\[1\] = -1: expected a rank, 0 to 0"),
        ([1.0, 1.0], [0, 3], {"size": 3}, r"owner\[1\] = 3: expected a rank, 0 to 2"),
        ([1.0], [0], {"size": 0}, "size = 0: expected an integer >= 1"),
        ([1.0], [0], {"speeds": [1.0, 0.0]}, r"speeds\[1\] = 0.0"),
        ([1.0], [0], {"speeds": [1.0], "size": 2}, "speeds of shape .* expected 2 numbers"),
        ([1.0], [0], {"tolerance": 0.0}, "tolerance = 0.0"),
        ([1.0], [0], {"cost_s": -1.0}, "cost_s = -1.0"),
    ],
)
def test_wrong_arguments_are_named(seconds: Any, owner: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        separate(seconds, owner, **options)


def test_arguments_are_not_changed() -> None:
    seconds: NDArray[np.float64] = np.array([[1.0, 2.0], [3.0, NAN]])
    owner = np.array([[0, 1], [1, 0]])
    separate(seconds, owner)
    assert np.array_equal(seconds, [[1.0, 2.0], [3.0, NAN]], equal_nan=True)
    assert owner.tolist() == [[0, 1], [1, 0]]
