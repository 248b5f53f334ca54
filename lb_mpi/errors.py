"""The errors of lb_mpi, with one base class; an invalid argument is a ValueError or TypeError instead.

Nothing is imported here, since code that runs before anything is installed may use it.
"""

from __future__ import annotations


class Error(RuntimeError):
    """A failure on some rank.  The message is the same on all ranks, and names the rank and the cause."""


class SearchError(Error):
    """The user's problem has failed in a search."""


class BalanceError(Error):
    """The user's function (or `pack` or `unpack`) has failed on rows."""


class TaskError(Error):
    """A task of a pool has raised an exception, which is the `__cause__` of this error if it could be sent.

    Attributes: `index` of the task (None: the failure was outside the tasks), `rank` on which the task ran, and
    `traceback` on that rank, as text.
    """

    def __init__(self, text: str, index: int | None = None, rank: int = -1, traceback: str = "") -> None:
        """Store where the failure was, beside the message."""
        super().__init__(text)
        self.index = index  # of the task; None: outside the tasks
        self.rank = rank  # on which it ran
        self.traceback = traceback  # on that rank, as text


class SaveError(Error):
    """A save cannot be read: it is truncated or corrupt."""


class Stopped(Error):
    """A signal has ended the call after a save; the same call in a new run of the program continues from that save.

    A program that does not catch it ends with exit code 75.
    """


class ClusterError(Error):
    """An emulated cluster cannot be made or used; the message says why."""


class ProtocolError(Error):
    """A rank received a message for which the protocol's table has no row: a bug in lb_mpi, not in the caller."""
