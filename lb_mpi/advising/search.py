"""A search, with and without balancing.   (pure)

The tree isn't recorded: which nodes hang on which would be as large as the search.  So two models stand in for it.

- With balancing: synthetic trees (`lb_mpi.problems.uts`) of three kinds, as much work as was recorded, on ranks of the
  recorded speeds, through `lb_mpi.searching.simulate`.  The spread between the kinds says how much the shape matters.
- Without balancing: each rank keeps the first part that it was dealt.  A rank drafts when it has nothing left, so all that
  it has at a time comes from one part.  The record tells when each part came from whom, and how long each rank worked
  between.  So the work of each first part, wherever it was done, adds up.  Another run deals other first parts: the spread
  is that between these parts on other ranks (not the first rank's, which keeps what nobody has asked for).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lb_mpi.advising.advice import (
    Advice,
    Floats,
    Line,
    Progress,
    Worked,
    beyond,
    busy_notes,
    calls,
    core_share,
    machines,
    model_note,
    over_seeds,
    ranked,
    settings,
)
from lb_mpi.problems.uts import Tree, UnbalancedTreeSearch
from lb_mpi.record.events import Driver, Way
from lb_mpi.record.record import Stored
from lb_mpi.report.run import Run
from lb_mpi.searching.guard import Options
from lb_mpi.searching.simulate import search

QUANTUM_S, QUANTA = 50e-6, 4_000  # between two looks at messages; of a rank, at most
DEALS = 100  # of first parts, by chance
MOST_RANKS = 256  # that are played: each has a tree of its own
TREES = (
    Tree("geometric", "fixed", depth=8, branching=4, seed=19),
    Tree("binomial", branching=500, q=0.1245, m=8, seed=42),
    Tree("geometric", "linear", depth=14, branching=4, seed=34),
)


class Recorded(NamedTuple):
    """What a run tells of its searches."""

    units: Floats  # (P,) that each rank did
    core_share: Floats  # (P,) of a core that it had while at work
    speeds: Floats  # (P,) units per second
    how: dict[str, object]  # balance, threshold, pause_s, route
    measured_s: float
    shares: Floats | None  # (P,) units that hang on the first part of each rank; None: can't be told

    @property
    def balanced(self) -> bool:
        """Work was moved when ranks ran dry."""
        return bool(self.how.get("balance", True))


def advise(run: Run, progress: Progress, *, quiet: bool = False) -> Advice | None:
    """Advise on the searches of a run; None where there were none.  `quiet`: as on a quiet machine."""
    ranks = ranked(run)
    recorded = _recorded(run, ranks, quiet=quiet)
    if recorded is None:
        return None
    alone_s, chance_s = (math.nan, math.nan) if recorded.shares is None else alone(recorded.shares, recorded.speeds)
    played = len(ranks) <= MOST_RANKS
    progress("search: balancing")
    balanced_s, spread_s = over_trees(recorded, recorded.speeds) if played else (math.nan, math.nan)
    bound_s = float(recorded.units.sum() / recorded.speeds.sum())
    model_s = balanced_s if recorded.balanced else alone_s
    extra_s = beyond(recorded.measured_s, model_s, quiet=quiet)
    dealt_s = chance_s if recorded.balanced else math.nan
    without = Line("no balancing", alone_s, dealt_s, change="lb_mpi.search(comm, problem, balance=False)")
    with_it = Line("balancing", balanced_s, spread_s, change="lb_mpi.search(comm, problem)")
    first, second = (with_it, without) if recorded.balanced else (without, with_it)
    lines = [
        first._replace(what=f"as recorded: {first.what}", measured_s=recorded.measured_s, change=""),
        second._replace(predicted_s=second.predicted_s + extra_s),
        Line("perfect: all ranks do nothing but work", bound_s, 0.0),
    ]
    for change in machines(ranks, recorded.speeds) if played else []:
        progress(f"search: {change.what}")
        predicted_s, spread_s = over_trees(recorded, recorded.speeds[change.ranks] * np.array(change.factors))
        lines.append(Line(f"balancing, {change.what}", predicted_s + extra_s, spread_s, change=change.words))
    notes = [
        model_note(model_s, recorded.measured_s, extra_s, quiet=quiet),
        *busy_notes(recorded.core_share),
        "balancing: three kinds of trees stand in for the one that was searched; the spread is that between them",
    ]
    if recorded.shares is None:
        notes.append(
            "no balancing: first parts can't be followed through several searches, or more drafts than a record keeps"
        )
    elif recorded.balanced:
        notes.append(
            "no balancing: with the first parts that were dealt in this run; another run deals others, the spread is that "
            "between deals of these"
        )
    if not played:
        notes.append(f"more than {MOST_RANKS} ranks: balancing isn't replayed; it needs at least {bound_s:.3f} s")
    return Advice("search", lines, notes)


def alone(shares: Floats, speeds: Floats) -> tuple[float, float]:
    """(seconds, greatest - least) when each rank does its share of units, and when all but rank 0 are dealt theirs anew."""
    first, others = shares[:1], shares[1:]
    rng = np.random.default_rng(0)
    deals = [others] + [rng.permutation(others) for _ in range(DEALS)]
    seconds = [float((np.concatenate([first, dealt]) / speeds).max()) for dealt in deals]
    return seconds[0], max(seconds) - min(seconds)


def over_trees(recorded: Recorded, speeds: Floats) -> tuple[float, float]:
    """(median, greatest - least) of the seconds of a balanced search on ranks of these speeds."""
    return over_seeds(lambda kind: _play(recorded, speeds, kind))


def _play(recorded: Recorded, speeds: Floats, kind: int) -> float:
    """Seconds on the virtual clock, with a tree of one kind."""
    units, relative = float(recorded.units.sum()), speeds / speeds.max()
    nodes = search([UnbalancedTreeSearch(TREES[kind])], unit_s=1.0, quantum_s=1e9).value.nodes
    unit_s = units / nodes / float(speeds.max())
    quantum_s = max(QUANTUM_S, units / float(speeds.sum()) / QUANTA)
    pause = recorded.how.get("pause_s")
    pause_s = (float(pause[0]), float(pause[1])) if isinstance(pause, list) and len(pause) == 2 else Options().pause_s
    route = recorded.how.get("route")
    options = Options(threshold=4.0, pause_s=pause_s, seed=kind, route=None if route is None else str(route))
    problems = [UnbalancedTreeSearch(TREES[kind]) for _ in speeds]
    found = search(problems, speeds=relative.tolist(), unit_s=unit_s, quantum_s=quantum_s, options=options, seed=kind)
    return found.virtual_seconds


def _recorded(run: Run, ranks: list[Stored], *, quiet: bool) -> Recorded | None:
    tables = calls(ranks, Driver.SEARCH)
    if not len(tables[0]):
        return None
    units = np.array([float(table["units"].sum()) for table in tables])
    useful = np.array([float(table["useful_s"].sum()) for table in tables])
    own = np.array([float(np.median(table["speed"])) for table in tables])  # emulated
    if not units.sum() > 0.0 or not useful.sum() > 0.0:
        raise ValueError("search: no unit of work was done in the record: expected some")
    typical = float(units.sum() / (useful * own).sum())
    share = core_share(ranks, tables, quiet=quiet)
    busy = (units > 0.0) & np.isfinite(share)
    others = float(np.nanmean(share)) if busy.any() else 1.0
    speeds = np.where(busy, units / np.where(busy, useful, 1.0) * share, own * typical * others)
    took_s = np.max([table["ended"] for table in tables], axis=0) - np.min([table["began"] for table in tables], axis=0)
    how = settings(ranks, "search")
    shares = _shares(run, ranks, units) if len(tables[0]) == 1 and int(tables[0]["n"][0]) == 1 else None
    return Recorded(units, share, speeds, how, float(took_s.sum()), shares)


def _shares(run: Run, ranks: list[Stored], units: Floats) -> Floats | None:
    """(P,) units that hang on the first part of each rank; None when not all drafts are kept."""
    if any(one.flows["n"].sum() > len(one.moves) for one in ranks):
        return None
    offsets = {one.about.rank: offset for one, offset in zip(run.ranks, run.offsets_s, strict=True)}
    came = sorted(
        (float(move["ended"]) + offsets[rank], rank, int(move["other"]))
        for rank, one in enumerate(ranks)
        for move in one.moves[(one.moves["way"] == Way.DRAFT) & (one.moves["amount"] > 0.0)]
    )
    if any(not 0 <= other < len(ranks) for _, _, other in came):
        return None
    done = [_Work(one, offsets[rank], float(units[rank])) for rank, one in enumerate(ranks)]
    origin: list[int | None] = [0, *[None] * (len(ranks) - 1)]
    since = [-math.inf] * len(ranks)
    shares = np.zeros(len(ranks))
    for at, rank, other in came:
        shares[origin[rank] or 0] += done[rank].between(since[rank], at)
        origin[rank] = rank if origin[rank] is None else origin[other] or 0
        since[rank] = at
    for rank, first in enumerate(origin):
        shares[first or 0] += done[rank].between(since[rank], math.inf)
    return shares


class _Work:
    """Units that a rank has done by a time, by the seconds in which it worked."""

    def __init__(self, one: Stored, offset_s: float, units: float) -> None:
        steps = one.steps[one.steps["driver"] == Driver.SEARCH]
        self._worked, self._offset_s = Worked(one), offset_s
        self._began, self._ended = float(steps["began"][0]), float(steps["ended"][0])
        whole_s = self._worked.within(steps)
        self._rate = units / whole_s if whole_s > 0.0 else 0.0

    def between(self, begin: float, end: float) -> float:
        """Units done between two times on the clock of all ranks."""
        times = np.clip([begin - self._offset_s, end - self._offset_s], self._began, self._ended)
        return self._rate * self._worked.between(*times.tolist())
