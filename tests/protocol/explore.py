"""The exploring carrier: the loop of `lb_mpi.actor` in all orders, with messages in memory.

From each state, each rank may go on:

    post(actor.turn(now, arrived))                  for one message under way to it, for all of them, or for none
    post(actor.done(actor.job, outcome))            for each outcome that the job may have; `fail` if it is an exception

An exploration states how actors are distinguished, the law, and what its port does: the outcomes of jobs, which messages
overtake others, and what an actor reads beside messages.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from enum import Enum
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest

from lb_mpi.actor import ALL
from lb_mpi.errors import ProtocolError

# Of cases that take many seconds, and show nothing that smaller ones don't: `python -m tools.drawn` runs them.
large = pytest.mark.skipif("LB_MPI_DRAWN" not in os.environ, reason="large: python -m tools.drawn runs it")
ANY = -1  # instead of a source: messages that keep no order.  ALL answers all ranks when each has sent it a message
CONTAINERS = (list, dict, set, deque, bytearray)
WHOLE = (tuple, Enum, BaseException, FunctionType, random.Random)  # never changed, or not to be distinguished
_parts: dict[type, bool] = {}  # by type: its objects are parts of an actor, which change

S = TypeVar("S")
Wires = dict[tuple[int, int], tuple[Any, ...]]
Sends = Sequence[tuple[int, Any]]
Arrived = Sequence[tuple[int, Any]]


class State(NamedTuple):
    """All actors, none of which changes: one that acts is cloned first."""

    actors: tuple[Any, ...]
    wires: Wires  # (source, destination): messages under way, in order; from ANY sorted
    rest: Any = None  # what else there is


class Choices:
    """Picks of an actor: those of a script, and the first one after it."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self.script, self.choices = script, []  # choices: how many there were to choose from

    def __call__(self, n: int) -> int:
        at = len(self.choices)
        self.choices.append(n)
        return self.script[at] if at < len(self.script) else 0

    def others(self) -> Iterator[tuple[int, ...]]:
        """The scripts that differ from this one for the first time behind its end."""
        for at in range(len(self.script), len(self.choices)):
            behind = (*self.script, *[0] * (at - len(self.script)))
            yield from ((*behind, pick) for pick in range(1, self.choices[at]))


