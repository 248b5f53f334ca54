"""Run a command under a hard time limit, and leave no process of it behind.

MPI can't be trusted with this: a hung rank hangs its mpiexec, and both MPICH and Open MPI start ranks in process groups
or sessions of their own, where no signal to the command's group arrives.  So everything that a command starts inherits
a mark in its environment, and what bears the mark is ended, whoever its parent is by then.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

HUNG = 124  # the exit code of a command that was ended at its limit, as of timeout(1)
GRACE_S = 0.4  # between SIGTERM and SIGKILL: with Ctrl-C, all is over within a second
_MARK = "LB_MPI_LAUNCH"
_PROC = Path("/proc")
_SEGMENTS = ("/dev/shm/mpich_shm_", "/dev/shm/vader_segment", "/dev/shm/sm_segment", "/dev/shm/osc_")
_runs = 0


def run(
    argv: Sequence[str],
    timeout_s: float,
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes] | None = None,
) -> int:
    """Run `argv` (no standard input) for at most `timeout_s` seconds; return its exit code, or HUNG after telling stderr.

    It gets a session and a TMPDIR of its own.  On any way out, Ctrl-C too, all processes that it has started are ended.
    """
    mark, env = marked(env)
    process = None
    with tempfile.TemporaryDirectory(prefix="lb_mpi-", ignore_cleanup_errors=True) as scratch:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**env, "TMPDIR": scratch},
                cwd=cwd,
                start_new_session=True,
            )
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            said = f"hung: ended after {timeout_s:g} s: {shlex.join(argv)}\n".encode()
            if stderr is None:
                sys.stderr.write(said.decode())
            else:
                stderr.write(said)
                stderr.flush()
            return HUNG
        finally:
            end(mark, process)


def marked(env: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """A mark that nothing bears yet, and `env` with it, to start with what `end` shall find."""
    global _runs
    _runs += 1
    mark = f"{os.getpid()}-{time.monotonic_ns()}-{_runs}"
    return mark, {**env, _MARK: f"{env.get(_MARK, '')}:{mark}"}  # runs may be nested


def end(mark: str, process: subprocess.Popen[bytes] | None = None) -> None:
    """End what bears `mark`, or is in the session of `process`: SIGTERM, a moment, SIGKILL."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        leader = process.pid if process else -1
        started = time.monotonic()
        asked: set[int] = set()
        segments: set[Path] = set()
        while left := _bearers(mark, leader):
            last = time.monotonic() - started > GRACE_S
            for pid in left - asked if not last else left:
                segments |= _segments(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if last else signal.SIGTERM)
            asked |= left
            if process:
                process.poll()  # a dead leader must not count as left
            time.sleep(0.02)
        for segment in segments:  # an MPI that is ended can't remove them, and they are memory
            with contextlib.suppress(OSError):
                segment.unlink()
        if process and not _PROC.is_dir():
            _end_group(process)
        if process:
            process.wait()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _bearers(mark: str, session: int) -> set[int]:
    found = set()
    for path in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or somebody else's
            state, _, _, of = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if state not in "ZX" and (int(of) == session or mark in _marks((path / "environ").read_bytes())):
                found.add(int(path.name))
    return found


def _marks(environ: bytes) -> list[str]:
    for entry in environ.split(b"\0"):
        if entry.startswith(_MARK.encode() + b"="):
            return entry.decode().partition("=")[2].split(":")
    return []


def _segments(pid: int) -> set[Path]:
    """The shared memory of an MPI that the process has in use."""
    with contextlib.suppress(OSError):
        fields = (_PROC / str(pid) / "maps").read_text().split()
        return {Path(field) for field in fields if field.startswith(_SEGMENTS)}
    return set()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """The best that can be done on a system without /proc."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that nothing stays behind; says nothing then."""

    def unwind(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup stays in force
            signal.signal(number, unwind)
    try:
        yield
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
