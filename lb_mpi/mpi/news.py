"""News of a failure between collectives: a rank that can't go on tells all others, and who waits for it raises, too.

While all goes well this costs nothing: nobody looks for news but who has waited for a while.  After a failure messages may
still be under way, which no later communicator must receive, and the MPI may still write to the buffers: they stay for ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

from lb_mpi.errors import Error
from lb_mpi.mpi.collective import closed, describe, place
from lb_mpi.mpi.roll_call import RollCall
from lb_mpi.mpi.waiting import Nap

TAG = 0  # of news; all other messages on the communicator have another one
LOOKS = 8  # in a row, before others get the core: balanced ranks are done at nearly the same time
QUICK_S = 0.2e-3  # without a nap; others may have the core
LONGEST_NAP_S = 0.5e-3
NEWS_AFTER_S = 5e-3  # of waiting
LATE_AFTER_S = 1.0  # of waiting
LONGEST = 1000  # bytes of a text: any MPI sends so few without being asked for
_abandoned: list[Any] = []


class News:
    """Waits and ends on `comm`, a communicator of our own, which is freed in `close`; `name` is what the user has closed.

        news = News(duplicate(comm), "plan")
        news.check()                            # neither closed nor failed
        with news.telling():                    # what is raised here, all others hear of
            request = news.comm.Irecv(...)
            news.wait(request.Test)             # lb_mpi.Error when another rank has failed
        news.close()
    """

    def __init__(self, comm: MPI.Intracomm, name: str) -> None:
        self.comm = comm
        self.name = name
        self.roll = RollCall(comm)
        self._failure: str | None = None
        self.raised: BaseException | None = None  # that all ranks have raised together: it is no news

    @property
    def failed(self) -> bool:
        """Some rank has told that it can't go on."""
        return self._failure is not None

    def check(self) -> None:
        """ValueError after `close`, Error after a failure on any rank."""
        if self._failure is not None:
            raise Error(f"{self.name} after a failure ({self._failure}): expected close")
        if not self.comm:
            raise closed(self.name)

    def wait(self, done: Callable[[], bool], keep: Any = None, late: Callable[[], str | None] | None = None) -> None:
        """Look until `done()`, asleep if it takes long; Error when another rank has told that it can't go on.

        `keep` is what the MPI may still write to if this fails; `late()` is asked, after a second, what is wrong.
        """
        for _ in range(LOOKS):
            if done():
                return
        began, nap = time.perf_counter(), Nap(LONGEST_NAP_S)
        try:
            while not done():
                waited_s = time.perf_counter() - began
                if waited_s < QUICK_S:
                    os.sched_yield()
                    continue
                nap.take()
                self.roll.look(waited_s)
                if waited_s > NEWS_AFTER_S:
                    self.hear()
                if waited_s > LATE_AFTER_S and late is not None and (wrong := late()) is not None:
                    self._tell(wrong)
                    raise Error(wrong)
        except BaseException:
            _abandoned.append((done, keep))
            raise

    def spread(self, error: BaseException) -> None:
        """Tell all others, once, why this rank can't go on; not what they know already."""
        if self._failure is None and self.comm:
            mine = isinstance(error, ValueError | TypeError)
            self._tell(f"rank {self.comm.rank}: {describe(error)}{'' if mine else f' {place(error)}'}")

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Spread what is raised in this block."""
        try:
            yield
        except BaseException as error:
            self.spread(error)
            raise

    def close(self, free: Callable[[], None] = lambda: None) -> None:
        """Collective: free what `free` frees and the communicator.  A second time, and after a failure, do nothing.

        Error when another rank fails meanwhile, or has failed.
        """
        if not self.comm:
            return
        comm = self.comm
        try:
            if self._failure is None:
                self.wait(comm.Ibarrier().Test)
                self.roll.drain()
                free()
                comm.Free()
        except BaseException as error:
            self.spread(error)
            raise
        finally:
            if comm:
                _abandoned.append((comm, free))
            self.comm = MPI.COMM_NULL  # type: ignore[assignment]

    def abandon(self, *what: object) -> None:
        """Keep for ever what the MPI may still write to."""
        _abandoned.append(what)

    def hear(self) -> None:
        """Error when another rank has told that it can't go on."""
        status = MPI.Status()
        if self.comm.Iprobe(MPI.ANY_SOURCE, TAG, status):
            data = np.empty(status.Get_count(MPI.BYTE), dtype=np.uint8)
            self.comm.Recv([data, MPI.BYTE], status.Get_source(), TAG)
            self._failure = data.tobytes().decode(errors="replace")
            raise Error(self._failure)

    def _tell(self, text: str) -> None:
        self._failure = text
        data = np.frombuffer(text.encode(errors="replace")[:LONGEST], dtype=np.uint8)
        others = [rank for rank in range(self.comm.size) if rank != self.comm.rank]
        _abandoned.append((data, [self.comm.Isend([data, MPI.BYTE], rank, TAG) for rank in others]))

