"""Timed replacements of mpi4py's communicators, requests and messages, and the `Recorder` of one rank's calls.

Each class is a subclass of mpi4py's that does the same and reports to a Recorder.  `Installed` replaces the classes in
`mpi4py.MPI`, and COMM_WORLD and COMM_SELF; objects made from a timed communicator are also timed.  (So this is the only
command that imports mpi4py.)  No message is added or removed on the program's communicators.

The recorder knows clocks, lines of the program, and the ranks of communicators; it feeds `lb_mpi.cli.profile.profile.Calls`
with the clocks of this rank.  Only calls of the thread that created it are recorded; those of others happen while that one
computes.  Calls within calls (for example a reduction in Python that sends) are part of the outer one.

`Installed.method` makes a method that does the same as mpi4py's and reports to the recorder; one of the other methods of
that class, for each kind of call, says before the call for whom it waits.  A returned request is labelled with its operation
(`Posted`).  A wait for several requests counts as a wait for the last one to complete: each is tested without completing it
(MPI_Request_get_status), until all are complete; then MPI's own call follows.

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
from functools import partial
from pathlib import Path
from types import CodeType
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
_is_complete = MPI.Request.Get_status  # the plain one
Method = Callable[..., Any]


class Known(NamedTuple):
    """Facts about a communicator."""

    peers: tuple[int, ...]  # rank in the program of each of its (remote) ranks; NOBODY: of another program
    stream: Stream | None  # of its collectives; None: there is nobody to wait for


def _is_of_the_program(file: str) -> bool:
    """Return False for lb_mpi, mpi4py and Python's own modules; other packages count as parts of the program."""
    return not file.startswith(OURS) and ("/site-packages/" in file or not file.startswith(PYTHONS))


class Recorder:
    """Times what the main thread does in MPI."""

    def __init__(self, world: MPI.Intracomm) -> None:
        self.calls = Calls()
        self._here = str(Path.cwd()) + "/"
        self._skipped: dict[int, tuple[CodeType, bool]] = {}
        self.current: TimedCall | None = None
        self.threads = False  # others have made calls, which are not timed
        self._world = world.Get_group()
        self._thread = threading.get_ident()
        self._busy = False
        self.restart()

    def restart(self) -> None:
        """Restart at the start of the program."""
        self.began = _now()

    def elsewhere(self) -> bool:
        """True if this call isn't timed: in another thread, or within a call."""
        if threading.get_ident() != self._thread:
            self.threads = True
            return True
        return self._busy

    def enter(self) -> int:
        """Begin a call; return the time."""
        self._busy = True
        return _now()

    def leave(self, call: TimedCall) -> None:
        """End a call."""
        now, self.current = _now(), None
        self.calls.add(call.number, call.entered, now, call.whom)
        if call.left is not None:
            call.left(now)
        self._busy = False

    def stop(self) -> tuple[int, int]:
        """End the call in progress, if any; return the nanoseconds since the program's start, and those outside of MPI."""
        if self.current is not None:
            self.leave(self.current)
        total_ns = _now() - self.began
        return total_ns, total_ns - self.calls.in_mpi_ns

    def call_site(self, call: str, known: dict[tuple[int, int], int]) -> int:
        """Return the number of the innermost line of the program that calls; `known` is this call's own cache.

        A call of lb_mpi's own code counts as one of the function that the line calls.
        """
        frame = sys._getframe(2)
        code, inner = frame.f_code, None
        while self._skip(code) and frame.f_back is not None:
            inner = code if code.co_filename.startswith(LB_MPI) and code.co_filename != __file__ else inner
            frame = frame.f_back
            code = frame.f_code
        key = id(code), frame.f_lasti
        number = known.get(key)
        if number is None:
            if inner is not None:
                call = INSIDE + SPECIAL.sub("", inner.co_qualname)
            file = code.co_filename.removeprefix(self._here)
            number = known[key] = self.calls.number(file, frame.f_lineno, code.co_name, call)
        return number

    def _skip(self, code: CodeType) -> bool:
        found = self._skipped.get(id(code))
        if found is None:  # keeps the code alive, so that its id stays unique
            found = self._skipped[id(code)] = code, not _is_of_the_program(code.co_filename)
        return found[1]

    def known(self, comm: MPI.Comm) -> Known:
        """Return the facts about a communicator."""
        found: Known | None = getattr(comm, "_known", None)
        if found is None:
            found = self._facts_of(comm)
            if hasattr(comm, "_known"):
                comm._known = found
        return found

    def _facts_of(self, comm: MPI.Comm) -> Known:
        if comm == MPI.COMM_NULL:
            return Known((), None)
        own = peers = self._in_world(comm.Get_group())
        if comm.Is_inter():
            peers = self._in_world(comm.Get_remote_group())  # type: ignore[attr-defined]
        return Known(peers, self.calls.stream(own if peers is own else own + peers))

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


