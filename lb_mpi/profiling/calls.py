"""The calls of MPI that one rank makes: where in the program, how often, how long, for whom.   (pure: times are passed in)

The code that times a call passes it to `Calls.add` when it has ended.  A blocking call between two ranks is a wait for the
other one.  In a collective, the rank that was waited for is known only when all ranks have said when they arrived: each
collective call is kept in the `Stream` of its ranks, and split at the end of the run (`lateness`).

Times are whole nanoseconds of the rank's own clock.  Ranks are those of the whole program, whatever the communicator.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lb_mpi.graph import Ints

NOBODY = -1  # a call that waits for no rank
SOMEBODY = -2  # a wait for an unknown rank
MOST_CALLS = 2_000_000  # collective calls that a rank keeps to be split: 34 bytes each

TOGETHER, PARTLY, NEIGHBOURS = 0, 1, 2  # the kinds of a collective; 2 + k: waits for the k-th list of `Stream.needs`
_NEVER = np.iinfo(np.int64).min


class Place:
    """One call in the program's text, and all that has been spent in it."""

    __slots__ = ("call", "calls", "file", "function", "line", "n_bytes", "ns", "waits")

    def __init__(self, file: str, line: int, function: str, call: str) -> None:
        self.file, self.line, self.function, self.call = file, line, function, call
        self.calls = 0
        self.ns = 0  # in the call, waiting or not
        self.n_bytes = 0  # handed to MPI to be sent
        self.waits: dict[int, int] = {}  # nanoseconds by the rank that was waited for


class Kept(NamedTuple):
    """The collective calls of a stream as arrays: one entry a call, in their order."""

    kinds: array[int]  # TOGETHER, ..
    posted: array[int]  # when this rank's part was there: from then on, the others don't wait for it
    entered: array[int]  # when it began to wait
    left: array[int]  # when it went on
    places: array[int]  # numbers of `Calls.places`


class Stream:
    """The collective calls among one set of ranks, whatever the communicator: all its ranks make them in the same order."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members  # ascending
        self.kept = Kept(array("h"), array("q"), array("q"), array("q"), array("l"))
        self.needs: list[tuple[int, ...]] = []  # ranks that neighbourhood collectives wait for

    def __len__(self) -> int:
        return len(self.kept.kinds)

    def kind_of(self, neighbours: Sequence[int]) -> int:
        """The kind of a collective that waits for these ranks."""
        ranks = tuple(sorted(set(neighbours)))
        if ranks not in self.needs:
            self.needs.append(ranks)
        return NEIGHBOURS + self.needs.index(ranks)

    def waited(self, index: int, entered: int, left: int, place: int) -> None:
        """The wait, at `place`, for call `index`, which was posted before."""
        self.kept.entered[index], self.kept.left[index], self.kept.places[index] = entered, left, place


class Calls:
    """All calls of one rank."""

    def __init__(self, most_calls: int = MOST_CALLS) -> None:
        self.places: list[Place] = []
        self.streams: dict[tuple[int, ...], Stream] = {}
        self.in_mpi_ns = 0
        self.n_lost = 0  # collective calls beyond `most_calls`: who was waited for is not known
        self._numbers: dict[tuple[str, int, str], int] = {}
        self._room = most_calls

    def number(self, file: str, line: int, function: str, call: str) -> int:
        """The number of a place in `places`, new or known."""
        key = file, line, call
        if key not in self._numbers:
            self._numbers[key] = len(self.places)
            self.places.append(Place(file, line, function, call))
        return self._numbers[key]

    def add(self, number: int, entered: int, left: int, n_bytes: int = 0, whom: int = NOBODY) -> None:
        """A call at place `number` is over, in which `whom` was waited for."""
        place = self.places[number]
        ns = left - entered
        self.in_mpi_ns += ns
        place.calls += 1
        place.ns += ns
        place.n_bytes += n_bytes
        if whom != NOBODY:
            place.waits[whom] = place.waits.get(whom, 0) + ns

    def stream(self, members: Sequence[int]) -> Stream | None:
        """The stream of these ranks; None where no rank can be waited for, or not all are ranks of this program."""
        key = tuple(sorted(set(members)))
        if len(key) < 2 or key[0] < 0:
            return None
        if key not in self.streams:
            self.streams[key] = Stream(key)
        return self.streams[key]

    def join(self, stream: Stream, kind: int, place: int, posted: int, entered: int, left: int) -> int:
        """This rank's next collective call in a stream; its index, or -1 when there is no room to keep it."""
        if self._room <= 0:
            self.n_lost += 1
            return -1
        self._room -= 1
        kept = stream.kept
        kept.kinds.append(kind)
        kept.posted.append(posted)
        kept.entered.append(entered)
        kept.left.append(left)
        kept.places.append(place)
        return len(kept.kinds) - 1


