"""Timed replacements of mpi4py's communicators, requests and messages.

Each class is a subclass of mpi4py's that does the same and reports to a Recorder.  `Installed` replaces the classes in
`mpi4py.MPI`, and COMM_WORLD and COMM_SELF; objects made from a timed communicator are also timed.  No message is added or
removed on the program's communicators.  Windows and files are not timed, but their use is noted.
"""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from mpi4py import MPI

from lb_mpi.mpi.common.waiting import Nap
from lb_mpi.mpi.profile.timed import Begin, Recorder, TimedMethods, argument, n_bytes
from lb_mpi.profiling.profile import NEIGHBOURS, PARTLY, SOMEBODY, TOGETHER

COMMUNICATORS = ("Comm", "Intracomm", "Topocomm", "Cartcomm", "Graphcomm", "Distgraphcomm", "Intercomm")
PARENTS = {"Intracomm": "Comm", "Topocomm": "Intracomm", "Intercomm": "Comm", "Prequest": "Request"}
PARENTS |= dict.fromkeys(("Cartcomm", "Graphcomm", "Distgraphcomm"), "Topocomm")

SENDS = ("send", "ssend", "bsend", "Send", "Ssend", "Bsend", "Rsend")
RECEIVES = {  # positions of source and status, name of the data sent in the same call
    **dict.fromkeys(("recv", "Recv"), (1, 3, "")),
    **dict.fromkeys(("probe", "Probe", "mprobe", "Mprobe"), (0, 2, "")),
    "sendrecv": (4, 6, "sendobj"),
    "Sendrecv": (4, 6, "sendbuf"),
    "Sendrecv_replace": (3, 5, "buf"),
}
STARTS = {  # position and name of the argument that names the other rank
    **dict.fromkeys(("isend", "issend", "ibsend", "Isend", "Issend", "Ibsend", "Irsend"), (1, "dest")),
    **dict.fromkeys(("Send_init", "Ssend_init", "Bsend_init", "Rsend_init"), (1, "dest")),
    **dict.fromkeys(("irecv", "Irecv", "Recv_init"), (1, "source")),
    "Psend_init": (2, "dest"),
    "Precv_init": (2, "source"),
    "Isendrecv": (4, "source"),
    "Isendrecv_replace": (3, "source"),
}
COLLECTIVES = {
    TOGETHER: "Barrier Allgather Allgatherv Alltoall Alltoallv Alltoallw Allreduce Reduce_scatter Reduce_scatter_block",
    PARTLY: "Bcast Gather Gatherv Scatter Scatterv Reduce Scan Exscan",
    NEIGHBOURS: "Neighbor_allgather Neighbor_allgatherv Neighbor_alltoall Neighbor_alltoallv Neighbor_alltoallw",
}
MAKES_TOGETHER = (
    *("Dup", "Clone", "Dup_with_info", "Split", "Split_type", "Create", "Create_cart", "Create_graph"),
    *("Create_dist_graph", "Create_dist_graph_adjacent", "Sub", "Merge"),
)
MAKES_ALONE = ("Create_group", "Create_intercomm", "Spawn", "Spawn_multiple", "Accept", "Connect")
RETURN_BY_CLASS = ("Get_parent", "Join", "f2py", "fromint", "fromhandle", "Create_from_group", "Create_from_groups")
PROBES = {"probe": "mprobe", "Probe": "Mprobe", "iprobe": "improbe", "Iprobe": "Improbe"}  # of Message and Comm
QUESTIONS = ("iprobe", "Iprobe", "improbe", "Improbe", "Attach_buffer", "Detach_buffer", "Flush_buffer")
UNSEEN = {
    "Win": ("one-sided communication (MPI.Win)", ("Create", "Allocate", "Allocate_shared", "Create_dynamic")),
    "File": ("files (MPI.File)", ("Open",)),
}


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
        self._recorder = recorder
        self._timed_class: dict[type, type] = {}
        self._timed = TimedMethods(recorder, self._adopt)
        self._replaced = ExitStack()
        made: dict[str, type] = {}
        for name in (*COMMUNICATORS, "Request", "Prequest", "Message", *UNSEEN):
            plain = getattr(MPI, name)
            parents = (plain, made[PARENTS[name]]) if name in PARENTS else (plain,)
            own = {"_plain": plain, "__module__": plain.__module__, **self._methods(name, plain)}
            made[name] = self._timed_class[plain] = _Like(name, parents, own)
        for name in ("COMM_WORLD", "COMM_SELF"):
            self.put(MPI, name, made["Intracomm"](getattr(MPI, name)))
        for name, kind in made.items():
            self.put(MPI, name, kind)
        sleep = partial(self._timed.call, whom=SOMEBODY)
        self.put(Nap, "take", self._timed.method("sleep of lb_mpi", Nap.take, sleep))
        self._replaced.callback(MPI.pickle.__init__)  # type: ignore[misc]
        MPI.pickle.__init__(_counting(recorder), None, MPI.pickle.PROTOCOL)  # type: ignore[misc]

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of `owner`."""
        self._replaced.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def remove(self) -> None:
        """Restore all attributes."""
        self._replaced.close()

    def _adopt(self, result: Any) -> Any:
        """Return the result of a call as one of the timed classes; anything else unchanged."""
        kind = self._timed_class.get(type(result))
        if kind is not None:
            return kind(result)
        if type(result) is tuple and len(result) == 2 and type(result[1]) in self._timed_class:  # Idup
            return self._adopt(result[0]), self._adopt(result[1])
        return result

    def _methods(self, name: str, plain: type) -> dict[str, Any]:
        """Return the timed methods of an mpi4py class."""
        if name in UNSEEN:
            return self._noting(plain, *UNSEEN[name])
        own: dict[str, Any] = {} if name in PARENTS else {"_known" if name == "Comm" else "_posted": None}
        begins = self._of_communicators() if name in COMMUNICATORS else self._of_messages(name)
        for word in begins.keys() & plain.__dict__.keys():
            own[word] = self._timed.method(word, getattr(plain, word), begins[word])
        for word in {*RETURN_BY_CLASS} & plain.__dict__.keys():
            own[word] = self._by_class(getattr(plain, word))
        if name == "Message":
            own |= {word: _probe(same) for word, same in PROBES.items()}
        elif name == "Comm":
            own |= {"__reduce__": _pickled(plain.__reduce__), "free": _kept(plain.free)}  # type: ignore[attr-defined]
        return own

    def _of_communicators(self) -> dict[str, Begin]:
        timed = self._timed
        begins: dict[str, Begin] = dict.fromkeys(SENDS, timed.send)
        for word, (source, status, sent) in RECEIVES.items():
            begins[word] = partial(timed.receive, source=source, status=status, sends=sent)
        for word, peer in STARTS.items():
            sends = peer[1] == "dest" or "sendrecv" in word
            begins[word] = partial(timed.start, peer=peer, sends=sends, persistent=word.endswith("_init"))
        for kind, words in COLLECTIVES.items():
            for word in words.split():
                size = {"Bcast": _size_of_bcast, "Barrier": _nothing}.get(word, _size_sent)
                begins[word] = partial(timed.collective, kind=kind, size=size)
                begins[word.lower()] = partial(timed.collective, kind=kind, size=_nothing)
                begins[f"I{word.lower()}"] = partial(timed.begin_collective, kind=kind, size=size, persistent=False)
                begins[f"{word}_init"] = partial(timed.begin_collective, kind=kind, size=size, persistent=True)
        begins |= dict.fromkeys(MAKES_TOGETHER, partial(timed.collective, kind=TOGETHER, size=_nothing))
        begins |= dict.fromkeys(("Free", "Disconnect"), partial(timed.collective, kind=PARTLY, size=_nothing))
        dup = partial(timed.begin_collective, kind=TOGETHER, size=_nothing, persistent=False)
        begins |= dict.fromkeys(("Idup", "Idup_with_info"), dup)
        return begins | dict.fromkeys((*MAKES_ALONE, *QUESTIONS), timed.call)

    def _of_messages(self, name: str) -> dict[str, Begin]:
        timed = self._timed
        if name == "Message":
            return {"recv": timed.receive_message, "Recv": timed.receive_message, "irecv": timed.call, "Irecv": timed.call}
        if name == "Prequest":
            return {"Start": timed.restart, "Startall": timed.restart}
        begins: dict[str, Begin] = {"wait": timed.wait, "waitall": timed.wait_all}
        begins |= {"waitany": partial(timed.wait_some, one=True), "waitsome": partial(timed.wait_some, one=False)}
        begins |= dict.fromkeys(("test", "testall", "testany", "testsome"), timed.call)
        return begins | {word.capitalize(): begin for word, begin in begins.items()}

    def _by_class(self, plain: Any) -> classmethod[Any, Any, Any]:
        """Return a class method whose result is timed."""
        return classmethod(lambda cls, *args, **kwargs: self._adopt(plain(*args, **kwargs)))

    def _noting(self, plain: type, what: str, words: tuple[str, ...]) -> dict[str, Any]:
        """Return class methods that note their calls."""

        def noting(word: str) -> classmethod[Any, Any, Any]:
            def method(cls: type, *args: Any, **kwargs: Any) -> Any:
                self._recorder.unseen.add(what)
                return plain.__dict__[word].__get__(None, cls)(*args, **kwargs)

            return classmethod(method)

        return {word: noting(word) for word in words if word in plain.__dict__}


def _probe(same: str) -> classmethod[Any, Any, Any]:
    """Return Message.probe(comm, ..) as comm.mprobe(..)."""
    return classmethod(lambda cls, comm, *args, **kwargs: getattr(comm, same)(*args, **kwargs))


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


def _counting(recorder: Recorder) -> Callable[..., bytes]:
    """Return a pickle.dumps that counts the bytes."""

    def dumps(*args: Any, **kwargs: Any) -> bytes:
        made = pickle.dumps(*args, **kwargs)
        recorder.pickled += len(made)
        return made

    return dumps


def _nothing(*_args: Any, **_kwargs: Any) -> int:
    """Return 0: pickles are counted when they are made."""
    return 0


def _size_sent(_comm: Any, *args: Any, **kwargs: Any) -> int:
    """Return the bytes of the send buffer, which may be the receive buffer."""
    sent = argument(args, kwargs, 0, "sendbuf")
    return n_bytes(argument(args, kwargs, 1, "recvbuf") if sent is MPI.IN_PLACE else sent)


def _size_of_bcast(comm: Any, *args: Any, **kwargs: Any) -> int:
    """Return the bytes of the buffer on the root."""
    root = argument(args, kwargs, 1, "root", 0)
    return n_bytes(argument(args, kwargs, 0, "buf")) if root in (comm.rank, MPI.ROOT) else 0
