"""One rank's side of the choice of the vertices that move: pair by pair, with one neighbour after the other.   (pure)

In a pass, each two neighbours choose among the vertices near the border of their parts (see `lb_mpi.rebalancing.choose`).
The first pass lets the flows through.  The others make the cut lighter, from coarse graphs to the finest, and let through
what is left of the flows.  All ranks take the same number of levels, so all of them know what comes next.

Pairs that share a rank go one after the other, in the order of a scrambled number of the pair, which both ends know.  So no
rank waits in a circle, and a pair waits for few others in a row, on however many ranks.  Of the two, the faster one gets
the zone of the other, chooses for both, and answers.  What a rank knows of the labels of its ghosts is what it has got from
their owners in the last pass with them; the choice depends on nothing else, so on no order of arrivals.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections import defaultdict, deque
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from lb_mpi.graph import Ints
from lb_mpi.rebalancing.actor import Arrays, ChoiceStep, Links
from lb_mpi.rebalancing.choose import (
    COARSEST,
    Shard,
    Zone,
    coarser,
    join,
    multilevel_within,
    settle,
    two_way,
    zone,
)

STAY = 0.05  # of the mean weight of an edge: the tie of a vertex of mean cost to its home
LAYERS = 4  # width of a zone, at least
AHEAD = 2.0  # times the flow: the work of a zone, at least

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
    for depth in range(levels_of(most_vertices)):
        group, count = multilevel_within(shard, labels, pair_number(rank, depth))
        theirs = yield exchange(shard, group, labels)
        ghost_groups = np.zeros(len(labels) - shard.n_local, dtype=np.int64)
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


def exchange(shard: Shard, *arrays: Ints) -> ChoiceStep:
    """Send each rank what it needs of its ghosts, await the same."""
    sends = {other: tuple(array[index] for array in arrays) for other, index in shard.send.items()}
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
        graph, work = shard.graph, float(shard.graph.vertex_weights.sum())
        usual = float(graph.weights.mean()) if len(graph.weights) else 0.0
        self._stay = STAY * usual * shard.n_local / work if work > 0.0 else 0.0

    def choose(self, shard: Shard, labels: Ints) -> Generator[ChoiceStep, Mapping[int, Arrays], None]:
        """Make a pass over all pairs of this rank: changes the (n_local + n_ghosts,) labels."""
        self._passes += 1
        for other in self._order:
            yield from self._host(shard, labels, other) if other in self._hosted else self._visit(shard, labels, other)

    def _visit(self, shard: Shard, labels: Ints, other: int) -> Generator[ChoiceStep, Mapping[int, Arrays], None]:
        """Let the other rank choose for both."""
        found, mine = zone(shard, labels, self._rank, other, LAYERS, AHEAD * self._left[other])
        message = self._border(shard, labels, other), np.array([0.5 * self._room]), *mine
        border, new, moved = (yield ChoiceStep({other: message}, (other,)))[other]
        labels[shard.ghosts.get(other, NONE)] = border
        labels[found] = new
        self._record(other, *moved.tolist())

    def _host(self, shard: Shard, labels: Ints, other: int) -> Generator[ChoiceStep, Mapping[int, Arrays], None]:
        """Choose for both ranks."""
        border, room, *rows = (yield ChoiceStep({}, (other,)))[other]
        ghosts, theirs = shard.ghosts.get(other, NONE), Zone(*rows)
        labels[ghosts] = border
        low, high = min(self._rank, other), max(self._rank, other)
        give = self._left[other]
        found, mine = zone(shard, labels, self._rank, other, LAYERS, AHEAD * give)
        kinds = settle(theirs, shard.numbers[: shard.n_local], labels, low, high)
        theirs = theirs._replace(kinds=kinds)
        rooms = max(0.0, 0.5 * self._room), max(0.0, float(room[0]))
        lower = self._rank == low
        pair = join(mine, theirs, self._stay) if lower else join(theirs, mine, self._stay)
        side, sign = pair.side, 1.0 if lower else -1.0
        if pair.costs.any():
            slack = rooms if lower else rooms[::-1]
            side = two_way(*pair, sign * give, slack=slack, seed=pair_number(low, high) + self._passes)
        new = np.where(side[2:] == 0, low, high)
        of_mine, of_theirs = (new[: len(found)], new[len(found) :]) if lower else np.split(new, [len(theirs.numbers)])[::-1]
        given = sign * float(pair.costs @ (side - pair.side))  # from this rank to the other
        short = abs(give) - math.copysign(1.0, give) * given - rooms[int(give < 0.0)]
        left = math.copysign(max(0.0, short), give)
        labels[found] = of_mine
        numbers = shard.numbers[ghosts]
        place = np.searchsorted(numbers, theirs.numbers)
        known = place < len(numbers)
        known[known] = numbers[place[known]] == theirs.numbers[known]
        labels[ghosts.start + place[known]] = of_theirs[known]
        yield ChoiceStep({other: (self._border(shard, labels, other), of_theirs, np.array([-given, -left]))})
        self._record(other, given, left)

    def _border(self, shard: Shard, labels: Ints, other: int) -> Ints:
        return labels[shard.send[other]] if other in shard.send else labels[:0]

    def _record(self, other: int, given: float, left: float) -> None:
        """Record that work was given to the other rank, and how much of the flow is left."""
        self._room += given + left - self._left[other]
        self._left[other] = left


NONE = slice(0, 0)


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
