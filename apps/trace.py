"""The messages between the ranks of a search: a line for each DRAFTING, REJECT, ADMISSION and split."""

from __future__ import annotations

from typing import NamedTuple

from mpi4py import MPI

from lb_mpi.mpi.common.collective import gather
from lb_mpi.searching.drafting import NOBODY, TABLE, Kind, Message, Send, State

SHOWN = (Kind.DRAFTING, Kind.REJECT, Kind.ADMISSION, Kind.WORK, Kind.NOWORK)
WIDTH = max(len(kind.name) for kind in SHOWN)


class Event(NamedTuple):
    """A message that a rank sent, or a change of its state."""

    seconds: float  # of the clock of this rank's host
    rank: int
    number: int  # of the events of this rank
    text: str


class Trace:
    """The events of one rank of a search, as its `trace`; `states`: also its changes of state, those of figure 1."""

    def __init__(self, rank: int, *, states: bool) -> None:
        self._rank, self._states, self._state = rank, states, State.BUSY if rank == 0 else State.IDLE
        self._events: list[Event] = []

    def __call__(self, now: float, state: State, arrived: list[tuple[int, Message]], sends: list[Send]) -> None:
        """Note one turn."""
        if self._states and state is not self._state:
            self._note(now, "is " + " -> ".join(one.name for one in self._way(state, arrived)))
        self._state = state
        for to, message in sends:
            if message.kind in SHOWN:
                self._note(now, f"to {to}: {message.kind.name:<{WIDTH}} {_what(message)}")

    def _way(self, state: State, arrived: list[tuple[int, Message]]) -> list[State]:
        """The states from the last turn to this one: a turn with several messages may pass through some."""
        steps = {(row.state, row.then) for row in TABLE}
        if any(message.kind is Kind.ADMISSION for _, message in arrived):
            steps.discard((State.WAIT_FOR_ADMISSION.name, State.BUSY.name))  # not by a REJECT
        ways = [[self._state]]
        for way in ways:  # the shortest comes first
            if way[-1] is state:
                return way
            ways += [[*way, one] for one in State if one not in way and (way[-1].name, one.name) in steps]
        return [self._state, state]

    def _note(self, now: float, text: str) -> None:
        self._events.append(Event(now, self._rank, len(self._events), text))

    def lines(self, comm: MPI.Intracomm) -> list[str]:
        """Collective: on rank 0 a line for each event of all ranks, in the order of time; on the others none.

        Each host has a clock of its own, which begins with the first event there.
        """
        hosts: dict[str, list[Event]] = {}
        for host, events in gather(comm, (MPI.Get_processor_name(), self._events)):
            hosts.setdefault(host, []).extend(events)
        began = {host: min((event.seconds for event in events), default=0.0) for host, events in hosts.items()}
        all_events = [event._replace(seconds=event.seconds - began[host]) for host in hosts for event in hosts[host]]
        return [f"{event.seconds:10.6f} s  rank {event.rank} {event.text}" for event in sorted(all_events)]


def _what(message: Message) -> str:
    draft = f"of {message.source}, number {message.seq}"
    if message.kind is Kind.DRAFTING:
        return draft + (": nobody yet" if message.pid == NOBODY else f": rank {message.pid} has {message.load:g}")
    return draft + (f": split, {len(message.payload)} bytes" if message.kind is Kind.WORK else "")
