"""Whatever happens to a run that saves, it is made good or expected; `benchmarks.campaign` has more of it."""

import random

import pytest

from benchmarks.campaign import PROGRAMS, campaign, outcome_of
from tools.environment import here

ANSWERS = {"pool": [2000, 4297061199689, 4292373196841647]}  # of a run without a failure, on any number of ranks


def test_a_disturbed_run_ends_with_the_exact_result_or_names_the_cause():
    run = campaign(here(), random.Random(7), ANSWERS, [one for one in PROGRAMS if one.name in ANSWERS])
    assert run.outcome in ("exact", "named"), run
    assert run.left == [], run


@pytest.mark.one_mpi
def test_ends_are_distinguished():
    expected = {"a": 1}
    assert outcome_of(0, '{"a": 1}', "", True, lambda found: found == expected) == "exact"
    assert outcome_of(0, '{"a": 2}', "", True, lambda found: found == expected) == "wrong"
    assert outcome_of(0, "", "", True, lambda found: found == expected) == "silent"
    assert outcome_of(1, "", "run: rank 1 on host x was killed by signal 9", True, lambda found: True) == "named"
    assert outcome_of(1, "", "Traceback", True, lambda found: True) == "silent"
    assert outcome_of(1, "", "run: rank 1 hangs", False, lambda found: True) == "silent"
