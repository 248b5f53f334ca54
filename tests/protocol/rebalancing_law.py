"""The law of a rebalancing, checked from outside on all ranks at once; and every state that small ones can reach."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from lb_mpi.actor import ALL
from lb_mpi.balancing.deciding import BalanceReason
from lb_mpi.distributing.halo import GraphPart, Pieces, part_of
from lb_mpi.graph import Graph, Ints
from lb_mpi.rebalancing.actor import Rebalancing, Undo
from lb_mpi.rebalancing.deciding import (
    Arguments,
    GraphTotals,
    Opportunities,
    RankLoad,
    RebalanceDecision,
    report,
    totals_of,
)
from lb_mpi.rebalancing.jobs import Ask, Choose, run
from lb_mpi.rebalancing.messages import RebalanceKind
from lb_mpi.rebalancing.pairs import PASSES
from lb_mpi.rebalancing.rebalance import quotient_graph
from lb_mpi.reduction import Reduction, reduced
from tests.protocol.explore import Exploration, Replayed, State, bytes_of

Sends = Sequence[tuple[int, Any]]


class Case(NamedTuple):
    """A graph, the owner of each vertex, the cost of each, and the speeds of the ranks; NaN: not measured."""

    graph: Graph
    owners: Ints
    costs: np.ndarray
    speeds: np.ndarray
    queued: float = 0.0  # part of its time in which a rank had no core
    slabs: bool = False  # the owners are ascending, and stay so
    origin: Ints | None = None  # the owners before the last move, which is undone

    @property
    def size(self) -> int:
        return len(self.speeds)

    def loads(self) -> list[RankLoad]:
        works = np.bincount(self.owners, self.costs, self.size).tolist()
        return [RankLoad(work, speed, self.queued, 1.0) for work, speed in zip(works, self.speeds.tolist(), strict=True)]

    @property
    def totals(self) -> GraphTotals:
        """The sums and maxima of all ranks."""
        return totals_of(reduced([report(load) for load in self.loads()]))

    def decide(self, when: Any = "always") -> tuple[GraphTotals, RebalanceDecision]:
        """Return the sums and maxima of all ranks, and what they decide."""
        totals = self.totals
        opportunities = Opportunities(arguments=Arguments(when))
        opportunities.paid(1e-9)
        decided = opportunities.decide(totals, self.size)
        if self.origin is not None:
            decided = decided._replace(reason=BalanceReason.UNDONE, undo_s=0.5 * totals.most.seconds)
        return totals, decided

    def actors(self, when: Any = "always") -> list[Any]:
        """All ranks at the start, if they decide that vertices move."""
        return [make() for make in self.makers(when)]

    def makers(self, when: Any = "always") -> list[Callable[[], Rebalancing]]:
        """Functions that make the actors."""
        pieces, (totals, decided) = Pieces(self.graph, self.owners, self.size), self.decide(when)
        if not decided.act:
            return []
        parts = [part_of(pieces[rank], rank) for rank in range(self.size)]
        how = {"connected": self.connected, "slabs": self.graph.n * self.slabs}
        return [
            partial(
                Rebalancing, rank, self.size, part, self.costs[part.vertices], load, totals, decided,
                undo=self.undo(rank, part), **how,
            )
            for rank, (part, load) in enumerate(zip(parts, self.loads(), strict=True))
        ]

    def undo(self, rank: int, part: GraphPart) -> Undo | None:
        """How a rank undoes the last move."""
        if self.origin is None:
            return None
        return Undo(self.origin[part.vertices], np.unique(self.owners[self.origin == rank]).tolist())

    @property
    def connected(self) -> bool:
        return self.graph.components()[0] == 1

    def check(self, actors: Sequence[Any]) -> None:
        """Hold the law against any state."""
        over = [actor for actor in actors if actor.over]
        assert len({(actor.outcome.failed, actor.committed) for actor in over}) < 2, "some ranks move, and others do not"
        at_commit = [actor for actor in actors if actor.ready and not actor.over]
        assert not at_commit or not any(actor.outcome.failed for actor in over)

    def components(self) -> list[int]:
        """Of each rank: the ranks that edges between parts connect have the same number."""
        return quotient_graph(self.graph, self.owners, self.size).components()[1].tolist()

    def check_sends(self, actors: Sequence[Any], source: int, sends: Sends, components: list[int]) -> None:
        """Messages go to old neighbours, or along the ring between parts that no path connects; HELLO always."""
        for destination, message in sends:
            if destination == ALL or message.kind is RebalanceKind.HELLO:
                continue
            touching = destination in actors[source].part.ranks
            moved = set() if self.origin is None else {*zip(self.owners.tolist(), self.origin.tolist(), strict=True)}
            touching = touching or bool({(source, destination), (destination, source)} & moved)
            if self.slabs:
                assert touching or abs(source - destination) == 1, f"{source} sends to {destination}"
                continue
            beside = (source - destination) % self.size in (1, self.size - 1)
            apart = components[source] != components[destination]
            assert touching or (beside and apart), f"{source} sends to {destination}"

    def check_end(self, actors: Sequence[Any]) -> None:
        """All ranks are over: the parts are those of a fresh distribution, or all are the old ones."""
        outcomes = [repr(actor.outcome) for actor in actors]
        assert outcomes == outcomes[:1] * len(outcomes), "ranks have different outcomes"
        self.check(actors)
        if not actors or not actors[0].committed:
            if actors and not actors[0].outcome.failed:
                assert actors[0].outcome.after == actors[0].outcome.before
                speeds = [actor.mine.speed for actor in actors]
                now_s = (np.bincount(self.owners, self.costs, self.size) / speeds).max()
                assert not self.slabs or now_s <= self.slabs_bound(speeds) * (1 + 1e-9), "better ranges that were not found"
            return
        assert all(actor.ready for actor in actors), "a rank that has committed, and may be interrupted"
        assert actors[0].outcome.after >= 0.0
        owners = np.full(self.graph.n, -1)
        for rank, actor in enumerate(actors):
            assert np.all(owners[actor.built.part.vertices] == -1), "a vertex with two owners"
            owners[actor.built.part.vertices] = rank
        assert np.all(owners >= 0), "a vertex without an owner"
        self.check_times(owners, actors)
        pieces = Pieces(self.graph, owners, self.size)
        for rank, actor in enumerate(actors):
            fresh = part_of(pieces[rank], rank)
            for field in dataclasses.fields(fresh):
                assert np.array_equal(getattr(actor.built.part, field.name), getattr(fresh, field.name)), field.name
            assert actor.built.costs.sum() == self.costs[owners == rank].sum(), "costs that do not move with their vertices"
        tails, heads = self.graph.edges()
        cut = self.graph.edge_weights()[owners[tails] != owners[heads]].sum()
        assert actors[0].outcome.cut == cut
        assert actors[0].outcome.moved == np.count_nonzero(owners != self.owners)
        assert actors[0].outcome.n_ghosts == sum(actor.built.part.n_ghosts for actor in actors)

    def check_times(self, owners: Ints, actors: Sequence[Any]) -> None:
        """By its own numbers, a move makes the slowest rank faster, and what it promises is true; or it is undone."""
        if self.origin is not None:
            assert np.array_equal(owners, self.origin), "a move that is not undone"
            return
        speeds = [actor.mine.speed for actor in actors]
        before_s, after_s = ((np.bincount(of, self.costs, self.size) / speeds).max() for of in (self.owners, owners))
        assert after_s < before_s, "a move that is worse"
        assert (actors[0].outcome.before_s, actors[0].outcome.after_s) == pytest.approx((before_s, after_s))
        if self.slabs:
            self.check_slabs(owners, speeds)

    def check_slabs(self, owners: Ints, speeds: Sequence[float]) -> None:
        """Ranges stay contiguous, and none becomes empty; each moves one rank far, and no others of these are faster."""
        assert np.all(np.diff(owners) >= 0), "a range that is not contiguous"
        assert set(self.owners.tolist()) <= set(owners.tolist()), "a range that has become empty"
        assert np.all(abs(owners - self.owners) <= 1), "a vertex that goes too far"
        found = np.bincount(owners, self.costs, self.size) / speeds
        assert found.max() <= self.slabs_bound(speeds) * (1 + 1e-9), "not the best ranges"

    def slabs_bound(self, speeds: Sequence[float]) -> float:
        """The time that is good enough, or that of the best ranges."""
        return max(1.02 * self.costs.sum() / sum(speeds), least_time(self.costs, self.owners, speeds))

    def check_flows(self, actors: Sequence[Any], tolerance: float) -> None:
        """Flows are antisymmetric to the bit, and level the times of all ranks, unless only stray pieces join some."""
        flows = [actor.links.flows for actor in actors]
        for rank, theirs in enumerate(flows):
            for other, flow in theirs.items():
                assert flow == -flows[other][rank]
        speeds = np.where(np.isnan(self.speeds), np.nanmean(self.speeds), self.speeds)
        loads = np.array([actor.links.load for actor in actors])  # stray pieces are with others already
        assert loads.sum() == self.costs.sum()
        after = (loads - [sum(theirs.values()) for theirs in flows]) / speeds
        edges = np.array([(rank, other) for rank, theirs in enumerate(flows) for other in theirs if rank < other], int)
        apart = Graph.from_edges(self.size, *edges.reshape(-1, 2).T).components()[0] > 1
        level = after.max() <= (1.0 + tolerance) * loads.sum() / speeds.sum() * (1.0 + 1e-9)
        assert apart or level, "ranks that are not level"
        most_s = 1.03 * loads.sum() / sum(actor.links.speed for actor in actors)  # so much imbalance may be left
        assert [actor.links.bound for actor in actors] == pytest.approx([most_s * actor.links.speed for actor in actors])


def least_time(costs: np.ndarray, owners: Ints, speeds: Sequence[float]) -> float:
    """The time of the slowest rank with the best ranges that one move can reach, as a table of all of them finds it."""
    n, counts = len(owners), np.bincount(owners, minlength=len(speeds))
    ends, before = np.cumsum(counts), np.concatenate([[0.0], np.cumsum(costs)])
    best = np.where(np.arange(n + 1) == 0, 0.0, math.inf)  # by the end of the ranges so far
    for rank, speed in enumerate(speeds):
        new = np.full(n + 1, math.inf)
        most = n if rank + 1 >= len(speeds) else ends[rank + 1]
        for end in range(ends[rank] - counts[rank], most + 1):
            first = slice(0, end + 1 - int(counts[rank] > 0))
            new[end] = np.maximum(best[first], (before[end] - before[first]) / speed).min(initial=math.inf)
        best = new
    return float(best[n])


class Explored(Exploration):
    """All orders of deliveries, turns and jobs of a case, `rest` of which may fail."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case, self.components = case, case.components()
        self._chosen: dict[tuple[int, int], set[Hashable]] = {}  # what pairs choose among, by rank and other
        self._outcomes_of: dict[int, Any] = {}  # of the job of an actor, by its id

    def key_of(self, actor: Any) -> Hashable:
        return actor.key

    def key_of_message(self, message: Any) -> Hashable:
        return bytes_of(message)

    def answer(self, everyone: Sequence[Reduction]) -> Reduction:
        return reduced(everyone)

    def post(self, state: State, source: int, sends: Sends) -> State:
        self.case.check_sends(state.actors, source, sends, self.components)
        return super().post(state, source, sends)

    def run(self, state: State, rank: int, job: Any) -> Iterator[tuple[Any, State]]:
        actor = state.actors[rank]
        known = self._outcomes_of if isinstance(actor, Replayed) else {}  # in `play`, actors change
        if id(actor) not in known:
            if isinstance(job, Ask | Choose):
                among = self._chosen.setdefault((rank, job.home.other), set())
                among.add(bytes_of((job.home.labels, getattr(job, "message", None))))
                assert len(among) <= PASSES, "the choice depends on the order of arrivals"
            known[id(actor)] = run(job)
        yield known[id(actor)], state
        if state.rest:
            yield ZeroDivisionError(), state._replace(rest=state.rest - 1)

    def law(self, state: State) -> None:
        self.case.check(state.actors)
        if self.is_end(state):
            self.case.check_end(state.actors)

    def explore(self, failures: int = 0, most_states: int = 200_000) -> tuple[int, int]:
        """Hold the law against every state; return how many there are, and how many ends."""
        found = self.reach(State(tuple(map(Replayed, self.case.makers())), {}, failures), most_states)
        return found.states, found.ends


def play(
    case: Case, rng: np.random.Generator, *, when: Any = "always", chance: float = 0.0,
    first: Sequence[tuple[int, int, Any]] = (),
) -> list[Any]:  # fmt: skip
    """Run all ranks in a drawn order of deliveries, turns and jobs; each job fails with this chance.  []: nothing moves.

    `first`: rank, source and message of what has arrived at the start.
    """
    actors = case.actors(when)

    for rank, *arrived in first:
        actors[rank].turn(0.0, [tuple(arrived)])

    def fails(job: Any) -> bool:
        return bool(rng.random() < (chance / 5 if isinstance(job, Ask | Choose) else chance))  # of many

    Explored(case).play(actors, lambda n: int(rng.integers(n)), fails)
    return actors
