"""The exploring carrier: every state that some actors can reach, in all orders of deliveries, turns and jobs.

What an exploration says is which states are the first, what may be chosen beside those orders, and what the law is.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from enum import Enum
from types import FunctionType
from typing import Any, NamedTuple

from tests.protocol.reach import Reached, reach

Wires = dict[tuple[int, int], tuple[Any, ...]]
CONTAINERS = (list, dict, set, deque, bytearray)
WHOLE = (tuple, Enum, BaseException, FunctionType, random.Random)  # never changed, or not to be told apart
_parts: dict[type, bool] = {}  # by type: its objects are parts of an actor, which change


Outcome = tuple[Any, list[tuple[int, Any]]]  # an actor, and what it sends


class State(NamedTuple):
    """All actors, none of which changes: one that acts is cloned first."""

    actors: tuple[Any, ...]
    wires: Wires  # (source, destination): messages under way, in order; where none is kept, sorted, from -1
    rest: Any = None  # what else there is


class Exploration:
    """All that may happen next: messages arrive, a rank takes a turn or does its job, or what `more` says.

    Of the actors of a rank that can't be told apart one is kept; what becomes of it when the same happens is looked up.
    """

    ordered = True  # messages of one rank to another keep their order
    batches = True  # all that is under way to a rank may arrive at once, too
    _kept: dict[Hashable, Any]  # by rank and key
    _known: dict[Hashable, list[Outcome]]  # by actor, and what has happened to it

    def key_of(self, actor: Any) -> Hashable:
        """Equal for actors that can't be told apart."""
        raise NotImplementedError

    def key_of_message(self, message: Any) -> Hashable:
        return message

    def key_of_rest(self, rest: Any) -> Hashable:
        return rest

    def law(self, state: State) -> None:
        """AssertionError when it is broken."""
        raise NotImplementedError

    def is_end(self, state: State) -> bool:
        return all(actor.over for actor in state.actors)

    def is_beyond(self, state: State) -> bool:
        """True for a state that is not looked at, which has a way to an end."""
        return False

    def hears(self, state: State, rank: int, message: Any) -> bool:
        """A rank may serve this message now."""
        return True

    def turns(self, state: State, rank: int, arrived: list[tuple[int, Any]]) -> Iterable[State]:
        """What becomes of a state, whose wires are without what has `arrived`, with a turn of one rank."""
        return [self.act(state, rank, lambda actor: actor.turn(0.0, arrived), ("turn", *arrived))]

    def jobs(self, state: State, rank: int, job: Any) -> Iterable[State]:
        """What becomes of a state when a rank has done its job."""
        raise NotImplementedError

    def more(self, state: State) -> Iterable[State]:
        return ()

    def act(
        self, state: State, rank: int, do: Callable[[Any], list[tuple[int, Any]]], event: Hashable = None
    ) -> State:
        """The state in which one rank has done something, and what it sends is under way.

        `event`: all that what it does depends on, beside itself; None when that is more.
        """
        outcomes = self.outcomes(state.actors[rank], event, lambda: [self.outcome(state.actors[rank], rank, do)])
        return self.after(state, rank, outcomes[0])

    def outcomes(self, actor: Any, event: Hashable, find: Callable[[], list[Outcome]]) -> list[Outcome]:
        """The possible outcomes for an actor, looked up if they are known."""
        if event is None:
            return find()
        if (known := self._known.get((id(actor), event))) is None:
            known = self._known[id(actor), event] = find()
        return known

    def outcome(self, actor: Any, rank: int, do: Callable[[Any], list[tuple[int, Any]]]) -> Outcome:
        """The outcome for an actor, which is cloned first."""
        actor = clone(actor)
        sends = do(actor)
        return self.keep(actor, rank), sends

    def keep(self, actor: Any, rank: int) -> Any:
        """The actor, or the one that can't be told from it."""
        return self._kept.setdefault((rank, self.key_of(actor)), actor)

    def after(self, state: State, rank: int, outcome: Outcome) -> State:
        """The state after what one rank has done."""
        actor, sends = outcome
        return self.post(state._replace(actors=put(state.actors, rank, actor)), rank, sends)

    def post(self, state: State, source: int, sends: Iterable[tuple[int, Any]]) -> State:
        wires = dict(state.wires)
        for destination, message in sends:
            pair = (source if self.ordered else -1, destination)
            wire = (*wires.get(pair, ()), message)
            wires[pair] = wire if self.ordered else tuple(sorted(wire))
        return state._replace(wires=wires)

    def deliveries(self, state: State) -> Iterator[tuple[int, list[tuple[int, Any]], Wires]]:
        """(rank, what arrives there, the wires without it)."""
        to: dict[int, list[tuple[int, Any]]] = {}
        for (source, rank), wire in state.wires.items():
            for at, message in enumerate(wire):
                to.setdefault(rank, []).append((source, message))
                if not at or not (self.ordered or message == wire[at - 1]):
                    yield rank, [(source, message)], {**state.wires, (source, rank): (*wire[:at], *wire[at + 1 :])}
        for rank, batch in to.items() if self.batches else ():
            if len(batch) > 1:
                rest = {pair: wire for pair, wire in state.wires.items() if pair[1] != rank}
                yield rank, batch, rest
                if not self.ordered:
                    yield rank, batch[::-1], rest

    def successors(self, state: State) -> Iterator[State]:
        for rank, arrived, wires in self.deliveries(state):
            if self.hears(state, rank, arrived[0][1]):
                yield from self.turns(state._replace(wires=wires), rank, arrived)
        for rank, actor in enumerate(state.actors):
            if not actor.over:
                yield from self.turns(state, rank, [])
            if actor.job is not None:
                yield from self.jobs(state, rank, actor.job)
        yield from self.more(state)

    def key(self, state: State) -> Hashable:
        wires = [(pair, tuple(map(self.key_of_message, wire))) for pair, wire in state.wires.items() if wire]
        return tuple(map(id, state.actors)), tuple(sorted(wires)), self.key_of_rest(state.rest)

    def look(self, state: State) -> bool:
        self.law(state)
        return self.is_end(state)

    def reach(self, first: State, most_states: int = 200_000) -> Reached:
        """Hold the law against every state, and find a way to an end from each."""

        def bounded(state: State) -> Iterator[State | None]:
            for new in self.successors(state):
                yield None if self.is_beyond(new) else new

        self._kept, self._known = {}, {}
        first = first._replace(actors=tuple(self.keep(actor, rank) for rank, actor in enumerate(first.actors)))
        return reach([first], bounded, key=self.key, look=self.look, most_states=most_states)


def clone(thing: Any, known: dict[int, Any] | None = None) -> Any:
    """A copy that shares nothing that changes."""
    known = {} if known is None else known
    if id(thing) in known:
        return known[id(thing)]
    other = known[id(thing)] = object.__new__(type(thing))
    fields = vars(other)
    for name, value in vars(thing).items():
        kind = type(value)
        if kind in CONTAINERS:
            value = kind(value)
        elif _parts.get(kind) or (kind not in _parts and _is_part(value)):
            value = clone(value, known)
        fields[name] = value
    return other


def _is_part(value: Any) -> bool:
    kind = type(value)
    _parts[kind] = hasattr(value, "__dict__") and not isinstance(value, (*WHOLE, type))
    return _parts[kind]


def put(values: tuple[Any, ...], at: int, value: object) -> tuple[Any, ...]:
    """The tuple with another value at one place."""
    return (*values[:at], value, *values[at + 1 :])
