"""A program run under the profile, on all ranks: start, program, end.

At the end, on a separate communicator, clocks are compared, collectives are split, and rank 0 receives all profiles.  The
ranks of each set exchange the times of the set's collectives in pieces, so that no rank holds more than a few megabytes of
others.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import numpy as np
from mpi4py import MPI
from mpi4py.run import set_abort_status

from lb_mpi.cli.profile.profile import Calls, ClockComparison, Profile, RankProfile, Stream, lateness, until_the_end
from lb_mpi.cli.profile.timed import Installed, Recorder
from lb_mpi.cli.run.processes import raise_interrupts
from lb_mpi.emulate import throttled
from lb_mpi.files import Load, as_main, find_script, import_as
from lb_mpi.handlers import install, restore
from lb_mpi.metrics import Floats
from lb_mpi.mpi.common.collective import agree, allgather
from lb_mpi.mpi.common.communicator import duplicate, presence_of
from lb_mpi.mpi.common.recorder import compare_clocks
from lb_mpi.mpi.common.saves import ignore
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.graph.speed import measure

PATIENCE_S = 5.0  # for the others to end, before a rank that exits with a code ends them
STOP_S, STUCK_S = 2.0, 0.2  # for the others to stop at a signal; until a call of MPI counts as one that does not return
PIECE = 1 << 18  # collective calls of all ranks that are split at a time


class ProfiledProgram:
    """Collective: a program, argv[0]; ValueError, SyntaxError or OSError on all ranks for a wrong argument.

    Rank 0 calls `check` for what else is given there, and `show` with the profile, if all ranks have reached the end.
    """

    def __init__(
        self, argv: Sequence[str], show: Callable[[Profile], object], *, module: bool, check: Callable[[], object] = bool
    ) -> None:  # fmt: skip
        self._argv, self._show, self._comm = argv, show, duplicate(MPI.COMM_WORLD)

        def load() -> Load:
            if self._comm.rank == 0:
                check()
            import_as(argv[0], module=module)
            return find_script(argv[0], module=module)

        self._load = agree(self._comm, load)
        self._speeds, self._speeds_from = find_speeds(self._comm)
        self._once = threading.Lock()  # of the end
        self._left = threading.Event()  # the program

    def run(self) -> BaseException | None:
        """Collective: run the program as `__main__` on every rank; return its exception, including SystemExit.

        Ctrl-C that the program does not handle ends it with the profile of what was seen, and the process exits.  In a call
        of MPI that does not return, a thread does so (`_watch`), and at a SIGTERM, which Open MPI sends its ranks at Ctrl-C.

        If it raises, this rank ends the others when it leaves, as under `python -m mpi4py`; if it exits with a code, only
        after waiting 5 s for the others to end.
        """
        self._began = compared(self._comm)
        self._recorder = Recorder(MPI.COMM_WORLD)
        self._installed = Installed(self._recorder)
        self._installed.put(MPI, "Init", lambda: None)  # MPI is initialised already
        self._installed.put(MPI, "Init_thread", lambda required=0: MPI.Query_thread())
        self._finalize: Callable[[], None] = MPI.Finalize
        self._installed.put(MPI, "Finalize", self._finalize_with_profile)
        error: BaseException | None = None
        sys.argv = [*self._argv]
        code, main = as_main(self._load)
        self._comm.Barrier()
        self._recorder.began = time.perf_counter_ns()
        self._signal = 0
        raise_interrupts()
        with self._watched():
            try:
                exec(code, main.__dict__)
            except BaseException as caught:
                trace = caught.__traceback__
                error = caught.with_traceback(trace and trace.tb_next)  # without the frame that started the program
        try:
            if isinstance(error, KeyboardInterrupt) or (error is not None and self._signal):
                self._stop(signal.SIGINT)
            if error is None or isinstance(error, SystemExit):
                self._end(error)
            else:
                self._installed.remove()
                set_abort_status(error)
        except BaseException as caught:
            set_abort_status(caught)
            raise
        return error

    def _finalize_with_profile(self) -> None:
        self._end()
        self._finalize()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """A block in which a thread watches for Ctrl-C and SIGTERM; the handlers remain the program's."""
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            yield
            return
        ours = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if ours:
            install(signal.SIGTERM, ignore)
        numbers, write = os.pipe()
        os.set_blocking(write, False)
        before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        thread = threading.Thread(target=self._watch, args=(numbers,), name="lb_mpi profile: signals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._left.set()
            signal.set_wakeup_fd(before)
            os.close(write)
            thread.join()
            os.close(numbers)
            if ours:
                restore(signal.SIGTERM, ignore)

    def _watch(self, numbers: int) -> None:
        """Stop all ranks at a SIGTERM, or a Ctrl-C in a call of MPI that does not return, unless the program handles it."""
        for number in iter(lambda: os.read(numbers, 1), b""):
            call = self._recorder.current
            if number[0] == signal.SIGTERM and signal.getsignal(signal.SIGTERM) is ignore:
                self._stop(signal.SIGTERM)
                leave(128 + signal.SIGTERM)
            elif number[0] == signal.SIGINT and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._signal = signal.SIGINT
                if not self._left.wait(STUCK_S) and call is not None and self._recorder.current is call:
                    self._stop(signal.SIGINT)

    def _stop(self, number: signal.Signals) -> None:
        """End with the profile of what was seen, and exit, if all ranks do so; otherwise return."""
        if self._end(stopped=True):
            _all_come(self._comm, STOP_S)  # mpiexec ends the others when the first one exits
            leave(128 + number)

    def _end(self, exits: SystemExit | None = None, *, stopped: bool = False) -> bool:
        """Collective: end the program on all ranks; a rank with an exit code ends the others if it must wait too long.

        Split the waits in collectives, and show the profiles of all ranks on rank 0.  Return whether all ranks have come.
        `stopped` : by a signal
        """
        if not self._once.acquire(blocking=False):  # by the program's own MPI.Finalize
            return False
        own, recorder, calls = self._comm, self._recorder, self._recorder.calls
        total_s, useful_s = (1e-9 * ns for ns in recorder.stop())
        self._installed.remove()
        if not _all_come(own, STOP_S if stopped else PATIENCE_S if exits is not None and exits.code else math.inf):
            set_abort_status(exits)
            return False
        clocks = self._began, compared(own)
        split_collectives(own, calls, clocks, stopped=stopped)
        mine = RankProfile(own.rank, MPI.Get_processor_name(), total_s, useful_s, calls.lines)
        found = allgather(own, (mine, recorder.threads, calls.n_lost, max(one.error_s for one in clocks)))
        if own.rank == 0:
            ranks, threads, lost, errors_s = zip(*found, strict=True)
            notes = _notes(ranks, any(threads), sum(lost), max(errors_s))
            notes += ["the program was stopped by a signal: this is the time until then"] * stopped
            speeds = self._speeds.tolist(), self._speeds_from
            self._show(Profile(self._argv[0], until_the_end(ranks), *speeds, max(errors_s), notes, stopped))
        if not stopped:
            own.Free()
        return True


def leave(code: int) -> NoReturn:
    """Exit from any thread, without MPI's end, which a call that does not return would hold up."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def find_speeds(comm: MPI.Intracomm) -> tuple[Floats, str]:
    """Collective: return the (P,) relative speeds, and where they are from.

    Ranks under `throttle` have its speeds.  Otherwise ranks of one host are equally fast, and several hosts are measured.
    """
    throttles = np.array(allgather(comm, throttled()))
    if (throttles != 1.0).any():
        return throttles, "from throttle"
    if len(set(allgather(comm, MPI.Get_processor_name()))) == 1:
        return np.ones(comm.size), "equal"
    speeds = measure(comm, messages=False, rounds=3, round_s=0.05).speeds
    return speeds / speeds.max(), "measured"


def _all_come(comm: MPI.Intracomm, patience_s: float) -> bool:
    """Return True if all ranks arrive before this one's patience ends."""
    request, until = comm.Ibarrier(), time.perf_counter() + patience_s
    presence_of(comm).wait(lambda: request.Test() or time.perf_counter() > until, request, name="")
    return request.Test()


def _notes(ranks: Sequence[RankProfile], threads: bool, n_lost: int, error_s: float) -> list[str]:
    notes = ["not seen, and counted as useful: calls of threads other than the main one"] * threads
    asked = ("test", "testall", "testany", "testsome", "iprobe", "improbe")
    n = sum(line.calls for rank in ranks for line in rank.lines if line.call.lower() in asked)
    if n:
        notes.append(f"the program has asked {n:,} times (Test, Iprobe) instead of waiting: time between counts as useful")
    if n_lost:
        notes.append(f'{n_lost:,} collective calls were too many to be kept: all their time is in "other MPI"')
    if error_s:
        notes.append(f"the hosts' clocks are set side by side to +- {1e6 * error_s:,.0f} us")
    return notes


# --- the end: clocks, collectives, all profiles on rank 0 -------------------------------------------------------------


def compared(comm: MPI.Intracomm) -> ClockComparison:
    """Collective: compare this rank's clock with rank 0's."""
    offset_s, error_s = compare_clocks(comm, allgather(comm, socket.gethostname()))
    return ClockComparison(time.perf_counter_ns(), offset_s, error_s)


def split_collectives(
    comm: MPI.Intracomm, calls: Calls, clocks: Sequence[ClockComparison], *, stopped: bool = False
) -> None:  # fmt: skip
    """Collective: find for each line of `calls` the ranks for which its collectives waited.

    If they were `stopped`, they wait also for the ranks that had not come to the last ones.
    """
    if stopped:
        calls.stream(range(comm.size))  # in which a rank that has come to no collective is awaited
    streams = {hash(stream.members): stream for stream in calls.streams.values() if len(stream) or stopped}
    everyone = allgather(comm, {key: len(stream) for key, stream in streams.items()})
    for key, stream in sorted(streams.items()):  # in the same order on all ranks: hashes of integers are alike
        counts = [one[key] for one in everyone if key in one]
        if len(counts) == len(stream.members):
            waits = _split(comm, stream, max(counts) if stopped else min(counts), clocks)
            for number, ns, whom in zip(stream.table(len(stream))[-1].tolist(), *waits, strict=False):
                if ns:
                    calls.lines[number].wait(whom, 1e-9 * ns)


def _split(comm: MPI.Intracomm, stream: Stream, n: int, clocks: Sequence[ClockComparison]) -> list[list[int]]:
    """Return this rank's (n,) waits in the first n calls of a stream, and the (n,) awaited ranks."""
    mine = stream.by_root(n, clocks)
    group = comm.Get_group().Incl(stream.members)
    members = comm.Create_group(group, Tag.PROFILE)
    found = []
    for piece in np.array_split(mine, range(PIECE // members.size + 1, n, PIECE // members.size + 1), axis=1):
        every = np.empty((members.size, *piece.shape), dtype=np.int64)
        members.Allgather(np.ascontiguousarray(piece), every)
        found.append(lateness(members.rank, stream.members, every.transpose(1, 0, 2)))
    members.Free()
    group.Free()
    return [np.concatenate(parts).tolist() for parts in zip(*found, strict=True)]
