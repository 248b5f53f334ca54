"""A recorded run as a trace of Chrome's format, which Perfetto (https://ui.perfetto.dev) and chrome://tracing show.   (pure)

A host is a process, and a rank has two threads: its phases, and its calls.  A record has the sums of each time slice only.
So the phases of a slice follow each other in the order of `Phase`; a phase that goes on in the next slice is one event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lb_mpi.cli.report.run import DRIVERS, NAMES, Run
from lb_mpi.record.events import Driver, Phase
from lb_mpi.record.record import Stored

SHORTEST_S = 1e-7  # of a phase within a time slice
Events = Iterator[tuple[str, float, float, dict[str, Any]]]  # name, begin and end in seconds by the rank's clock, numbers


def trace(run: Run) -> dict[str, Any]:
    """Return the trace, ready for JSON; times are microseconds since the start of the run."""
    hosts = {host: number for number, host in enumerate(run.hosts)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": host}} for host, number in hosts.items()
    ]
    for one, offset_s in zip(run.ranks, run.offsets_s, strict=True):
        rank = one.about.rank
        threads = {f"rank {rank}": phases(one), f"rank {rank}: calls": calls(one)}
        for number, (thread, its_events) in enumerate(threads.items(), start=2 * rank):
            own = {"pid": hosts[one.about.host], "tid": number}
            events.append({"ph": "M", "name": "thread_name", **own, "args": {"name": thread}})
            events.append({"ph": "M", "name": "thread_sort_index", **own, "args": {"sort_index": number}})
            for name, began, ended, args in its_events:
                times = {"ts": 1e6 * (began + offset_s), "dur": 1e6 * (ended - began)}
                events.append({"ph": "X", "name": name, **own, **times, "args": args})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"program": run.ranks[0].about.program}}


def phases(one: Stored) -> Events:
    """Yield the phases of a rank in order."""
    at = began = one.about.clock_s
    current: Phase | None = None
    for k, spent in enumerate(one.seconds.tolist()):
        at = max(at, one.about.clock_s + k * one.width_s)
        for phase in sorted(Phase, key=lambda phase: phase is not current):  # the one that goes on comes first
            if spent[phase] < SHORTEST_S:
                continue
            if phase is not current:
                if current is not None:
                    yield NAMES[current], began, at, {}
                current, began = phase, at
            at += spent[phase]
    if current is not None:
        yield NAMES[current], began, at, {}


def calls(one: Stored) -> Events:
    """Yield the calls of a rank, as they are merged in its record."""
    for step in one.steps:
        name, unit, moved = DRIVERS[Driver(int(step["driver"]))]
        args: dict[str, Any] = {"calls": int(step["n"]), unit: float(step["units"]), f"{moved} moved": float(step["moved"])}
        if 0 <= step["reason"] < len(one.reasons):
            args["decision"] = one.reasons[step["reason"]]
        yield name, float(step["began"]), float(step["ended"]), args
