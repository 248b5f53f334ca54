"""One rank's side of the choice of the vertices that move: pair by pair, with one neighbour after the other.   (pure)

In a pass, each two neighbours choose among the vertices near the border of their parts (see `lb_mpi.rebalancing.choose`).
The first pass lets the flows through.  The others make the cut lighter, from coarse graphs to the finest, and let through
what is left of the flows; only pairs with a flow take part in them.  All ranks that take part make the same number of
levels, so they know what comes next.

Pairs that share a rank go one after the other, in the order of a scrambled number of the pair, which both ends know.  So no
rank waits in a circle, and a pair waits for few others in a row, on however many ranks.  Of the two, the faster one gets
the zone of the other, chooses for both, and answers.  What a rank knows of the labels of its ghosts is what it has got from
their owners in the last pass with them; the choice depends on nothing else, so on no order of arrivals.
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict, deque
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from lb_mpi.graph import Ints
from lb_mpi.partitioning.compiled import random_state
from lb_mpi.rebalancing.actor import Arrays, ChoiceStep, Links
from lb_mpi.rebalancing.choose import (
    AHEAD,
    COARSEST,
    LAYERS,
    NO_GHOSTS,
    Shard,
    answer,
    ask,
    coarser,
    home_of,
    multilevel_within,
)

STAY = 0.05  # of the mean weight of an edge: the tie of a vertex of mean cost to its home

Choice = Generator[ChoiceStep, Mapping[int, Arrays], Ints]


def levels_of(most_vertices: int) -> int:
    """Return the number of coarser graphs, if no part has more than so many vertices: a level keeps two fifths of them."""
    n, levels = most_vertices, 0
    while n > COARSEST:
        n, levels = 2 * n // 5, levels + 1
    return levels


def pair_number(rank: int, other: int) -> int:
    """Return a scrambled number of a pair of ranks."""
    return zlib.crc32(struct.pack("<qq", min(rank, other), max(rank, other)))


def choose(rank: int, shard: Shard, labels: Ints, links: Links, most_vertices: int) -> Choice:
    """Choose: a generator that yields a `ChoiceStep`, gets its messages by rank, and returns (n_local,) labels.

    labels (n_local + n_ghosts,) : the ranks that own the vertices at first: of stray ones, another rank than their home.
    most_vertices : of any rank.
    """
    chooser = _Chooser(rank, shard, links)
    labels = labels.copy()
    yield from chooser.choose(shard, labels)
    finer: list[tuple[Shard, Ints]] = []  # with the group of each vertex and ghost
    for depth in range(levels_of(most_vertices) if chooser.carrying else 0):
        group, count = multilevel_within(shard, labels, pair_number(rank, depth))
        theirs = yield exchange(shard, chooser.carrying, group, labels)
        ghost_groups = labels[shard.n_local :].copy()  # of other ranks: only their parts matter
        for other, (groups, their_labels) in theirs.items():
            labels[shard.ghosts[other]] = their_labels
            of_other = shard.ghosts[other]
            ghost_groups[of_other.start - shard.n_local : of_other.stop - shard.n_local] = groups
        small, group = coarser(shard, group, count, rank, ghost_groups)
        finer.append((shard, group))
        of_groups = np.empty(len(small.numbers), dtype=np.int64)
        of_groups[group] = labels
        shard, labels = small, of_groups
    if finer:
        yield from chooser.choose(shard, labels)
    for shard, group in reversed(finer):
        labels = labels[group]
        yield from chooser.choose(shard, labels)
    return labels[: shard.n_local]


def exchange(shard: Shard, ranks: set[int], *arrays: Ints) -> ChoiceStep:
    """Send each of these ranks the values of its ghosts here, and await theirs."""
    sends = {other: tuple(array[index] for array in arrays) for other, index in shard.send.items() if other in ranks}
    return ChoiceStep(sends, tuple(sends))


class _Chooser:
    """A rank's pairs, and its loads from pass to pass."""

    def __init__(self, rank: int, shard: Shard, links: Links) -> None:
        self._rank, self._left = rank, dict(links.flows)
        self._order = sorted(links.flows, key=lambda other: (pair_number(rank, other), other))
        mine = links.speed, -rank
        self._hosted = {other for other in links.flows if mine > (links.speeds[other], -other)}
        self._room = links.bound - links.load + sum(links.flows.values())  # once the flows are through
        self._passes = 0
        self.carrying = {other for other, flow in links.flows.items() if flow}  # ranks with which there are more passes
        graph, work = shard.graph, float(shard.graph.vertex_weights.sum())
        usual = float(graph.weights.mean()) if len(graph.weights) else 0.0
        self._stay = STAY * usual * shard.n_local / work if work > 0.0 else 0.0

    def choose(self, shard: Shard, labels: Ints) -> Generator[ChoiceStep, Mapping[int, Arrays], None]:
        """Make a pass over the pairs of this rank, the first one over all: changes the (n_local + n_ghosts,) labels."""
        self._passes += 1
        for other in self._order:
            yield from self._host(shard, labels, other) if other in self._hosted else self._visit(shard, labels, other)
        self._order = [other for other in self._order if other in self.carrying]

    def _visit(self, shard: Shard, labels: Ints, other: int) -> Generator[ChoiceStep, Mapping[int, Arrays], None]:
        """Let the other rank choose for both."""
        found, message = ask(home_of(shard, labels, self._rank, other), LAYERS, AHEAD * self._left[other], 0.5 * self._room)
        (reply,) = (yield ChoiceStep({other: (message,)}, (other,)))[other]
        labels[found] = reply[2 : 2 + len(found)]
        labels[shard.ghosts.get(other, NO_GHOSTS)] = reply[2 + len(found) :]
        self._record(other, *reply[:2].view(float).tolist())

    def _host(self, shard: Shard, labels: Ints, other: int) -> Generator[ChoiceStep, Mapping[int, Arrays], None]:
        """Choose for both ranks."""
        (message,) = (yield ChoiceStep({}, (other,)))[other]
        state = random_state(pair_number(self._rank, other) + self._passes)
        home = home_of(shard, labels, self._rank, other)
        reply, *moved = answer(home, message, LAYERS, self._stay, self._left[other], 0.5 * self._room, state)
        yield ChoiceStep({other: (reply,)})
        self._record(other, *moved)

    def _record(self, other: int, given: float, left: float) -> None:
        """Record that work was given to the other rank, and how much of the flow is left."""
        self._room += given + left - self._left[other]
        self._left[other] = left


def choose_together(choices: Sequence[Choice]) -> list[Ints]:
    """Let all ranks choose, in one process; return the labels of each one's vertices."""
    labels: list[Any] = [None] * len(choices)
    wires: dict[tuple[int, int], deque[Arrays]] = defaultdict(deque)
    waiting: dict[int, Sequence[int]] = {}

    def go_on(rank: int, received: Mapping[int, Arrays] | None) -> bool:
        try:
            sends, waiting[rank] = choices[rank].send(received)  # type: ignore[arg-type]
        except StopIteration as end:
            labels[rank] = end.value
            waiting.pop(rank, None)
            return False
        for other, message in sends.items():
            wires[rank, other].append(message)
        return True

    for rank in range(len(choices)):
        go_on(rank, None)
    while waiting:
        for rank in list(waiting):
            while all(wires[source, rank] for source in waiting[rank]):
                if not go_on(rank, {source: wires[source, rank].popleft() for source in waiting[rank]}):
                    break
    return labels
