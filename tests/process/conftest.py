"""Fixtures of the tests of whole processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lb_mpi.cli.run import limit
from tests.process.lab import ROOT
from tools.environment import here


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Variables for launch/run, after which no process of it is left, and no file in its TMPDIR."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    mark, env = limit.marked({**here().variables(), "TMPDIR": str(scratch), "PYTHONPATH": str(ROOT)})
    yield env
    left = limit.bearers(mark)
    limit.end(mark)
    assert left == set()
    assert list(scratch.iterdir()) == []
