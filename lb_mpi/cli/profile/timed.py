"""Timed replacements of mpi4py's communicators, requests and messages, and the `Recorder` of one rank's calls.

Each class is a subclass of mpi4py's that does the same and reports to a Recorder.  `Installed` replaces the classes in
`mpi4py.MPI`, and COMM_WORLD and COMM_SELF; objects made from a timed communicator are also timed.  (So this is the only
command that imports mpi4py.)  No message is added or removed on the program's communicators.

The recorder knows clocks, lines of the program, and the ranks of communicators; it feeds `lb_mpi.cli.profile.profile.Calls`
with the clocks of this rank.  Only calls of the thread that created it are recorded; those of others happen while that one
computes.  Calls within calls (for example a reduction in Python that sends) are part of the outer one.

`TIMED` says for whom each method waits (`MethodKind`); one wrapper times them all.  A returned request is labelled with its
operation (`Posted`).  A wait for several requests counts as a wait for the last one to complete: each is tested without
completing it (MPI_Request_get_status), until all are complete; then MPI's own call follows.

All calls of lb_mpi's own code for one line of the program are one line of the profile.  lb_mpi waits in naps: they count as
a wait for any rank, as a receive from MPI.ANY_SOURCE and a wait for one of several requests do.
"""

from __future__ import annotations

import copyreg
import functools
import os
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import mpi4py
from mpi4py import MPI

import lb_mpi
from lb_mpi.cli.profile.profile import ANYBODY, INSIDE, NOBODY, PARTLY, TOGETHER, Calls, Stream
from lb_mpi.mpi.common.waiting import Nap

OURS = tuple(str(Path(str(package.__file__)).parent) + "/" for package in (lb_mpi, mpi4py))
LB_MPI = OURS[0]
PYTHONS = (sysconfig.get_path("stdlib") + "/", "<frozen ")
SPECIAL = re.compile(r"\.(__\w+__|<).*")  # what a name of lb_mpi, such as Balancer.__enter__, is shown without
_now = time.perf_counter_ns
_COMM, _is_complete = MPI.Comm, MPI.Request.Get_status  # the plain ones
WORLDS = ("COMM_WORLD", "COMM_SELF")


class Known(NamedTuple):
    """Facts about a communicator."""

    peers: tuple[int, ...]  # rank in the program of each of its (remote) ranks; NOBODY: of another program
    stream: Stream | None  # of its collectives; None: there is nobody to wait for


@functools.cache
def _is_of_the_program(file: str) -> bool:
    """Return False for lb_mpi, mpi4py and Python's own modules; other packages count as parts of the program."""
    return not file.startswith(OURS) and ("/site-packages/" in file or not file.startswith(PYTHONS))


