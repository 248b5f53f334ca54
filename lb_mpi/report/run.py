"""The records of all ranks of a run, put together, on one clock.   (pure)"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.record.events import STEP, Driver, Event, Phase, Step
from lb_mpi.record.launches import END, Happened
from lb_mpi.record.record import N_PHASES, Table, merged
from lb_mpi.record.store import About, Stored, read

Floats = NDArray[np.float64]
USEFUL = (Phase.OWN, Phase.FOREIGN, Phase.RESTING)  # a rank that emulates a slow one would compute while it rests


SAVE = "save"
SKEW_S = 60.0  # by which the clocks of hosts may differ


class Happening(NamedTuple):
    """Something that happened during a run."""

    what: str  # SAVE, or one of `launches.KINDS`
    began_s: float  # since the begin of this run
    ended_s: float
    rank: int  # -1: all, or none
    words: str


class Run(NamedTuple):
    """What is known of a run, or of one start of it."""

    ranks: list[Stored]  # ordered by host, and by rank on each host
    size: int  # ranks that the run had
    offsets_s: list[float]  # of each in `ranks`: to be added to its times, to have those of the page
    seconds: float  # from the begin of the first record to the end of the last
    clock: str  # in words: how the clocks were aligned
    notes: list[str]  # in words: what is missing, or no good
    happened: list[Happening] = []  # noqa: RUF012 - in their order
    earlier: tuple[Run, ...] = ()  # the starts before this one, when a rank or a host had died

    @property
    def totals(self) -> Floats:
        """(ranks, phases) seconds."""
        return np.array([one.seconds.sum(axis=0) for one in self.ranks])

    @property
    def hosts(self) -> list[str]:
        """The hosts, in the order of `ranks`."""
        return list(dict.fromkeys(one.about.host for one in self.ranks))


def assemble(files: Iterable[tuple[str, bytes]], launches: Sequence[Happened] = (), start: int = 0) -> Run:
    """Put together the files of a folder, as (name, content); what can't be read is noted.

    `launches` : what launch/run has told, left out when it's of another run; the files are those of `start`.

    ValueError when there is none that can.
    """
    found: list[Stored] = []
    notes: list[str] = []
    for name, data in files:
        try:
            found.append(read(data))
        except ValueError as error:
            notes.append(f"{name}: {error}")
    if not found:
        raise ValueError(notes[0] if notes else "no record in it: expected files rank*.lbrec")
    newest = max((one.about for one in found), key=lambda about: about.wall_s)
    kept = [one for one in found if (one.about.size, one.about.virtual) == (newest.size, newest.virtual)]
    if len(kept) < len(found):
        notes.append(f"{len(found) - len(kept)} records of another run: left out")
    hosts: dict[str, int] = {}
    for one in sorted(kept, key=lambda one: one.about.rank):
        hosts.setdefault(one.about.host, len(hosts))
    kept.sort(key=lambda one: (hosts[one.about.host], one.about.rank))
    missing = sorted(set(range(newest.size)) - {one.about.rank for one in kept})
    if missing:
        notes.append(f"no record of {_ranks(missing)}")
    killed = sorted(one.about.rank for one in kept if not one.ended)
    if killed:
        notes.append(f"{_ranks(killed)}: the record breaks off, as when a rank is killed or still runs")
    offsets, clock = _align(kept)
    begins = [one.about.clock_s + offset for one, offset in zip(kept, offsets, strict=True)]
    ends = [one.until + offset for one, offset in zip(kept, offsets, strict=True)]
    offsets = [offset - min(begins) for offset in offsets]
    happened = _saves(kept, offsets) + _launches(launches, start, kept[0].about, offsets[0])
    happened.sort(key=lambda it: it.began_s)
    return Run(kept, newest.size, offsets, max(ends) - min(begins), clock, notes, happened)


def _saves(kept: list[Stored], offsets_s: list[float]) -> list[Happening]:
    """Each save, from when its first rank began to write until the last one had written."""
    spans: dict[int, list[tuple[float, float]]] = {}
    for one, offset in zip(kept, offsets_s, strict=True):
        for mark in one.marks[one.marks["event"] == Event.SAVE]:
            span = float(mark["began"]) + offset, float(mark["ended"]) + offset
            spans.setdefault(int(mark["number"]), []).append(span)
    return [
        Happening(SAVE, min(began for began, _ in ranks), max(ended for _, ended in ranks), -1, f"save {number}")
        for number, ranks in sorted(spans.items())
    ]


def _launches(launches: Sequence[Happened], start: int, about: About, offset_s: float) -> list[Happening]:
    """What launch/run has told of this start, on its clock; nothing if it is of another run than the record."""
    if not belongs(launches, about):
        return []
    begin_wall_s = about.wall_s - (about.clock_s + offset_s)
    mine = [(it, it.wall_s - begin_wall_s) for it in launches if it.start == start]
    return [Happening(it.what, at, at, it.rank, it.words) for it, at in mine]


def belongs(launches: Sequence[Happened], about: About) -> bool:
    """Return whether launch/run has told of this record's run, rather than of one before it in the same folder."""
    end_s = min((it.wall_s for it in launches if it.what == END), default=math.inf)
    return bool(launches) and launches[0].wall_s - SKEW_S <= about.wall_s <= end_s + SKEW_S


