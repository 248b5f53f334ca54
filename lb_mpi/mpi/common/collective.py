"""Collective operations: open a communicator, agree on errors, exchange objects.

Every collective call passes the user's communicator to `opened` or `duplicate`, and works on the result.  It checks its
arguments within `agree`, so that all ranks raise if one does, and compares arguments that must be equal with
`agree_on`.  Nothing here blocks: ranks that wait for a late one sleep, report it, and react to Ctrl-C.
"""

from __future__ import annotations

import pickle
import struct
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from lb_mpi.checks import shortened, show
from lb_mpi.errors import Error
from lb_mpi.mpi.common.calls import call, interrupts
from lb_mpi.mpi.common.communicator import duplicate, end_with_mpi, presence_of, wait
from lb_mpi.mpi.common.failure import Failed, failure, install
from lb_mpi.mpi.common.late import hang_s
from lb_mpi.mpi.common.parcels import UNIT_BYTES, as_units, unit
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.table import counted, named_ranks

T = TypeVar("T")
MOST_VALUES = 3  # in an error
SLOT_BYTES = 512  # of a value in its first exchange
_N_UNITS = struct.Struct("<q")
install()
end_with_mpi()


@contextmanager
def opened(comm: MPI.Intracomm, name: str, *, watched: bool = False) -> Iterator[MPI.Intracomm]:
    """Collective: be in the call `name` for this block, with a communicator of our own, which is freed at its end.

    A rank that leaves the block by an error sends a failure to all others, which raise `lb_mpi.Error`.
    """
    with call(name, watched=watched):
        own = duplicate(comm)
        presence = presence_of(own)
        try:
            presence.begin(name)
            meet(own, name)
            yield own
            with presence.committing():
                presence.close(begun=True)
        except BaseException as error:
            presence.close(error=error)
            raise


def meet(comm: MPI.Intracomm, name: str) -> None:
    """Collective: Error on all ranks unless all are in the call `name`, since the operations of others would not match."""
    number = zlib.crc32(name.encode())
    mine, most = np.array([number, -number], dtype=np.int64), np.zeros(2, dtype=np.int64)
    wait(comm, comm.Iallreduce(mine, most, MPI.MAX), (mine, most))
    if most[0] != -most[1]:
        names = allgather(comm, name)
        other = next(rank for rank, theirs in enumerate(names) if theirs != names[0])
        wrong = f"rank {other} is in {names[other]}, rank 0 in {names[0]}: expected the same calls on all ranks"
        raise presence_of(comm).on_all(Error(wrong))


def agree(comm: MPI.Intracomm, make: Callable[[], T]) -> T:
    """Collective: return the value of `make()`, which runs on each rank separately; if any rank raises, all do.

    A failing rank raises its own exception, including SystemExit and KeyboardInterrupt.  The others raise the same kind
    (ValueError, TypeError, OSError or one of its kinds for files; otherwise `lb_mpi.Error`), with the text and number
    of the lowest failing rank.  A wrong LB_MPI_HANG_S is an error, too, since all waits use it.
    """
    error: BaseException | None = None
    value: T | None = None
    try:
        hang_s()
        with interrupts():
            value = make()
    except BaseException as caught:
        error = caught
    raise_on_all(comm, error)
    return value  # type: ignore[return-value]


def raise_on_all(comm: MPI.Intracomm, error: BaseException | Failed | None) -> None:
    """Collective: raise on every rank if `error` is set on any; see `agree`.

    With `Failed`, this rank also raises what the lowest failing rank has sent, from its own error; but what is no Exception,
    such as SystemExit or KeyboardInterrupt, is raised unchanged.
    """
    sent = None
    if isinstance(error, Failed):
        error, sent = error
    failed = np.array([error is not None], dtype=np.int32)
    anywhere = np.zeros(1, dtype=np.int32)
    wait(comm, comm.Iallreduce(failed, anywhere, MPI.MAX), (failed, anywhere))
    if not anywhere[0]:
        return
    everyone = allgather(comm, None if error is None else sent or failure(error))
    rank, theirs = next((rank, theirs) for rank, theirs in enumerate(everyone) if theirs is not None)
    if error is None or (sent is not None and isinstance(error, Exception)):
        raise presence_of(comm).on_all(theirs.error(rank), rank) from error
    raise presence_of(comm).on_all(error, rank)


def agree_on(comm: MPI.Intracomm, /, **arguments: Any) -> None:
    """Collective: ValueError on every rank, naming an argument, its values and their ranks, unless all pass equal arguments.

    They are compared as text, since a user's object may be unpicklable, or unequal to itself.
    """
    mine = {name: (show(value), _digest(value)) for name, value in arguments.items()}
    found = allgather(comm, mine)
    for name in arguments:
        _raise_if_different(comm, ValueError, name, [one[name][0] for one in found], [one[name][1] for one in found])


def raise_difference(comm: MPI.Intracomm, given: Mapping[str, str]) -> NoReturn:
    """Collective: TypeError on all ranks, naming one of the arguments (as text) in which ranks differ from rank 0."""
    everyone = allgather(comm, given)
    for name in dict.fromkeys(name for one in everyone for name in one):
        texts = [one.get(name, "nothing") for one in everyone]
        _raise_if_different(comm, TypeError, name, [*map(shortened, texts)], texts)
    raise presence_of(comm).on_all(TypeError("the arguments differ between ranks: expected the same on all"))


