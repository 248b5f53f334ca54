"""`save` and `load`: the rows of all ranks on disk, from which any number of ranks can resume.

    step, arrays = lb_mpi.load(comm, "saves") or (0, {"heat": first_heat(comm)})
    for step in range(step + 1, steps + 1):
        arrays["heat"] = advance(arrays["heat"])
        lb_mpi.save(comm, "saves", step, **arrays)

Each rank writes its own rows (`lb_mpi.saving.rows`), and rank 0 commits when all have (`lb_mpi.saving.folder`).  The
format does not depend on MPI: one MPI reads what the other wrote.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from lb_mpi import signs
from lb_mpi.actor import ALL, Story
from lb_mpi.checks import integer, show
from lb_mpi.columns import Orders, agreed, orders_of
from lb_mpi.graph import Ints
from lb_mpi.mpi.common.calls import interrupts
from lb_mpi.mpi.common.carrier import Port, carry
from lb_mpi.mpi.common.collective import agree, agree_on, allgather, barrier, opened, raise_on_all
from lb_mpi.mpi.common.communicator import presence_of
from lb_mpi.mpi.common.recorder import recorder
from lb_mpi.mpi.common.reducing import Reducing
from lb_mpi.mpi.common.saves import newest
from lb_mpi.record.record import OFF
from lb_mpi.saving import rows
from lb_mpi.saving.folder import MOST, Folder, PartFile, Saved, check_path
from lb_mpi.saving.rows import Arrays, Exchange, Exchanges

COPYING_S = 0.1  # of waiting without naps in an exchange
_LOCKED = 64  # folders, at most: a lock needs an open file
_folders: dict[str, Folder] = {}  # on rank 0, by path, the last saved ones locked; they know damaged saves


class _Given(NamedTuple):
    path: Path
    options: dict[str, Any]
    numbers: Ints | None  # `index`


def save(
    comm: MPI.Intracomm,
    folder: str | os.PathLike[str],
    step: int,
    *,
    index: object = None,
    options: Mapping[str, object] | None = None,
    **arrays: object,
) -> None:
    """Save the rows of all ranks as of `step`; they are on disk when this returns.  Collective.

    Parameters
    ----------
    comm : an mpi4py intracommunicator.
    folder : a directory, the same for all ranks, which is made if it does not exist.  It keeps the last two saves.
    step : integer >= 0, larger than the steps of earlier saves; the same on all ranks.
    index : (n,) integers, the global number of each row; the numbers of all ranks together must be 0..N-1, each once.
        None: the rows of rank 1 follow those of rank 0, and so on.
    options : names with numbers, text or lists, which distinguish this problem from others: later saves and `load` must
        pass equal options (in any order; NaN equals NaN).
    arrays : (n, ...) arrays, or lists of n rows of one shape, by name.  On a rank all arrays have the same n, which may
        differ between ranks; dtype and shape of one row must be the same on all ranks.  TypeError for masked arrays,
        and for a dtype that a .npy file does not keep, such as fields in another order than in memory.

    Raises ValueError or TypeError on all ranks for wrong arguments, and if the folder has a save of this step or a
    later one, or one with other options.  Raises OSError on all ranks, which names the rank, if a rank cannot write;
    earlier saves are kept.  Until the process of rank 0 ends, or has saved in 64 other folders, other runs that save in
    this folder raise OSError.
    """
    with opened(comm, "lb_mpi.save") as own:
        given = agree(own, lambda: _check(folder, options, index))
        step = agree(own, lambda: integer("step", step, 0, MOST))
        checked = agree(own, lambda: rows.check_arrays(arrays))
        _agree_on(own, given, step=step, arrays=sorted(checked))
        agree_on(own, **{name: (array.dtype, array.shape[1:]) for name, array in checked.items()})
        recorder(own)
        mine = len(next(iter(checked.values())))
        everyone = allgather(own, (mine, orders_of([*checked.values()])))
        counts, orders = [n for n, _ in everyone], agreed(everyone)
        if given.numbers is not None:
            agree(own, lambda: _check_index(given, sum(counts), mine))
            counts = rows.shares(sum(counts), own.size)
            checked = _carry(own, rows.to_blocks(own.rank, given.numbers, _bounds(counts), checked))
        _write(own, given, step, checked, counts, orders)
        signs.saved(step)  # on all ranks, since the host of rank 0 may die


def load(
    comm: MPI.Intracomm,
    folder: str | os.PathLike[str],
    *,
    index: object = None,
    options: Mapping[str, object] | None = None,
) -> tuple[int, Arrays] | None:
    """Return the last step saved by `save` and this rank's rows of each array, by name; None if nothing is saved.

    Collective.  The number of ranks may differ from that of the run that saved.

    Parameters
    ----------
    comm : an mpi4py intracommunicator.
    folder : the directory of the saves, the same for all ranks.
    index : (n,) global numbers of the rows that this rank gets, any of 0..N-1, in any order; other ranks may get the
        same ones.  None: rank 0 gets the first ones, and so on, in equal numbers (the first ranks may get one more).
    options : the options that were passed to `save`.

    A save that is truncated, corrupt or incomplete is skipped with a UserWarning on rank 0, and the save before it is
    read; if there is no complete save, SaveError is raised on all ranks.  Raises ValueError for a folder with other
    `options`, of another kind or version, and for an `index` that does not fit the saved rows.
    """
    with opened(comm, "lb_mpi.load") as own:
        given = agree(own, lambda: _check(folder, options, index))
        _agree_on(own, given)
        local = _folder(given.path, own.rank)
        found = newest(own, local, lambda saved: _read(own, local, saved, given), "step", stacklevel=5)
        if found is None:
            return None
        step, (saved, bounds, arrays) = found
        if given.numbers is not None:
            arrays = _carry(own, rows.from_blocks(own.rank, given.numbers, bounds, arrays))
        return step, agree(own, lambda: rows.restored(saved, arrays))


def _write(
    comm: MPI.Intracomm, given: _Given, step: int, arrays: Arrays, counts: list[int], orders: Orders
) -> None:
    """Collective: write all parts, then the manifest."""
    local = _folder(given.path, comm.rank)
    agree(comm, lambda: _begin(local, given, step) if comm.rank == 0 else None)
    try:
        everyone = allgather(comm, agree(comm, lambda: _write_parts(local, step, comm.rank, arrays)))
        meta, parts = rows.describe_rows(counts, arrays, orders, given.options), [one for part in everyone for one in part]
        with presence_of(comm).committing():
            barrier(comm)  # no rank has been interrupted
            raise_on_all(comm, _error_of(lambda: local.commit(step, meta, parts) if comm.rank == 0 else None))
    except BaseException:
        if comm.rank == 0:
            local.discard(step)
        raise


def _error_of(call: Callable[[], object]) -> Exception | None:
    """Call a function; return what it raises."""
    try:
        call()
    except Exception as error:
        return error
    return None


def _begin(folder: Folder, given: _Given, step: int) -> None:
    folder.lock()
    _folders[str(folder.path)] = _folders.pop(str(folder.path))
    for earlier in [one for one in _folders.values() if one.locked][:-_LOCKED]:
        earlier.close()
    for saved in folder.saves().whole[:1]:
        rows.compare_options(saved, given.options, given.path)
    folder.begin(step)


def _write_parts(folder: Folder, step: int, rank: int, arrays: Arrays) -> list[PartFile]:
    try:
        return rows.write_rows(folder, step, rank, arrays)
    except FileNotFoundError as error:
        raise OSError(f"rank {rank}: {error} (is the folder on a file system that all hosts share?)") from error
    except OSError as error:
        raise OSError(f"rank {rank}: {error}") from error


def _read(comm: MPI.Intracomm, folder: Folder, saved: Saved, given: _Given) -> tuple[Saved, Ints, Arrays]:
    """Return the save, the bounds of all ranks' rows, and this rank's; SaveError if a part with them is damaged."""
    n = rows.n_rows(saved)
    rows.compare_options(saved, given.options, given.path)
    if given.numbers is not None:
        _check_index(given, n)
    bounds = _bounds(rows.shares(n, comm.size))
    return saved, bounds, rows.read_rows(folder, saved, int(bounds[comm.rank]), int(bounds[comm.rank + 1]))


def _folder(path: Path, rank: int) -> Folder:
    real = os.path.realpath(path)  # the working directory may change
    return _folders.setdefault(real, Folder(real, rows.KIND)) if rank == 0 else Folder(path.absolute(), rows.KIND)


def _check(folder: object, options: Mapping[str, object] | None, index: object) -> _Given:
    path = check_path("folder", folder)
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options = {show(options)}: expected names with numbers, text and lists")
    if index is None:
        return _Given(path, rows.check_options(options), None)
    numbers = np.asarray(index)
    if numbers.ndim != 1 or not (np.issubdtype(numbers.dtype, np.integer) or numbers.size == 0):
        raise ValueError(f"index is {numbers.shape} of {numbers.dtype}: expected (n,) integers, the number of each row")
    return _Given(path, rows.check_options(options), numbers.astype(np.int64))


def _check_index(given: _Given, n: int, mine: int | None = None) -> None:
    """Check the index against the n rows of all ranks; `mine`: this rank's number of rows."""
    index = given.numbers
    assert index is not None
    if mine is not None and len(index) != mine:
        raise ValueError(f"index has {len(index)} numbers: expected {mine}, one for each row")
    if len(wrong := np.flatnonzero((index < 0) | (index >= n))):
        raise ValueError(f"index[{wrong[0]}] = {index[wrong[0]]}: expected a row from 0 to {n - 1}")


