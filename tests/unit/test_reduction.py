"""Sums of real numbers: exact, and rounded once, whichever way they are added up."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb_mpi.reduction import added, digits, real

ANY = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(ANY, ANY), min_size=1, max_size=9))
def test_digits_are_added_up_to_the_nearest_number(numbers):
    try:
        expected = [*map(math.fsum, zip(*numbers, strict=True))]
    except OverflowError:  # half way, where the digits have more room
        return
    assert real(np.sum([digits(each) for each in numbers], axis=0)) == expected


@pytest.mark.parametrize("numbers", [(1.7e308, 1e308), (math.inf, 1.0)])
def test_a_sum_too_large_for_a_number_is_infinite(numbers):
    each = [(one,) for one in numbers]
    assert added(each) == real(np.sum([*map(digits, each)], axis=0)) == [math.inf]


def test_digits_of_as_many_ranks_as_there_may_be_fit():
    numbers = [2.0**-1074, 1.0 - 2.0**-53]
    assert real((2**31 - 1) * digits(numbers)) == [(2**31 - 1) * each for each in numbers]
