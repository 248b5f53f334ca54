"""Contiguous ranges by shares, and cuts that move no farther than they must."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb_mpi.rebalancing.slabs import move_cuts, range_after, slab_owners, slabs

numbers = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=12)


@given(st.lists(st.floats(0.0, 9.0), min_size=1, max_size=60), numbers)
def test_ranges_cover_all_vertices_and_fit_their_shares_up_to_a_vertex(costs: list[float], shares: list[float]) -> None:
    ends, work = slabs(len(costs), costs, shares), np.array(costs) if any(costs) else np.ones(len(costs))
    assert ends[-1] == len(costs)
    assert (np.diff(ends, prepend=0) >= 0).all()
    loads = np.diff(np.concatenate([[0], np.cumsum(work)])[ends], prepend=0)
    wanted = np.array(shares) / sum(shares) * work.sum()
    assert (np.abs(loads - wanted) <= work.max() * (1 + 1e-9)).all()


def test_equal_costs_by_speeds() -> None:
    assert slabs(20, np.ones(20), [1, 2, 1]).tolist() == [5, 15, 20]
    assert slabs(3, np.zeros(3), [1, 1, 1]).tolist() == [1, 2, 3]
    assert slabs(2, np.ones(2), [1, 1, 1, 1]).tolist() == [0, 1, 1, 2]


@given(st.lists(st.tuples(st.floats(0.0, 50.0), st.floats(0.1, 10.0)), min_size=1, max_size=12), st.floats(0.0, 0.5))
def test_shifted_ranges_are_within_their_bounds(ranks: list[tuple[float, float]], tolerance: float) -> None:
    loads, shares = np.array(ranks).T
    cuts = move_cuts(loads, shares, tolerance)
    new = np.diff(np.concatenate([[0.0], cuts, [loads.sum()]]))
    assert (new >= -1e-9 * loads.sum()).all()
    assert (new <= (1 + tolerance) * shares / shares.sum() * loads.sum() * (1 + 1e-9) + 1e-12).all()


def test_cuts_that_need_not_move_stay() -> None:
    loads = np.array([10.2, 9.9, 9.9, 10.0])
    assert move_cuts(loads, np.ones(4), 0.03) == pytest.approx([10.2, 20.1, 30.0])
    assert move_cuts([10, 10, 10, 10], [1, 1, 1, 0.5], 0.05) == pytest.approx(
        [10.0, 22.0, 34.0]
    )  # rank 0 keeps its range


def test_ranks_find_owners_of_their_own_vertices() -> None:
    costs = np.random.default_rng(0).uniform(0.5, 2.0, 50)
    cuts = move_cuts([10.0, 30.0, costs.sum() - 40.0], [1, 1, 1], 0.02)
    whole = slab_owners(0.0, costs, cuts)
    pieces = [slab_owners(float(costs[:k].sum()), costs[k : k + 10], cuts) for k in range(0, 50, 10)]
    assert (np.concatenate(pieces) == whole).all()
    assert (np.diff(whole) >= 0).all()


@pytest.mark.parametrize(
    ("begin", "n", "away", "expected"),
    [(3, 5, {}, (3, 8)), (3, 0, {}, (3, 3)), (3, 0, {0: 4}, (7, 7)), (3, 0, {2: 4}, (3, 3)), (3, 0, {0: 1, 2: 3}, (4, 4))],
)
def test_a_rank_that_has_given_all_its_vertices_away_has_an_empty_range_between_its_neighbours(
    begin: int, n: int, away: dict[int, int], expected: tuple[int, int]
) -> None:
    """An undone move may leave a rank without vertices, as it was before."""
    assert range_after(begin, np.arange(begin, begin + n), away, 1) == expected