def _agree_on(comm: MPI.Intracomm, given: _Given, **arguments: object) -> None:
    index = "not given" if given.numbers is None else "given"
    agree_on(comm, folder=str(given.path), options=rows.comparable(given.options), index=index, **arguments)


def _bounds(counts: list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


# --- rows from the ranks that hold them to blocks in global order, and back (protocol: `saving.rows`) ------------------


def _carry(comm: MPI.Intracomm, exchanges: Exchanges) -> Arrays:
    """Collective: make the exchanges.  An error of `index` is raised on all ranks; any other one leaves the call."""
    presence, actor, port = presence_of(comm), Story(exchanges), _ExchangePort(comm)
    try:
        # All ranks have just agreed, so they wait only for copying, and MPICH copies one piece per poll: they yield.
        carry(actor, port, presence, OFF, interrupts(), quick_s=COPYING_S)
        return actor.value
    except ValueError as error:
        raise presence.on_all(error) from None
    except BaseException:
        presence.retain(port)
        raise


class _ExchangePort(Port[Any, None]):
    """Messages of all ranks to all: exchanges of rows, and reductions."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._begun: Reducing | _Exchanging | None = None

    def arrived(self) -> list[tuple[int, Any]]:
        """See `Port`."""
        if self._begun is None or not self._begun.done():
            return []
        done, self._begun = self._begun, None
        return [(ALL, done.answer)]

    def post(self, sends: list[tuple[int, Any]]) -> None:
        """See `Port`."""
        for _, message in sends:
            of = _Exchanging if isinstance(message, Exchange) else Reducing
            self._begun = of(self._comm, message)

    def idle(self) -> bool:
        """See `Port`."""
        return self._begun is not None and not self._begun.done()


class _Exchanging:
    """An exchange that is under way: the first sent[0] rows go to rank 0; the answer begins with those from rank 0."""

    def __init__(self, comm: MPI.Intracomm, mine: Exchange) -> None:
        self._rows = np.ascontiguousarray(mine.rows)
        shape, dtype = self._rows.shape[1:], self._rows.dtype
        self.answer = np.empty((int(mine.received.sum()), *shape), dtype)
        self._request = MPI.REQUEST_NULL
        if row_bytes := math.prod(shape) * dtype.itemsize:
            row = MPI.BYTE.Create_contiguous(row_bytes).Commit()
            pairs = ((self._rows, mine.sent), (self.answer, mine.received))
            out, into = ([array.reshape(-1).view(np.uint8), (n, rows.starts(n)), row] for array, n in pairs)
            self._request = comm.Ialltoallv(out, into)
            row.Free()  # when the exchange is done

    def done(self) -> bool:
        """True when the answer is there."""
        return self._request.Test()
