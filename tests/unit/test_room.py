"""Simulations that have no room are refused before they take any."""

import re
import tracemalloc

import pytest

from lb_mpi.__main__ import main
from lb_mpi.problems.uts import TREES, UnbalancedTreeSearch
from lb_mpi.searching import simulate


@pytest.mark.parametrize("ranks", ["1000000000000", "0", "-1"])
def test_the_command_says_how_many_fit(capsys: pytest.CaptureFixture[str], ranks: str) -> None:
    assert main(["simulate", "search", "--ranks", ranks]) == 2
    said = capsys.readouterr().err
    assert re.search(rf"ranks = {ranks}: expected an integer, 1 to \d+ \(each takes some \d+ kB, .* 8 GiB\)\n$", said)


def test_what_is_said_of_the_bytes_is_so() -> None:
    made = {
        simulate.TREE_BYTES: lambda: UnbalancedTreeSearch(TREES["T1"]),
    }
    for expected, make in made.items():
        make()
        tracemalloc.start()
        kept = [make() for _ in range(20)]
        n_bytes = tracemalloc.get_traced_memory()[0] / len(kept)
        simulation = simulate.Simulation(kept)
        n_rank = tracemalloc.get_traced_memory()[0] / len(simulation.searchers) - n_bytes
        tracemalloc.stop()
        assert 0.5 * expected < n_bytes < 1.2 * expected
        assert 0.5 * simulate.SEARCHER_BYTES < n_rank < 1.5 * simulate.SEARCHER_BYTES
