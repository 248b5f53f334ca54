"""The errors of lb_mpi, all of one kind; what is wrong with an argument is a ValueError or TypeError.

Nothing is imported here: what runs before anything is installed may use it.
"""

from __future__ import annotations


class Error(RuntimeError):
    """Something has failed on some rank; the message, the same on all ranks, names the rank and the cause."""


class SearchError(Error):
    """A user's problem has failed in a search."""


class BalanceError(Error):
    """A user's function (or pack, unpack) has failed on rows."""


class TaskError(Error):
    """A task of a pool has failed; the exception itself is its `__cause__`, where it could be sent."""

    def __init__(self, text: str, index: int | None = None, rank: int = -1, traceback: str = "") -> None:
        """Keep where it was beside the message."""
        super().__init__(text)
        self.index = index  # of the task; None: it was none of the tasks
        self.rank = rank  # on which it was run
        self.traceback = traceback  # of that rank, as text


class SaveError(Error):
    """A save can't be read: it is truncated or corrupt."""


class Stopped(Error):
    """A signal has ended the work, and what was done is saved: the same call, in the same program, goes on from there."""


class ClusterError(Error):
    """An emulated cluster can't be made or used; the message says why."""


class ProtocolError(Error):
    """A message that the protocol's table has no row for: a bug in the program, never the caller's fault."""
