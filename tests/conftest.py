"""Settings of all tests."""

import os

import pytest
from hypothesis import settings

settings.register_profile("project", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("project")
os.environ.setdefault("LB_MPI_HANG_S", "0")  # on a busy machine ranks wait for long, and a warning is an error here


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of the serial tests."""
    config.addinivalue_line("markers", "one_mpi: has nothing to do with MPI, or is the same with another: run with one only")
