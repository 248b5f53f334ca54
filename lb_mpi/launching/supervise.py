"""One run of mpiexec, watched from its start to its end: what dies or hangs is told, and what people end may save first."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lb_mpi.launching import limit
from lb_mpi.launching.awaited import Awaited, Hang
from lb_mpi.launching.diary import Diary
from lb_mpi.launching.heard import End, State
from lb_mpi.launching.restarting import How, Outcome, how
from lb_mpi.launching.starting import Start
from lb_mpi.launching.watch import LOOK_S, Watch
from lb_mpi.record.launches import DEATH
from lb_mpi.signs import SAVE_SIGNAL, SAVED

DEATH_S = 10.0  # so long mpiexec may need to end the others when a rank has died
STACK_S = 5.0
NEWEST_S = 0.4  # for what ranks have said last: after Ctrl-C all is over within a second
MOST_STACKS = 4  # that are shown


class Patience(NamedTuple):
    """How long to wait before a run is ended."""

    hang_s: float  # for a rank that hangs; 0: for ever
    grace_s: float  # for a program that saves after Ctrl-C or SIGTERM


def say(*lines: object) -> None:
    """Tell people."""
    for line in lines:
        print(f"run: {line}", file=sys.stderr, flush=True)


def supervise(
    argv: Sequence[str],
    env: Mapping[str, str],
    mark: str,
    watch: Watch,
    patience: Patience,
    diary: Diary,
    start: Start,
) -> Outcome:
    """Run mpiexec until it ends, or a host is gone, or a rank hangs, in its `start` or later; say what has died.

    Ctrl-C and its kin end the run: SystemExit or KeyboardInterrupt, unless the program has saved by then.  SIGUSR1 only asks
    for that: a program that can't save goes on.
    """
    process = None
    try:
        with limit.held() as came:
            process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
            run = _Run(process, watch, patience, diary, start, came)
            while run.goes_on():
                time.sleep(LOOK_S)
            outcome = run.outcome()
            if how(outcome) in (How.STOPPED, How.DONE):  # it has saved, or come to its end meanwhile
                came.clear()
        return outcome
    finally:
        limit.end(mark, process)


class _Run:
    """What is known of a run; `came` are the signals that people have sent."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        watch: Watch,
        patience: Patience,
        diary: Diary,
        start: Start,
        came: list[int],
    ) -> None:
        self._process, self._watch, self._patience, self._diary = process, watch, patience, diary
        self._start, self._came = start, came
        self._began = time.monotonic()
        self._ends: list[tuple[float, End]] = []
        self._gone: list[str] = []
        self._hung: list[State] | list[Hang] = []
        self._awaited = Awaited(start.n_ranks, patience.hang_s, lambda rank: watch.stack(rank, STACK_S, wake=False))
        self._asked: tuple[float, int] | None = None  # when the program was told to save, after so many signals

    def goes_on(self) -> bool:
        """Look: is it to be waited for?"""
        self._gone = self._watch.lost()
        self._hear()
        now = time.monotonic() - self._began
        if self._process.poll() is not None or self._gone:
            return False
        if self._came and not self._goes_on_to_save(now):
            return False
        if any(end.code <= 0 and now > at_s + DEATH_S for at_s, end in self._ends):
            return False
        states = self._watch.states()
        stuck = self._start.stuck(now, states)
        self._hung = [state for state in states if 0 < self._patience.hang_s <= state.quiet_s] or stuck
        self._hung = self._hung or self._awaited.stuck(now, states)
        return not self._hung

    def outcome(self) -> Outcome:
        """How it has ended, after all hosts have told what they know."""
        code = self._process.poll()
        if code is not None:
            self._gone = self._watch.silent()  # Open MPI's mpiexec may end with 0 when a host has died
        else:
            self._watch.hear(NEWEST_S)  # what the ranks have said since they were asked last: a save, perhaps
        self._hear()
        seconds = time.monotonic() - self._began
        say(*self._gone)
        say(*self._hung)
        for words in self._gone:
            self._diary.tell(DEATH, words)
        for state in self._hung:
            self._diary.tell(DEATH, str(state), state.rank)
        for state in self._hung[:MOST_STACKS]:
            stack = self._watch.stack(state.rank, STACK_S, wake=True).rstrip().splitlines()
            say(f"Python stack of rank {state.rank}:" if stack else f"rank {state.rank} gives no Python stack", *stack)
        if code and not self._came:
            say(f"mpiexec ended with exit code {code}" if code > 0 else f"mpiexec died by signal {-code}")
        states = self._watch.states()
        return Outcome(
            code=1 if code is None else code if code >= 0 else 128 - code,
            ends=self._ends,
            gone=self._watch.gone if self._gone else (),
            hung=bool(self._hung),
            lost_nothing=self._start.lost_nothing,
            first_word_s=self._start.first_word_s,
            n_saved=sum(state.n_saved for state in states),
            saved=max((state.saved for state in states), default=0),
            seconds=seconds,
        )

    def _hear(self) -> None:
        """Take in how ranks have ended; say who was killed, and which failed first."""
        now = time.monotonic() - self._began
        for end in self._watch.ends():
            if end.code < 0 or (end.code != SAVED and not any(one.code >= 0 for _, one in self._ends)):
                say(end)
                self._diary.tell(DEATH, str(end), end.rank)
            self._ends.append((now, end))

    def _goes_on_to_save(self, now: float) -> bool:
        """After a signal of people's: let the program save, if it can, and wait for that; a second signal ends it."""
        if self._asked is None:
            self._watch.hear(NEWEST_S)
            if not any(state.saves for state in self._watch.states()):
                if set(self._came) != {SAVE_SIGNAL}:
                    return False
                say(f"{SAVE_SIGNAL.name}: the program goes on, since it can't save at a signal (lb_mpi.asked_to_stop)")
                self._came.clear()
                return True
            say(
                f"the program has {self._patience.grace_s:g} s to save and stop; a second signal ends it at once"
            )
            self._watch.tell("save")
            self._asked = now, len(self._came)
        asked_s, n_came = self._asked
        if now > asked_s + self._patience.grace_s:
            say(f"the program has not stopped within {self._patience.grace_s:g} s")
            return False
        return len(self._came) == n_came
