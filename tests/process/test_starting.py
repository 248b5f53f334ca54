"""A rank that is stopped at its start, and a folder of records to which a rank still writes."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from lb_mpi.launching import limit, start
from tests.process.lab import ROOT
from tools.environment import here

needs_mpiexec = pytest.mark.skipif(not shutil.which("mpiexec", path=Path(sys.executable).parent), reason="no mpiexec")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """launch/run of tests/programs/late.py, in this process; no process of it is left."""
    monkeypatch.chdir(ROOT)
    mark, env = limit.marked({**here().variables(), "PYTHONPATH": str(ROOT)})
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    def call(*options: str) -> tuple[int, str, str]:
        program = [sys.executable, str(ROOT / "tests" / "programs" / "late.py")]
        code = start.main(["-n", "3", *options, "--", *program], "run")
        return code, *capfd.readouterr()

    yield call
    assert limit.bearers(mark) - {os.getpid()} == set()


def test_a_folder_of_records_that_someone_still_writes_to_changes_no_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Job:
        def __init__(self, _options: Any, _program: Any, record: str) -> None:
            self.record = Path(record)

        def start(self, _before: Any) -> int:
            def too_early(path: Any, **_: Any) -> None:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))

            (self.record / "0").touch()
            monkeypatch.setattr(os, "rmdir", too_early)
            return 75

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "MpiJob", Job)
    monkeypatch.setattr(start, "followed", lambda _: contextlib.nullcontext())
    assert start.run(start.parser("run").parse_args(["--progress", "true"]), ["true"]) == 75
    assert [*tmp_path.glob("*/*")] == []


def named(err: str) -> list[Any]:
    return re.findall(r"^run: (rank \d) on host .* hangs: (?:stopped|neither .*?) for \d+ s(.*)$", err, re.MULTILINE)


@needs_mpiexec
def test_a_rank_that_is_stopped_before_mpi_begins_is_named(run: Any) -> None:
    code, _, err = run("--hang-s", "1")
    assert code == limit.HUNG, err
    assert named(err) == [("rank 1", "")], err