class Exploration:
    """The loop, and what an exploration may state beside it.

    Actors of a rank that can't be distinguished are one; what becomes of it when the same happens is looked up.
    """

    batches = True  # all messages under way to a rank may also arrive at once

    def __init__(self) -> None:
        self._kept: dict[Hashable, Any] = {}  # actors, by rank and key
        self._messages: dict[Hashable, Any] = {}  # by key
        self._known: dict[Hashable, list[tuple[Any, Sends]]] = {}  # by actor, and what has happened to it

    # Actors, and the law.

    def key_of(self, actor: Any) -> Hashable:
        """Equal for actors that can't be distinguished."""
        raise NotImplementedError

    def key_of_message(self, message: Any) -> Hashable:
        return message

    def key_of_rest(self, rest: Any) -> Hashable:
        return rest

    def law(self, state: State) -> None:
        """AssertionError when it is broken; so are the next two, after a turn and after a job."""

    def check_turn(self, before: Any, after: Any, arrived: Arrived, sends: Sends) -> None: ...

    def check_done(self, after: Any, job: Any, outcome: Any, sends: Sends) -> None: ...

    def is_end(self, state: State) -> bool:
        return all(actor.over for actor in state.actors)

    def is_beyond(self, state: State) -> bool:
        """True for a state that is not looked at, which has a way to an end."""
        return False

    # The port: what it may do.

    def wire(self, source: int, destination: int, message: Any) -> tuple[int, int]:
        return source, destination

    def answer(self, everyone: Sequence[Any]) -> Any:
        """Return the message that all ranks get, once each has sent one to ALL."""
        raise NotImplementedError

    def may_turn(self, state: State, rank: int, arrived: Arrived) -> bool:
        """True if a rank may take a turn now, with these messages."""
        return True

    def times(self, actor: Any) -> Sequence[float]:
        """Return when a turn without messages may come."""
        return (0.0,)

    def memory(self, state: State, rank: int) -> Hashable:
        """Return what an actor reads in a turn, beside messages."""

    def enter(self, actor: Any, memory: Any, choose: Choices) -> None:
        """Give an actor what it reads in a turn, and what it picks with."""

    def run(self, state: State, rank: int, job: Any) -> Iterable[tuple[Any, State]]:
        """Yield each outcome that a job may have, and the state in which the actor gets it."""
        raise NotImplementedError

    def more(self, state: State) -> Iterable[State]:
        """Return the states after other events than turns and jobs."""
        return ()

    # The loop.

    def successors(self, state: State) -> Iterator[State]:
        for rank, arrived, wires in self.deliveries(state):
            if self.may_turn(state, rank, arrived):
                yield from self.turn(State(state.actors, wires, state.rest), rank, arrived)
        for rank, actor in enumerate(state.actors):
            if not actor.over and self.may_turn(state, rank, ()):
                yield from self.turn(state, rank, ())
            if actor.job is not None:
                yield from self.job(state, rank, actor.job)
        yield from self.more(state)

    def turn(self, state: State, rank: int, arrived: Arrived) -> Iterator[State]:
        before, memory = state.actors[rank], self.memory(state, rank)
        messages = [(source, id(message)) for source, message in arrived]
        for now in (0.0,) if arrived else self.times(before):

            def turn(actor: Any, choose: Choices, now: float = now) -> Sends:
                self.enter(actor, memory, choose)
                sends: Sends = actor.turn(now, arrived)
                self.check_turn(before, actor, arrived, sends)
                return sends

            yield from self.act(state, rank, turn, ("turn", now, memory, *messages))

    def job(self, state: State, rank: int, job: Any) -> Iterator[State]:
        for outcome, then in self.run(state, rank, job):

            def end(actor: Any, _choose: Choices, outcome: Any = outcome) -> Sends:
                raised = isinstance(outcome, BaseException)
                sends: Sends = actor.fail(outcome) if raised else actor.done(job, outcome)
                self.check_done(actor, job, outcome, sends)
                return sends

            yield from self.act(then, rank, end, ("job", repr(outcome)))

    def act(self, state: State, rank: int, do: Callable[[Any, Choices], Sends], event: Hashable) -> Iterator[State]:
        """The states in which a rank has done something, whatever it chooses.  `event`: all that this depends on."""
        actor = state.actors[rank]
        if (known := self._known.get((id(actor), event))) is None:
            known = self._known[id(actor), event] = [*self._outcomes(actor, rank, do)]
        for new, sends in known:
            if new is not actor:
                yield self.post(State(put(state.actors, rank, new), state.wires, state.rest), rank, sends)
            else:
                yield self.post(state, rank, sends) if sends else state

    def _outcomes(self, actor: Any, rank: int, do: Callable[[Any, Choices], Sends]) -> Iterator[tuple[Any, Sends]]:
        scripts: list[tuple[int, ...]] = [()]
        while scripts:
            new, choices = clone(actor), Choices(scripts.pop())
            sends = do(new, choices)
            scripts += choices.others()
            yield self._keep(new, rank), sends

    def _keep(self, actor: Any, rank: int) -> Any:
        """The actor, or the one that equals it."""
        return self._kept.setdefault((rank, self.key_of(actor)), actor)

    def same(self, message: Any) -> Any:
        """The message, or the one that equals it; those under way are distinguished by `id`."""
        return self._messages.setdefault((type(message), self.key_of_message(message)), message)

    # The transport.

    def post(self, state: State, source: int, sends: Sends) -> State:
        if not sends:
            return state
        wires = dict(state.wires)

        def put_on(pair: tuple[int, int], message: Any) -> None:
            wire = (*wires.get(pair, ()), self.same(message))
            wires[pair] = tuple(sorted(wire)) if pair[0] == ANY else wire

        for destination, message in sends:
            put_on(self.wire(source, destination, message), message)
        ranks = range(len(state.actors))
        while all(wires.get((rank, ALL)) for rank in ranks):
            heads = [wires[rank, ALL][0] for rank in ranks]
            for rank in ranks:
                wires[rank, ALL] = wires[rank, ALL][1:]
                put_on((ALL, rank), self.answer(heads))
        return State(state.actors, wires, state.rest)

    def deliveries(self, state: State) -> Iterator[tuple[int, Arrived, Wires]]:
        """(rank, what arrives there, the wires without it)."""
        to: dict[int, list[tuple[int, Any]]] = {}
        for (source, rank), wire in state.wires.items():
            for at, message in enumerate(wire) if rank != ALL else ():
                to.setdefault(rank, []).append((source, message))
                if not at or (source == ANY and message is not wire[at - 1]):
                    yield rank, [(source, message)], {**state.wires, (source, rank): (*wire[:at], *wire[at + 1 :])}
        for rank, batch in to.items() if self.batches else ():
            if len(batch) > 1:
                rest = {pair: wire for pair, wire in state.wires.items() if pair[1] != rank}
                yield rank, batch, rest
                if batch[0][0] == ANY:
                    yield rank, batch[::-1], rest

    # One order.

    def play(
        self, actors: Sequence[Any], choose: Callable[[int], int], fails: Callable[[Any], bool] = lambda _: False
    ) -> None:
        """Run the actors themselves to their end, under the law.  `choose` one of n events, again and again."""
        state = State(tuple(actors), {}, 0)
        for rank in range(len(actors)):
            state = self.post(state, rank, actors[rank].turn(0.0, []))
        while not self.is_end(state):
            busy = [rank for rank, actor in enumerate(actors) if actor.job is not None]
            wires = [pair for pair, wire in state.wires.items() if wire and pair[1] != ALL]
            if not busy and not wires:
                raise ProtocolError(f"ranks {[rank for rank, actor in enumerate(actors) if not actor.over]} wait for ever")
            k = choose(len(busy) + len(wires))
            if k < len(busy):
                rank, actor = busy[k], actors[busy[k]]
                if fails(actor.job):
                    sends = actor.fail(ZeroDivisionError())
                else:
                    ((outcome, state),) = self.run(state, rank, actor.job)
                    sends = actor.done(actor.job, outcome)
                state = self.post(state, rank, sends)
                arrived = list[tuple[int, Any]]()
            else:
                source, rank = wires[k - len(busy)]
                message, *rest = state.wires[source, rank]
                state, arrived = state._replace(wires={**state.wires, (source, rank): tuple(rest)}), [(source, message)]
            state = self.post(state, rank, actors[rank].turn(0.0, arrived))
            self.law(state)
        assert not any(state.wires.values()), "messages are left"

    # All states.

    def key(self, state: State) -> Hashable:
        wires = frozenset([(pair, *map(id, wire)) for pair, wire in state.wires.items() if wire])
        return tuple(map(id, state.actors)), wires, self.key_of_rest(state.rest)

    def visit(self, state: State) -> bool:
        self.law(state)
        return self.is_end(state)

    def reach(self, first: State, most_states: int = 200_000) -> Reached:
        """Hold the law against every state, and find a way to an end from each."""

        def bounded(state: State) -> Iterator[State | None]:
            for new in self.successors(state):
                if new != state:
                    yield None if self.is_beyond(new) else new

        first = first._replace(actors=tuple(self._keep(actor, rank) for rank, actor in enumerate(first.actors)))
        return reach([first], bounded, key=self.key, visit=self.visit, most_states=most_states)


