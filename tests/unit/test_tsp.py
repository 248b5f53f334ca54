"""The travelling salesman: tours against dynamic programming, bounds against all tours, on virtual ranks."""

import itertools
import math

import pytest

pytest.importorskip("mpi4py")  # the apps import it

import lb_mpi
from apps.tsp import Point, Tours, check_tour, random_cities
from lb_mpi.cli.simulate import search as simulate
from lb_mpi.searching.guard import Options
from lb_mpi.searching.saves import pack_parts
from lb_mpi.virtual import Network


def held_karp(cities: list[Point]) -> float:
    """The length of the shortest tour, by dynamic programming (Held, Karp 1962; Bellman 1962)."""
    n = len(cities)
    shortest = {
        (1 << city, city): math.dist(cities[0], cities[city]) for city in range(1, n)
    }  # from 0 through a set to its last
    for size in range(2, n):
        for others in itertools.combinations(range(1, n), size):
            visited = sum(1 << city for city in others)
            for last in others:
                before = visited ^ 1 << last
                shortest[visited, last] = min(
                    shortest[before, city] + math.dist(cities[city], cities[last]) for city in others if city != last
                )
    everything = (1 << n) - 2
    return min(shortest[everything, last] + math.dist(cities[last], cities[0]) for last in range(1, n))


def search(
    cities: list[Point], size: int, *, shared: bool = True, split_rule: str = "alternate"
) -> simulate.SimulatedSearch:
    bounds = [lb_mpi.Bound("min") for _ in range(size)]
    result = simulate.search(
        [Tours(cities, bound, split_rule) for bound in bounds],
        bounds=bounds if shared else None,
        unit_s=100e-6,
        quantum_s=1e-3,
        network=Network((20e-6, 100e-6)),
        options=Options(threshold=1.0),
    )
    check_tour(cities, result.value)
    assert not shared or {bound.best for bound in bounds} == {result.value.length}
    return result


@pytest.mark.parametrize("n", [3, 4, 5, 8, 9])
def test_tours_are_the_shortest(n):
    for seed in range(3):
        cities = random_cities(n, seed)
        for size, rule in ((1, "half"), (4, "alternate"), (3, "half")):
            assert search(cities, size, split_rule=rule).value.length == pytest.approx(held_karp(cities), rel=1e-12), (
                seed
            )


def test_cities_in_one_place_or_on_a_line():
    assert search([(0.0, 0.0)] * 6, 2).value.length == 0.0
    assert search([(float(x), 0.0) for x in (3, 1, 4, 0, 5)], 2).value.length == 10.0


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_saved_state_leads_to_the_shortest_tour(ranks):
    cities = random_cities(8, 5)
    before = [Tours(cities, lb_mpi.Bound("min")) for _ in range(2)]
    before[0].start()
    before[0].work(9)
    part = before[0].split()
    before[1].absorb(part)
    before[1].work(5)
    states = [pack_parts([each.save()]) for each in before]
    options = Options(threshold=1.0, save_every_s=math.inf)
    after = [Tours(cities, lb_mpi.Bound("min")) for _ in range(ranks)]
    result = simulate.search(after, states=states, options=options, bounds=[each.bound for each in after])
    check_tour(cities, result.value)
    assert result.value.length == pytest.approx(held_karp(cities))
    with pytest.raises(ValueError, match="expected those that were saved"):
        Tours(random_cities(8, 6), lb_mpi.Bound("min")).resume([before[0].save()], range(1))
