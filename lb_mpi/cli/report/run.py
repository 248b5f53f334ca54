"""A recorded run: the records of all its ranks on one clock, with their numbers and words.   (pure)

Useful time is the time in the user's work, including the rests of an emulated slow rank (a real slow rank would compute).
The metrics of the POP project (`lb_mpi.metrics.Efficiency`) are of the longest time that a rank spent in lb_mpi.  They count
seconds, regardless of a rank's speed.  The lower bound also counts speeds: work / sum of the ranks' speeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy

from lb_mpi.checks import show
from lb_mpi.graph import Floats
from lb_mpi.metrics import Efficiency
from lb_mpi.record.events import Driver, Phase, Way
from lb_mpi.record.record import N_PHASES, Rows, Stored, coarser, read
from lb_mpi.table import Table, counted, named_ranks

USEFUL = (Phase.OWN, Phase.FOREIGN, Phase.RESTING)  # while an emulated slow rank rests, a real one would compute
DRIVERS = {
    Driver.SEARCH: ("search", "units", "parts"),
    Driver.ROWS: ("map_rows", "rows", "rows"),
    Driver.MIGRATE: ("migrate", "rows", "rows"),
    Driver.TASKS: ("pool", "tasks", "steals"),
    Driver.EXCHANGE: ("exchange", "exchanges", "times"),
    Driver.REBALANCE: ("rebalance", "rebalancings", "vertices"),
}  # words for the calls, the work done, the work moved
NAMES = {
    Phase.OWN: "own work",
    Phase.FOREIGN: "work for others",
    Phase.PROTOCOL: "protocol",
    Phase.PACKING: "packing",
    Phase.WAITING: "waiting",
    Phase.RESTING: "resting (slow)",
    Phase.OUTSIDE: "outside lb_mpi",
}
NO_CORE, NOTICED = "at work without a core", 0.01
SHORT = {**NAMES, Phase.OWN: "own", Phase.FOREIGN: "others'", Phase.RESTING: "resting", Phase.OUTSIDE: "outside"}
WAYS = {
    Way.DRAFT: ("parts of work, by drafts", "parts"),
    Way.LOAN: ("rows lent", "rows"),
    Way.STEAL: ("tasks stolen", "tasks"),
    Way.MOVE: ("vertices given away", "vertices"),
}  # words for what has moved, and its unit


SKEW_S = 60.0  # between the clocks of two hosts


class Run(NamedTuple):
    """The records of a run."""

    ranks: list[Stored]  # ordered by host, and by rank on each host
    size: int  # number of ranks of the run
    offsets_s: list[float]  # of each in `ranks`: added to its times, gives those of the page
    seconds: float  # from the start of the first record to the end of the last
    clock: str  # in words: how the clocks were aligned
    notes: list[str]  # texts about missing or invalid records

    @property
    def totals(self) -> Floats:
        """Return (ranks, phases) seconds."""
        return np.array([one.seconds.sum(axis=0) for one in self.ranks])

    @property
    def hosts(self) -> list[str]:
        """Return the hosts, in the order of `ranks`."""
        return list(dict.fromkeys(one.about.host for one in self.ranks))


def gather(folder: Path) -> Run:
    """Read the record of a run; ValueError if there is no folder, or no file can be read; OSError for the folder."""
    if not folder.is_dir():
        raise ValueError(f"FOLDER = {show(str(folder))}: expected a folder made with LB_MPI_RECORD or `run --record`")
    files = sorted(path for path in folder.iterdir() if path.suffix == ".lbrec")
    try:
        return assemble((path.name, path.read_bytes()) for path in files)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None


def assemble(files: Iterable[tuple[str, bytes]]) -> Run:
    """Combine the files of a folder, as (name, content); unreadable files are noted.  ValueError if none can be read."""
    found: list[Stored] = []
    notes: list[str] = []
    for name, data in files:
        try:
            found.append(read(data))
        except ValueError as error:
            notes.append(f"{name}: {error}")
    if not found:
        raise ValueError(notes[0] if notes else "no record in this folder: expected files rank*.lbrec")
    newest = max((one.about for one in found), key=lambda about: about.wall_s)
    began_s = {host: process_s for process_s, host in sorted((one.about.process_s, one.about.host) for one in found)}
    latest_s = max(began_s.values()) - SKEW_S
    kept = [
        one for one in found
        if (one.about.size, one.about.virtual) == (newest.size, newest.virtual)
        and one.about.wall_s >= max(began_s[one.about.host], latest_s)  # all processes of a run begin before any record
    ]  # fmt: skip
    if len(kept) < len(found):
        notes.append(f"left out {counted(len(found) - len(kept), 'record')} of another run")
    hosts: dict[str, int] = {}
    for one in sorted(kept, key=lambda one: one.about.rank):
        hosts.setdefault(one.about.host, len(hosts))
    kept.sort(key=lambda one: (hosts[one.about.host], one.about.rank))
    missing = sorted(set(range(newest.size)) - {one.about.rank for one in kept})
    if missing:
        notes.append(f"no record of {named_ranks(missing)}")
    killed = sorted(one.about.rank for one in kept if not one.ended)
    if killed:
        why = "killed, still running, or unable to write (a full disk)"
        notes.append(f"{named_ranks(killed)}: the record breaks off: {why}")
    unfinished = sorted(one.about.rank for one in kept if one.under_way)
    if unfinished:
        notes.append(
            f"{named_ranks(unfinished)}: the last call has not ended, or a plan of distribute was not closed; its work is "
            "not part of the ideal time"
        )
    offsets, clock = _align(kept)
    began = min(one.about.clock_s + offset for one, offset in zip(kept, offsets, strict=True))
    ended = max(one.until + offset for one, offset in zip(kept, offsets, strict=True))
    return Run(kept, newest.size, [offset - began for offset in offsets], ended - began, clock, notes)


def steps(run: Run) -> Rows:
    """Return (ranks, calls) steps, merged if kept in different numbers; (ranks, 0) if the ranks made different calls."""
    each = max((int(one.steps["n"].max(initial=1)) for one in run.ranks), default=1)
    tables = [coarser(one.steps, each) for one in run.ranks]
    n = min(map(len, tables))
    found = np.stack([table[:n] for table in tables])
    return found if (found["driver"] == found[0]["driver"]).all() else found[:, :0]


def spans(run: Run, calls: Rows) -> Floats:
    """Return (calls,) seconds from the first rank's start of each of the (ranks, calls) steps to the last rank's end."""
    offsets = np.array(run.offsets_s)[:, None]
    seconds: Floats = (calls["ended"] + offsets).max(axis=0) - (calls["began"] + offsets).min(axis=0)
    return seconds


def timeline(run: Run, columns: int) -> Floats:
    """Return (ranks, columns, phases) fractions of each column's time; they add up to 1, or less if some time is unknown."""
    edges = np.linspace(0.0, run.seconds, columns + 1)
    ranks = zip(run.ranks, run.offsets_s, strict=True)
    parts: Floats = np.diff([spent_by(one, edges - offset) for one, offset in ranks], axis=1)
    return parts * (columns / run.seconds) if run.seconds > 0.0 else parts