class Reached(NamedTuple):
    """The number of states that were reached, that of ends among them, and the predecessors of each state."""

    states: int
    ends: int
    came_from: list[list[int]]  # for each state, by its number, those from which it was reached


def reach(
    starts: Iterable[S],
    successors: Callable[[S], Iterable[S | None]],
    *,
    key: Callable[[S], Hashable],
    visit: Callable[[S], bool],
    most_states: int = 200_000,
) -> Reached:
    """Go through all states, breadth first.

    `visit` checks the law in a state, and returns whether it is an end.  A successor None is beyond the bounds of the
    exploration: what leads there has a way out.  AssertionError for a state from which neither can be reached, or if
    there is no end.
    """
    seen: dict[Hashable, int] = {}
    queue: deque[tuple[int, S]] = deque()
    came_from: list[list[int]] = []

    def number_of(state: S) -> int:
        found = seen.setdefault(key(state), len(seen))
        if found == len(came_from):
            came_from.append([])
            queue.append((found, state))
            assert len(seen) <= most_states, f"more than {most_states} states: choose smaller bounds"
        return found

    for start in starts:
        number_of(start)
    way_out, ends = [], 0
    while queue:
        number, state = queue.popleft()
        if visit(state):
            ends += 1
            way_out.append(number)
            continue
        for new in successors(state):
            if new is None:
                way_out.append(number)
            else:
                came_from[number_of(new)].append(number)
    saved = set(way_out)
    while way_out:
        for number in came_from[way_out.pop()]:
            if number not in saved:
                saved.add(number)
                way_out.append(number)
    assert len(saved) == len(seen), f"{len(seen) - len(saved)} states from which it never ends"
    assert ends, "no end was reached"
    return Reached(len(seen), ends, came_from)


