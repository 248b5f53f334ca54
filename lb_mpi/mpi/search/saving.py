"""Saves of a search on disk (see `lb_mpi.saving.folder`): each rank writes its state; rank 0 commits when all have written.

The format is independent of the MPI library: another MPI can read it, with any number of ranks.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, overload

from mpi4py import MPI

from lb_mpi import signs
from lb_mpi.checks import show
from lb_mpi.errors import Stopped
from lb_mpi.mpi.common.collective import Signals, agree, bcast, newest, noted
from lb_mpi.mpi.common.presence import presence_of
from lb_mpi.mpi.common.recorder import mark_save
from lb_mpi.saving.folder import Folder, PartFile, Saved
from lb_mpi.searching.bound import Bound
from lb_mpi.searching.drafting import Send
from lb_mpi.searching.saves import Receipt, SavedSearch, do, unpack_parts
from lb_mpi.searching.searcher import ROOT, Searcher, Work

KIND = "search"


class States(Sequence[bytes]):
    """The saved states of all ranks, each read when accessed, except those that were `kept`."""

    def __init__(self, folder: Folder, saved: Saved, kept: dict[int, bytes]) -> None:
        self._folder, self._saved, self._kept = folder, saved, kept

    def __len__(self) -> int:
        return len(self._saved.parts)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        """Return the state of one rank, or of several; SaveError if it is damaged."""
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        rank = range(len(self))[index]
        return self._kept[rank] if rank in self._kept else unpack_parts(self._folder.read(self._saved, name(rank)))[0]


class Saving:
    """The saves of a search on one rank, a `Store`; their numbers follow that of `found`, the save to resume from."""

    def __init__(
        self, comm: MPI.Intracomm, folder: Folder, found: tuple[int, SavedSearch] | None, meta: dict[str, Any],
        signals: Signals,
    ) -> None:  # fmt: skip
        self.saved = found[1] if found else None
        self._folder, self._rank, self._signals = folder, comm.rank, signals
        self._base = self._number = found[0] if found else 0
        self._meta = {**meta, "ranks": comm.size}
        self._asked = False

    def serve(self, searcher: Searcher) -> list[Send]:
        """Do the job of a save after a turn, and request the end after a signal; return the messages to send."""
        sends: list[Send] = []
        if self._signals.came and not self._asked:
            self._asked = True
            sends += searcher.ask_to_stop()
        if (job := searcher.job) is not None and not isinstance(job, Work):
            sends += searcher.done(job, do(job, self))
            signs.turn()
        return sends

    def open(self, number: int) -> bool:
        """Make a directory; return False, with a warning, if that fails."""
        return self._tried(lambda: self._folder.begin(self._base + number)) is not None

    def write(self, number: int, state: bytes) -> tuple[int, int] | None:
        """Write this rank's state; return None, with a warning, if that fails."""
        began = time.perf_counter()
        part = self._tried(lambda: self._folder.write(self._base + number, name(self._rank), [state]))
        if part is not None:
            mark_save(began, self._base + number)
        return None if part is None else part[1:]

    def commit(self, number: int, receipts: Sequence[Receipt] | None) -> None:
        """Write the manifest; warn if that fails.  None: there is nothing to commit."""
        if receipts is None:
            return
        parts = [PartFile(name(each.rank), each.n_bytes, each.crc) for each in receipts]
        better = max if self._meta["bound"] == "max" else min
        meta = {**self._meta, "best": better(each.best for each in receipts)}
        if self._tried(lambda: self._folder.commit(self._base + number, meta, parts)):
            self._number = self._base + number
            signs.saved(self._number)

    def stopped(self, comm: MPI.Intracomm) -> NoReturn:
        """Collective: raise Stopped after a search that a signal has ended."""
        number, came = bcast(comm, (self._number, self._signals.came))
        by = "a signal" if came is None else came.name
        if not number:
            text = f"stopped by {by}, but nothing could be saved: the next run starts anew"
        else:
            text = f"saved as {self._folder.path}/save-{number:08d}, stopped by {by}: run the same again to go on"
        raise presence_of(comm).together(Stopped(text))

    def _tried(self, call: Callable[[], Any]) -> Any:
        try:
            return call() or True
        except (OSError, ValueError) as error:
            text = f"rank {self._rank}: the search is not saved this time: {error}"
            with warnings.catch_warnings():
                warnings.simplefilter("always")  # raising an error would end a search that can go on
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            return None


@contextmanager
def saved(
    comm: MPI.Intracomm, path: str | os.PathLike[str] | None, problem: object, bound: Bound | None
) -> Iterator[Saving | None]:
    """Collective: find the save to resume from, lock the folder and watch for signals in the block; None without `path`.

    A damaged save is skipped with a warning.  ValueError on all ranks for the save of another problem, SaveError if no
    save can be read, OSError if another run saves there.
    """
    if path is None:
        yield None
        return
    folder, kind = agree(comm, lambda: _folder(path)), type(problem)
    meta = {"problem": f"{kind.__module__}.{kind.__qualname__}", "bound": None if bound is None else bound.sense}
    try:
        agree(comm, lambda: folder.lock() if comm.rank == ROOT else None)
        found = newest(comm, folder, lambda saved: _read(comm, folder, saved, meta), "save", stacklevel=7)
        with noted(comm) as signals:
            yield Saving(comm, folder, found, meta, signals)
    finally:
        folder.close()


def name(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"rank-{rank:06d}"


def _folder(path: object) -> Folder:
    try:
        place = Path(os.fspath(path))  # type: ignore[call-overload]
    except TypeError:
        raise TypeError(f"save = {show(path)}: expected the name of a folder, or None") from None
    if place.exists() and not place.is_dir():
        raise ValueError(f"save = {show(path)}: expected a folder")
    return Folder(place.absolute(), KIND)


def _read(comm: MPI.Intracomm, folder: Folder, saved: Saved, meta: dict[str, Any]) -> SavedSearch:
    """Read this rank's share; ValueError for the save of another search, SaveError if it is damaged."""
    for key, value in meta.items():
        if saved.meta.get(key) != value:
            place = f"save {saved.number} in {folder.path}"
            raise ValueError(f"{key} = {show(value)}: expected {show(saved.meta.get(key))}, as of {place}")
    mine = range(comm.rank, len(saved.parts), comm.size)
    parts = {rank: unpack_parts(folder.read(saved, name(rank))) for rank in mine}
    states = States(folder, saved, {rank: state for rank, (state, *_) in parts.items()})
    return SavedSearch(states, mine, [part for _, *kept in parts.values() for part in kept], saved.meta["best"])
