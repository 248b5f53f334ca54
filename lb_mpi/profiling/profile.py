"""A profile: where each rank's time went, the POP metrics, and what balancing could gain.   (pure)

A rank's time is useful (outside of MPI), waiting (for a certain rank) or communication (the rest of the time within MPI).
The program's time is that of the rank that ran longest; a rank that came to its end before waits for that one.

    load balance              mean useful time / longest useful time
    communication efficiency  longest useful time / the program's time
    parallel efficiency       the product of both: mean useful time / the program's time

Source: POP Standard Metrics for Parallel Performance Analysis, https://pop-coe.eu/node/69.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from lb_mpi.metrics import Floats, check_speeds
from lb_mpi.profiling.calls import Calls

END = "(the program's end)"


@dataclass(frozen=True)
class Line:
    """A call in the program's text, on one rank or summed over several."""

    file: str  # "" for the program's end
    line: int
    function: str
    call: str  # "recv", "Allreduce", ..
    calls: int
    seconds: float  # in the call, waiting or not
    sent_bytes: int  # handed to MPI to be sent
    waited_s: Mapping[int, float]  # by the rank that was waited for; SOMEBODY: nobody knows for whom

    @property
    def waiting_s(self) -> float:
        """Seconds of waiting, whoever was waited for."""
        return sum(self.waited_s.values())

    @property
    def communication_s(self) -> float:
        """Seconds that are no wait."""
        return max(0.0, self.seconds - self.waiting_s)  # rounding


@dataclass(frozen=True)
class RankProfile:
    """One rank's time."""

    rank: int
    host: str
    seconds: float  # from the program's begin to this rank's end of it
    useful_s: float  # outside of MPI
    useful_cpu_s: float  # CPU time of this thread outside of MPI
    lines: Sequence[Line]
    complete: bool = True  # False: the rank had not come to its end; who was waited for in collectives isn't known

    @property
    def waited_s(self) -> dict[int, float]:
        """Seconds of waiting by the rank that was waited for."""
        total: dict[int, float] = {}
        for line in self.lines:
            for rank, seconds in line.waited_s.items():
                total[rank] = total.get(rank, 0.0) + seconds
        return total

    @property
    def waiting_s(self) -> float:
        """Seconds of waiting."""
        return sum(line.waiting_s for line in self.lines)

    @property
    def communication_s(self) -> float:
        """Seconds within MPI that are no wait."""
        return sum(line.communication_s for line in self.lines)

    @property
    def sent_bytes(self) -> int:
        """Bytes handed to MPI to be sent."""
        return sum(line.sent_bytes for line in self.lines)


