"""One rank's side of the choice of the vertices that move: pair by pair, with one neighbour after the other.   (pure)

In a pass, each pair of neighbours chooses among the vertices near the border of their parts (see
`lb_mpi.rebalancing.choose`).  The first pass lets the flows through.  The second one makes the cut lighter where other
pairs have changed it meanwhile, and lets through what is left of the flows; only pairs with a flow take part in it.

Pairs that share a rank go one after the other, in the order of a scrambled number of the pair, which both ends know.  So no
rank waits in a circle, and a pair waits for few others in a row, on however many ranks.  Of the two, the faster one gets
the zone of the other, chooses for both, and answers.  What a rank knows of the labels of its ghosts is what it has got from
their owners in the last pass with them; the choice depends on nothing else, so on no order of arrivals.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

from lb_mpi.actor import JobFailed
from lb_mpi.graph import Ints
from lb_mpi.rebalancing.choose import AHEAD, Shard, home_of
from lb_mpi.rebalancing.jobs import Ask, Choose
from lb_mpi.rebalancing.messages import Links, RebalanceKind, Steps, exchange

PASSES = 2
STAY = 0.05  # of the mean weight of an edge: the tie of a vertex of mean cost to its home


def pair_number(rank: int, other: int) -> int:
    """Return a scrambled number of a pair of ranks."""
    return zlib.crc32(struct.pack("<qq", min(rank, other), max(rank, other)))


def choose(rank: int, shard: Shard, labels: Ints, links: Links) -> Steps:
    """Choose: a part of a story (`lb_mpi.actor`), which returns (n_local,) labels.

    labels (n_local + n_ghosts,) : the ranks that own the vertices at first: of stray ones, another rank than their home.
    Raises JobFailed if this rank fails, or another one of a pair has given up.
    """
    chooser = _Chooser(rank, shard, labels.copy(), links)
    for _ in range(PASSES):
        yield from chooser.choose()
    return chooser.labels[: shard.n_local]


class _Chooser:
    """A rank's pairs, its labels and loads from pass to pass."""

    def __init__(self, rank: int, shard: Shard, labels: Ints, links: Links) -> None:
        self._rank, self._shard, self.labels, self._left = rank, shard, labels, dict(links.flows)
        self._order = sorted(links.flows, key=lambda other: (pair_number(rank, other), other))
        mine = links.speed, -rank
        self._hosted = {other for other in links.flows if mine > (links.speeds[other], -other)}
        self._room = links.bound - links.load + sum(links.flows.values())  # once the flows are through
        self._carrying = {other for other, flow in links.flows.items() if flow}  # ranks with which there are more passes
        graph, work = shard.graph, float(shard.graph.vertex_weights.sum())
        usual = float(graph.weights.mean()) if len(graph.weights) else 0.0
        self._stay = STAY * usual * shard.n_local / work if work > 0.0 else 0.0

    def choose(self) -> Steps:
        """Make a pass over the pairs of this rank, the first one over all."""
        for other in self._order:
            yield from self._host(other) if other in self._hosted else self._visit(other)
        self._order = [other for other in self._order if other in self._carrying]

    def _visit(self, other: int) -> Steps:
        """Let the other rank choose for both."""
        home = home_of(self._shard, self.labels, self._rank, other)
        found, message = yield Ask(home, AHEAD * self._left[other], 0.5 * self._room)
        reply = _received((yield from exchange(RebalanceKind.PAIR, {other: message}, (other,))))
        labels = self.labels.copy()
        labels[found] = reply[2 : 2 + len(found)]
        labels[home.start : home.stop] = reply[2 + len(found) :]
        self._record(other, labels, *reply[:2].view(float).tolist())

    def _host(self, other: int) -> Steps:
        """Choose for both ranks."""
        message = _received((yield from exchange(RebalanceKind.PAIR, {}, (other,))))
        home, seed = home_of(self._shard, self.labels, self._rank, other), pair_number(self._rank, other)
        chosen = yield Choose(home, message, self._stay, self._left[other], 0.5 * self._room, seed)
        yield from exchange(RebalanceKind.PAIR, {other: chosen.reply}, ())
        self._record(other, chosen.labels, chosen.given, chosen.left)

    def _record(self, other: int, labels: Ints, given: float, left: float) -> None:
        """Record that work was given to the other rank, and how much of the flow is left."""
        self.labels = labels
        self._room += given + left - self._left[other]
        self._left[other] = left


def _received(received: Mapping[int, Ints | None]) -> Ints:
    """Return the only message; JobFailed if its sender has given up."""
    (message,) = received.values()
    if message is None:
        raise JobFailed
    return message
