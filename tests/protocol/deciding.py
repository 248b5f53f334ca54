"""Decisions of all ranks together, without messages."""

from collections.abc import Sequence
from typing import Any

from lb_mpi.balancing.deciding import Decided, RankReport
from lb_mpi.reduction import reduced
from lb_mpi.virtual import Network

QUICK = Network((1e-7, 1e-7))


def decided(deciders: Sequence[Any], reports: Sequence[RankReport]) -> list[Decided]:
    """The decision of each rank after these reports, which is the same."""
    all_ranks = reduced([decider.report(report) for decider, report in zip(deciders, reports, strict=True)])
    decisions = [decider.decide(all_ranks) for decider in deciders]
    assert len({*map(repr, decisions)}) == 1
    return decisions
