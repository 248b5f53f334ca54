"""Commands under a hard time limit, of which no process is left behind."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from lb_mpi.cli.run import processes
from lb_mpi.handlers import deferred

LAST = 19  # of the priorities of processes


def run(
    argv: Sequence[str],
    timeout_s: float,
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes] | None = None,
) -> int:
    """Run `argv` (no standard input) for at most `timeout_s` seconds; return its exit code, or HUNG after a line on stderr.

    It gets its own session and TMPDIR.  However the call ends, even by Ctrl-C, all processes that it started are ended.
    """
    with started(argv, env=env, cwd=cwd, stdout=stdout, stderr=stderr) as process:
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            said = f"hung: ended after {timeout_s:g} s: {shlex.join(argv)}\n".encode()
            if stderr is None:
                sys.stderr.write(said.decode())
            else:
                stderr.write(said)
                stderr.flush()
            return processes.HUNG


@contextlib.contextmanager
def started(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `argv` as `run` does; at the end of the block, however it comes, all its processes are ended."""
    run_id, env = processes.with_run_id(env)
    process = None
    with tempfile.TemporaryDirectory(prefix="lb_mpi-", ignore_cleanup_errors=True) as scratch:
        try:
            with deferred():
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env={**env, "TMPDIR": scratch},
                    cwd=cwd,
                    start_new_session=True,
                )
            yield process
        finally:
            processes.end(run_id, process)


def yield_cores(leader: int) -> None:
    """Let the first process of a session, and all that it starts in it, compute only while a core is idle."""
    os.setpriority(os.PRIO_PROCESS, leader, LAST)
    with contextlib.suppress(OSError):  # Linux on a desktop weighs sessions against each other, not processes
        Path(f"/proc/{leader}/autogroup").write_text(str(LAST))
