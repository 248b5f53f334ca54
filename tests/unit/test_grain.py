"""METG: the length from which on steps are efficient."""

import math

import pytest

from benchmarks.grain import efficiency_of, metg


@pytest.mark.parametrize(
    ("efficiencies", "expected"),
    [
        ([0.5, 0.9, 0.95], 10.0),
        ([0.5, 0.8, 1.0], math.sqrt(10.0 * 100.0)),  # halfway between two lengths, in their logarithm
        ([0.9, 0.95, 1.0], 1.0),  # the least that can be found
        ([0.95, 0.5, 0.9], 100.0),  # a shorter one is efficient by chance
        ([0.5, 0.95, 0.8], math.inf),
    ],
)
def test_metg_is_the_length_from_which_on_all_are_efficient(efficiencies: list[float], expected: float) -> None:
    assert metg([1.0, 10.0, 100.0], efficiencies) == pytest.approx(expected)


def test_efficiency_is_the_ideal_time_by_the_measured_one_of_each_round() -> None:
    seconds = [{"one": [2.0, 4.0], "other": [1.0, 1.0]}, {"one": [4.0, 4.0], "other": [2.0, 4.0]}]  # two lengths
    assert efficiency_of(seconds, [1.0, 2.0]) == {"one": [[0.5, 0.5], [0.25, 0.5]], "other": [[1.0, 1.0], [1.0, 0.5]]}
