"""Settings of all tests."""

import gc
import os

import pytest

os.environ.setdefault("LB_MPI_HANG_S", "0")  # on a busy machine ranks wait for long, and a warning is an error here


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of the serial tests, in which explorations make millions of objects, none of them in cycles.

    How long an example takes is the machine's affair.  The same examples in each run: what is drawn at random is looked for
    by `python -m tools.drawn`, and becomes an example of a test.
    """
    if config.pluginmanager.hasplugin("hypothesispytest") and not config.getoption("--with-mpi", default=False):
        from hypothesis import settings  # not on each of many ranks

        settings.register_profile("project", deadline=None, derandomize=True)
        settings.register_profile("drawn", deadline=None, derandomize=False, print_blob=True)
        settings.load_profile("drawn" if os.environ.get("LB_MPI_DRAWN") else "project")
        gc.set_threshold(200_000, 20, 20)
    config.addinivalue_line("markers", "one_mpi: has nothing to do with MPI, or is the same with another: run with one only")
