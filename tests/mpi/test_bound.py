"""A bound that ranks share, on real MPI: the same everywhere in the end, and every mistake an error of all."""

from __future__ import annotations

import math

import pytest

import lb_mpi
from apps import tsp
from tests.mpi.sizes import COMM, LAST
from tests.mpi.test_apps import answer, run
from tests.pile import Pile
from tests.unit.test_tsp import held_karp

pytestmark = pytest.mark.mpi


@pytest.mark.every_size
def test_a_value_comes_to_a_rank_that_works():
    bound = lb_mpi.Bound("max")
    if COMM.rank == LAST:
        bound.update(7.0)

    class Until(Pile):
        def work(self, units):
            if bound.best == 7.0:
                return super().work(units)
            return 0  # goes on until it knows the value

    assert sorted(lb_mpi.search(COMM, Until(50), bound=bound, threshold=1.0).value) == list(range(1, 51))
    assert COMM.allgather(bound.best) == [7.0] * COMM.size


@pytest.mark.parametrize("value", [math.nan, "3", None])
def test_no_value_is_an_error_of_all_that_names_the_rank(value):
    bound = lb_mpi.Bound("min")
    pile = Pile(30, bound=bound)
    if COMM.rank == 0:
        pile.work = lambda units: bound.update(value)  # the one that has work for sure
    with pytest.raises(lb_mpi.SearchError, match=r"^rank 0: ValueError: bound.update: value = .*: expected a finite"):
        lb_mpi.search(COMM, pile, bound=bound)


@pytest.mark.parametrize("extra", [[], ["--private"], ["--split-rule", "half", "--quantum", "5"]])
def test_the_shortest_tour(monkeypatch, extra):
    given = answer(tsp, monkeypatch, "--cities", "9", "--seed", "2", "--compare", *extra)
    assert given["length"] == pytest.approx(held_karp(tsp.random_cities(9, 2)), rel=1e-12)
    assert sorted(given["tour"]) == list(range(9))
    assert given["nodes_ratio"] == given["nodes"] / given["nodes_alone"]


@pytest.mark.one_mpi
def test_a_tour_within_a_time_limit(monkeypatch):
    given = answer(tsp, monkeypatch, "--cities", "25", "--limit-s", "0.5")
    assert given["timed_out"] is True
    assert sorted(given["tour"]) == list(range(25))
    code, out, err = run(tsp, monkeypatch, "--cities", "25", "--limit-s", "0.5")
    assert (code, err) == (0, "")
    assert "shortest tour through 25 cities, so far: " in out
