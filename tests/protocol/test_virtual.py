"""The virtual carrier: order, links, jobs and ends, with a toy actor; and what all protocols' actors have in common."""

import math
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from lb_mpi.actor import Actor
from lb_mpi.balancing.round import Round, RoundKind, RoundMessage
from lb_mpi.knowledge import RankKnowledge, Timing
from lb_mpi.pooling.stealer import EndMap, Stealer
from lb_mpi.searching.drafting import Kind, Message
from lb_mpi.searching.guard import Options
from lb_mpi.searching.searcher import Reason, Searcher
from lb_mpi.virtual import Network, Raised, Virtual
from tests.pile import Pile


class Player:
    """Rank 0 sends numbers to rank 1 while it has jobs; rank 1 notes what comes, and when."""

    def __init__(self, rank: int, jobs: int) -> None:
        self.rank, self.left = rank, jobs
        self.received: list[tuple[float, list[Any]]] = []
        self.results: list[object] = []
        self.wake_at = math.inf

    @property
    def over(self) -> bool:
        return not self.left

    @property
    def job(self) -> str | None:
        return "work" if self.left else None

    def turn(self, now: float, arrived: Iterable[tuple[int, Any]]) -> list[tuple[int, Any]]:
        self.received.append((now, list(arrived)))
        return [(1, self.left)] if self.rank == 0 and self.left else []

    def done(self, job: str, result: object) -> list[tuple[int, Any]]:
        self.left -= 1
        self.results.append(result)
        return []

    def fail(self, error: BaseException) -> list[tuple[int, Any]]:
        self.left = 0
        self.results.append(error)
        return [(0, "failed")]


class Game(Virtual[Any, str]):
    """A job takes as many seconds as its rank has, and fails on rank 2."""

    seconds = (1.0, 2.5, 1.0)

    def begin(self, rank: int, job: str) -> float:
        return self.seconds[rank]

    def end(self, rank: int, job: str) -> str:
        if rank == 2:
            raise Raised(ValueError("no"))
        return f"{job} on {rank}"

    def n_bytes(self, message: Any) -> int:
        return 10


def play(network: Network, *jobs: int, host_of: tuple[int, ...] = (), seed: int = 0) -> tuple[Game, list[Player]]:
    players = [Player(rank, n) for rank, n in enumerate(jobs)]
    game = Game(players, network, random.Random(seed), host_of)
    for rank in range(len(jobs)):
        game.start(rank)
    while game.step():
        pass
    return game, players


def test_a_rank_in_a_job_receives_what_has_arrived_at_its_end():
    game, (zero, one) = play(Network((0.25, 0.25)), 3, 1)
    assert [now for now, _ in zero.received] == [0.0, 1.0, 2.0, 3.0]
    assert one.received == [(0.0, []), (2.5, [(0, 3), (0, 2), (0, 1)])]
    assert one.results == ["work on 1"]
    assert (game.sent, game.ended_s, game.under_way) == ([3, 0], [3.0, 2.5], {})


def test_turns_wait_for_shared_cores_and_jobs_do_not():
    shared = Network((0.25, 0.25), n_cores=1, turn_s=0.5)
    game, (zero, one) = play(shared, 1, 1)
    assert zero.received == [(0.5, []), (2.0, [])]
    assert one.received == [(1.0, [(0, 1)]), (4.0, [])]  # after the turn of rank 0, and at the end of its own job
    assert game.ended_s == [2.0, 4.0]
    _, (zero, one) = play(shared._replace(n_cores=2), 1, 1)
    assert (zero.received, one.received) == ([(0.5, []), (2.0, [])], [(0.5, []), (3.5, [(0, 1)])])


def test_an_exception_of_a_job_reaches_the_actor():
    _, (zero, _, two) = play(Network(), 1, 0, 2)
    assert [str(error) for error in two.results] == ["no"]
    assert [mail for _, arrived in zero.received for mail in arrived] == [(2, "failed")]


def test_hosts_bytes_and_overhead_take_their_time():
    def arrives(network: Network, host_of: tuple[int, ...] = ()) -> float:
        return next(now for now, arrived in play(network, 1, 0, host_of=host_of)[1][1].received if arrived)

    apart = Network((0.25, 0.25), (0.75, 0.75))
    assert (arrives(apart), arrives(apart, (0, 0)), arrives(apart, (0, 1))) == (0.25, 0.25, 0.75)
    assert arrives(Network((0.25, 0.25), bytes_per_s=20.0)) == 0.75


def test_messages_between_two_ranks_keep_their_order():
    overtaken = 0
    for seed in range(20):
        _, (_, one) = play(Network((1e-3, 1e3)), 12, 0, seed=seed)
        assert [mail for _, arrived in one.received for _, mail in arrived] == list(range(12, 0, -1))
        times = [now for now, arrived in one.received for _ in arrived]
        overtaken += len(set(times)) < 12
    assert overtaken  # or the order proves nothing


def ended() -> list[tuple[Actor[Any, Any, Any], Any]]:
    """An actor of each protocol that is over, and a message that may still come to it."""
    searcher = Searcher(1, range(2), Pile(3), Options())
    searcher.turn(0.0, [(0, Message(Kind.STOP, 0, pid=Reason.FOUND))])
    round = Round(0, [], lent={}, lenders=[], neighbours=[1], speeds=np.ones(2))
    round.turn(0.0, [])
    round.turn(0.0, [(0, RoundMessage(RoundKind.OVER))])
    stealer = Stealer(0, [0], words=[0], timings=[Timing()], knowledge=RankKnowledge(1))
    stealer.begin(1, 0, 3)
    stealer.turn(0.0, [(0, EndMap())])
    return [(searcher, Message(Kind.DRAFTING, 0, 1)), (round, RoundMessage(RoundKind.DRY)), (stealer, EndMap())]


@pytest.mark.parametrize("number", range(3))
def test_an_actor_that_is_over_is_silent_and_drops_what_comes(number):
    actor, message = ended()[number]
    assert (actor.over, actor.job, actor.wake_at) == (True, None, math.inf)
    assert actor.turn(1.0, [(1, message)]) == []
    assert (actor.over, actor.job) == (True, None)