# --- wrappers for each kind of method ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Posted:
    """The operation of a request."""

    whom: int = NOBODY  # the rank for which it waits
    stream: Stream | None = None  # of a collective
    index: int = -1  # of the collective in the stream


_NOTHING = Posted()


@dataclass(slots=True)
class TimedCall:
    """A call being timed."""

    number: int  # of its line in `Calls.lines`
    entered: int
    whom: int = NOBODY  # the rank for which it waits
    returned: Callable[[Any], object] | None = None  # called with the result
    left: Callable[[int], object] | None = None  # called with the end of the call


Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Begin = Callable[[TimedCall, Args, Kwargs], None]  # it completes the call


def argument(args: Args, kwargs: Kwargs, position: int, name: str, default: Any = None) -> Any:
    """Return an argument, positional or keyword."""
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
PARENTS = {"Intracomm": "Comm", "Topocomm": "Intracomm", "Intercomm": "Comm", "Prequest": "Request"}
PARENTS |= dict.fromkeys(("Cartcomm", "Graphcomm", "Distgraphcomm"), "Topocomm")

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


# The timed methods: class ("Comm": all communicators), names, and which of `Installed` begins them, with its options.
TIMED: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("Comm", "send ssend bsend Send Ssend Bsend Rsend", "send", {}),
    ("Comm", "recv Recv", "receive", {"source": 1}),
    ("Comm", "probe Probe mprobe Mprobe", "receive", {"source": 0}),
    ("Comm", "sendrecv Sendrecv", "receive", {"source": 4}),
    ("Comm", "Sendrecv_replace", "receive", {"source": 3}),
    ("Comm", "isend issend ibsend Isend Issend Ibsend Irsend", "start", {"peer": (1, "dest")}),
    ("Comm", "irecv Irecv", "start", {"peer": (1, "source")}),
    ("Comm", "Isendrecv", "start", {"peer": (4, "source")}),
    ("Comm", "Isendrecv_replace", "start", {"peer": (3, "source")}),
    ("Comm", f"{ALL} {ALL.lower()}", "collective", {"kind": TOGETHER}),
    ("Comm", "Dup Clone Dup_with_info Split Split_type Create Sub Merge", "collective", {"kind": TOGETHER}),
    ("Comm", "Create_cart Create_graph Create_dist_graph Create_dist_graph_adjacent", "collective", {"kind": TOGETHER}),
    ("Comm", f"{SOME} {SOME.lower()} Free Disconnect", "collective", {"kind": PARTLY}),
    ("Comm", f"{_begun(ALL)} Idup Idup_with_info", "begin_collective", {"kind": TOGETHER}),
    ("Comm", _begun(SOME), "begin_collective", {"kind": PARTLY}),
    ("Comm", "Create_group Create_intercomm Spawn Spawn_multiple Accept Connect", "call", {}),
    ("Comm", f"iprobe Iprobe improbe Improbe Attach_buffer Detach_buffer Flush_buffer {OTHERS}", "call", {}),
    ("Message", "recv Recv irecv Irecv", "call", {}),
    ("Prequest", "Start Startall", "call", {}),
    ("Request", "wait Wait waitall Waitall", "wait", {}),
    ("Request", "waitany Waitany waitsome Waitsome", "call", {"whom": ANYBODY}),
    ("Request", "test Test testall Testall testany Testany testsome Testsome", "call", {}),
    ("Win", _named(MPI.Win, "[A-Z].*"), "call", {}),
    ("File", _named(MPI.File, "[A-Z].*"), "call", {}),
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
            parents = (plain, made[PARENTS[name]]) if name in PARENTS else (plain,)
            own = {"_plain": plain, "__module__": plain.__module__, **self._methods(name, plain)}
            made[name] = self._timed_class[plain] = _Like(name, parents, own)
        for name in ("COMM_WORLD", "COMM_SELF"):
            self.put(MPI, name, made["Intracomm"](getattr(MPI, name)))
        for name, kind in made.items():
            self.put(MPI, name, kind)
        sleep = partial(self.call, whom=ANYBODY)
        self.put(Nap, "sleep", self.method("sleep", Nap.sleep, sleep))

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of `owner`."""
        self._replaced.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def remove(self) -> None:
        """Restore all attributes."""
        self._replaced.close()

    def _methods(self, name: str, plain: type) -> dict[str, Any]:
        own: dict[str, Any] = {} if name in PARENTS else {"_known" if name == "Comm" else "_posted": None}
        timed = (row for row in TIMED if row[0] == ("Comm" if name in COMMUNICATORS else name))
        for _, words, begin, how in timed:
            for word in {*words.split()} & plain.__dict__.keys():
                own[word] = self.method(word, getattr(plain, word), partial(getattr(self, begin), **how))
        for word in {*RETURN_BY_CLASS} & plain.__dict__.keys():
            own[word] = self._by_class(getattr(plain, word))
        if name == "Comm":
            own |= {"__reduce__": _pickled(plain.__reduce__), "free": _kept(plain.free)}  # type: ignore[attr-defined]
        return own

    def _by_class(self, plain: Any) -> classmethod[Any, Any, Any]:
        return classmethod(lambda cls, *args, **kwargs: self.adopt(plain(*args, **kwargs)))

    def method(self, name: str, plain: Method, begin: Begin) -> Any:
        """Return mpi4py's method `plain` with timing: a class method if it is one."""
        recorder, adopt = self.recorder, self.adopt
        numbers: dict[tuple[int, int], int] = {}

        @functools.wraps(plain)
        def method(*args: Any, **kwargs: Any) -> Any:
            if recorder.elsewhere():
                return adopt(plain(*args, **kwargs))
            call = TimedCall(recorder.call_site(name, numbers), recorder.enter())
            try:
                begin(call, args, kwargs)
                recorder.current = call
                result = adopt(plain(*args, **kwargs))
                if call.returned is not None:
                    call.returned(result)
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

    # Each method below is the `begin` of one kind of call; keywords are its options.

    def call(self, call: TimedCall, args: Args, kwargs: Kwargs, *, whom: int = NOBODY) -> None:
        """Begin a call that waits for no rank, such as a query, or for `whom`."""
        call.whom = whom

    def send(self, call: TimedCall, args: Args, kwargs: Kwargs) -> None:
        """Begin a blocking send: it waits for the destination."""
        call.whom = self.recorder.peer(args[0], argument(args, kwargs, 2, "dest"))

    def receive(self, call: TimedCall, args: Args, kwargs: Kwargs, *, source: int) -> None:
        """Begin a blocking receive or probe: it waits for the source, the argument at this position.

        A call that also sends has its destination as second argument, and waits for it if there is no source.
        """
        rank = argument(args, kwargs, source + 1, "source", MPI.ANY_SOURCE)
        if rank == MPI.PROC_NULL and source > 1:
            rank = argument(args, kwargs, 2, "dest")
        call.whom = self.recorder.peer(args[0], rank)

    def start(self, call: TimedCall, args: Args, kwargs: Kwargs, *, peer: tuple[int, str]) -> None:
        """Begin a call whose result is a message's request; peer: position and name of the other rank's argument."""
        position, word = peer
        posted = Posted(self.recorder.peer(args[0], argument(args, kwargs, position + 1, word, MPI.ANY_SOURCE)))
        call.returned = lambda request: setattr(request, "_posted", posted)

    def collective(self, call: TimedCall, args: Args, kwargs: Kwargs, *, kind: int) -> None:
        """Begin a blocking collective; the awaited rank is determined at the end of the run."""
        if (stream := self.recorder.known(args[0]).stream) is not None:
            at, calls = call.entered, self.recorder.calls
            call.left = lambda left: calls.join(stream, kind, call.number, at, at, left)

    def begin_collective(self, call: TimedCall, args: Args, kwargs: Kwargs, *, kind: int) -> None:
        """Begin a nonblocking collective; its request waits."""
        posted, at, calls = Posted(stream=self.recorder.known(args[0]).stream), call.entered, self.recorder.calls
        # Idup also returns a communicator
        call.returned = lambda result: setattr(result[1] if isinstance(result, tuple) else result, "_posted", posted)

        def left(_left: int) -> None:
            if posted.stream is not None:
                posted.index = calls.join(posted.stream, kind, call.number, at, at, at)

        call.left = left

    def wait(self, call: TimedCall, args: Args, kwargs: Kwargs) -> None:
        """Begin a wait for a request; one for all of some requests counts as a wait for the last."""
        awaited = argument(args, kwargs, 0, "requests", ())
        posted = _posted(awaited) if isinstance(awaited, MPI.Request) else _last(awaited)
        call.whom, stream = posted.whom, posted.stream
        if stream is not None and posted.index >= 0:
            index, posted.index = posted.index, -1
            call.left = lambda left: stream.waited(index, call.entered, left, call.number)


def _pickled(plain: Any) -> Callable[..., Any]:
    """Pickle COMM_WORLD and COMM_SELF by name, as mpi4py does."""

    def method(self: Any) -> Any:
        for name in ("COMM_WORLD", "COMM_SELF"):
            if self == (timed := getattr(MPI, name)):
                return name if self is timed else (copyreg.__newobj__, (type(self), timed))  # type: ignore[attr-defined]
        return plain(self)

    return method


def _kept(plain: Any) -> Callable[..., Any]:
    """Ignore a Free of COMM_WORLD and COMM_SELF, as mpi4py does."""

    def method(self: Any) -> Any:
        return None if self is MPI.COMM_WORLD or self is MPI.COMM_SELF else plain(self)

    return method
