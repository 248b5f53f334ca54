"""A profile: how each rank spent its time, the POP metrics, and the possible gain of balancing; as a table and as JSON.

A rank's time is useful (outside of MPI), waiting (for a certain rank) or communication (the rest of the time in MPI).  The
program's time is that of the rank that ran longest; ranks that end earlier wait for it.  The metrics are those of POP
(`lb_mpi.metrics.Efficiency`).

The code that times a call passes it to `Calls.add` at its end.  A blocking call between two ranks waits for the other one.
In a collective, the awaited rank is known only when all ranks have reported their arrival times: each collective call is
kept in the `Stream` of its ranks, and split at the end of the run (`lateness`).  Times are whole nanoseconds of the rank's
own clock.  Ranks are those of the whole program, whatever the communicator.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.cli.run.lines import printable
from lb_mpi.graph import Ints
from lb_mpi.metrics import Efficiency, Floats, check_speeds
from lb_mpi.table import Table, counted, shown_seconds

END = "(the program's end)"
MOST_RANKS, MOST_LINES, MOST_NAMES, MOST_NAMES_OF_SPEEDS = 32, 10, 3, 8
_EXPLAINED = (
    "useful: time outside of MPI;",
    "waiting: a call between two ranks, with its transfer of data; a collective, until the last rank has arrived; "
    "for: whom;",
    "other MPI: the rest of the time in MPI.",
)
GAIN = 0.05  # of the program's time: a smaller one is not worth a number
NOBODY = -1  # a call that waits for no rank
ANYBODY = -2  # a wait for any rank
INSIDE = "lb_mpi."  # how the name of a call of lb_mpi begins
MOST_CALLS = 2_000_000  # collective calls that a rank keeps: 40 bytes each

# The kinds of a collective; -1: the rank had not come when it was stopped.
TOGETHER, PARTLY, ABSENT = 0, 1, -1
_NEVER = np.iinfo(np.int64).min


# --- the calls of one rank --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Line:
    """A call in the program's text, and the time spent in it, on one rank or summed over several."""

    file: str  # "" for the program's end
    line: int
    function: str
    call: str  # "recv", "Allreduce", ..
    calls: int = 0
    seconds: float = 0.0  # in the call, including waiting
    waited_s: dict[int, float] = field(default_factory=dict)  # by awaited rank; ANYBODY: for any

    def wait(self, whom: int, seconds: float) -> None:
        """Count seconds as a wait for a rank."""
        self.waited_s[whom] = self.waited_s.get(whom, 0.0) + seconds

    @property
    def waiting_s(self) -> float:
        """Seconds of waiting, for any rank."""
        return sum(self.waited_s.values())

    @property
    def communication_s(self) -> float:
        """Seconds in the call without waiting."""
        return max(0.0, self.seconds - self.waiting_s)  # rounding


def merged(lines: Sequence[Line]) -> Line:
    """Return one line with the sums of these, and the names of the first."""
    total = replace(lines[0] if lines else Line("", 0, "", ""), calls=0, seconds=0.0, waited_s={})
    for line in lines:
        total.calls, total.seconds = total.calls + line.calls, total.seconds + line.seconds
        for whom, seconds in line.waited_s.items():
            total.wait(whom, seconds)
    return total