def steps(run: Run) -> list[Table]:
    """The steps of each rank, entries added up where ranks have kept different numbers of them: as many on all ranks.

    Empty where ranks have not made the same calls, as when one of them was killed at the beginning.
    """
    each = max((int(one.steps["n"].max(initial=1)) for one in run.ranks), default=1)
    tables = [_coarser(one.steps, each) for one in run.ranks]
    n = min(map(len, tables))
    tables = [table[:n] for table in tables]
    alike = all((table["driver"] == tables[0]["driver"]).all() for table in tables)
    return tables if alike else [table[:0] for table in tables]


def _coarser(table: Table, each: int) -> Table:
    """Add up entries until each has `each` calls, but for the last."""
    made: list[Step] = []
    for entry in table.tolist():
        step = Step(*entry)
        if made and made[-1].n < each:
            made[-1] = merged(made[-1], step)
        else:
            made.append(step)
    return np.array(made, dtype=STEP)


def timeline(run: Run, columns: int) -> Floats:
    """(ranks, columns, phases): the parts of each column's time; they add up to 1, or to less where nothing is known."""
    edges = np.linspace(0.0, run.seconds, columns + 1)
    parts = np.zeros((len(run.ranks), columns, N_PHASES))
    for k, (one, offset) in enumerate(zip(run.ranks, run.offsets_s, strict=True)):
        begin = one.about.clock_s + offset
        ends = begin + one.width_s * np.arange(len(one.seconds) + 1)
        ends[-1] = max(ends[-2], one.until + offset) if len(ends) > 1 else begin
        sums = np.vstack([np.zeros(N_PHASES), np.cumsum(one.seconds, axis=0)])
        for phase in range(N_PHASES):
            parts[k, :, phase] = np.diff(np.interp(edges, ends, sums[:, phase]))
    return parts * (columns / run.seconds) if run.seconds else parts


def _align(kept: list[Stored]) -> tuple[list[float], str]:
    """(ranks,) seconds to be added to each rank's clock to have that of the first one, and how that is known."""
    if kept[0].about.virtual:
        return [0.0] * len(kept), "virtual: one clock for all ranks"
    hosts = {one.about.host for one in kept}
    if len(hosts) == 1:
        return [0.0] * len(kept), "one host, so one clock"
    with_clock = [one for one in kept if one.clocks]
    references = {one.clocks[-1].reference for one in with_clock}
    if len(with_clock) < len(kept) or len(references) != 1:
        walls = [one.about.wall_s - one.about.clock_s for one in kept]
        return walls, "not compared: the hosts' own clocks are taken as they are"
    error = max(clock.error_s for one in kept for clock in one.clocks)
    drift = max(abs(one.clocks[-1].offset_s - one.clocks[0].offset_s) for one in kept)
    words = f"compared between hosts: within {1e6 * error:.0f} us; they went apart by {1e6 * drift:.0f} us at most"
    return [float(np.mean([clock.offset_s for clock in one.clocks])) for one in kept], words


def _ranks(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8:,} more" if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {named}"


DRIVERS = {
    Driver.SEARCH: ("search", "units", "parts"),
    Driver.ROWS: ("map_blocks", "rows", "rows"),
    Driver.MIGRATE: ("migrate", "rows", "rows"),
    Driver.TASKS: ("pool", "tasks", "steals"),
    Driver.EXCHANGE: ("exchange", "exchanges", "times"),
}  # in words: what is called, what is done, what moves
