"""End all processes of a command, and remove what a killed MPI leaves.

MPI can't be trusted with the first: a hung rank hangs its mpiexec, and both MPICH and Open MPI start ranks in separate
process groups or sessions, which a signal to the command's group doesn't reach.  So every process that a command starts
inherits a run id in its environment, and all processes with this id are ended, whatever their parent is by then.

ssh starts mpiexec's daemons on other hosts without the id, and they outlive an mpiexec that is killed or cut off while
they start.  So the command lines of a run on several hosts contain a word unique to the run (start.py).

A killed MPI can't remove its shared memory, which is megabytes a job, nor Open MPI its folders.  `end` removes them.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import NamedTuple

HUNG = 124  # the exit code of a command that was ended at its limit, as of timeout(1)
GRACE_S = 0.4  # between SIGTERM and SIGKILL: after Ctrl-C, all is over within a second
LEFT_S = 5.0  # a process that survives SIGKILL this long hangs in the kernel, for example on a dead file server
RUN_ID = "LB_MPI_LAUNCH"
_UNWINDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_FOLDER = Path("/dev/shm")
_NAMES = re.compile(  # of shared memory: MPICH's, Open MPI's with host, job and number, and UCX's
    r"mpich_shm_[0-9a-f]+_\d+|mpich_shar_tmp\w{6}|(?:vader_segment|sm_segment|osc_sm|osc_rdma)\..+\.[0-9a-f]+\.\d+|ucx_shm_posix_[0-9a-f]+"
)
_BEGAN_S = time.time()  # this process began before all that it starts


def with_run_id(env: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return a new run id that nobody can guess, and `env` with it: `end` finds the processes started so."""
    run_id = f"{os.getpid()}-{secrets.token_hex(8)}"
    return run_id, {**env, RUN_ID: f"{env.get(RUN_ID, '')}:{run_id}"}  # runs may be nested


def end(run_id: str, process: subprocess.Popen[bytes] | None = None, *, word: str = "") -> None:
    """End all processes of the run `run_id` or in the session of `process`; then remove what a killed MPI leaves.

    This includes this user's processes with `word` in their command lines ("": none). stderr gets a line for each process
    that still exists LEFT_S later.
    """
    leader = process.pid if process else -1
    asked = {leader}  # another process may have killed it before

    def find() -> set[int]:
        if process:
            process.poll()  # a dead leader must not count as left
        found = of_run(run_id, leader, word)
        asked.update(found)
        return found

    with uninterrupted():
        left = end_found(find)
        sys.stderr.write(cannot_be_ended(left))
        remove_orphans()
        if process and process.pid not in left:
            process.wait()
        remove_sessions(pid for pid in asked if not is_alive(pid))


