"""Fixtures of the tests of whole processes."""


import pytest

from lb_mpi.cli.run import processes
from tests.process.lab import ROOT
from tools.environment import here


@pytest.fixture
def run_env(tmp_path):
    """Variables for launch/run, after which no process of it is left, and no file in its TMPDIR."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    run_id, env = processes.with_run_id({**here().variables(), "TMPDIR": str(scratch), "PYTHONPATH": str(ROOT)})
    yield env
    left = processes.of_run(run_id)
    processes.end(run_id)
    assert left == set()
    assert list(scratch.iterdir()) == []