class Recorder:
    """Times what the main thread does in MPI."""

    def __init__(self, world: MPI.Intracomm) -> None:
        self.calls = Calls()
        self._here = str(Path.cwd()) + "/"
        self.current: TimedCall | None = None
        self.threads = False  # others have made calls, which are not timed
        self._world = world.Get_group()
        self._thread = threading.get_ident()
        self.began = _now()  # of the program

    def elsewhere(self) -> bool:
        """True if this call isn't timed: in another thread, or within a call."""
        if threading.get_ident() != self._thread:
            self.threads = True
            return True
        return self.current is not None

    def enter(self, call: TimedCall, args: Args, kwargs: Kwargs) -> None:
        """Begin a call with these arguments, and find for whom it waits, or its request will."""
        self.current, call.entered = call, _now()
        kind = call.kind
        if kind.collective is not None:
            call.awaits = Posted(stream=self.known(args[0]).stream)
        elif kind.ends:
            requests = argument(args, kwargs, 0, "requests", ())
            call.awaits = _posted(requests) if isinstance(requests, MPI.Request) else _last(requests)
        elif kind.peer:
            rank = argument(args, kwargs, kind.peer, kind.name, MPI.ANY_SOURCE)
            if rank == MPI.PROC_NULL and kind.peer > 2:  # it also sends
                rank = argument(args, kwargs, 2, "dest")
            call.awaits = Posted(self.peer(args[0], rank))
        elif kind.whom != NOBODY:
            call.awaits = Posted(kind.whom)

    def leave(self, call: TimedCall) -> None:
        """End a call."""
        now, self.current = _now(), None
        kind, awaits, stream = call.kind, call.awaits, call.awaits.stream
        self.calls.add(call.number, call.entered, now, NOBODY if kind.begins else awaits.whom)
        if kind.collective is not None and stream is not None:  # who is awaited is found at the end of the run
            left = call.entered if kind.begins else now
            awaits.index = self.calls.join(stream, kind.collective, call.number, call.entered, left)
        elif stream is not None and awaits.index >= 0:
            stream.waited(awaits.index, call.entered, now, call.number)
            awaits.index = -1

    def stop(self) -> tuple[int, int]:
        """End the call in progress, if any; return the nanoseconds since the program's start, and those outside of MPI."""
        if self.current is not None:
            self.leave(self.current)
        total_ns = _now() - self.began
        return total_ns, total_ns - self.calls.in_mpi_ns

    def call_site(self, call: str) -> int:
        """Return the number of the innermost line of the program that calls.

        A call of lb_mpi's own code counts as one of the function that the line calls.
        """
        frame, inner = sys._getframe(2), None
        while not _is_of_the_program(file := frame.f_code.co_filename) and frame.f_back is not None:
            inner = frame.f_code if file.startswith(LB_MPI) and file != __file__ else inner
            frame = frame.f_back
        if inner is not None:
            call = INSIDE + SPECIAL.sub("", inner.co_qualname)
        return self.calls.number(file.removeprefix(self._here), frame.f_lineno, frame.f_code.co_name, call)

    def known(self, comm: Any) -> Known:
        """Return the facts about a communicator."""
        if comm == MPI.COMM_NULL:
            return Known((), None)
        found: Known | None = getattr(comm, "_known", None)
        if found is None:
            own = self._in_world(comm.Get_group())
            remote = self._in_world(comm.Get_remote_group()) if comm.Is_inter() else ()
            found = Known(remote or own, self.calls.stream(own + remote))
            if hasattr(comm, "_known"):  # not of a library that imported mpi4py's class before
                comm._known = found
        return found

    def _in_world(self, group: MPI.Group) -> tuple[int, ...]:
        ranks: Sequence[int] = group.Translate_ranks(None, self._world)
        group.Free()
        return tuple(rank if rank >= 0 else NOBODY for rank in ranks)

    def peer(self, comm: MPI.Comm, rank: object) -> int:
        """Return the rank in the program of a rank of a communicator; NOBODY if there is none; ANYBODY of MPI.ANY_SOURCE."""
        if rank == MPI.ANY_SOURCE:
            return ANYBODY
        peers = self.known(comm).peers
        return peers[rank] if isinstance(rank, int) and 0 <= rank < len(peers) else NOBODY


# --- one call ---------------------------------------------------------------------------------------------------------


class MethodKind(NamedTuple):
    """The waiting of a method: for whom, and when."""

    whom: int = NOBODY  # for whom it waits, whatever its arguments
    peer: int = 0  # position of the argument that is this rank (0: none), and its name
    name: str = "source"
    collective: int | None = None  # TOGETHER, PARTLY
    begins: bool = False  # not the call waits, but its request
    ends: bool = False  # it waits for requests, its first argument


@dataclass(slots=True, eq=False)
class Posted:
    """For whom a call, or a request, waits."""

    whom: int = NOBODY
    stream: Stream | None = None  # of a collective
    index: int = -1  # of the collective in the stream, until it has been waited for


_NOTHING = Posted()


@dataclass(slots=True)
class TimedCall:
    """A call being timed."""

    kind: MethodKind
    number: int  # of its line in `Calls.lines`
    entered: int = 0
    awaits: Posted = _NOTHING


Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def argument(args: Args, kwargs: Kwargs, position: int, name: str, default: Any = None) -> Any:
    """Return an argument, positional or keyword; `args` begin with self."""
    return args[position] if len(args) > position else kwargs.get(name, default)


def _posted(request: Any) -> Posted:
    return getattr(request, "_posted", None) or _NOTHING


