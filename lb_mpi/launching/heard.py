"""What the parts of launch/run tell each other of ranks: rank.py to host.py, and host.py to launch/run, as lines of JSON."""

from __future__ import annotations

import json
import signal
from typing import NamedTuple


class End(NamedTuple):
    """How a rank has ended, when nobody had told it to."""

    rank: str
    host: str
    code: int  # its exit code; by signal k: -k; 0: without MPI_Finalize, which is a failure, too

    def __str__(self) -> str:
        """Say it."""
        where = f"rank {self.rank} on host {self.host}"
        if self.code < 0:
            return f"{where} was killed by signal {-self.code} ({signal.strsignal(-self.code)})"
        if self.code == 0:
            return f"{where} ended with exit code 0, but without MPI_Finalize (os._exit, or a crash in a library)"
        return f"{where} ended with exit code {self.code}"


class State(NamedTuple):
    """How a rank does, at a look (see `lb_mpi.signs`)."""

    rank: str
    host: str
    quiet_s: float = 0.0  # for so long it has neither gone on nor computed, where it should have
    stopped: bool = False  # by SIGSTOP
    phase: str = ""  # what it is in; "": nothing of lb_mpi
    n_saved: int = 0  # how often it has told that something was saved
    saved: int = 0  # the number of the last save
    saves: bool = False  # at a signal it saves and ends
    spoke: bool = False  # it has said something
    idle_s: float = 0.0  # for so long it has neither gone on nor computed, wherever it is
    waits_s: float = 0.0  # for so long it has slept in a call of lb_mpi, most of the time: it waits for other ranks
    at_end: bool = False  # it has come to the end of its program

    def __str__(self) -> str:
        """Say that it hangs."""
        how = "stopped" if self.stopped else "neither computing nor answering"
        last = f", in {self.phase}" if self.phase else ""
        return f"rank {self.rank} on host {self.host} hangs: {how} for {self.quiet_s:.0f} s{last}"


class Stack(NamedTuple):
    """The Python stack of a rank."""

    rank: str
    text: str  # as faulthandler writes it; empty when it can't be had


def told(it: End | State | Stack) -> str:
    """As a line; `End(**json.loads(line))` reads it."""
    return json.dumps(it._asdict())
