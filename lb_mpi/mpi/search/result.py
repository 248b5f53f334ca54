"""What a search found: the ranks' results, put together on rank 0 and told to all; or what has failed, told to all."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from mpi4py import MPI

from lb_mpi.errors import SearchError
from lb_mpi.mpi.common.collective import allgather
from lb_mpi.mpi.common.failure import describe, place
from lb_mpi.mpi.common.parcels import Parcels
from lb_mpi.mpi.common.presence import presence_of
from lb_mpi.mpi.search.messages import send, take
from lb_mpi.record.events import Step
from lb_mpi.searching.drafting import Kind, Message
from lb_mpi.searching.reporting import ROOT
from lb_mpi.searching.searcher import Reason, Searcher


@dataclass(frozen=True)
class RankStats:
    """What one rank did in a search: its `Step` in the words of a search."""

    units: int  # units of work done
    balances: int  # parts of work received from others
    drafts: int  # DRAFTING tokens started
    messages: int  # messages sent, of all kinds
    seconds: float  # wall-clock time from the common start to the end
    emulated_speed: float  # relative, 1.0: none
    cpu_s: float  # CPU time of the user's work
    busy_fraction: float  # cpu_s / emulated_speed / seconds
    poll_fraction: float  # time spent with messages between work quanta / (that + time of the quanta)


@dataclass(frozen=True)
class SearchResult:
    """What a search found, the same on all ranks."""

    value: Any  # the ranks' results, merged in rank order
    found: bool  # ended by an answer (False: all work was done)
    seconds: float  # wall-clock time of the slowest rank
    lower_bound_s: float  # CPU seconds of user work in this run / sum of speeds
    ranks: list[RankStats]  # of each rank, in order

    @property
    def balances(self) -> int:
        """Parts of work that were moved."""
        return sum(rank.balances for rank in self.ranks)

    @property
    def messages(self) -> int:
        """Messages sent, of all kinds."""
        return sum(rank.messages for rank in self.ranks)

    @property
    def cpu_s(self) -> float:
        """CPU seconds of user work on all ranks."""
        return sum(rank.cpu_s for rank in self.ranks)


def collect(
    parcels: Parcels, searcher: Searcher, step: Step, stopped: Callable[[MPI.Intracomm], NoReturn] | None = None
) -> SearchResult:
    """Collective, when the search is over on all ranks and its messages are drained: the result, or the error of all.

    `stopped` is called when a signal has ended it.
    Only rank 0 merges, so that there is one value and one failure; results travel as bytes that each rank has pickled.
    """
    rank = searcher.rank
    pickled = b""
    if searcher.error is None and searcher.reason is not Reason.STOPPED:
        pickled = searcher.attempt(_pickled, searcher) or b""
    ranks = [_stats(each) for each in _raise_any(parcels, searcher, step)]
    if searcher.reason is Reason.STOPPED and stopped is not None:
        stopped(parcels.comm)
    send(parcels, [(ROOT, Message(Kind.RESULT, rank, payload=pickled))])
    if rank == ROOT:
        results = _await(parcels, searcher.size)
        merged = searcher.attempt(_merged, searcher, results) or b""
        answer = Message(Kind.RESULT, ROOT, payload=merged)
        send(parcels, [(other, answer) for other in range(searcher.size)])
    (merged,) = _await(parcels, 1)
    value = searcher.attempt(pickle.loads, merged) if merged else None
    parcels.drain()
    _raise_any(parcels, searcher, step)
    return SearchResult(
        value=value,
        found=searcher.reason is Reason.FOUND,
        seconds=max(each.seconds for each in ranks),
        lower_bound_s=sum(each.cpu_s for each in ranks) / sum(each.emulated_speed for each in ranks),
        ranks=ranks,
    )


def _pickled(searcher: Searcher) -> bytes:
    return pickle.dumps(searcher.problem.result(), pickle.HIGHEST_PROTOCOL)


def _merged(searcher: Searcher, results: list[bytes]) -> bytes:
    value, *others = (pickle.loads(result) for result in results)
    for other in others:
        value = searcher.problem.merge(value, other)
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _await(parcels: Parcels, n: int) -> list[bytes]:
    """The payloads of the next `n` messages, in the order of their ranks."""
    messages: list[Message] = []

    def complete() -> bool:
        messages.extend(message for _, message in take(parcels))
        return len(messages) >= n

    presence_of(parcels.comm).wait(complete, parcels)
    return [message.payload for message in sorted(messages, key=lambda message: message.source)]


def _stats(step: Step) -> RankStats:
    cpu_s, at_work_s = step.useful_s * step.speed, step.serving_s + step.busy_s
    return RankStats(
        units=int(step.units),
        balances=int(step.moved),
        drafts=int(step.asked),
        messages=int(step.messages),
        seconds=step.seconds,
        emulated_speed=step.speed,
        cpu_s=cpu_s,
        busy_fraction=step.useful_s / step.seconds,
        poll_fraction=step.serving_s / at_work_s if step.busy_s else 0.0,
    )


def _raise_any(parcels: Parcels, searcher: Searcher, step: Step) -> list[Step]:
    """Collective: the ranks' steps; when some rank has failed, every rank raises."""
    error = searcher.error
    told = None if error is None else f"rank {searcher.rank}: {_in_words(error)}"
    everyone, together = allgather(parcels.comm, (told, step)), presence_of(parcels.comm).together
    errors = [told for told, _ in everyone if told is not None]
    if error is not None and not isinstance(error, Exception):
        raise together(error)
    if errors:
        raise together(SearchError("; ".join(errors))) from error
    return [each for _, each in everyone]


def _in_words(error: BaseException) -> str:
    return str(error) if isinstance(error, SearchError) else f"{describe(error)} {place(error)}"
