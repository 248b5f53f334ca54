"""The loop on a real rank, with an actor, a port and rests that the test holds."""

import math
from collections.abc import Iterable
from typing import Any

import pytest

from lb_mpi import emulate
from lb_mpi.emulate import Rest, Slow
from lb_mpi.errors import ProtocolError
from lb_mpi.mpi.common.calls import Interrupts
from lb_mpi.mpi.common.carrier import Port, carry
from lb_mpi.record.events import Phase
from lb_mpi.record.record import Off, Record
from tests.protocol.explore import Exploration, State
from tests.protocol.mutate import rejects


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


class Nobody:
    """A presence of which no other rank wants anything."""

    attend_at = 0.0

    def answer(self, _waited_s: float) -> None:
        pass


def test_what_a_slow_rank_sends_leaves_after_its_rests():
    presence: Any = Nobody()
    rests, rested = [0.0, 1e-6, 1e-6, 0.0, 1e-6, 0.0, 1e-6], list[int]()
    actor, port = Slow(Jobs(["a", "b", "c"]), lambda: rests.pop(0)), Sent()
    carry(actor, port, presence, Recorded(rested, port), Interrupts())
    assert port.all == [(0, "A"), (0, "B"), (0, "C")], "the last leaves without a rest, since the actor is over"
    assert rested == [0, 0, 1]


class Recorded(Record):
    """A record that notes how much had been sent when a rest began."""

    def __init__(self, rested: list[int], port: Sent) -> None:
        super().__init__(0.0)
        self.rested, self.port = rested, port

    def enter(self, phase: Phase, _at: float) -> None:
        if phase is Phase.RESTING:
            self.rested.append(len(self.port.all))


# --- all orders of jobs, rests and messages of a slow rank --------------------------------------------------------------


class Answers(Jobs):
    """An actor that also answers each question at once; over when it has answered both, and all jobs are done."""

    left = 2

    @property
    def over(self) -> bool:
        return not self.jobs and not self.left

    def turn(self, _now: float, arrived: Iterable[Any]) -> list[Any]:
        answers = [(source, "answer") for source, _ in arrived]
        self.left -= len(answers)
        return answers

    def done(self, job: str, result: str) -> list[Any]:
        self.jobs = self.jobs[1:]
        return [(1, result)]


class Asks(Jobs):
    """An actor that asks rank 0 twice, and is over when all has arrived."""

    asked = 0

    @property
    def over(self) -> bool:
        return len(self.jobs) == 4

    job = None

    def turn(self, _now: float, arrived: Iterable[Any]) -> list[Any]:
        self.jobs = self.jobs + [message for _, message in arrived]
        if self.asked == 2:
            return []
        self.asked += 1
        return [(0, "question")]


class Resting(Exploration):
    """A slow rank 0, which begins with a rest and has to rest twice after each job, and one that asks it.

    `State.rest`: how many rests are left, and if the rank has taken a turn since its last job, as it always does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left = 0

    def key_of(self, actor: Any) -> Any:
        if isinstance(actor, Asks):
            return actor.asked, *actor.jobs
        return actor._rest_s, *actor._held, actor.actor.left, *actor.actor.jobs

    def memory(self, state: State, rank: int) -> int:
        return int(state.rest[0])

    def turn(self, state: State, rank: int, arrived: Any) -> Any:
        for new in super().turn(state, rank, arrived):
            yield new if rank else new._replace(rest=(new.rest[0], True))

    def enter(self, _actor: Any, memory: int, _choose: Any) -> None:
        self.left = memory

    def run(self, state: State, _rank: int, job: Any) -> Any:
        left, turned = state.rest
        if turned and isinstance(job, Rest):
            yield None, state._replace(rest=(max(0, left - 1), False))
        elif turned:
            assert not left, "a job begins while the rank rests"
            yield job.upper(), state._replace(rest=(2, False))

    def check_turn(self, before: Any, after: Any, arrived: Any, sends: Any) -> None:
        if isinstance(after, Slow):
            outcomes = [message for _, message in sends if message != "answer"]
            assert not outcomes or not self.left or after.actor.over, "an outcome leaves during a rest"
            assert len(sends) - len(outcomes) == len(arrived), "an answer is held back"
            assert [message for _, message in sends][: len(outcomes)] == outcomes, "what was first sent leaves last"
            assert isinstance(after.job, Rest) == bool(self.left) or after.over
            assert not after.actor.over or after.over, "what has been held back does not leave at the end"

    def check_done(self, after: Any, job: Any, outcome: Any, sends: Any) -> None:
        assert not sends, "an outcome leaves at once"

    def visit(self, state: State) -> bool:
        if ended := super().visit(state):
            assert [one for one in state.actors[1].jobs if one != "answer"] == ["A", "B"]
            assert not any(state.wires.values())
        return ended


def find_fault() -> None:
    exploration = Resting()
    slow: Any = Slow(Answers(["a", "b"]), lambda: 1e-3 * exploration.left)
    exploration.reach(State((slow, Asks([])), {}, (1, False)))


test_a_slow_rank_holds_back_what_its_jobs_send_and_answers_while_it_rests = rejects(find_fault, [
    (emulate, "Slow.done", "self._held = self.actor.done(job, result)", "return self.actor.done(job, result)"),
    (emulate, "Slow.done", "self._held = self.actor.done(job, result)", "self.actor.done(job, result)"),
    (emulate, "Slow.job", "if self._rest_s", "if self._held"),
    (emulate, "Slow.turn", "self._due()", "0.0 if arrived else self._due()"),
    (emulate, "Slow.turn", "self._due()", "self._rest_s or self._due()"),
    (emulate, "Slow.turn", "[*self._held, *sends]", "[*sends, *self._held]"),
    (emulate, "Slow.turn", "[*self._held, *sends], []", "[*self._held, *sends], self._held"),
    (emulate, "Slow.turn", "(not self._rest_s or self.actor.over)", "not self._rest_s"),
    (emulate, "Slow.turn", "if self._held and", "if self._held and not arrived and"),
    (emulate, "Slow.over", " and not self._held", ""),
    (emulate, "Slow.done", "not isinstance(job, Rest)", "True"),
])  # fmt: skip


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


def test_a_protocol_error_names_the_last_events():
    presence: Any = Nobody()
    with pytest.raises(ProtocolError, match="rank 0 got c") as caught:
        carry(Confused(["x", "y"]), Busy(["a", "b", "c"]), presence, Off(), Interrupts())
    (note,) = caught.value.__notes__
    events = [line.split(maxsplit=1)[1] for line in note.splitlines()[1:]]
    assert events == ["str from 2", "str to 1", "does str", "str to 0"] * 2 + ["str from 2"]
    with pytest.raises(ProtocolError) as caught:
        carry(Confused([""] * 99), Busy(["a"] * 90 + ["c"]), presence, Off(), Interrupts())
    assert len(caught.value.__notes__[0].splitlines()) == 21


def test_a_rank_that_waits_takes_turns_only_when_something_may_have_arrived(monkeypatch):
    monkeypatch.setattr("lb_mpi.mpi.common.carrier.NAPS_S", math.inf)
    presence: Any = Nobody()
    carry(Waits(4), port := Silent(), presence, Off(), Interrupts())
    assert port.looks == 3 * port.every
