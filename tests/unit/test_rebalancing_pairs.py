"""A rank's side of the choice, pair by pair: two passes, what it knows of its neighbours, and the room that is left."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from lb_mpi.actor import Story
from lb_mpi.graph import mesh
from lb_mpi.rebalancing.jobs import Ask, Choose, run
from lb_mpi.rebalancing.messages import Links
from lb_mpi.rebalancing.pairs import STAY, choose
from lb_mpi.virtual import Network, Stories, run_together
from tests.unit.test_rebalancing import shards_of

SPEEDS, FLOWS, BOUND = (1.0, 3.0, 2.0), {(0, 1): -14.0, (1, 2): 0.0}, 70.0
LOADS = (40.0, 64.0, 40.0)


def flow_of(rank: int, other: int) -> float:
    return FLOWS[rank, other] if rank < other else -FLOWS[other, rank]


class Recorded(Stories):
    """Does jobs, and notes them with their outcomes; half of the flow is left after the first pass."""

    def __init__(self, ranks: list[Story]) -> None:
        super().__init__(ranks, Network())
        self.log = defaultdict[int, list[tuple[Ask | Choose, Any]]](list)

    def end(self, rank: int, job: Ask | Choose) -> Any:
        outcome = run(job)
        if isinstance(job, Choose) and not self.log[rank]:
            outcome = run(job._replace(give=0.5 * job.give))
            outcome = outcome._replace(left=job.give - outcome.given)
            outcome.reply[1:2].view(float)[0] = -outcome.left
        self.log[rank].append((job, outcome))
        return outcome


def chosen_by_all() -> dict[int, list[tuple[Ask | Choose, Any]]]:
    """Return the jobs of three ranks in a row, with their outcomes."""
    homes, ranks = np.repeat([0, 1, 2], [40, 64, 40]), []
    for rank, shard in enumerate(shards_of(mesh(18, 8), homes, 3)):
        beside = [other for other in (rank - 1, rank + 1) if 0 <= other < 3]
        flows = {other: flow_of(rank, other) for other in beside}
        links = Links(flows, {other: SPEEDS[other] for other in beside}, SPEEDS[rank], LOADS[rank], BOUND)
        ranks.append(Story(choose(rank, shard, homes[shard.numbers], links)))
    run_together(world := Recorded(ranks), ranks)
    return world.log


def test_a_pair_with_a_flow_meets_twice_and_one_without_meets_once():
    log = chosen_by_all()
    seen = [(job.home.rank, job.home.other) for rank in range(3) for job, _ in log[rank] if isinstance(job, Choose)]
    assert sorted(seen) == [(1, 0), (1, 0), (1, 2)]
    asked = [(job.home.rank, job.home.other) for rank in range(3) for job, _ in log[rank] if isinstance(job, Ask)]
    assert sorted(asked) == [(0, 1), (0, 1), (2, 1)]
    assert len({(job.seed, job.home.other) for job, _ in log[1]}) == len({job.seed for job, _ in log[1]}) == 2
    assert all(job.stay == pytest.approx(STAY) for job, _ in log[1])  # edges and vertices of weight 1


def test_the_room_of_a_rank_is_what_its_load_and_the_flows_that_are_left_leave():
    log = chosen_by_all()
    given, left = defaultdict[int, float](float), {pair: flow for one in FLOWS for pair, flow in (
        (one, FLOWS[one]), (one[::-1], -FLOWS[one])
    )}  # fmt: skip
    rooms = defaultdict(list)
    for job, chosen in log[1]:
        other = job.home.other
        for rank in (1, other):
            flows = sum(flow for (one, _), flow in left.items() if one == rank)
            rooms[rank].append(0.5 * (BOUND - (LOADS[rank] - given[rank]) + flows))
        given[1], given[other] = given[1] + chosen.given, given[other] - chosen.given
        left[1, other], left[other, 1] = chosen.left, -chosen.left
    for rank in range(3):
        assert [job.room for job, _ in log[rank]] == pytest.approx(rooms[rank])
    assert given[1] > 0.0


def test_a_rank_knows_the_new_labels_of_its_ghosts():
    log = chosen_by_all()
    chosen, asked = log[1], log[0]
    first = next(outcome for job, outcome in chosen if job.home.other == 0)
    home = asked[1][0].home  # of the second pass
    theirs = next(job for job, _ in chosen if job.home.other == 0).home
    assert (home.labels[home.start : home.stop] == first.labels[theirs.sent]).all()
    assert (first.labels[theirs.sent] == 0).any()