def _raise_if_different(
    comm: MPI.Intracomm, kind: type[Exception], name: str, texts: Sequence[str], values: Sequence[Hashable]
) -> None:
    """Raise on all ranks, which have these values, shown as `texts`, if they are not equal."""
    ranks = dict[Hashable, list[int]]()
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    first, *others = ranks.values()
    if others:
        found = "; ".join(f"{texts[some[0]]} on {named_ranks(some)}" for some in others[:MOST_VALUES])
        more = f"; {counted(len(others) - MOST_VALUES, 'other value')}" if len(others) > MOST_VALUES else ""
        wrong = kind(f"{name} = {found}{more}: expected {texts[0]}, as on {named_ranks(first)}")
        raise presence_of(comm).on_all(wrong, others[0][0])


def allgather(comm: MPI.Intracomm, value: T) -> list[T]:
    """Collective: the values of all ranks, on all of them."""
    slots, mine = np.empty((comm.size, SLOT_BYTES), dtype=np.uint8), _Pickled(value)
    wait(comm, comm.Iallgather(mine.slot, slots), (mine, slots))
    n_units = _n_units(slots)
    everything = np.empty((n_units.sum(), UNIT_BYTES), dtype=np.uint8)
    if len(everything):
        wait(comm, comm.Iallgatherv(as_units(mine.rest), [everything, n_units, unit()]), (mine, everything))
    return _values(slots, everything, n_units)


def gather(comm: MPI.Intracomm, value: T, root: int = 0) -> list[T]:
    """Collective: the values of all ranks, on the root; on other ranks none."""
    slots, mine = np.empty((comm.size if comm.rank == root else 0, SLOT_BYTES), dtype=np.uint8), _Pickled(value)
    wait(comm, comm.Igather(mine.slot, slots, root), (mine, slots))
    n_units = _n_units(slots)
    everything = np.empty((n_units.sum(), UNIT_BYTES), dtype=np.uint8)
    requests = [comm.Isend(as_units(mine.rest), root, Tag.VALUE)] if len(mine.rest) else []
    for rank, (n, end) in enumerate(zip(n_units.tolist(), n_units.cumsum().tolist(), strict=True)):
        if n:
            requests.append(comm.Irecv(as_units(everything[end - n : end]), rank, Tag.VALUE))
    presence_of(comm).wait(lambda: MPI.Request.Testall(requests), (requests, mine, everything))
    return _values(slots, everything, n_units)


def bcast(comm: MPI.Intracomm, value: T | None, root: int = 0) -> T:
    """Collective: return the root's value on all ranks."""
    sent = _Pickled(value if comm.rank == root else None)
    wait(comm, comm.Ibcast(sent.slot, root), sent)
    (n,) = _n_units(sent.slot[None])
    rest = sent.rest if comm.rank == root else np.empty((n, UNIT_BYTES), dtype=np.uint8)
    if n:
        wait(comm, comm.Ibcast(as_units(rest), root), rest)
    found: Any = value if comm.rank == root else _values(sent.slot[None], rest, np.array([n]))[0]
    return found  # type: ignore[no-any-return]


def barrier(comm: MPI.Comm) -> None:
    """Collective: wait for all ranks."""
    wait(comm, comm.Ibarrier())


class _Pickled:
    """A pickle: in its slot if it fits, so that most values need one exchange; else in rows of UNIT_BYTES, behind it.

    A slot begins with the number of these rows.  `pickle.loads` ignores what fills the slot, or the last row.
    """

    def __init__(self, value: object) -> None:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        fits = len(data) <= SLOT_BYTES - _N_UNITS.size
        inside, outside = (data, b"") if fits else (b"", data + bytes(-len(data) % UNIT_BYTES))
        self.rest = np.frombuffer(outside, np.uint8).reshape(-1, UNIT_BYTES)
        head = _N_UNITS.pack(len(self.rest)) + inside
        self.slot = np.frombuffer(bytearray(head.ljust(SLOT_BYTES, b"\0")), np.uint8)


def _n_units(slots: NDArray[np.uint8]) -> NDArray[np.int64]:
    """(P,) the numbers at the beginning of (P, SLOT_BYTES) slots."""
    return np.ascontiguousarray(slots[:, : _N_UNITS.size]).view(np.int64)[:, 0]


def _values(slots: NDArray[np.uint8], everything: NDArray[np.uint8], n_units: NDArray[np.int64]) -> list[Any]:
    """Return the values: those with 0 units from their slots, all others one after the other from `everything`."""
    found = []
    for slot, n, end in zip(slots, n_units.tolist(), n_units.cumsum().tolist(), strict=True):
        found.append(pickle.loads(everything[end - n : end].data if n else slot[_N_UNITS.size :].data))
    return found


def _digest(value: object) -> int:
    try:
        return zlib.crc32(repr(value).encode(errors="replace"))
    except Exception:
        return 0
