"""A start that hangs: the law in all small courses of one, known-wrong variants, and stuck ranks on real mpiexec."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
import socket
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from lb_mpi.launching import hangs, limit, start
from lb_mpi.launching.heard import RankState
from tests.process.lab import ROOT, script
from tests.protocol.test_protocol import changed_module
from tools.environment import here

HOSTS = ("a", "b")
STEP_S = 10.0
LIMIT_S = 40.0
COURSE = 12  # looks, STEP_S apart
NEVER = 99
# Of a rank, at which look it: is there, computes last, says something.
LIVES = [
    (0, 0, NEVER),
    (0, 2, NEVER),
    (0, 9, NEVER),
    (0, NEVER, NEVER),
    (3, 3, NEVER),
    (6, 6, NEVER),
    (NEVER, NEVER, NEVER),
]
LIVES += [(0, 0, 1), (0, 2, 3), (0, 0, 6), (6, 6, 7), (0, 9, 10)]


def state(rank: int, life: tuple[int, int, int], look: int) -> RankState:
    came, computes, speaks = life
    spoke = look >= speaks
    idle_s = 0.0 if spoke else STEP_S * max(0, look - max(came, computes))
    return RankState(str(rank), HOSTS[rank], spoke=spoke, idle_s=idle_s)


def check_course(module: Any, lives: tuple[tuple[int, int, int], ...], hang_s: float, before_s: float | None) -> str:
    """What is said is what the law allows and asks for, at each look; return who is named first, with how it's said."""
    one = module.Start(HOSTS, hang_s, before_s)
    limit_s = max(hang_s, 30.0)
    for look in range(COURSE):
        now = look * STEP_S
        states = [state(rank, life, look) for rank, life in enumerate(lives) if look >= life[0]]
        spoken = [life[2] for life in lives if life[2] <= look]
        missing = [str(rank) for rank, life in enumerate(lives) if look < life[0]]
        last_s = max((life[0] * STEP_S for life in lives if life[0] <= look), default=0.0)
        idle = [one.rank for one in states if one.idle_s >= limit_s]
        late = before_s is not None and now >= before_s + limit_s
        if spoken or not hang_s:
            expected = []
        elif missing:
            expected = missing if now - last_s >= limit_s else []
        else:
            expected = idle if late else []
        found = one.stuck(now, states)
        assert [each.rank for each in found] == expected, (lives, look)
        assert one.first_word_s == (min(spoken) * STEP_S if spoken else before_s)
        assert one.lost_nothing == (before_s is not None and not spoken)
        for each in found:
            assert each.host == HOSTS[int(each.rank)]
            assert each.seconds >= limit_s
            assert each.where == (", in its start, before its program" if missing else ", in its start")
        if found:
            return f"{found[0].rank}{found[0].where}"
    return ""


def check_all(module: Any) -> list[str]:
    """All courses of two ranks."""
    settings = itertools.product(itertools.product(LIVES, repeat=2), (LIMIT_S, 5.0, 0.0), (None, 0.0, 20.0))
    return [check_course(module, *setting) for setting in settings]


def test_all_small_courses_keep_the_law() -> None:
    said = check_all(hangs)
    assert len(said) == len(LIVES) ** 2 * 9
    kinds = [f"{rank}{where}" for rank in "01" for where in (", in its start", ", in its start, before its program")]
    assert set(said) == {"", *kinds}


def test_ranks_without_known_numbers_may_do_what_they_like() -> None:
    one = hangs.Start(HOSTS, LIMIT_S, 1.0)
    assert one.stuck(500.0, [RankState("?", "a", idle_s=400.0)]) == []
    assert one.stuck(900.0, [RankState("?", "a", idle_s=800.0)]) == []
    assert one.stuck(990.0, [RankState("7", "a"), RankState("0", "a", idle_s=800.0)]) == []


def test_how_it_is_said() -> None:
    one = hangs.Start(HOSTS, LIMIT_S, 1.0)
    (missing,) = one.stuck(41.0, [RankState("0", "a")]) or one.stuck(90.0, [RankState("0", "a")])
    assert str(missing) == (
        "rank 1 on host b hangs: neither computing nor answering for 49 s, in its start, before its program"
    )


