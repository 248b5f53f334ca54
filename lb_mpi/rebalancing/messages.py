"""The messages of a rebalancing between neighbours, and their exchange: a part of a story (`lb_mpi.actor`).   (pure)"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from lb_mpi.actor import Await
from lb_mpi.errors import ProtocolError


class RebalanceKind(IntEnum):
    """The kinds of messages between neighbours."""

    HELLO = 1  # (3,) the sender's component and speed, the work of stray pieces for the receiver; labels as in LABEL
    FLOW = 2  # a number of `Flow`
    PAIR = 3  # (n,) integers of a choice of vertices; None: the sender has given it up
    LABEL = 4  # the new owners of the receiver's ghosts; None: the sender has failed
    ROWS = 5  # rows of the graph, with their values; None: the sender has failed


class RebalanceMessage(NamedTuple):
    """A message to a neighbour."""

    kind: RebalanceKind
    payload: Any = None


Steps = Generator[Any, Any, Any]  # a part of the story


class Links(NamedTuple):
    """A rank's neighbours, and its loads."""

    flows: dict[int, float]  # by neighbour: work to send; < 0: to receive
    speeds: dict[int, float]  # of the neighbours
    speed: float
    load: float  # present work, >= 0
    bound: float  # most work afterwards


def exchange(kind: RebalanceKind, payloads: Mapping[int, Any], sources: Sequence[int], *sends: tuple[int, Any]) -> Steps:
    """Send payloads of a kind, by rank, after other messages; return those of the sources."""
    messages = [*sends, *((other, RebalanceMessage(kind, payload)) for other, payload in payloads.items())]
    return expected(kind, (yield Await(sources, messages)))


def expected(kind: RebalanceKind, received: Mapping[int, RebalanceMessage]) -> dict[int, Any]:
    """Return the payloads of messages; ProtocolError unless they are of a kind."""
    for source, message in received.items():
        if message.kind is not kind:
            raise ProtocolError(f"{message} of rank {source}: expected {kind.name}")
    return {source: message.payload for source, message in received.items()}