@dataclass(frozen=True)
class Profile:
    """A run of a program on P ranks."""

    program: str
    ranks: Sequence[RankProfile]
    speeds: Sequence[float]  # of the ranks, relative; equal unless they were given
    clock_error_s: float = 0.0  # the ranks' clocks are set side by side to +- this
    notes: Sequence[str] = field(default=())  # what could not be seen

    @property
    def seconds(self) -> float:
        """The program's time."""
        return max(rank.seconds for rank in self.ranks)

    @property
    def load_balance(self) -> float:
        """Mean useful time / longest useful time."""
        return _ratio(self._useful.mean(), self._useful.max())

    @property
    def communication_efficiency(self) -> float:
        """Longest useful time / the program's time."""
        return _ratio(self._useful.max(), self.seconds)

    @property
    def parallel_efficiency(self) -> float:
        """Mean useful time / the program's time."""
        return _ratio(self._useful.mean(), self.seconds)

    @property
    def most_waited_for(self) -> tuple[int, float]:
        """The rank that is most waited for, and the part of the program's time that the others wait for it, on average."""
        waited = dict.fromkeys(range(len(self.ranks)), 0.0)
        for rank in self.ranks:
            for whom, seconds in rank.waited_s.items():
                if whom >= 0 and whom != rank.rank:
                    waited[whom] = waited.get(whom, 0.0) + seconds
        most = max(waited, key=waited.__getitem__)
        return most, waited[most] / (max(self.seconds, 1e-9) * max(1, len(self.ranks) - 1))

    @property
    def balanced_s(self) -> float:
        """Seconds if the same work were dealt out by speed, and nobody waited.

        Useful seconds times speed are work; all work / all speeds is the time that it takes at least.  To it comes the
        communication that is no wait, as it was: the mean of all ranks.
        """
        speeds = check_speeds(self.speeds, len(self.ranks))
        communication = np.array([rank.communication_s for rank in self.ranks])
        return float((self._useful * speeds).sum() / speeds.sum() + communication.mean())

    @property
    def _useful(self) -> Floats:
        return np.array([rank.useful_s for rank in self.ranks])

    def lines(self) -> list[Line]:
        """All ranks' lines, those of the same call added up; most waiting first."""
        together: dict[tuple[str, int, str], Line] = {}
        for line in (line for rank in self.ranks for line in rank.lines):
            key = line.file, line.line, line.call
            together[key] = add(together[key], line) if key in together else line
        return sorted(together.values(), key=lambda line: (-line.waiting_s, -line.seconds))

    def to_json(self) -> dict[str, Any]:
        """The profile with its metrics, ready for JSON."""
        most, part = self.most_waited_for
        return {
            "program": self.program,
            "seconds": self.seconds,
            "load_balance": self.load_balance,
            "communication_efficiency": self.communication_efficiency,
            "parallel_efficiency": self.parallel_efficiency,
            "most_waited_for": most,
            "waited_for_part": part,
            "balanced_s": self.balanced_s,
            "speeds": list(self.speeds),
            "clock_error_s": self.clock_error_s,
            "notes": list(self.notes),
            "ranks": [rank_json(rank) for rank in self.ranks],
        }


def profile_from(found: Mapping[str, Any]) -> Profile:
    """The profile that `Profile.to_json` has told of."""
    ranks = [rank_from(rank) for rank in found["ranks"]]
    return Profile(found["program"], ranks, found["speeds"], found["clock_error_s"], found["notes"])


def rank_json(rank: RankProfile) -> dict[str, Any]:
    """One rank's profile with its sums, ready for JSON."""
    sums = {"waiting_s": rank.waiting_s, "communication_s": rank.communication_s, "sent_bytes": rank.sent_bytes}
    return {**asdict(rank), **sums, "waited_s": rank.waited_s}


def rank_from(found: Mapping[str, Any]) -> RankProfile:
    """The rank's profile that `rank_json` has told of."""
    lines = [
        Line(**{**line, "waited_s": {int(rank): seconds for rank, seconds in line["waited_s"].items()}})
        for line in found["lines"]
    ]
    fields = ("rank", "host", "seconds", "useful_s", "useful_cpu_s", "complete")
    return RankProfile(**{name: found[name] for name in fields}, lines=lines)


def lines_of(calls: Calls) -> list[Line]:
    """One rank's calls in seconds."""
    return [
        Line(
            place.file,
            place.line,
            place.function,
            place.call,
            place.calls,
            1e-9 * place.ns,
            place.n_bytes,
            {rank: 1e-9 * ns for rank, ns in sorted(place.waits.items())},
        )
        for place in calls.places
    ]


def until_the_end(ranks: Sequence[RankProfile]) -> list[RankProfile]:
    """The ranks with their wait for the one that ran longest."""
    last = max(ranks, key=lambda rank: rank.seconds)
    found = []
    for rank in ranks:
        if (rest := last.seconds - rank.seconds) > 0:
            end = Line("", 0, "", END, 1, rest, 0, {last.rank: rest})
            rank = replace(rank, lines=[*rank.lines, end])
        found.append(rank)
    return found


def add(one: Line, other: Line) -> Line:
    """Two ranks' lines of the same call as one."""
    both = dict(one.waited_s)
    for rank, seconds in other.waited_s.items():
        both[rank] = both.get(rank, 0.0) + seconds
    return replace(
        one,
        calls=one.calls + other.calls,
        seconds=one.seconds + other.seconds,
        sent_bytes=one.sent_bytes + other.sent_bytes,
        waited_s=both,
    )


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 1.0