class Stream:
    """The collective calls of one set of ranks, on any communicator: all its ranks make them in the same order."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members  # ascending
        self._calls = array("q")  # of each: its kind, ..; see `table`

    def __len__(self) -> int:
        return len(self._calls) // 5

    def add(self, kind: int, entered: int, left: int, number: int) -> None:
        """Add a call; see `table`."""
        self._calls.extend((kind, entered, entered, left, number))

    def waited(self, index: int, entered: int, left: int, number: int) -> None:
        """Record the wait, at `number`, for the earlier call `index`."""
        self._calls[5 * index + 2 : 5 * index + 5] = array("q", (entered, left, number))

    def table(self, n: int) -> Ints:
        """Return (5, n) of the first n calls: the kind (ABSENT, now: a call to which this rank has not come); when this rank
        arrived (from then on, the others don't wait for it), began to wait, continued; its line, an index in `Calls.lines`.
        """
        calls = np.array(self._calls[: 5 * n], dtype=np.int64).reshape(-1, 5).T
        absent = np.array([[ABSENT], *[[time.perf_counter_ns()]] * 3, [0]])
        return np.hstack([calls, np.repeat(absent, n - calls.shape[1], axis=1)])

    def by_root(self, n: int, clocks: Sequence[ClockComparison]) -> Ints:
        """Return (4, n) of the first n calls: their kinds, and their times by rank 0's clock."""
        kinds, *times, _ = self.table(n)
        return np.stack([kinds, *(common(one, clocks) for one in times)])


class Calls:
    """All calls of one rank."""

    def __init__(self, most_calls: int = MOST_CALLS) -> None:
        self.lines: list[Line] = []
        self.streams: dict[tuple[int, ...], Stream] = {}
        self.in_mpi_ns = 0
        self.n_lost = 0  # collective calls beyond `most_calls`: the awaited ranks are unknown
        self._numbers: dict[tuple[str, int, str], int] = {}
        self._room = most_calls

    def number(self, file: str, line: int, function: str, call: str) -> int:
        """Return the number of a line in `lines`, new or known."""
        key = file, line, call
        if key not in self._numbers:
            self._numbers[key] = len(self.lines)
            self.lines.append(Line(file, line, function, call))
        return self._numbers[key]

    def add(self, number: int, entered: int, left: int, whom: int = NOBODY) -> None:
        """Add a finished call of line `number`, which waited for rank `whom`."""
        line, ns = self.lines[number], left - entered
        self.in_mpi_ns += ns
        line.calls += 1
        line.seconds += 1e-9 * ns
        if whom != NOBODY:
            line.wait(whom, 1e-9 * ns)

    def stream(self, members: Sequence[int]) -> Stream | None:
        """Return the stream of these ranks; None if there is no other rank, or not all are ranks of this program."""
        key = tuple(sorted(set(members)))
        if len(key) < 2 or key[0] < 0:
            return None
        if key not in self.streams:
            self.streams[key] = Stream(key)
        return self.streams[key]

    def join(self, stream: Stream, kind: int, number: int, entered: int, left: int) -> int:
        """Add this rank's next collective call to a stream; return its index, or -1 if there is no room to keep it."""
        if self._room <= 0:
            self.n_lost += 1
            return -1
        self._room -= 1
        stream.add(kind, entered, left, number)
        return len(stream) - 1


class ClockComparison(NamedTuple):
    """A comparison of one rank's clock with rank 0's."""

    at_ns: int  # this rank's clock
    offset_s: float  # rank 0's clock minus this one's
    error_s: float = 0.0


def common(times: Ints, clocks: Sequence[ClockComparison]) -> Ints:
    """Return a rank's times by rank 0's clock, which is linear between two comparisons."""
    at_ns, offsets_s, _ = zip(*clocks, strict=True)
    by_root: Ints = times + np.rint(1e9 * np.interp(times, at_ns, offsets_s)).astype(np.int64)
    return by_root


def lateness(row: int, members: Sequence[int], calls: Ints) -> tuple[Ints, Ints]:
    """Compute how long one of P ranks waited in each of K collective calls, in ns, and for whom: two (K,) arrays.

    A rank waits from its entry until the last rank that it needs has arrived, or until it leaves, if that is earlier.  It
    needs all ranks if none can leave before all have arrived (TOGETHER; barrier, allreduce); otherwise (PARTLY; bcast, scan)
    the ranks that arrived before it left.  The rest is communication.

    row : the rank is members[row]; members : (P,) ranks; calls : (4, P, K) kinds, posted, entered, left, by one clock.
    If ranks report different kinds for a call, it has no waits: NOBODY, 0.  An ABSENT rank had not come when it was posted.
    """
    kinds, posted, entered, left = calls
    ranks = np.asarray(members, dtype=np.int64)
    same = ((kinds == kinds[row]) | (kinds == ABSENT)).all(axis=0)
    needed = (kinds[row] == TOGETHER) | ((kinds[row] == PARTLY) & (posted <= left[row]))
    arrived = np.where(needed, posted, _NEVER)
    last = arrived.argmax(axis=0)
    until = np.minimum(arrived.max(axis=0), left[row])
    late = same & (until > entered[row]) & (last != row)
    return np.where(late, until - entered[row], 0), np.where(late, ranks[last], NOBODY)


# --- a run of a program -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankProfile:
    """One rank's time."""

    rank: int
    host: str
    seconds: float  # from the program's start to this rank's end
    useful_s: float  # outside of MPI
    lines: Sequence[Line]

    @property
    def in_mpi(self) -> Line:
        """All its calls."""
        return merged(self.lines)


@dataclass(frozen=True)
class Profile:
    """A run of a program on P ranks."""

    program: str
    ranks: Sequence[RankProfile]
    speeds: Sequence[float]  # of the ranks, relative
    speeds_from: str = "equal"  # or "from throttle", "measured"
    clock_error_s: float = 0.0  # maximum difference between the ranks' clocks
    notes: Sequence[str] = field(default=())  # on calls that the profile misses
    stopped: bool = False  # by a signal: perhaps it hung

    @property
    def seconds(self) -> float:
        """The program's time."""
        return max(rank.seconds for rank in self.ranks)

    @property
    def efficiency(self) -> Efficiency:
        """The metrics of POP."""
        return Efficiency.of(self._useful, self.seconds)

    @property
    def most_waited_for(self) -> tuple[int, float]:
        """The rank most waited for, and the fraction of the program's time that the others wait for it, on average."""
        waited = dict.fromkeys(range(len(self.ranks)), 0.0)
        for rank in self.ranks:
            for whom, seconds in rank.in_mpi.waited_s.items():
                if whom in waited and whom != rank.rank:
                    waited[whom] += seconds
        most = max(waited, key=waited.__getitem__)
        return most, waited[most] / (max(self.seconds, 1e-9) * max(1, len(self.ranks) - 1))

    @property
    def balanced_s(self) -> float:
        """Seconds if the same work were distributed by speed, and no rank waited.

        The ideal time is the work (useful seconds times speed) / the sum of speeds.  The communication without waits is
        added unchanged: the mean of all ranks.
        """
        speeds = check_speeds(self.speeds, len(self.ranks))
        communication_s = sum(rank.in_mpi.communication_s for rank in self.ranks) / len(self.ranks)
        return float((self._useful * speeds).sum() / speeds.sum()) + communication_s

    @property
    def _useful(self) -> Floats:
        return np.array([rank.useful_s for rank in self.ranks])

    @property
    def is_balanced_by_lb_mpi(self) -> bool:
        """True if at least half of the waiting is in calls of lb_mpi."""
        lines = self.lines()
        inside = [line.waiting_s for line in lines if line.call.startswith(INSIDE)]
        return bool(inside) and 2.0 * sum(inside) >= merged(lines).waiting_s

    def lines(self) -> list[Line]:
        """Return all ranks' lines, merged by call, most waiting first."""
        together: dict[tuple[str, int, str], list[Line]] = {}
        for line in (line for rank in self.ranks for line in rank.lines):
            together.setdefault((line.file, line.line, line.call), []).append(line)
        return sorted(map(merged, together.values()), key=lambda line: (-line.waiting_s, -line.seconds))

    def to_json(self) -> dict[str, Any]:
        """Return the profile with its metrics, ready for JSON."""
        most, part = self.most_waited_for
        sums = ("waiting_s", "communication_s", "waited_s")
        ranks = [{**asdict(rank), **{name: getattr(rank.in_mpi, name) for name in sums}} for rank in self.ranks]
        parallel, balance, communication = self.efficiency
        return {
            **asdict(self), "ranks": ranks, "seconds": self.seconds, "balanced_s": self.balanced_s,
            "parallel_efficiency": parallel, "load_balance": balance, "communication_efficiency": communication,
            "most_waited_for": most, "waited_for_part": part,
        }  # fmt: skip


def until_the_end(ranks: Sequence[RankProfile]) -> list[RankProfile]:
    """Return the ranks with their wait for the one that ran longest."""
    last = max(ranks, key=lambda rank: rank.seconds)
    found = []
    for rank in ranks:
        if (rest := last.seconds - rank.seconds) > 0:
            end = Line("", 0, "", END, 1, rest, {last.rank: rest})
            rank = replace(rank, lines=[*rank.lines, end])
        found.append(rank)
    return found


# --- table -------------------------------------------------------------------------------------------------------------


def table(profile: Profile) -> list[str]:
    """Return a summary, the ranks, the lines with most waiting, and metrics."""
    size, hosts, efficiency = len(profile.ranks), len({rank.host for rank in profile.ranks}), profile.efficiency
    where = f"{counted(size, 'rank')} on {counted(hosts, 'host')}"
    return [
        f"profile of {printable(profile.program)}: {where}, {profile.seconds:.2f} s",
        *summary(profile), "", *_of_ranks(profile).fitted().splitlines(), "", *_of_lines(profile), "",
        *_EXPLAINED, "",
        f"load balance              {efficiency.balance:6.1%}   mean useful / longest useful",
        f"communication efficiency  {efficiency.communication:6.1%}   longest useful / time of the program",
        f"parallel efficiency       {efficiency.parallel:6.1%}   the product: mean useful / time of the program",
        *(f"note: {note}" for note in profile.notes),
    ]  # fmt: skip


def summary(profile: Profile) -> list[str]:
    """Return which rank is waited for most, and where; and the gain of perfect balance."""
    most, part = profile.most_waited_for
    if part < 0.005:
        return ["no rank lets the others wait for more than 0.5% of the time", *_gain(profile)]
    where = _name(max(profile.lines(), key=lambda line: line.waited_s.get(most, 0.0)))
    return [f"the others wait for rank {most} during {part:.0%} of the time (mean), most at {where}", *_gain(profile)]


def _gain(profile: Profile) -> list[str]:
    """Return what perfect balance would gain."""
    if len(profile.ranks) == 1 or profile.stopped:
        return []
    if profile.is_balanced_by_lb_mpi:
        return ["lb_mpi balances this program. Its lower bound: LB_MPI_RECORD=rec mpiexec ..., python -m lb_mpi report rec"]
    part = profile.balanced_s / max(profile.seconds, 1e-9)
    gain = f"would save at most {GAIN:.0%} of the time" if part > 1.0 - GAIN else f"would cut the time to {part:.0%}"
    if profile.speeds_from == "equal":
        return [f"if all ranks are equally fast, perfect balance {gain}"]
    speeds = ", ".join(f"{speed:.2g}" for speed in profile.speeds[:MOST_NAMES_OF_SPEEDS])
    more = ", .." * (len(profile.speeds) > MOST_NAMES_OF_SPEEDS)
    return [f"perfect balance by speed ({speeds}{more}: {profile.speeds_from}) {gain}"]


def _of_ranks(profile: Profile) -> Table:
    def spent(seconds: float) -> str:
        return f"{seconds:.2f} s {seconds / max(profile.seconds, 1e-9):4.0%}"

    header = ("rank", "host", "useful", "waiting", "other MPI", "for")
    lines = [
        (str(rank.rank), rank.host, spent(rank.useful_s), spent(mpi.waiting_s), spent(mpi.communication_s),
         _whom(mpi.waited_s, profile.seconds))
        for rank, mpi in ((rank, rank.in_mpi) for rank in profile.ranks)
    ]  # fmt: skip
    return Table(header, lines, words=(1, 5), most=MOST_RANKS)


def _of_lines(profile: Profile) -> list[str]:
    found = [line for line in profile.lines() if line.seconds > 0]
    if not found:
        return ["no calls of MPI"]
    header = ("line", "calls", "waiting", "mean", "other MPI", "for")
    lines = [
        (_name(line), f"{line.calls:,}", f"{line.waiting_s:.2f} s",
         "" if line.call.startswith(INSIDE) else shown_seconds(line.waiting_s / line.calls),
         f"{line.communication_s:.2f} s", _whom(line.waited_s, line.waiting_s))
        for line in found
    ]  # fmt: skip
    rest = found[MOST_LINES:]
    more = [f"(the others: {merged(rest).waiting_s:.2f} s of waiting)"] if rest else []
    made = Table(header, lines, words=(0, 5), most=MOST_LINES).fitted().splitlines()
    return [*made, *more, "(seconds of all ranks, added up)"]


def _name(line: Line) -> str:
    if line.call == END:
        return END
    file = line.file if len(line.file) <= 40 else "/".join(line.file.split("/")[-2:])
    return f"{printable(file)}:{line.line} {line.call}"


def _whom(waited_s: Mapping[int, float], whole: float) -> str:
    """Write "rank 2 41 %, rank 1 3 %"; waits of less than half a percent are left out."""
    most = sorted(waited_s.items(), key=lambda item: -item[1])
    named = [
        f"{f'rank {rank}' if rank >= 0 else 'any rank'} {seconds / whole:.0%}"
        for rank, seconds in most
        if seconds >= 0.005 * whole > 0
    ]
    return ", ".join(named[:MOST_NAMES]) + (", .." if len(named) > MOST_NAMES else "")