def _last(requests: Sequence[MPI.Request]) -> Posted:
    """Wait until all are complete; return the last one's operation."""
    last, pending = _NOTHING, [*requests]
    try:
        while pending:
            last = _posted(pending[-1])
            pending = [one for one in pending if not _is_complete(one)]
            if pending:
                os.sched_yield()  # to another rank on this core, as MPI does if oversubscribed
    except MPI.Exception:  # MPI's own call will raise it
        return _NOTHING
    return last


# --- the classes ------------------------------------------------------------------------------------------------------


COMMUNICATORS = ("Comm", "Intracomm", "Topocomm", "Cartcomm", "Graphcomm", "Distgraphcomm", "Intercomm")

# Of the first sort, no rank continues before all have come; of the second, a rank may need some of the others only.
ALL = "Barrier Allgather Allgatherv Alltoall Alltoallv Alltoallw Allreduce Reduce_scatter Reduce_scatter_block"
SOME = "Bcast Gather Gatherv Scatter Scatterv Reduce Scan Exscan"


def _named(kind: type, pattern: str) -> str:
    """Return the names of a class that match."""
    return " ".join(word for word in dir(kind) if re.fullmatch(pattern, word))


# Of these, as of windows and files, it is not found who is awaited: "other MPI".
OTHERS = _named(MPI.Topocomm, "I?[Nn]eighbor_.*|.*_init")


def _begun(words: str) -> str:
    """Return the names of the nonblocking versions of collectives."""
    return " ".join(f"I{word.lower()}" for word in words.split())


_PLAIN, _TOGETHER, _PARTLY = MethodKind(), MethodKind(collective=TOGETHER), MethodKind(collective=PARTLY)

# The timed methods: class ("Comm": all communicators), names, kind.
TIMED: tuple[tuple[str, str, MethodKind], ...] = (
    ("Comm", "send ssend bsend Send Ssend Bsend Rsend", MethodKind(peer=2, name="dest")),
    ("Comm", "recv Recv", MethodKind(peer=2)),
    ("Comm", "probe Probe mprobe Mprobe", MethodKind(peer=1)),
    ("Comm", "sendrecv Sendrecv", MethodKind(peer=5)),
    ("Comm", "Sendrecv_replace", MethodKind(peer=4)),
    ("Comm", "isend issend ibsend Isend Issend Ibsend Irsend", MethodKind(peer=2, name="dest", begins=True)),
    ("Comm", "irecv Irecv", MethodKind(peer=2, begins=True)),
    ("Comm", "Isendrecv", MethodKind(peer=5, begins=True)),
    ("Comm", "Isendrecv_replace", MethodKind(peer=4, begins=True)),
    ("Comm", f"{ALL} {ALL.lower()}", _TOGETHER),
    ("Comm", "Dup Clone Dup_with_info Split Split_type Create Sub Merge", _TOGETHER),
    ("Comm", "Create_cart Create_graph Create_dist_graph Create_dist_graph_adjacent", _TOGETHER),
    ("Comm", f"{SOME} {SOME.lower()} Free Disconnect", _PARTLY),
    ("Comm", f"{_begun(ALL)} Idup Idup_with_info", _TOGETHER._replace(begins=True)),
    ("Comm", _begun(SOME), _PARTLY._replace(begins=True)),
    ("Comm", "Create_group Create_intercomm Spawn Spawn_multiple Accept Connect", _PLAIN),
    ("Comm", f"iprobe Iprobe improbe Improbe Attach_buffer Detach_buffer Flush_buffer {OTHERS}", _PLAIN),
    ("Message", "recv Recv irecv Irecv", _PLAIN),
    ("Prequest", "Start Startall", _PLAIN),
    ("Request", "wait Wait waitall Waitall", MethodKind(ends=True)),
    ("Request", "waitany Waitany waitsome Waitsome", MethodKind(ANYBODY)),
    ("Request", "test Test testall Testall testany Testany testsome Testsome", _PLAIN),
    ("Win", _named(MPI.Win, "[A-Z].*"), _PLAIN),
    ("File", _named(MPI.File, "[A-Z].*"), _PLAIN),
)
RETURN_BY_CLASS = ("Get_parent", "Join", "f2py", "fromint", "fromhandle", "Create_from_group", "Create_from_groups")


