"""Messages about ranks, as lines of JSON: from rank.py to host.py, and from host.py to launch/run.

Each line is checked, since other programs may write to the same stream; its texts are made safe for a terminal.
"""

from __future__ import annotations

import json
import signal
from typing import Any, NamedTuple, TypeVar, get_type_hints


class Begin(NamedTuple):
    """A rank has started; its page comes with this message."""

    rank: str


class End(NamedTuple):
    """The end of a rank."""

    rank: str
    host: str
    code: int  # its exit code; -k: killed by signal k
    regular: bool = False  # with 0, and MPI was finalized, if it had begun
    asked: bool = False  # MPI had asked it to end, as it does when another rank has ended: this is no cause

    def __str__(self) -> str:
        where = f"rank {self.rank} on host {self.host}"
        if self.code < 0:
            more = ": a file has reached the limit of `ulimit -f`" if -self.code == signal.SIGXFSZ else ""
            return f"{where} was killed by signal {-self.code} ({signal.strsignal(-self.code)}){more}"
        if self.code == 0:
            return f"{where} ended with exit code 0, but without MPI_Finalize (os._exit, or a crash in a library)"
        return f"{where} ended with exit code {self.code}"


class RankState(NamedTuple):
    """The state of a rank at one time (see `lb_mpi.signs`)."""

    rank: str
    host: str
    phase: str = ""  # the call of lb_mpi that it is in; "": none
    n_saved: int = 0  # number of saves that it has reported
    saved: int = 0  # the number of the last save
    saves: bool = False  # at a signal it saves and ends
    spoke: bool = False  # it has reported something
    idle_s: float = 0.0  # time without progress or computation
    away_s: float = 0.0  # time without progress in lb_mpi
    waits_s: float = 0.0  # time mostly asleep in lb_mpi, in calls or in none
    at_end: bool = False  # it has reached the end of its program
    stopped_s: float = 0.0  # for how long it has been stopped (SIGSTOP)


class Stack(NamedTuple):
    """The Python stack of a rank."""

    rank: str
    text: str  # as faulthandler writes it; empty if there is none


Line = TypeVar("Line", Begin, End, RankState, Stack)


def line_of(it: Begin | End | RankState | Stack) -> str:
    """Return the message as a line for `read`."""
    return json.dumps(it._asdict())


def read(kind: type[Line], line: str | bytes) -> Line:
    """Read a line of `line_of`; ValueError for anything else."""
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
    """Return `text` with control characters and line ends escaped as in Python."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _is_a(value: object, kind: type) -> bool:
    return type(value) is kind or (kind is float and type(value) is int)
