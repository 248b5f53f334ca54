"""What a carrier records of one rank's search: drafts, read from its messages, and a Step at the end.   (pure)"""

from __future__ import annotations

from collections.abc import Iterable

from lb_mpi.record.events import Driver, Move, Step, Way
from lb_mpi.record.record import OFF, Record
from lb_mpi.searching.drafting import NOBODY, Kind, Message, Send
from lb_mpi.searching.options import Options
from lb_mpi.searching.searcher import Searcher


class Drafts:
    """What comes of the drafts of `rank`; `worlds[r]` is the rank in COMM_WORLD of rank r of the search.

    A draft has one Move: from when it was sent until it was answered, with the volunteer and what has come (1 part, or
    nothing: no rank volunteered, or the volunteer had nothing left).
    """

    def __init__(self, record: Record, rank: int, worlds: list[int]) -> None:
        self.record, self._rank, self._worlds = record, rank, worlds
        self._began = 0.0
        self._volunteer = NOBODY

    def use(self, options: Options) -> None:
        """The search is called with these options."""
        names = ("balance", "threshold", "pause_s", "route")
        self.record.use("search", {name: getattr(options, name) for name in names})

    def turn(self, now: float, arrived: Iterable[Message], sends: Iterable[Send]) -> None:
        """Look at one turn of the search."""
        if self.record is OFF:
            return
        for message in arrived:
            if message.source != self._rank:
                continue
            if message.kind is Kind.DRAFTING and message.pid == NOBODY:
                self.record.move(Move(Way.DRAFT, NOBODY, self._began, now, 0.0, 0.0))
            elif message.kind is Kind.WORK or message.kind is Kind.NOWORK:
                came, n_bytes = float(message.kind is Kind.WORK), float(len(message.payload))
                giver = self._volunteer if message.pid == NOBODY else message.pid  # work of a walk names its sender
                other = NOBODY if giver == NOBODY else self._worlds[giver]
                self.record.move(Move(Way.DRAFT, other, self._began, now, came, n_bytes))
        for destination, message in sends:
            if message.source != self._rank:
                continue
            if message.kind is Kind.DRAFTING:
                self._began, self._volunteer = now, NOBODY
            elif message.kind is Kind.ADMISSION:
                self._volunteer = destination


def step(
    searcher: Searcher,
    began: float,
    ended: float,
    speed: float,
    cpu_s: float,
    *,
    busy_s: float = 0.0,
    serving_s: float = 0.0,
    messages: int = 0,
) -> Step:
    """Sum up a search that is over: `cpu_s` is the CPU time of the user's work, `busy_s` its time on the wall."""
    drafting = searcher.drafting
    return Step(
        Driver.SEARCH, began, ended, cpu_s / speed, searcher.units, speed, moved=drafting.received, asked=drafting.seq,
        busy_s=busy_s, serving_s=serving_s, messages=messages,
    )  # fmt: skip
