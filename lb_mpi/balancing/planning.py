"""Plans that ranks make together: what a rank does from beginning to end, as an actor.   (pure)

Law.  All ranks send the same kinds of messages in the same order.  A rank waits for one source at a time, and what it sends
depends only on what it has received.  So the order in which ranks go on does not matter.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Generator, Iterable
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from lb_mpi.errors import ProtocolError
from lb_mpi.graph import Floats
from lb_mpi.reduction import Reduction

T_co = TypeVar("T_co", covariant=True)

NEAR, ALL = -1, -2  # targets of messages beside ranks: the neighbours, and all ranks


class Next(NamedTuple):
    """Messages that a rank sends, and the source that it awaits then: a rank, NEAR or ALL; None: it goes on at once.

    (n,) numbers to NEAR go to each neighbour, or row k of (deg, n) to neighbour k, and from NEAR comes (deg, n), row k from
    neighbour k.  From ALL comes the `Reduction` of what all ranks have sent to ALL.  A rank gets a table.
    """

    sends: tuple[tuple[int, Any], ...] = ()
    awaited: int | None = None


def exchange(numbers: Floats) -> Next:
    """Send numbers to the neighbours, and await theirs."""
    return Next(((NEAR, numbers),), NEAR)


def reduce(numbers: Reduction) -> Next:
    """Add up numbers over all ranks."""
    return Next(((ALL, numbers),), ALL)


class Planning(Generic[T_co]):
    """One rank of a computation in which ranks send numbers to each other: an actor (`lb_mpi.actor`) without jobs.

    `story` says what the rank does from beginning to end: it yields what it sends and waits for, and gets what arrives.
    """

    job = None
    wake_at = math.inf

    def __init__(self, story: Generator[Next, Any, T_co]) -> None:
        self.over = False
        self.error: BaseException | None = None
        self.awaited: int | None = None  # a rank, NEAR or ALL
        self._story, self._arrived = story, defaultdict[int, deque[Any]](deque)

    def turn(self, _now: float, arrived: Iterable[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """Take what has arrived, go on until something else is awaited, and return what to send."""
        for source, message in arrived:
            self._arrived[source].append(message)
        sends = list[tuple[int, Any]]()
        while not self.over and (self.awaited is None or self._arrived[self.awaited]):
            message = None if self.awaited is None else self._arrived[self.awaited].popleft()
            try:
                more, self.awaited = self._story.send(message)
                sends += more
            except StopIteration as ended:
                self.over, self._value = True, ended.value
            except BaseException as error:  # after what it has sent before has left
                self.over, self.error = True, error
        if self.over and any(self._arrived.values()):
            raise ProtocolError(f"a message from {[rank for rank, some in self._arrived.items() if some]} at the end")
        return sends

    @property
    def value(self) -> T_co:
        """The outcome, once it is over; the error is raised."""
        if self.error is not None:
            raise self.error
        value: T_co = self._value
        return value

    def done(self, job: Any, _result: Any) -> NoReturn:
        """Never called: there is no job."""
        raise ProtocolError(f"{job}: planning has no jobs")

    def fail(self, _error: BaseException) -> list[tuple[int, Any]]:
        """Go on: what is raised between turns is raised again when the plan is made."""
        return []