class CpuShare:
    """The CPU time of what lies outside of MPI, from looks at the clock, which cost too much at every call.

    Between two looks, CPU time is distributed by time on the wall.  A long interval has a look at both its ends.
    """

    EVERY_NS = 100_000  # a look needs about a microsecond

    def __init__(self, now: int, cpu: int) -> None:
        self.outside_ns = 0.0
        self.due = now + self.EVERY_NS
        self._now, self._cpu, self._in_mpi = now, cpu, 0

    def look(self, now: int, cpu: int, in_mpi: int) -> None:
        """Take the clocks' readings, and the time that has been spent in MPI so far."""
        if now > self._now:
            inside = (in_mpi - self._in_mpi) / (now - self._now)
            self.outside_ns += (cpu - self._cpu) * max(0.0, 1.0 - inside)
        self._now, self._cpu, self._in_mpi = now, cpu, in_mpi
        self.due = now + self.EVERY_NS


class Clock(NamedTuple):
    """How one rank's clock stands to rank 0's: looked at when the run began and when it ended, a straight line between."""

    begin_ns: int = 0  # this rank's clock at the first look
    end_ns: int = 1  # and at the last
    begin_offset_ns: int = 0  # rank 0's clock less this one's
    end_offset_ns: int = 0
    error_ns: int = 0  # the offsets are known to +- this

    def common(self, times: Ints) -> Ints:
        """This rank's times on rank 0's clock."""
        slope = (self.end_offset_ns - self.begin_offset_ns) / max(1, self.end_ns - self.begin_ns)
        drift: Ints = np.rint((times - self.begin_ns) * slope).astype(np.int64)
        common: Ints = times + self.begin_offset_ns + drift
        return common


def offset(sent: Sequence[int], answered: Sequence[int], returned: Sequence[int]) -> tuple[int, int]:
    """(offset, error) of another clock less one's own, from messages there and back: the quickest one counts.

    sent, returned : when each left and was back, by one's own clock; answered: when it was there, by the other one.
    Cristian, Probabilistic clock synchronization, Distributed Computing 3, 1989.
    """
    times = [back - out for out, back in zip(sent, returned, strict=True)]
    best = min(range(len(times)), key=times.__getitem__)
    return answered[best] - (sent[best] + returned[best]) // 2, (times[best] + 1) // 2


def lateness(members: Sequence[int], calls: Ints, needs: Sequence[Sequence[Sequence[int]]]) -> tuple[Ints, Ints]:
    """How long each of P ranks waited in each of K collective calls, in nanoseconds, and for whom: two (P, K) arrays.

    A rank waits from when it entered until the last of those whom it needs was there, or until it left, if that was before.
    It needs all ranks where none can leave before all have arrived (TOGETHER; barrier, allreduce); among NEIGHBOURS, these;
    in all others (PARTLY; bcast, reduce, scan) those who came before it left.  What is left of the call is communication.

    members : (P,) ranks; calls : (4, P, K) kinds, posted, entered, left, by one clock; needs : each rank's lists of
    neighbours.
    Ranks that report different kinds for a call waited for none: NOBODY, 0.
    """
    kinds, posted, entered, left = calls
    ranks = np.asarray(members, dtype=np.int64)
    waits, whom = np.zeros_like(posted), np.full_like(posted, NOBODY)
    same = (np.minimum(kinds, NEIGHBOURS) == np.minimum(kinds[0], NEIGHBOURS)).all(axis=0)
    for row in range(len(ranks)):
        needed = np.broadcast_to(kinds[row] == TOGETHER, posted.shape).copy()
        needed |= (kinds[row] == PARTLY) & (posted <= left[row])
        for k, neighbours in enumerate(needs[row]):
            needed |= (kinds[row] == NEIGHBOURS + k) & np.isin(ranks, neighbours)[:, None]
        came = np.where(needed, posted, _NEVER)
        last = came.argmax(axis=0)
        until = np.minimum(came.max(axis=0), left[row])
        late = same & (until > entered[row]) & (last != row)
        waits[row, late] = (until - entered[row])[late]
        whom[row, late] = ranks[last[late]]
    return waits, whom
