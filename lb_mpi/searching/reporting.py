"""What ranks say of themselves while they search: to rank 0 on the ring, up the binomial tree on many ranks.   (pure)

On the tree a rank passes on, together with its own, what it has heard from below since it last did; so rank 0 hears from
log2 P ranks and not from P - 1, at the price that news may be as many reports old.  Who has no news is silent.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from lb_mpi.searching import tree
from lb_mpi.searching.drafting import Kind, Message, Send

ROOT = 0
_ROW = struct.Struct("<qqqd")  # rank, units, balances, load


class Report(NamedTuple):
    """What a rank says of itself while it works."""

    units: int  # units of work done so far
    load: float  # problem.load()
    balances: int  # parts of work received


class Reporting:
    """The reports of one rank, every `every_s` seconds (inf: never)."""

    def __init__(self, rank: int, every_s: float, route: str) -> None:
        self.rank, self.every_s, self.route = rank, every_s, route
        self.at = every_s  # when the next one is due
        self.reports: dict[
            int, Report
        ] = {}  # on rank 0: what the others said last; on the tree also what comes from below
        self._news: set[int] = set()  # the tree: ranks whose reports haven't been passed on

    def hear(self, message: Message) -> None:
        """Take in a REPORT."""
        if self.route == "ring":
            self.reports[message.source] = Report(message.seq, message.load, message.pid)
            return
        for rank, units, balances, load in _ROW.iter_unpack(message.payload):
            self.reports[rank] = Report(units, load, balances)
            self._news.add(rank)

    def tell(self, now: float, own: Report) -> list[Send]:
        """The report that is due now."""
        self.at = now + self.every_s
        if self.rank == ROOT:
            self.reports[ROOT] = own
            self._news.clear()
            return []
        if self.route == "ring":
            return [(ROOT, Message(Kind.REPORT, self.rank, own.units, own.balances, own.load))]
        if self.reports.get(self.rank) != own:
            self.reports[self.rank] = own
            self._news.add(self.rank)
        rows = [(rank, self.reports[rank]) for rank in sorted(self._news)]
        self._news.clear()
        payload = b"".join(_ROW.pack(rank, units, balances, load) for rank, (units, load, balances) in rows)
        return [(tree.parent(self.rank), Message(Kind.REPORT, self.rank, payload=payload))] if rows else []
