"""The loop on a real rank, with an actor, a port and rests that the test holds."""

import math
from collections.abc import Iterable
from typing import Any

import pytest

from lb_mpi.emulate import throttle
from lb_mpi.mpi.common.carrier import Port, carry
from lb_mpi.mpi.common.waiting import Interrupts
from lb_mpi.record.record import Off


class Jobs:
    """An actor with these jobs, which sends the outcome of each to rank 0."""

    wake_at = math.inf

    def __init__(self, jobs: list[str]) -> None:
        self.jobs = jobs

    @property
    def over(self) -> bool:
        return not self.jobs

    @property
    def job(self) -> str | None:
        return self.jobs[0] if self.jobs else None

    def turn(self, _now: float, _arrived: Iterable[Any]) -> list[Any]:
        return []

    def done(self, job: str, result: str) -> list[Any]:
        self.jobs.remove(job)
        return [(0, result)]

    def fail(self, error: BaseException) -> list[Any]:
        raise error


class Sent(Port[str, str]):
    """A port that keeps what is sent."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def arrived(self) -> list[Any]:
        return []

    def post(self, sends: list[Any]) -> None:
        self.all += sends

    def run(self, job: str) -> str:
        return job.upper()


class Rests(throttle):
    """A slow rank, whose rests last as many looks as this says, one number for each look after which it computes."""

    def __init__(self, looks: list[int]) -> None:
        super().__init__(0.5)
        self.looks = looks

    def due(self) -> float:
        if not self.looks:
            return 0.0
        self.looks[0] -= 1
        if self.looks[0] < 0:
            self.looks.pop(0)
            return 0.0
        return 1e-6


class Nobody:
    """A presence of which no other rank wants anything."""

    def answer(self, _waited_s: float) -> None:
        pass


@pytest.mark.parametrize("looks", [[0, n] for n in range(5)])
def test_a_rest_that_ends_within_a_turn_loses_no_outcome(looks: list[int]) -> None:
    presence: Any = Nobody()
    carry(Jobs(["a", "b", "c"]), port := Sent(), presence, Off(), Rests(looks), Interrupts())
    assert port.all == [(0, "A"), (0, "B"), (0, "C")]