class _Like(type):
    """A metaclass that counts mpi4py's own class as a subclass: some of its objects are never timed."""

    def __subclasscheck__(cls, subclass: type) -> bool:
        plain = cls.__dict__.get("_plain")
        return super().__subclasscheck__(subclass) or (plain is not None and issubclass(subclass, plain))

    def __instancecheck__(cls, instance: object) -> bool:
        return issubclass(type(instance), cls)


class Installed:
    """The timed replacements of mpi4py's objects, from now on; `remove` restores the originals."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._timed_class: dict[type, type] = {}  # by mpi4py's
        self._replaced = ExitStack()
        made: dict[str, type] = {}
        for name in (*COMMUNICATORS, "Request", "Prequest", "Message", "Win", "File"):
            plain = getattr(MPI, name)
            parent = self._timed_class.get(plain.__base__)
            own = {"_plain": plain, "__module__": plain.__module__, **self._methods(name, plain)}
            if parent is None:
                own["_known" if name == "Comm" else "_posted"] = None
            made[name] = self._timed_class[plain] = _Like(name, (plain, parent) if parent else (plain,), own)
        for name in WORLDS:
            self.put(MPI, name, made["Intracomm"](getattr(MPI, name)))
        for name, kind in made.items():
            self.put(MPI, name, kind)
        self.put(Nap, "sleep", self.method("sleep", Nap.sleep, MethodKind(ANYBODY)))

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of `owner`."""
        self._replaced.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def remove(self) -> None:
        """Restore all attributes."""
        self._replaced.close()

    def _methods(self, name: str, plain: type) -> dict[str, Any]:
        row = "Comm" if name in COMMUNICATORS else name
        kinds = {word: kind for of, words, kind in TIMED if of == row for word in words.split()}
        own = {word: self.method(word, getattr(plain, word), kinds[word]) for word in kinds.keys() & vars(plain).keys()}
        own |= {word: self._by_class(getattr(plain, word)) for word in {*RETURN_BY_CLASS} & vars(plain).keys()}
        if name == "Comm":
            own |= {"__reduce__": _reduced, "free": _freed}
        return own

    def _by_class(self, plain: Any) -> classmethod[Any, Any, Any]:
        return classmethod(lambda cls, *args, **kwargs: self.adopt(plain(*args, **kwargs)))

    def method(self, name: str, plain: Callable[..., Any], kind: MethodKind) -> Any:
        """Return mpi4py's method `plain` with timing: a class method if it is one."""
        recorder, adopt = self.recorder, self.adopt

        @functools.wraps(plain)
        def method(*args: Any, **kwargs: Any) -> Any:
            if recorder.elsewhere():
                return adopt(plain(*args, **kwargs))
            call = TimedCall(kind, recorder.call_site(name))
            try:
                recorder.enter(call, args, kwargs)
                result = adopt(plain(*args, **kwargs))
                if kind.begins:
                    request = result[1] if isinstance(result, tuple) else result  # Idup also returns a communicator
                    request._posted = call.awaits
                return result
            finally:
                recorder.leave(call)

        if isinstance(getattr(plain, "__self__", None), type):
            return classmethod(lambda _cls, *args, **kwargs: method(*args, **kwargs))
        return method

    def adopt(self, result: Any) -> Any:
        """Return the result of a call as one of the timed classes; anything else unchanged."""
        kind = self._timed_class.get(type(result))
        if kind is not None:
            return kind(result)
        if type(result) is tuple and len(result) == 2 and type(result[1]) in self._timed_class:  # Idup
            return self.adopt(result[0]), self.adopt(result[1])
        return result


def _reduced(self: Any) -> Any:
    """Pickle COMM_WORLD and COMM_SELF by name, as mpi4py does."""
    for name in WORLDS:
        if self == (timed := getattr(MPI, name)):
            return name if self is timed else (copyreg.__newobj__, (type(self), timed))  # type: ignore[attr-defined]
    return _COMM.__reduce__(self)


def _freed(self: Any) -> None:
    """Free, unless it is COMM_WORLD or COMM_SELF, as mpi4py does."""
    if all(self is not getattr(MPI, name) for name in WORLDS):
        _COMM.free(self)
