"""How many tasks each node gets: at the break points, and for sizes that allow no loop over tasks.

Brute force and the paper's five steps are in test_papers_second.py.
"""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lb_mpi
from lb_mpi.distributing.allocation import MAX_TASKS, allocate
from lb_mpi.graph import Floats


def needed(counts: Any, n: int, t: Any, talk: Any) -> Floats:
    """T_i(x_i) as the model has it."""
    x = np.asarray(counts, dtype=float)
    return x * (np.asarray(t, dtype=float) + np.asarray(talk, dtype=float) * (n - x))


def test_nodes_that_do_not_talk_get_tasks_by_speed():
    assert allocate(7, [1, 2, 4]).counts.tolist() == [4, 2, 1]
    assert allocate(1000, [1.0, 2.0, 4.0]).counts.tolist() == [572, 286, 142]
    for method in ("exact", "paper"):
        assert allocate(950, np.ones(100), method=method).counts.tolist() in (
            [10] * 50 + [9] * 50,
            [9] * 50 + [10] * 50,
        )
        assert allocate(5, [3.0], method=method).counts.tolist() == [5]
        assert allocate(0, [3.0, 1.0], edge_probability=0.5, exchange=0.5, method=method).counts.tolist() == [0, 0]
        assert allocate(9, [1, 1, 1], cap=[0, math.inf, 4], method=method).counts.tolist() == [0, 5, 4]
        assert allocate(9, [1, 1], cap=[4, 5], method=method).counts.tolist() == [4, 5]
    assert allocate(0, 1.0).makespan == 0.0


def test_numbers_stand_for_all_nodes():
    assert allocate(10, 1.0, edge_probability=0.1, exchange=[0.1, 0.1]).counts.tolist() == [5, 5]
    assert allocate(10, 1.0, cap=[7, 7]).counts.tolist() in ([5, 5], [3, 7], [7, 3])
    assert allocate(10, 1.0, wait_probability=1.0).counts.tolist() == [10]
    one = allocate(100, [1, 2, 3], edge_probability=0.2, exchange=0.01, wait_probability=0.5, wait=0.02)
    each = {"exchange": [0.01] * 3, "wait_probability": np.full(3, 0.5), "wait": [0.02] * 3}
    other = allocate(np.int64(100), (1, 2, 3), edge_probability=np.float64(0.2), **each)
    assert one.counts.tolist() == other.counts.tolist()
    assert one.makespan == other.makespan


@given(
    st.integers(0, MAX_TASKS),
    st.lists(st.tuples(st.floats(1e-9, 1e3), st.floats(0, 1e3)), min_size=1, max_size=6),
    st.sampled_from([0.0, 1e-12, 1e-3, 0.3, 1.0]),
)
def test_a_level_of_real_numbers_is_no_better(n, drawn, e):
    """With so many tasks rounding is no matter: no single task that goes elsewhere makes the last node earlier."""
    t, exchange = np.array(drawn).T
    for method in ("exact", "paper"):
        result = allocate(n, t, edge_probability=e, exchange=exchange, method=method)
        counts = result.counts
        assert counts.sum() == n
        assert (counts >= 0).all()
        assert result.lower_bound <= result.makespan == needed(counts, n, t, e * exchange).max()
    last = int(
        needed(counts := allocate(n, t, edge_probability=e, exchange=exchange).counts, n, t, e * exchange).argmax()
    )
    for to in range(len(t)):
        if to != last and counts[last]:
            moved = counts.copy()
            moved[[last, to]] += [-1, 1]
            assert needed(moved, n, t, e * exchange).max() >= needed(counts, n, t, e * exchange).max() * (1 - 1e-12)


@pytest.mark.parametrize("n", [10**9, 10**9 + 7, 2**40 + 1])
def test_integers_stay_integers(n):
    result = allocate(n, [1.0, 1.0, 1.0])
    assert sorted(result.counts.tolist()) == [n // 3] * (3 - n % 3) + [n // 3 + 1] * (n % 3)
    assert (result.makespan, result.counts.dtype) == (-(-n // 3), np.int64)
    together = allocate(n, [1, 2], edge_probability=1.0, exchange=1e-3, cap=[n - 1, n])
    assert together.counts.tolist() == [n - 1, 1]  # talk rules: as many on one node as it can hold


def test_no_node_of_a_hundred_thousand_could_help_the_last_one():
    rng = np.random.default_rng(0)
    m, n = 10**5, 10**8
    instance = {"time": rng.uniform(1, 4, m), "edge_probability": 1e-5, "exchange": rng.uniform(0, 1e-3, m)}
    cap = rng.integers(0, 4000, m)
    result = lb_mpi.allocate(n, **instance, cap=cap)
    assert result.counts.sum() == n
    assert (result.counts <= cap).all()
    talk = instance["edge_probability"] * instance["exchange"]
    assert result.makespan == needed(result.counts, n, instance["time"], talk).max()
    one_more = needed(result.counts + 1, n, instance["time"], talk)
    assert (one_more[result.counts < cap] >= result.makespan).all()  # all T_i rise: nobody could help


def test_an_allocation_cannot_be_changed():
    with pytest.raises(AttributeError):
        allocate(3, [1, 2]).makespan = 0.0
