"""The process between mpiexec and the program of a rank: it reports the rank's end, and makes the page for its signs.

`python lb_mpi/cli/run rank PROGRAM [ARGUMENTS]`.  Only a parent learns how a process ended, and MPICH's names neither rank
nor host.  This process forwards its signals to the program, which dies with it.  It ends as the program does, but with exit
code 1 if the program called MPI_Init, skipped MPI_Finalize, and ended with 0.

Its reports go to host.py on the same host, as datagrams to a socket whose address is the id of the run: at the start the
rank and the file of the program's signs (`lb_mpi.signs`), later its end, and whether MPI had asked it to end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from lb_mpi import signs
from lb_mpi.cli.run import processes
from lb_mpi.cli.run.lines import Begin, End, line_of

NUMBER = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID")
FORWARDED = {getattr(signal, f"SIG{name}") for name in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM")}
PR_SET_PDEATHSIG = 1  # prctl(2)
_COLON = re.compile(r"\\*:")
SEND_S = 5.0  # for host.py to receive the report of an end


def address(run_id: str) -> str:
    """Return the address of host.py's socket: an abstract one, without a file, private to the host (or namespace)."""
    return f"\0lb_mpi-{run_id}"


def number(variables: Mapping[str, str]) -> str:
    """Return this rank, from mpiexec's variables."""
    return next((variables[name] for name in NUMBER if variables.get(name)), "?")


def send(what: Begin | End, *files: int, wait_s: float | None = SEND_S) -> bool:
    """Send a report and `files` to host.py; False if it is absent, or can't receive within `wait_s` (None: no limit)."""
    run_id = os.environ.get(processes.RUN_ID, "").rpartition(":")[2]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.settimeout(wait_s)
        out.connect(address(run_id))
        socket.send_fds(out, [line_of(what).encode()], files)
        return True
    return False


def written(word: str) -> str:
    r"""Write a word of the program for mpiexec, to which ":" ends a program: "\:", and "\\:" for that; `main` reads it."""
    return f"\\{word}" if _COLON.fullmatch(word) else word


def no_command(word: str, why: str = "not found") -> str:
    """Return the text of an error: a word in the place of a command can't be run; of a Python file, how it can be."""
    hint = f", as in `python {word}`" if word.endswith(".py") and os.path.isfile(word) else ""
    return f"{word}: {why}: expected a command{hint}"


def become(argv: Sequence[str], env: Mapping[str, str], mask: set[int], parent: int, name: str) -> NoReturn:
    """In the child of `parent`: become the program, in a new session, killed when `parent` dies.

    `name` : of the command, for its errors
    """
    code = 126
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvpe(argv[0], list(argv), env)
    except FileNotFoundError:
        code = 127
        print(f"{name}: error: {no_command(argv[0])}", file=sys.stderr)
    except OSError as error:
        print(f"{name}: error: {no_command(argv[0], str(error.strerror))}", file=sys.stderr)
    except ValueError as error:
        print(f"{name}: error: {argv[0]}: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def end_as(code: int) -> NoReturn:
    """End this process with the exit code `code`, or by the signal -`code` (as in `os.waitstatus_to_exitcode`)."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has already left a core file, if one is allowed
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
        code = 128 - code
    sys.exit(code)


def prctl(option: int, value: int) -> None:
    """Call prctl(2); OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def raise_priority() -> None:
    """Let this process, not its children, have a core as soon as it wakes; do nothing without the privilege."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def main(argv: Sequence[str]) -> NoReturn:
    """Run `argv`, words of `written`, and end as it ends."""
    argv = [word.removeprefix("\\") if _COLON.fullmatch(word) else word for word in argv]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
    by = os.getppid()
    file = os.memfd_create(signs.NAME)  # leaves nothing behind; host.py keeps it open after this process has ended
    os.ftruncate(file, signs.BYTES)
    # The folder of site/sitecustomize.py, which removes it again.
    path = [str(Path(__file__).resolve().parent / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    # Many ranks start at once, and a rank that could not report its start would look as if it hung.
    if send(Begin(number(os.environ)), file, wait_s=None):
        env[signs.VARIABLE] = f"/proc/{os.getpid()}/fd/{file}"
    parent, child = os.getpid(), os.fork()
    if child == 0:
        become(argv, env, mask, parent, "run")
    asked = False
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        about = signal.sigwaitinfo(FORWARDED | {signal.SIGCHLD})
        if about.si_signo != signal.SIGCHLD:
            asked = asked or about.si_pid in (0, by)  # by MPI; a signal of others is the end of the rank
            with contextlib.suppress(OSError):
                os.killpg(child, about.si_signo)
    code = os.waitstatus_to_exitcode(ended[1])
    seen = signs.read(os.pread(file, signs.BYTES, 0))
    failed = code != 0 or not (seen.at_end or not seen.mpi_pid)
    asked = failed and asked and code != signs.SAVED
    send(End(number(os.environ), socket.gethostname(), code, regular=not failed, asked=asked))
    end_as(code or int(failed))