class Replayed:
    """A `Story`, which can't be copied: a clone is a new one to which the same happens."""

    def __init__(
        self, make: Callable[[], Any], events: tuple[Callable[[Any], Any], ...] = (), read: Iterable[Hashable] = ()
    ) -> None:
        self._make, self._events, self._actor, self._read = make, events, make(), [*read]
        for event in events:  # in which it reads what it has read
            event(self._actor)
        plain = self._actor._go_on

        def go_on(resume: Any, outcome: Any) -> Any:  # what it does depends on what it has read, and on nothing else
            self._read.append((self._actor.failed, bytes_of(outcome)))
            return plain(resume, outcome)

        self._actor._go_on = go_on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actor, name)

    @property
    def key(self) -> Hashable:
        """Equal for actors that can't be distinguished."""
        early = [(source, *map(bytes_of, wire)) for source, wire in sorted(self._inbox.items()) if wire]
        return tuple(self._read), tuple(early), self.failed

    def clone(self) -> Replayed:
        return Replayed(self._make, self._events, self._read)

    def turn(self, now: float, arrived: Arrived) -> Sends:
        return self._do(lambda actor: actor.turn(now, arrived))

    def done(self, job: Any, outcome: Any) -> Sends:
        return self._do(lambda actor: actor.done(job, outcome))

    def fail(self, error: BaseException) -> Sends:
        return self._do(lambda actor: actor.fail(error))

    def _do(self, event: Callable[[Any], Any]) -> Sends:
        self._events = (*self._events, event)
        sends: Sends = event(self._actor)
        return sends


def bytes_of(thing: Any) -> Hashable:
    """Equal for equal messages and outcomes."""
    if isinstance(thing, np.ndarray):
        return thing.dtype.str, thing.tobytes()
    if isinstance(thing, dict):
        return tuple((key, bytes_of(value)) for key, value in thing.items())
    if dataclasses.is_dataclass(thing):
        return tuple(bytes_of(getattr(thing, field.name)) for field in dataclasses.fields(thing))
    return tuple(map(bytes_of, thing)) if isinstance(thing, tuple | list) else repr(thing)


def clone(thing: Any, known: dict[int, Any] | None = None) -> Any:
    """A copy that shares nothing that changes."""
    if isinstance(thing, Replayed):
        return thing.clone()
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


def for_each_seed(seeds: Iterable[int], play: Callable[[int], object]) -> None:
    """Call `play` with each seed; an error names its own."""
    for seed in seeds:
        try:
            play(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def put(values: tuple[Any, ...], at: int, value: object) -> tuple[Any, ...]:
    """The tuple with another value at one place."""
    return (*values[:at], value, *values[at + 1 :])
