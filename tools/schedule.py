"""Stages run side by side, as many as keep the cores busy, with a sign of life every ten seconds.

Ranks and programs wait for each other most of the time, so they leave cores idle, and what only computes takes these: it
gets a core when nothing else wants it.

A test that hangs is ended by its pytest, which shows where (stages.py).
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from lb_mpi.cli.run import processes
from tools import limited, others
from tools.counts import Counts
from tools.environment import ROOT
from tools.stages import IDLE, Outcome, Stage

N_CORES = 3.5  # that stages may ask for at once: two, and more since no stage keeps busy what it asks for
N_IDLE = 2  # stages at once that take idle cores
LIMIT_S = 3600.0  # for a stage
SIGN_S = 10.0
POLL_S = 0.1
MOST_AGAIN = 3  # failed stages that run once more; if more fail, it isn't for want of cores


class Running:
    """A stage that has been started; a context manager that leaves nothing of it."""

    def __init__(self, stage: Stage) -> None:
        """Be about to start."""
        self.stage = stage
        self.cpu_s = 0.0  # of all its processes, when it has ended
        self._began = time.time()
        self._stack = ExitStack()

    def __enter__(self) -> Running:
        """Start."""
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lb_mpi-")))
            log = stack.enter_context((self._folder / "log").open("wb"))
            argv, variables = self.stage.argv(self._folder), self.stage.variables
            self._process = stack.enter_context(limited.started(argv, env=variables, cwd=ROOT, stdout=log, stderr=log))
            if self.stage.n_cores == IDLE:
                limited.yield_cores(self._process.pid)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End what is left."""
        self._stack.close()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.time() - self._began

    @property
    def reached(self) -> str:
        """How far its tests are, as pytest prints it at the end of each line; "" before the first."""
        texts = (path.read_text(errors="replace") for path in sorted(self._folder.glob("*log")))  # rank 0's, or the only one
        return next((found[-1] for text in texts if (found := re.findall(r"\[ *\d+%\]", text))), "")

    def code(self) -> int | None:
        """Its exit code, processes.HUNG when it must be ended, None while it runs."""
        before = others.own_cpu_s()
        code = self._process.poll()
        self.cpu_s += others.own_cpu_s() - before  # what is added is that of a child which has been waited for
        return processes.HUNG if code is None and self.seconds > LIMIT_S else code

    def outcome(self, code: int) -> Outcome:
        """What has come of it."""
        return self.stage.outcome_of(self._folder, code)


def run_all(stages: Sequence[Stage]) -> bool:
    """Run the stages in order, with a line for each and the totals at the end; return whether all is well.

    Stages that run side by side compete for two cores, and a test of processes, hosts and deadlines may fail for that.  So
    where at most `MOST_AGAIN` stages have failed, each of them runs once more with nothing beside it, and that decides.
    """
    outcomes = side_by_side(stages)
    failed = [stage for stage in stages if not outcomes[stage.name].good]
    if len(stages) > 1 and len(failed) <= MOST_AGAIN:
        for stage in failed:
            print(f"once more, with nothing beside it: {stage.name}", flush=True)
            outcomes |= side_by_side([stage])
    good = all(outcome.good for outcome in outcomes.values())
    totals = Counts(*map(sum, zip(*(outcome.counts for outcome in outcomes.values()), strict=True)))
    if unsteady := [stage.name for stage in failed if outcomes[stage.name].good]:
        print("failed beside others and passed alone:", "; ".join(unsteady), flush=True)
    if not good or totals.passed or totals.failed:
        print(totals, flush=True)
        return good
    print("no test ran\n0 passed, 1 failed", flush=True)
    return False


def side_by_side(stages: Sequence[Stage]) -> dict[str, Outcome]:
    """Run the stages, as many at a time as keep the cores busy; return their outcomes by name."""
    waiting, running, outcomes, signed = list(stages), list[Running](), dict[str, Outcome](), time.monotonic()
    with ExitStack() as everything:
        while waiting or running:
            while stage := next((one for one in waiting if fits(one, waiting, [each.stage for each in running])), None):
                waiting.remove(stage)
                running.append(everything.enter_context(Running(stage)))
            for one in list(running):
                if (code := one.code()) is not None:
                    running.remove(one)
                    outcomes[one.stage.name] = outcome = one.outcome(code)
                    report(one, outcome)
                    signed = time.monotonic()
                    one.__exit__()
            if time.monotonic() > signed + SIGN_S:
                signed = time.monotonic()
                for one in running:
                    print(f"    {one.seconds:5.0f} s  {one.stage.name} {one.reached}", flush=True)
            time.sleep(POLL_S)
    return outcomes


def fits(stage: Stage, waiting: list[Stage], running: list[Stage]) -> bool:
    """Tell whether there are cores for a stage, and all that it must come after has ended."""
    if {one.name for one in waiting + running} & {*stage.after}:
        return False
    if stage.n_cores == IDLE:
        return sum(one.n_cores == IDLE for one in running) < N_IDLE
    return sum(one.n_cores for one in running) + stage.n_cores <= N_CORES


def report(one: Running, outcome: Outcome) -> None:
    """Print how a stage has ended."""
    counts = outcome.counts
    took = f"{one.stage.name:<38}{one.seconds:7.1f} s {one.cpu_s:6.1f} CPU s "
    words = [took, "passed" if outcome.good else "FAILED", outcome.problem]
    if sum(counts) > bool(outcome.problem):
        words.append(f" {counts.passed} of {sum(counts)} tests" + f", {counts.skipped} skipped" * bool(counts.skipped))
    print(*filter(None, words), flush=True)
    if outcome.output and not outcome.good:
        print(outcome.output, flush=True)
