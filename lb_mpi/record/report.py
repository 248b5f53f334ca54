"""The report of a run: a line per rank, the time of the run, and the least time for its work.   (pure)

A pool, an executor, a Balancer, a search result and a plan return the same `Report`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from lb_mpi.metrics import queueing
from lb_mpi.record.events import Driver, Step
from lb_mpi.table import Table, counted, percent

COLUMNS = {
    Driver.SEARCH: {"done": "units", "received": "parts received", "messages": "messages"},
    Driver.ROWS: {"owned": "rows owned", "done": "rows computed"},
    Driver.TASKS: {"done": "tasks", "received": "steals", "sent_bytes": "bytes sent"},
    Driver.EXCHANGE: {"owned": "vertices", "received": "ghosts"},
}  # the counts of a `RankWork` that a driver has
CALLS = {Driver.ROWS: "call", Driver.TASKS: "task", Driver.EXCHANGE: "exchange"}  # what `Report.n` counts


@dataclass(frozen=True)
class RankWork:
    """The work of one rank; a count that its driver does not have is 0."""

    rank: int
    owned: int = 0  # rows in the last call, or vertices, that the rank owns
    done: int = 0  # tasks, rows or units of work computed here
    received: int = 0  # steals, parts of work, or ghosts
    messages: int = 0  # sent
    sent_bytes: int = 0
    busy_s: float = 0.0  # wall-clock seconds at work, with those without a core and the rests of an emulated slow rank
    useful_s: float = 0.0  # seconds that the work needs on this rank: busy_s without the seconds without a core
    speed: float = 1.0  # relative to the other ranks: emulated, measured or given; 0: the rank was not used; NaN: unknown
    seconds: float = 0.0  # wall-clock time of the calls on this rank

    @classmethod
    def of(cls, rank: int, step: Step) -> RankWork:
        """Return the work of a Step of rank `rank`."""
        return cls(
            rank, int(step.home), int(step.units), int(step.moved), int(step.messages), int(step.sent_bytes), step.busy_s,
            step.useful_s, step.speed, step.seconds,
        )  # fmt: skip

    @property
    def idle(self) -> float:
        """The fraction, 0 to 1, of `seconds` during which the rank was not at work."""
        return max(0.0, 1.0 - self.busy_s / self.seconds) if self.seconds > 0.0 else 0.0


@dataclass(frozen=True)
class Report:
    """The work of each rank, the time, and its lower bound; prints as a table."""

    driver: Driver
    n: int  # tasks run (without those of a checkpoint), calls of `map_rows`, or exchanges; 1 for a search
    ranks: tuple[RankWork, ...]  # of each rank, in order
    imbalance: float = math.nan  # of the last call of `map_rows`: 0: perfect, 1: twice as long as necessary; NaN: unknown
    imbalance_before: float = math.nan  # of that call, if every rank had computed its own rows
    note: str = ""  # more lines: the messages of a search and how it ended, or what `plan.rebalance` has moved

    @property
    def seconds(self) -> float:
        """The wall-clock time of the slowest rank."""
        return max(one.seconds for one in self.ranks)

    @property
    def lower_bound_s(self) -> float:
        """The least time for this work: seconds of work at speed 1 / sum of the speeds; NaN: the speeds are unknown."""
        speeds = sum(one.speed for one in self.ranks)
        return sum(one.useful_s * one.speed for one in self.ranks) / speeds if speeds else 0.0

    @property
    def queued_s(self) -> float:
        """The seconds at work for which ranks had no core, on all ranks."""
        return sum(max(0.0, one.busy_s - one.useful_s) for one in self.ranks)

    @property
    def table(self) -> Table:
        """The table: a line per rank."""
        columns = COLUMNS[self.driver]
        lines = [
            [str(one.rank), *(f"{getattr(one, name):,}" for name in columns), f"{one.busy_s:.3f}", f"{one.idle:.1%}"]
            for one in self.ranks
        ]
        return Table(("rank", *columns.values(), "busy s", "idle"), lines)

    @property
    def notes(self) -> list[str]:
        """The lines below the table."""
        word = CALLS.get(self.driver)
        calls = f"{counted(self.n, word)} in " if word else ""
        queued = queueing(sum(one.busy_s for one in self.ranks), self.queued_s)
        alone = "" if len(self.ranks) > 1 else "; there is one rank only: mpiexec -n starts more"
        bound = f"; {self.lower_bound_s:.3f} s if each rank had always had work and a core"
        known = not math.isnan(self.lower_bound_s)
        notes = [f"{calls}{self.seconds:.3f} s{bound if known else ''}{queued}{alone}"]
        if self.driver is Driver.ROWS:
            notes += [
                f"imbalance of the last call: {percent(self.imbalance)}, without lending {percent(self.imbalance_before)}",
                "(imbalance 0%: all ranks end together; 100%: the call takes twice as long as necessary)",
            ]
        return notes + self.note.splitlines()

    def __str__(self) -> str:
        """Lay out the table and its notes."""
        return "\n".join([str(self.table), *self.notes])

    def _repr_html_(self) -> str:
        return self.table.html() + "".join(f"<p>{escape(note)}</p>" for note in self.notes)