def spent_by(one: Stored, times: Floats) -> Floats:
    """Return the (T, phases) seconds that a rank has spent in each phase by the (T,) times of its own clock."""
    ends = one.about.clock_s + one.width_s * np.arange(len(one.seconds) + 1)
    if len(ends) > 1:
        ends[-1] = max(ends[-2], one.until)
    sums = np.cumsum(np.vstack([np.zeros(N_PHASES), one.seconds]), axis=0)
    return np.stack([np.interp(times, ends, phase) for phase in sums.T], axis=1)


def worked_s(one: Stored, steps: Rows) -> float:
    """Return a rank's seconds at work in these steps, with waits for a core, and the rests of an emulated slow rank."""
    spent = spent_by(one, steps["ended"]) - spent_by(one, steps["began"])
    return float(spent[:, list(USEFUL)].sum())


def _align(kept: list[Stored]) -> tuple[list[float], str]:
    """Return (ranks,) seconds to be added to each rank's clock to get the first rank's, and the method, in words."""
    if kept[0].about.virtual:
        return [0.0] * len(kept), "virtual: one clock for all ranks"
    hosts = {one.about.host for one in kept}
    if len(hosts) == 1:
        return [0.0] * len(kept), "one host, so one clock"
    with_clock = [one for one in kept if one.clocks]
    references = {one.clocks[-1].reference for one in with_clock}
    if len(with_clock) < len(kept) or len(references) != 1:
        walls = [one.about.wall_s - one.about.clock_s for one in kept]
        return walls, "not compared: each host's own clock is used as it is"
    error = max(clock.error_s for one in kept for clock in one.clocks)
    drift = max(abs(one.clocks[-1].offset_s - one.clocks[0].offset_s) for one in kept)
    words = f"compared between hosts: within {1e6 * error:.0f} us; they drifted by at most {1e6 * drift:.0f} us"
    return [float(np.mean([clock.offset_s for clock in one.clocks])) for one in kept], words


