"""A clock that a test moves, and CPU time that a test uses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def spin(seconds: float) -> None:
    """Use so much CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def pass_time(seconds: float) -> None:
    """Compute for so long, whoever else has the core meanwhile."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Clock:
    """Wall-clock and CPU time that pass only when a test says so, or when somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = self.cpu = 0.0
        self.naps: list[float] = []
        monkeypatch.setattr(time, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(time, "thread_time", lambda: self.cpu)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.wall += seconds

    def compute(self, seconds: float, *, lost: float = 0.0) -> None:
        self.cpu += seconds
        self.wall += seconds + lost
