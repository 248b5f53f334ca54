"""Random rebalances, each checked against a fresh distribution; `benchmarks.campaign_calls` has more of them."""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.campaign_rebalance_ranks import case
from lb_mpi.mpi.graph.halo import HaloPlan
from tests.mpi.sizes import SIZE, several

N = int(os.environ.get("LB_MPI_RANDOM", "9" if SIZE < 6 else "3"))
pytestmark = pytest.mark.mpi


@pytest.mark.every_size
def test_plans_and_values_are_those_of_a_fresh_distribution():
    first = int(os.environ.get("LB_MPI_SEED", "0"))
    counts = Counter[str]()
    for number in range(N):
        assert not case(first, number, counts)
    assert counts["rebalances"] > N
    assert SIZE == 1 or N < 3 or counts["moved"]


Rebalance = Callable[..., tuple[Any, ...]]


def stale_values(real: Rebalance) -> Rebalance:
    """Return the old values."""
    return lambda plan, *values, **options: (real(plan, *values, **options), values)[1]


def reversed_ghosts(real: Rebalance) -> Rebalance:
    """Name the ghosts in the wrong order."""

    def rebalance(plan: HaloPlan, *values: Any, **options: Any) -> tuple[Any, ...]:
        found = real(plan, *values, **options)
        plan.part = replace(plan.part, ghosts=plan.ghosts[::-1])
        return found

    return rebalance


def swapped_rows(real: Rebalance) -> Rebalance:
    """Exchange the values of two vertices."""

    def rebalance(plan: HaloPlan, *values: Any, **options: Any) -> tuple[Any, ...]:
        found = real(plan, *values, **options)
        swapped = (
            one[[1, 0, *range(2, len(one))]] if isinstance(one, np.ndarray) and len(one) > 1 else one for one in found
        )
        return tuple(swapped)

    return rebalance


@pytest.mark.one_mpi
@pytest.mark.parametrize("wrong", [stale_values, reversed_ghosts, swapped_rows])
@several
def test_mutants_are_found(wrong, monkeypatch):
    monkeypatch.setattr(HaloPlan, "rebalance", wrong(HaloPlan.rebalance))
    counts = Counter[str]()
    assert any(case(0, number, counts) for number in range(40))
