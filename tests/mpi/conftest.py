"""Which tests run on how many ranks.

`./launch/test` without arguments runs the tests marked `every_size` on each number of ranks, since what they test depends on
it, and the others on the numbers in LB_MPI_TEST_SIZES only.  Without that variable all selected tests run.
"""

import os

import pytest
from mpi4py import MPI

VARIABLE = "LB_MPI_TEST_SIZES"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_size: what is tested depends on the number of ranks")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    usual = os.environ.get(VARIABLE)
    if not usual or MPI.COMM_WORLD.size in [int(size) for size in usual.split(",")]:
        return
    left_out = [item for item in items if item.get_closest_marker("every_size") is None]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