def silence(*files: int) -> None:
    """Let these descriptors lead to /dev/null."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in files:
        os.dup2(nothing, file)
    os.close(nothing)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Block Ctrl-C and similar signals in this block."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *_UNWINDING})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def end_found(find: Callable[[], set[int]]) -> set[int]:
    """End processes until `find` returns none: SIGTERM, a pause, SIGKILL.  Return those that still exist LEFT_S later."""
    started = time.monotonic()
    asked: set[int] = set()
    while left := find():
        passed_s = time.monotonic() - started
        if passed_s > GRACE_S + LEFT_S:
            break
        last = passed_s > GRACE_S
        for pid in left if last else left - asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if last else signal.SIGTERM)
        asked |= left
        time.sleep(0.02)
    return left


def cannot_be_ended(pids: Iterable[int]) -> str:
    """Return a line for each remaining process."""
    return "".join(f"left behind: process {pid} is still there {LEFT_S:g} s after SIGKILL\n" for pid in sorted(pids))


def of_run(run_id: str, session: int = -1, word: str = "") -> set[int]:
    """Return the processes of the run `run_id`, or in the session `session`, or have `word` in their command line."""
    found = set()
    for path in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            one = stat(path.name)
            named = word and path.stat().st_uid == os.geteuid() and word.encode() in (path / "cmdline").read_bytes()
            if one.state in "ZX":
                continue
            if named or one.session == session or run_id in _run_ids((path / "environ").read_bytes()):
                found.add(int(path.name))
    return found


def is_alive(pid: int) -> bool:
    """Return whether a process exists; one that is dead but not yet reaped does not."""
    with contextlib.suppress(OSError):
        return stat(pid).state not in "ZX"
    return False


class Stat(NamedTuple):
    """The facts about a process in /proc/PID/stat."""

    name: str
    state: str
    parent: int
    session: int
    cpu_s: float  # to 10 ms, as the next
    children_cpu_s: float  # of those that have ended, and were waited for


def stat(pid: int | str) -> Stat:
    """Return what the system says about a process; OSError if it has ended."""
    name, _, rest = read_at_once(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")
    fields = rest.split()
    user, system, theirs, their_system = (int(ticks) * TICK_S for ticks in fields[11:15])
    parent, session = int(fields[1]), int(fields[3])
    return Stat(name.partition("(")[2], fields[0], parent, session, user + system, theirs + their_system)


def read_at_once(path: str) -> bytes:
    """Return the content of a file in /proc, at half the price of `Path`: a throttle reads many."""
    file = os.open(path, os.O_RDONLY)
    try:
        found = more = os.read(file, _PAGE)
        while len(more) > _PAGE // 2:  # of a long list, a read returns the lines or numbers that fit in a page
            more = os.read(file, _PAGE)
            found += more
        return found
    finally:
        os.close(file)


def _run_ids(environ: bytes) -> list[str]:
    for entry in environ.split(b"\0"):
        if entry.startswith(RUN_ID.encode() + b"="):
            return os.fsdecode(entry).partition("=")[2].split(":")
    return []


@contextlib.contextmanager
def interruptible(prefix: str = "") -> Iterator[None]:
    """A block in which SIGTERM, SIGHUP and SIGUSR1 unwind the stack as Ctrl-C does, so that all is cleaned up.

    Before it the commands leave SIGINT to the system, which ends them at once, without a traceback from an import.
    `prefix` : of the line about Ctrl-C; "": no line about the others
    """

    def unwind(number: int, _frame: FrameType | None) -> None:
        if prefix:
            with contextlib.suppress(OSError):  # the terminal may be gone
                print(f"{prefix}ended by {signal.Signals(number).name}", file=sys.stderr, flush=True)
        raise SystemExit(128 + number)

    for number in _UNWINDING:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup stays in force
            signal.signal(number, unwind)
    try:
        raise_interrupts()
        yield
    except KeyboardInterrupt:
        print(f"\n{prefix}interrupted", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None


def raise_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, unless it is ignored (nohup): the system no longer ends this process at once."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_FIRST = {"user": 0xEFFFFFFD, "pid": 0xEFFFFFFC, "ipc": 0xEFFFFFFF}  # the machine's: PROC_USER_INIT_INO, .. of Linux


def _sees_all() -> bool:
    """Return whether this user's processes that have /dev/shm are in /proc, and can be inspected.

    In a namespace of users they can't, and a container may share it with the machine (--ipc=host).
    """
    own = {name: os.stat(f"/proc/self/ns/{name}").st_ino == first for name, first in _FIRST.items()}
    return own["user"] if own["pid"] else not own["ipc"]


def remove_orphans() -> None:
    """Remove this user's segments that are as old as this process at most, and that no process has open or mapped.

    A starting rank has its segment open until it has mapped it.  So the list is made first, then open files are searched,
    then mappings: a segment in use is found in one of the two.
    """
    unused = {path for path in _listed() if _is_ours(path, _BEGAN_S)} if _sees_all() else set()
    for used_by in (_opened, mapped):
        for process in _PROC.glob("[0-9]*") if unused else ():
            unused -= used_by(process)
    for path in unused:
        with contextlib.suppress(OSError):
            path.unlink()


def remove_sessions(pids: Iterable[int]) -> None:
    """Remove the folders of those processes, which have ended, that were Open MPI's mpiexec or daemons."""
    for folder in (Path(tempfile.gettempdir(), f"{name}.{pid}") for pid in pids for name in ("ompi", "prted")):
        if _is_ours(folder):
            shutil.rmtree(folder, ignore_errors=True)  # follows no link


def _listed() -> list[Path]:
    with contextlib.suppress(OSError):
        return [_FOLDER / name for name in os.listdir(_FOLDER) if _NAMES.fullmatch(name)]
    return []


def _is_ours(path: Path, since_s: float = 0.0) -> bool:
    with contextlib.suppress(OSError):
        about = path.lstat()
        return about.st_uid == os.geteuid() and about.st_ctime >= since_s
    return False


def _opened(process: Path) -> set[Path]:
    found = set()
    try:
        for file in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.add(Path(os.readlink(file)))
    except OSError:  # ended meanwhile, or another user's
        pass
    return found


def mapped(process: Path) -> set[Path]:
    """Return the shared memory mapped by the process at /proc/PID."""
    with contextlib.suppress(OSError):
        lines = (process / "maps").read_text(errors="replace").splitlines()
        return {Path(line.split(None, 5)[5]) for line in lines if str(_FOLDER) in line}
    return set()
