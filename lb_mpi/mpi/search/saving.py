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
from typing import Any, NamedTuple, NoReturn, overload

from mpi4py import MPI

from lb_mpi import signs
from lb_mpi.checks import show
from lb_mpi.errors import SaveError, Stopped
from lb_mpi.mpi.common.collective import Signals, agree, allgather, bcast, noted
from lb_mpi.mpi.common.presence import presence_of
from lb_mpi.mpi.common.recorder import mark_save
from lb_mpi.saving.folder import Folder, PartFile, Saved, Saves
from lb_mpi.searching.bound import Bound
from lb_mpi.searching.drafting import Send
from lb_mpi.searching.saves import Commit, Open, Receipt, SavedSearch, Write, unpack_parts
from lb_mpi.searching.searcher import ROOT, Searcher

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


class Found(NamedTuple):
    """The save to resume from."""

    number: int  # of the save; 0: there is none, and the search starts
    saved: SavedSearch | None
    folder: Folder


class SearchStore:
    """The folder with the saves of one rank of a search; their numbers start after `base`."""

    def __init__(self, found: Found, comm: MPI.Intracomm, meta: dict[str, Any], best: Callable[[float, float], float]):
        self.folder, self.base, self.number = found.folder, found.number, found.number
        self._rank, self._meta, self._best = comm.rank, {**meta, "ranks": comm.size}, best

    def open(self, number: int) -> bool:
        """Make a directory; return False, with a warning, if that fails."""
        return self._tried(lambda: self.folder.begin(self.base + number)) is not None

    def write(self, number: int, state: bytes) -> tuple[int, int] | None:
        """Write this rank's state; return None, with a warning, if that fails."""
        began = time.perf_counter()
        part = self._tried(lambda: self.folder.write(self.base + number, name(self._rank), [state]))
        if part is not None:
            mark_save(began, self.base + number)
        return None if part is None else part[1:]

    def commit(self, number: int, receipts: Sequence[Receipt] | None) -> None:
        """Write the manifest; warn if that fails.  None: there is nothing to commit."""
        if receipts is None:
            return
        parts = [PartFile(name(each.rank), each.n_bytes, each.crc) for each in receipts]
        best = receipts[0].best
        for each in receipts[1:]:
            best = self._best(best, each.best)
        if self._tried(lambda: self.folder.commit(self.base + number, {**self._meta, "best": best}, parts)):
            self.number = self.base + number
            signs.saved(self.number)

    def _tried(self, call: Callable[[], Any]) -> Any:
        try:
            return call() or True
        except (OSError, ValueError) as error:
            text = f"rank {self._rank}: the search is not saved this time: {error}"
            with warnings.catch_warnings():
                warnings.simplefilter("always")  # raising an error would end a search that can go on
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            return None


class Saving:
    """The saves of a search, for its driver; created by `saved`."""

    def __init__(self, found: Found, store: SearchStore, signals: Signals) -> None:
        self.found, self._store, self._signals = found, store, signals
        self._asked = False

    def serve(self, searcher: Searcher) -> list[Send]:
        """Run the job of a save after a turn, and request the end after a signal; return the messages to send."""
        sends: list[Send] = []
        if self._signals.came and not self._asked:
            self._asked = True
            sends += searcher.ask_to_stop()
        if isinstance(job := searcher.job, Open | Write | Commit):
            sends += searcher.done(job, job.run(self._store))
            signs.turn()
        return sends

    def stopped(self, comm: MPI.Intracomm) -> NoReturn:
        """Collective: raise Stopped after a search that a signal has ended."""
        number, came = bcast(comm, (self._store.number, self._signals.came))
        by = "a signal" if came is None else came.name
        if not number:
            text = f"stopped by {by}, but nothing could be saved: the next run starts anew"
        else:
            text = f"saved as {self.found.folder.path}/save-{number:08d}, stopped by {by}: run the same again to go on"
        raise presence_of(comm).together(Stopped(text))


@contextmanager
def saved(
    comm: MPI.Intracomm, path: str | os.PathLike[str] | None, problem: object, bound: Bound | None
) -> Iterator[Saving | None]:
    """Collective: find the save to resume from, lock the folder and watch for signals in the block; None without `path`."""
    if path is None:
        yield None
        return
    found = find(comm, path, problem, bound)
    try:
        best = max if bound is not None and bound.sense == "max" else min
        store = SearchStore(found, comm, describe(problem, bound), best)
        with noted() as signals:
            signs.saves_at_signal(comm.rank == ROOT)
            try:
                yield Saving(found, store, signals)
            finally:
                signs.saves_at_signal(False)
    finally:
        found.folder.close()


def find(comm: MPI.Intracomm, path: str | os.PathLike[str], problem: object, bound: Bound | None) -> Found:
    """Collective: find the newest save in the folder `path` that all ranks can read, and each rank's share of it.

    Rank 0 keeps the folder locked.  A damaged save is skipped with a warning.  ValueError on all ranks for the save of
    another problem, SaveError if no save can be read, OSError if another run saves there.
    """
    folder = agree(comm, lambda: _folder(path))
    meta = describe(problem, bound)

    def look() -> Saves:
        folder.lock()
        return folder.saves()

    try:
        saves = bcast(comm, agree(comm, lambda: look() if comm.rank == 0 else None))
        try:
            found, wrong = folder.newest(saves, lambda saved: _read(comm, folder, saved, meta))
        except SaveError as error:  # all ranks have the same saves, and have read the same of them
            presence_of(comm).together(error)
            raise
        if found is not None and wrong:
            text = f"{'; '.join(wrong)}: going on from save {found.number}, which was saved before"
            agree(comm, lambda: warnings.warn(text, RuntimeWarning, stacklevel=6) if comm.rank == 0 else None)
    except BaseException:
        folder.close()
        raise
    return found or Found(0, None, folder)


def describe(problem: object, bound: Bound | None) -> dict[str, Any]:
    """Return the description of the search that a save must match."""
    kind = type(problem)
    return {"problem": f"{kind.__module__}.{kind.__qualname__}", "bound": None if bound is None else bound.sense}


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


def _read(comm: MPI.Intracomm, folder: Folder, saved: Saved, meta: dict[str, Any]) -> Found:
    """Collective: read this rank's share; SaveError on all ranks if one finds it damaged."""
    mine = range(comm.rank, len(saved.parts), comm.size)
    damage = ""

    def read() -> dict[int, list[bytes]]:
        nonlocal damage
        for key, value in meta.items():
            if saved.meta.get(key) != value:
                place = f"save {saved.number} in {folder.path}"
                raise ValueError(f"{key} = {show(value)}: expected {show(saved.meta.get(key))}, as of {place}")
        try:
            return {rank: unpack_parts(folder.read(saved, name(rank))) for rank in mine}
        except SaveError as error:
            damage = str(error)
            return {}

    mines = agree(comm, read)
    for text in allgather(comm, damage):
        if text:
            raise presence_of(comm).together(SaveError(text))
    states = States(folder, saved, {rank: parts[0] for rank, parts in mines.items()})
    kept = [part for parts in mines.values() for part in parts[1:]]
    return Found(saved.number, SavedSearch(states, mine, kept, saved.meta["best"]), folder)