class Prediction(NamedTuple):
    """The predicted time of one way to run the program."""

    what: str
    predicted_s: float
    spread_s: float  # from the smallest to the largest prediction
    change: str  # the lines to change; "": none to show


class Advice(NamedTuple):
    """All advice on one driver's part of the run."""

    driver: str
    measured_s: float
    conclusion: str  # in a line
    doubt: str  # why its predictions mean nothing; "": they do
    ways: list[Prediction]  # the first is the recorded run; the others, the fastest first
    notes: list[str]  # on its reliability, in words

    def to_json(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        ways = [way._asdict() for way in self.ways]
        return {
            "driver": self.driver, "measured_s": self.measured_s, "conclusion": self.conclusion,
            "reliable": not self.doubt, "ways": ways, "notes": self.notes,
        }  # fmt: skip

    @property
    def words(self) -> str:
        """The conclusion, with the driver."""
        return f"{self.driver}: {self.conclusion}"

    def table(self) -> Table:
        """Return the ways as a table."""
        cells = [
            (way.what, f"{way.predicted_s:.3f} s", _part(100.0 * way.spread_s, way.predicted_s, ".1f", " %"),
             _part(way.predicted_s, self.measured_s, ".2f", "x"), way.change)
            for way in self.ways
        ]  # fmt: skip
        header = (f"{self.driver}: {self.measured_s:.3f} s", "predicted", "spread", "ratio", "change")
        return Table(header, cells, words=(0, 4))


def _part(one: float, whole: float, digits: str, unit: str) -> str:
    return f"{one / whole:{digits}}{unit}" if whole else ""


class Headline(NamedTuple):
    """A summary of a run."""

    seconds: float  # from the first record's start to the last one's end
    inside_s: float  # the longest time that a rank spent in lb_mpi
    bound_s: float  # the least time for this work on this hardware; NaN: no call has ended
    ratio: float  # inside_s / bound_s; NaN: no call has ended, or no work was done
    parallel: float  # parallel efficiency
    balance: float  # load balance
    communication: float  # communication efficiency
    gain: float  # predicted time without balancing / this run's time; NaN: unknown
    words: str  # the biggest loss
    next_step: str


def headline(run: Run, gain: float = math.nan, doubt: str = "", advice: str = "") -> Headline:
    """Summarise a run.

    gain, doubt : the predicted time without balancing / its time, and why it is unknown (see
    `lb_mpi.cli.advice.gain`); advice : the best change, and its gain, in words; said if nothing simpler is known.
    """
    totals = run.totals
    inside = totals.sum(axis=1) - totals[:, Phase.OUTSIDE]
    useful = totals[:, list(USEFUL)].sum(axis=1)
    inside_s, bound_s = float(inside.max()), lower_bound(run)
    words, cause = _words(run, totals, inside)
    head = Headline(
        seconds=run.seconds,
        inside_s=inside_s,
        bound_s=bound_s,
        ratio=inside_s / bound_s if bound_s else math.nan,
        **Efficiency.of(useful, inside_s)._asdict(),
        gain=gain,
        words=words,
        next_step="",
    )
    return head if cause is None else head._replace(next_step=_next_step(run, cause, head, doubt, advice))


def lower_bound(run: Run) -> float:
    """Return the ideal time of the work of all calls, on all ranks together, at their speeds; NaN: no call has ended."""
    if not any(len(one.steps) for one in run.ranks):
        return math.nan
    calls = steps(run)
    if calls.size:
        return float(bounds(calls).sum())
    work = speed = 0.0
    for one in run.ranks:  # ranks made different calls: treat all as one
        useful, speeds = one.steps["useful_s"].astype(float), one.steps["speed"].astype(float)
        work += float((useful * speeds).sum())
        speed += float(speeds.mean()) if len(speeds) else 1.0
    return work / speed if speed else 0.0


def bounds(calls: Rows) -> Floats:
    """Return (calls,) ideal time of each call, from the (ranks, calls) steps."""
    useful, speeds = calls["useful_s"].astype(np.float64), calls["speed"].astype(np.float64)
    return np.asarray((useful * speeds).sum(axis=0) / speeds.sum(axis=0))


def spent(run: Run) -> dict[str, float]:
    """Return the fraction of all ranks' recorded time in each phase and without a core, by name; they add up to 1.

    The time at work without a core is not part of the work; it is that of the calls that have ended.
    """
    totals = run.totals
    sums = {NAMES[phase]: float(totals[:, phase].sum()) for phase in Phase}
    work_s = sum(worked_s(one, one.steps) for one in run.ranks)
    useful_s = sum(float(one.steps["useful_s"].sum()) for one in run.ranks)
    computing = [NAMES[phase] for phase in (Phase.OWN, Phase.FOREIGN)]
    computing_s = sum(sums[name] for name in computing)
    away_s = min(work_s - useful_s, computing_s)
    if away_s > NOTICED * work_s:  # clocks are no more exact than that
        sums |= {name: sums[name] * (1.0 - away_s / computing_s) for name in computing} | {NO_CORE: away_s}
    return {name: one / (float(totals.sum()) or 1.0) for name, one in sums.items()}


def _words(run: Run, totals: Floats, inside: Floats) -> tuple[str, Phase | None]:
    """Return the biggest loss in words, and its phase: OWN if ranks had no core, None if nothing was done."""
    if not inside.sum():
        return "Nothing was done in lb_mpi.", None
    parts = spent(run)
    lost = {NAMES[phase]: phase for phase in (Phase.WAITING, Phase.PROTOCOL, Phase.PACKING)}
    name = max([*lost, NO_CORE], key=lambda one: parts.get(one, 0.0))
    if name == NO_CORE:
        return (
            f"Biggest loss: ranks were at work but had no core, {parts[name]:.1%} of all ranks' time. Either there are more "
            "ranks than cores, or other programs use this machine."
        ), Phase.OWN
    share = totals[:, lost[name]] / np.maximum(totals.sum(axis=1), 1e-9)
    rank = run.ranks[int(share.argmax())].about
    where = f", most on rank {rank.rank} ({rank.host}): {share.max():.0%} of its time" if len(run.ranks) > 1 else ""
    return f"Biggest loss: {name}, {parts[name]:.1%} of all ranks' time{where}.", lost[name]


def of_ranks(recorded: int, size: int) -> str:
    """Return "4 ranks", or which part of the ranks the numbers are of."""
    return counted(size, "rank") if recorded == size else f"of {recorded} of {counted(size, 'rank')} only"


def times(gain: float) -> str:
    """Write how many times as fast a run was; NaN: unknown."""
    return "-" if math.isnan(gain) else f"{gain:.{1 if gain >= 0.995 else 2}f}"


GOOD, SHORT_S = 1.1, 0.5  # time / ideal time with nothing left to gain; a run so short that its start and end matter
NEXT_STEPS = {
    (Driver.TASKS, Phase.WAITING): "make the largest tasks smaller, or pass costs=, so that the largest start first.",
    (Driver.TASKS, Phase.PROTOCOL): "make the tasks larger: they are short compared with the messages that they need.",
    (Driver.ROWS, Phase.PROTOCOL): "give each call more to compute, or balance more rarely (Balancer(every=...)).",
    (Driver.EXCHANGE, Phase.WAITING): "compute more between two exchanges: ranks wait for messages, not for slow ranks.",
    (Driver.SEARCH, Phase.WAITING): "try a larger problem, or a lower threshold=, so that idle ranks find work sooner.",
    (Driver.SEARCH, Phase.PACKING): "let split write less for each part: packing is what costs most.",
    (Driver.SEARCH, Phase.PROTOCOL): "raise threshold=, so that only larger parts of the work are moved.",
}  # by the driver with the longest calls, and the biggest loss


def _next_step(run: Run, cause: Phase, head: Headline, doubt: str, advice: str) -> str:
    """Return what to do next; `doubt` and `advice` as for `headline`."""
    outside = float(run.totals[:, Phase.OUTSIDE].sum() / run.totals.sum())
    if math.isnan(head.bound_s):
        return ""
    if head.ratio < GOOD:
        return f"nothing: the time in lb_mpi is only {max(0.0, head.ratio - 1.0):.0%} longer than the ideal time."
    if cause is Phase.OWN:
        return "repeat the run on a quiet machine, with no more ranks than cores."
    if doubt:
        return f"let each call compute more, or record the run on a quiet machine; this record predicts nothing: {doubt}."
    if head.inside_s < SHORT_S and math.isnan(head.gain):
        return f"try a larger problem: {head.inside_s:.2g} s is so short that start and end dominate."
    if outside > 0.5:
        return (
            f"let lb_mpi have more of the work: {outside:.0%} of the time is outside of it, in code of the program that it "
            "can't balance (or in other calls of MPI)."
        )
    if head.gain < 0.95:
        return f"do without balancing: that is predicted to take {head.gain:.2f} times as long as this run."
    spans = dict.fromkeys(Driver, 0.0)
    for one in run.ranks:
        for driver, began, ended, between in one.steps[["driver", "began", "ended", "between_s"]].tolist():
            spans[Driver(driver)] += ended - began - between
    driver = max(spans, key=lambda one: spans[one])
    if driver is Driver.EXCHANGE and head.communication > 0.5:  # most of the time a rank was at work: the others wait for it
        cause = Phase.OWN
    return NEXT_STEPS.get((driver, cause)) or advice or "nothing is known that would help."


def matrix(run: Run, way: Way) -> Any:
    """Return moved work, sparse, (size, size), from the row's rank to the column's: in parts, rows, tasks or vertices."""
    rows, columns, amounts = [], [], []
    for one in run.ranks:
        flows = one.flows[(one.flows["way"] == way) & (one.flows["other"] >= 0) & (one.flows["other"] < run.size)]
        mine, others = np.full(len(flows), one.about.rank), flows["other"]
        givers, takers = (mine, others) if way in (Way.LOAN, Way.MOVE) else (others, mine)
        rows.append(givers)
        columns.append(takers)
        amounts.append(flows["amount"])
    pairs = np.concatenate(rows), np.concatenate(columns)
    return scipy.sparse.csr_array((np.concatenate(amounts), pairs), shape=(run.size, run.size))
