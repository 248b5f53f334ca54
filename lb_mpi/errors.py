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


class ProtocolError(Error):
    """A message that the protocol's table has no row for: a bug in the program, never the caller's fault."""
