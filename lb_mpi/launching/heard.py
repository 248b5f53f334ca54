"""Messages about ranks, as lines of JSON: from rank.py to host.py, and from host.py to launch/run.

Each line is checked, since others may write where it is read, and its texts can do nothing to a terminal.
"""

from __future__ import annotations

import json
import signal
from typing import Any, NamedTuple, TypeVar, get_type_hints


class Begin(NamedTuple):
    """A rank is there; its page comes with it."""

    rank: str


class End(NamedTuple):
    """The end of a rank that was not asked to end."""

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


class RankState(NamedTuple):
    """The state of a rank at one look (see `lb_mpi.signs`)."""

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


Told = TypeVar("Told", Begin, End, RankState, Stack)


def told(it: Begin | End | RankState | Stack) -> str:
    """Return it as a line, for `read`."""
    return json.dumps(it._asdict())


def read(kind: type[Told], line: str | bytes) -> Told:
    """Read a line of `told`; ValueError for anything else."""
    found = parse(line)
    types = get_type_hints(kind)
    if found.keys() != types.keys() or not all(_is_a(found[name], types[name]) for name in types):
        raise ValueError(f"{printable(str(found))}: expected {', '.join(types)} of {kind.__name__}")
    for name in (name for name in types if types[name] is str):
        lines = found[name].split("\n") if kind is Stack else [found[name]]  # others are printed in one line
        found[name] = "\n".join(map(printable, lines))
    return kind(**found)


def parse(line: str | bytes) -> dict[str, Any]:
    """Read an object of JSON; ValueError for anything else."""
    try:
        found = json.loads(line)
    except RecursionError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("expected an object of JSON")
    return found


def printable(text: str) -> str:
    """Return `text` with what may do something to a terminal written as in Python; line ends, too."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _is_a(value: object, kind: type) -> bool:
    return type(value) is kind or (kind is float and type(value) is int)
