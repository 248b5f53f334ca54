"""The loop on a real rank, with an actor, a port and rests that the test holds."""

import math
from collections.abc import Iterable
from typing import Any

import pytest

from lb_mpi.emulate import throttle
from lb_mpi.errors import ProtocolError
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

    attend_at = 0.0

    def answer(self, _waited_s: float) -> None:
        pass


@pytest.mark.parametrize("looks", [[0, n] for n in range(5)] + [[0] * n + [9] for n in range(9)])
def test_a_rest_that_ends_within_a_turn_or_after_the_last_one_loses_no_outcome(looks: list[int]) -> None:
    presence: Any = Nobody()
    carry(Jobs(["a", "b", "c"]), port := Sent(), presence, Off(), Rests(looks), Interrupts())
    assert port.all == [(0, "A"), (0, "B"), (0, "C")]


class Silent(Sent):
    """A port where something arrives after so many looks, and then again."""

    looks, every = 0, 3

    def idle(self) -> bool:
        self.looks += 1
        return self.looks % self.every != 0

    @property
    def failed_after_s(self) -> float:
        return math.inf


class Waits(Jobs):
    """An actor that is over after so many turns without a job."""

    def __init__(self, n: int) -> None:
        super().__init__([])
        self.left = n

    @property
    def over(self) -> bool:
        return not self.left

    def turn(self, _now: float, _arrived: Iterable[Any]) -> list[Any]:
        self.left -= 1
        return []


class Confused(Jobs):
    """An actor whose table has no row for what arrives after its first job."""

    def turn(self, _now: float, arrived: Iterable[Any]) -> list[Any]:
        if any(message == "c" for _, message in arrived):
            raise ProtocolError("rank 0 got c from rank 2, which may not send it now")
        return [(1, message.upper()) for _, message in arrived]


class Busy(Sent):
    """A port at which these messages arrive, one for each turn."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__()
        self.messages = messages

    def arrived(self) -> list[Any]:
        return [(2, self.messages.pop(0))]


def test_a_protocol_error_names_the_last_events() -> None:
    presence: Any = Nobody()
    with pytest.raises(ProtocolError, match="rank 0 got c") as caught:
        carry(Confused(["x", "y"]), Busy(["a", "b", "c"]), presence, Off(), throttle(1.0), Interrupts())
    (note,) = caught.value.__notes__
    events = [line.split(maxsplit=1)[1] for line in note.splitlines()[1:]]
    assert events == ["str from 2", "str to 1", "does str"] * 2 + ["str from 2"]
    with pytest.raises(ProtocolError) as caught:
        carry(Confused([""] * 99), Busy(["a"] * 90 + ["c"]), presence, Off(), throttle(1.0), Interrupts())
    assert len(caught.value.__notes__[0].splitlines()) == 21


def test_a_rank_that_waits_takes_turns_only_when_something_may_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lb_mpi.mpi.common.carrier.NAPS_S", math.inf)
    presence: Any = Nobody()
    carry(Waits(4), port := Silent(), presence, Off(), throttle(1.0), Interrupts())
    assert port.looks == 3 * port.every
