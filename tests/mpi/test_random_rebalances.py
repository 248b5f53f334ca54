"""Random rebalances, each checked against a fresh distribution; `benchmarks.campaign_calls` has more of them."""

import os
from collections import Counter

import pytest

from benchmarks.campaign_rebalance_ranks import case
from tests.mpi.sizes import SIZE

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
