"""What ranks tell the root after a round, and what the root tells them: typed records that travel as they are.   (pure)"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.balancing.estimate import Observation
from lb_mpi.balancing.migrate import ROWS, Plan, plan_of
from lb_mpi.balancing.trigger import Decision, Reason
from lb_mpi.graph import Floats

N_TOLD = 4  # observations in one report; of more, the heaviest are told

REPORT = np.dtype(
    [
        ("failed", "?"),
        ("mark", "<u4"),
        ("work", "<f8"),
        ("busy_s", "<f8"),
        ("ticks", "<f8"),
        ("spent_s", "<f8"),
        ("rows", "<i8"),
        ("bytes", "<i8"),
        ("helped", "<f8"),
        ("began_s", "<f8"),
        ("n_told", "<i4"),
        ("told", [("other", "<i4"), ("weight", "<f8"), ("log_ratio", "<f8")], (N_TOLD,)),
    ]
)
_VERDICT = [
    ("problem", "<i4"),
    ("reason", "<i4"),
    ("gain_s", "<f8"),
    ("imbalance_before", "<f8"),
    ("imbalance_after", "<f8"),
    ("rows", "<i8"),
    ("bytes", "<i8"),
]

Records = NDArray[np.void]


class Report(NamedTuple):
    """What one rank tells after a round."""

    failed: bool  # the user's function or rows are no good on this rank
    mark: int  # of what the rows look like
    work: float  # of its rows at home, units of work; NaN: not known
    busy_s: float  # seconds that it was occupied with rows: computing, resting (emulated), copying, serving messages
    ticks: float  # it measured meanwhile
    spent_s: float  # seconds for packing, sending, putting together
    rows: int  # lent
    bytes: int  # sent
    helped: float = 0.0  # work of rows that others computed because they were dry, less what it computed so for others
    began_s: float = math.nan  # from the end of the last round to the begin of this one; NaN: there was none
    told: tuple[Observation, ...] = ()  # of the worth of other ranks' ticks; the heaviest are told

    def fields(self) -> tuple[Any, ...]:
        """As a tuple for an array of dtype REPORT."""
        told = sorted(self.told, key=lambda seen: -seen.weight)[:N_TOLD]
        return *self[:-1], len(told), [*told, *_UNTOLD[len(told) :]]


_UNTOLD: list[tuple[Any, ...]] = [(0, 0.0, 0.0)] * N_TOLD


class Problem(IntEnum):
    """Why a round has come to nothing."""

    NONE = 0
    FAILED = 1  # a rank has failed
    DIFFER = 2  # the ranks' rows differ
    JUDGE = 3  # the root could not make sense of the reports


class Verdict(NamedTuple):
    """What all ranks are told."""

    problem: Problem
    decision: Decision
    imbalance_before: float  # with all rows at home; NaN: not known
    imbalance_after: float  # as it was in this round
    rows: int  # lent, on all ranks
    bytes: int  # sent, on all ranks
    worth: Floats  # (P,) of a tick of each rank, in units of work
    speeds: Floats  # (P,) units of work per second
    late: Floats  # (P,) work that each rank could have done before it came
    plan: Plan | None = None  # for the calls to come, where the root alone has made one

    @property
    def words(self) -> str:
        """Say what was decided, and what was done meanwhile."""
        lent = f"; {self.rows:,} rows were lent in this call" if self.rows else ""
        return self.decision.words + lent

    def record(self, room: int = 0) -> Records:
        """(1,) of the dtype that `verdict_dtype` gives; a plan of more than `room` transfers is left out."""
        answer = np.zeros(1, dtype=verdict_dtype(len(self.worth), room))
        numbers = (self.imbalance_before, self.imbalance_after, self.rows, self.bytes)
        answer["verdict"] = [(self.problem, *self.decision, *numbers)]
        for name in ("worth", "speeds", "late"):
            answer[name] = getattr(self, name)
        answer["n_transfers"] = 0 if self.plan is None else 1 + len(self.plan.amounts)
        if self.plan is not None and len(self.plan.amounts) <= room:
            answer["transfers"][0, :, : len(self.plan.amounts)] = self.plan.table()
        return answer


def verdict_dtype(size: int, room: int = 0) -> np.dtype[Any]:
    """Make the dtype of a Verdict for `size` ranks, and a plan of at most `room` transfers."""
    each: Sequence[Any] = [(name, "<f8", (size,)) for name in ("worth", "speeds", "late")]
    # Of transfers one more than there are: 0 is no plan.
    return np.dtype([("verdict", _VERDICT), *each, ("n_transfers", "<i8"), ("transfers", "<f8", (ROWS, room))])


def left_out(record: Records) -> int:
    """Count the transfers of a plan for which there was no room: it travels by itself.  0: there is none such."""
    n, room = int(record["n_transfers"][0]) - 1, record["transfers"].shape[2]
    return n if n > room else 0


def verdict_of(record: Records) -> Verdict:
    """Read what `Verdict.record` has made, without a plan that was left out."""
    problem, reason, gain_s, *rest = record["verdict"][0].tolist()
    vectors = (np.array(record[name][0]) for name in ("worth", "speeds", "late"))
    n = int(record["n_transfers"][0]) - 1
    plan = None if n < 0 or left_out(record) else plan_of(record["transfers"][0, :, :n].copy())
    verdict = Verdict(Problem(problem), Decision(Reason(reason), gain_s), *rest, *vectors)
    return verdict._replace(plan=plan)
