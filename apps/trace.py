"""The messages between the ranks of a search: a line for each DRAFTING, REJECT, ADMISSION and split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpi4py import MPI

from lb_mpi.mpi.common.collective import gather
from lb_mpi.mpi.search.search import Turn
from lb_mpi.searching.drafting import NOBODY, TABLE, Kind, Message, State

SHOWN = (Kind.DRAFTING, Kind.REJECT, Kind.ADMISSION, Kind.WORK, Kind.NOWORK)
WIDTH = max(len(kind.name) for kind in SHOWN)


class Event(NamedTuple):
    """A message that a rank sent, or a change of its state."""

    seconds: float  # of the clock of this rank's host
    rank: int
    number: int  # of the events of this rank
    text: str


def lines(comm: MPI.Intracomm, turns: Sequence[Turn], *, states: bool) -> list[str]:
    """Collective: on rank 0 a line for each event of all ranks, in the order of time; on the others none.

    `turns` are this rank's; `states`: also its changes of state, those of figure 1.  Each host has a clock of its own,
    which begins with the first event there.
    """
    hosts: dict[str, list[Event]] = {}
    for host, events in gather(comm, (MPI.Get_processor_name(), events_of(comm.rank, turns, states=states))):
        hosts.setdefault(host, []).extend(events)
    began = {host: min((event.seconds for event in events), default=0.0) for host, events in hosts.items()}
    all_events = [event._replace(seconds=event.seconds - began[host]) for host in hosts for event in hosts[host]]
    return [f"{event.seconds:10.6f} s  rank {event.rank} {event.text}" for event in sorted(all_events)]


def events_of(rank: int, turns: Sequence[Turn], *, states: bool) -> list[Event]:
    """List the events of one rank."""
    earlier, found = State.BUSY if rank == 0 else State.IDLE, list[tuple[float, str]]()
    for turn in turns:
        if states and turn.state is not earlier:
            found.append((turn.at, "is " + " -> ".join(one.name for one in path(earlier, turn))))
        earlier = turn.state
        sent = [(to, message) for to, message in turn.sends if message.kind in SHOWN]
        found += [(turn.at, f"to {to}: {message.kind.name:<{WIDTH}} {_what(message)}") for to, message in sent]
    return [Event(at, rank, number, text) for number, (at, text) in enumerate(found)]


def path(earlier: State, turn: Turn) -> list[State]:
    """List the states from the last turn to this one: a turn with several messages may pass through some."""
    steps = {(row.state, row.then) for row in TABLE}
    if any(message.kind is Kind.ADMISSION for _, message in turn.arrived):
        steps.discard((State.WAIT_FOR_ADMISSION.name, State.BUSY.name))  # not by a REJECT
    ways = [[earlier]]
    for way in ways:  # the shortest comes first
        if way[-1] is turn.state:
            return way
        ways += [[*way, one] for one in State if one not in way and (way[-1].name, one.name) in steps]
    return [earlier, turn.state]


def _what(message: Message) -> str:
    draft = f"of {message.source}, number {message.seq}"
    if message.kind is Kind.DRAFTING:
        return draft + (": nobody yet" if message.pid == NOBODY else f": rank {message.pid} has {message.load:g}")
    return draft + (f": split, {len(message.payload)} bytes" if message.kind is Kind.WORK else "")
