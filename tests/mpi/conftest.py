"""Tests on ranks: what is the same on eight ranks as on four is not run on eight."""

import re

import pytest
from mpi4py import MPI

MOST_RANKS = 4  # for tables of mistakes: who fails, and who is told, are two kinds of ranks
MISTAKES = re.compile("mistake|bad_|wrong|refused|not_a_|have_to_be_the_same|that_differ")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tables of mistakes on many ranks."""
    if MPI.COMM_WORLD.size <= MOST_RANKS:
        return
    for item in items:
        if MISTAKES.search(item.name.partition("[")[0]):
            item.add_marker(pytest.mark.skip(reason=f"mistakes are told on {MOST_RANKS} ranks as on more"))