MUTANTS = [
    # who is innocent
    ("self._before_s is None or now < self._before_s", "now < (self._before_s or 0.0)"),
    ("now < self._before_s + self._limit_s", "False"),
    ("now < self._before_s + self._limit_s", "now < self._limit_s"),
    ("now < self._before_s + self._limit_s", "now < self._before_s"),
    ("now < self._before_s + self._limit_s", "now <= self._before_s + self._limit_s"),
    ("if state.idle_s >= self._limit_s]", "]"),
    ("if state.idle_s >= self._limit_s]", "if state.idle_s > self._limit_s]"),
    ("idle = [state for state in states if", "idle = [state for state in states[:1] if"),
    ("any(state.spoke for state in states)", "all(state.spoke for state in states)"),
    ("any(state.spoke for state in states)", "states and states[0].spoke"),
    ("if self._word_s is not None or not came", "if not came"),
    ("max(hang_s, START_S) if hang_s else float(\"inf\")", "max(hang_s, START_S)"),
    ("max(hang_s, START_S) if hang_s", "hang_s if hang_s"),
    ("max(hang_s, START_S) if hang_s", "START_S if hang_s"),
    # who is missing
    ("if missing_s >= self._limit_s]", "]"),
    ("if missing_s >= self._limit_s]", "if False]"),
    ("missing_s = now - self._came_s", "missing_s = now"),
    ("len(states), now\n", "len(states), 0.0\n"),
    ("self._n_came, self._came_s = len(states), now", "self._came_s = now"),
    ("if rank not in came]", "if rank in came]"),
    ("if len(came) < len(numbers):", "if not came:"),
    ("if len(came) < len(numbers):", "if False:"),
    ("Hang(*one, missing_s", "Hang(*one[::-1], missing_s"),
    # what is remembered
    ("if self._word_s is None and any(", "if any("),
    ("self._before_s if self._word_s is None else self._word_s", "self._word_s"),
    ("self._before_s if self._word_s is None else self._word_s", "self._before_s"),
    ("return self._before_s is not None and self._word_s is None", "return self._word_s is None"),
    ("return self._before_s is not None and self._word_s is None", "return self._before_s is not None"),
    ("state.host, state.idle_s, \", in its start\"", "state.host, 0.0, \", in its start\""),
]  # fmt: skip


def mutant(before: str, after: str) -> types.ModuleType:
    return changed_module(hangs, before, after)


@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_known_wrong_variants_are_caught(number: int) -> None:
    module = mutant(*MUTANTS[number])
    with pytest.raises((AssertionError, TypeError)):
        check_all(module)


def test_the_unchanged_module_is_none_of_them() -> None:
    check_all(mutant("START_S", "START_S"))


# --- on real mpiexec -------------------------------------------------------------------------------------------------

needs_mpiexec = pytest.mark.skipif(not shutil.which("mpiexec", path=Path(sys.executable).parent), reason="no mpiexec")

# Rank 1 is stopped where rank.py would begin.
STOPPED = """
import os, signal, sys
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1" and "rank" in sys.argv:
    os.kill(os.getpid(), signal.SIGSTOP)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """launch/run of tests/programs/late.py, in this process; no process of it is left."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(hangs, "START_S", 4.0)
    mark, env = limit.marked({**here().variables(), "PYTHONPATH": str(ROOT)})
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "late"
    folder.mkdir()

    def call(how: str, when: str, *options: str, python: str = sys.executable) -> tuple[int, str, str]:
        program = [python, str(ROOT / "tests" / "programs" / "late.py"), how, when, str(folder)]
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

        def start(self, _before: Any, *, may_restart: bool) -> int:
            def too_early(path: Any, **_: Any) -> None:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))

            (self.record / "0").touch()
            monkeypatch.setattr(os, "rmdir", too_early)
            return 75 + may_restart

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "MpiJob", Job)
    monkeypatch.setattr(start, "followed", lambda _: contextlib.nullcontext())
    assert start.run(start.parser("run").parse_args(["--progress", "true"]), ["true"]) == 75
    assert [*tmp_path.glob("*/*")] == []


def named(err: str) -> list[str]:
    return re.findall(r"^run: (rank \d) on host .* hangs: (?:stopped|neither .*?) for \d+ s(.*)$", err, re.MULTILINE)


@needs_mpiexec
def test_a_rank_that_is_stopped_before_mpi_begins_is_named(run: Any) -> None:
    code, _, err = run("stopped", "first", "--hang-s", "1")
    assert code == limit.HUNG, err
    assert named(err) == [("rank 1", "")], err


@needs_mpiexec
def test_a_restart_in_which_a_rank_never_begins_mpi_is_started_again(run: Any) -> None:
    code, out, err = run("waits", "second", "--hang-s", "4", "--restarts", "2")
    assert code == 0, err
    assert out.endswith("2 starts\n"), err  # that have come to MPI
    assert ("rank 1", ", in its start") in named(err), err  # on a busy machine others wait without computing, too
    assert re.search(r"^run: restart 2 of 2, after \S+ s: the program had not begun$", err, re.MULTILINE), err


@needs_mpiexec
def test_a_rank_that_is_stopped_before_its_program_is_named(run: Any, tmp_path: Path) -> None:
    python = script(tmp_path / "python-stopped", STOPPED)
    code, _, err = run("nothing", "first", "--hang-s", "5", "--restarts", "2", python=python)
    assert code == limit.HUNG, err
    assert named(err) == [("rank 1", ", in its start, before its program")], err
    assert f"rank 1 on host {socket.gethostname()} hangs" in err
