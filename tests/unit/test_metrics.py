"""Imbalance, lower bound, and the check of speeds and loads."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lb_mpi
from lb_mpi.graph import Graph
from lb_mpi.knowledge import RankKnowledge
from lb_mpi.metrics import check_speeds, imbalance, lower_bound, queueing
from lb_mpi.pooling.learning import Memory
from lb_mpi.pooling.plan import ChunkRun, MapPlan
from lb_mpi.threads import crowded

pairs = st.lists(st.tuples(st.floats(0, 1e6), st.floats(1e-3, 1e3)), min_size=1, max_size=30)


def test_ranks_that_queued_for_cores_are_named():
    assert queueing(10.0, 0.9) == queueing(0.0, 0.0) == queueing(0.02, 0.02) == ""
    assert queueing(10.0, 7.24).startswith("; ranks queued for cores for 72% of their time at work (")


def test_imbalance_and_bound_are_those_of_a_worked_example():
    loads, speeds = [8.0, 2.0], [4.0, 1.0]  # times 2, 2
    assert imbalance(loads, speeds) == 0.0
    assert lower_bound(loads, speeds) == 2.0
    loads = [5.0, 5.0]  # times 1.25, 5; all balanced: 2
    assert imbalance(loads, speeds) == 1.5
    assert imbalance([0, 0], [1, 2]) == 0.0


@given(pairs)
def test_imbalance_is_the_loss_against_the_lower_bound(drawn):
    loads, speeds = np.array(drawn).T
    slowest = float((loads / speeds).max())
    assert imbalance(loads, speeds) >= 0
    assert slowest >= lower_bound(loads, speeds) * (1 - 1e-12)
    assert slowest == pytest.approx((1 + imbalance(loads, speeds)) * lower_bound(loads, speeds), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("load", [5e-324, 1e-300, 1.0, 1e300, 1.7e308])
@pytest.mark.parametrize("speed", [5e-324, 1e-300, 1.0, 1e300, 1.7e308])
def test_imbalance_and_bound_are_those_of_any_unit(load, speed):
    assert imbalance([load, 0.0, load], [speed] * 3) == pytest.approx(0.5)
    assert lower_bound([load] * 3, [speed] * 3) == pytest.approx(min(math.inf, load / speed))
    assert imbalance([load, 0.0], [speed, 1.0]) >= 0.0  # infinite for the least speed


def test_check_gives_an_array_of_its_own():
    speeds = np.array([1.0, 2.0])
    check_speeds(speeds)[0] = 9
    assert speeds.tolist() == [1, 2]


def test_threads_of_all_ranks_have_cores_or_are_named():
    assert crowded(4, 2, 8) == crowded(9, 1, 2) == ""
    assert crowded(4, 8, 8).startswith("4 ranks with 8 threads each (numba, BLAS, OpenMP) on 8 cores: set OMP_NUM_THREADS=2")


def plan_of_a_map() -> object:
    known = RankKnowledge(2, [3.0, 0.7])
    plan = MapPlan.of("f", 4, np.array([1e-320, 1.0, 1e-310, 0.5]), (), known, Memory(), bytes)
    plan.learn([ChunkRun(0, 1, 1e-7, 0), ChunkRun(1, 4, 0.3, 1)], known, Memory())
    return plan.order, plan.bounds, known.speeds


CALLS: dict[str, Callable[[], object]] = {
    "map": plan_of_a_map,
    "balance": lambda: lb_mpi.balance("ring:7", [1e3, *[0.0] * 6], [1e300] * 7, scheme="cg").flow,
    "arrange": lambda: lb_mpi.arrange("hypercube:3", [1.0] * 8).positions,
    "partition": lambda: lb_mpi.partition(THIN, 2, method="spectral"),
    "partition_metrics": lambda: lb_mpi.partition_metrics(Graph.from_edges(3, [0], [1], [1.0], [5e-324] * 3), [0, 0, 1], 2),
    "allocate": lambda: lb_mpi.allocate(9, [1e200, 1e-200], edge_probability=0.5, exchange=[1e-300, 1.0]).counts,
    "fiedler": lambda: lb_mpi.fiedler(THIN).vector,
}
THIN = Graph.from_edges(8, range(7), range(1, 8), [1e-200, 1e200] * 3 + [1.0], [1e-200, 1e200] * 4)


@pytest.mark.parametrize("name", CALLS)
def test_results_do_not_depend_on_what_numpy_does_about_underflow(name):
    found = []
    for under in ("ignore", "raise"):
        with np.errstate(under=under):
            found.append(repr(CALLS[name]()))
    assert found[0] == found[1]


def test_progress_runs_under_the_caller_s_rules_of_numpy():
    seen = []
    with np.errstate(divide="raise", under="raise"):
        lb_mpi.arrange("mesh:1x4", [1, 2, 3, 4], progress=lambda text, done: seen.append(np.geterr()))
        assert seen
        assert all(one == np.geterr() for one in seen)


MASKED = np.ma.array([1, 1, 0], mask=[1, 0, 0])
NO_ARRAYS: dict[str, Callable[[Any], object]] = {
    "loads": lambda values: lb_mpi.balance("ring:3", values, [1, 1, 1]),
    "speeds": lambda values: lb_mpi.arrange("ring:3", values),
    "time": lambda values: lb_mpi.allocate(3, values),
    "cap": lambda values: lb_mpi.allocate(3, [1, 1, 1], cap=values),
    "targets": lambda values: lb_mpi.partition("ring:3", 3, targets=values),
    "parts": lambda values: lb_mpi.partition_metrics("ring:3", values, 2),
    "tails": lambda values: Graph.from_edges(3, values, [1, 2, 2]),
    "weights": lambda values: Graph.from_edges(3, [0], [1], values),
    "vertex_weights": lambda values: Graph.from_edges(3, [0], [1], None, values),
}


@pytest.mark.parametrize("name", NO_ARRAYS)
@pytest.mark.parametrize("values", [MASKED, [[1], [1, 2], [3]]])
def test_a_mask_is_not_lost_and_a_list_of_lists_is_named(name, values):
    with pytest.raises(ValueError, match=f"^{name} = .*: expected"):
        NO_ARRAYS[name](values)
