"""The problems of a search: the abilities that let its work move between ranks.

The protocol knows work only as an opaque thing that can: do some units of itself, value its load, split, absorb a part,
and be packed as bytes.  Every rank makes the problem alike; only rank 0 calls `start`.

Example: count the solutions of the eight-queens puzzle on all ranks (`mpiexec -n 4 python queens.py`)

    import json

    import lb_mpi
    from mpi4py import MPI

    class Queens(lb_mpi.Problem):
        # Boards in hand are tuples: the column of the queen in row 0, 1, ...
        found = False                               # a counting search: it ends when all work is done

        def __init__(self, n):
            self.n, self.boards, self.count = n, [], 0

        def start(self):
            self.boards.append(())

        def work(self, units):
            for done in range(units):
                if not self.boards:
                    return done
                board = self.boards.pop()
                self.count += len(board) == self.n
                for column in range(self.n if len(board) < self.n else 0):
                    if all(column != c and len(board) - r != abs(column - c) for r, c in enumerate(board)):
                        self.boards.append((*board, column))
            return units

        def load(self):
            return float(len(self.boards))

        def split(self):                            # the oldest boards are the shallowest, with most work below them
            half = len(self.boards) // 2
            given, self.boards = self.boards[:half], self.boards[half:]
            return json.dumps(given).encode() if given else None

        def absorb(self, payload):
            self.boards = json.loads(payload)

        def result(self):
            return self.count

        def merge(self, one, other):
            return one + other

    solutions = lb_mpi.search(MPI.COMM_WORLD, Queens(8), threshold=1.0)
    if MPI.COMM_WORLD.rank == 0:
        print(solutions.value, "solutions, work moved", solutions.balances, "times")

The same with a `TreeSearch`, a tree that unfolds by a function from a node to its children:

    import lb_mpi
    from mpi4py import MPI

    def children(board):                            # a node is the columns of the queens so far
        new, row = range(8 if len(board) < 8 else 0), len(board)
        return [(*board, c) for c in new if all(c != d and row - r != abs(c - d) for r, d in enumerate(board))]

    tree = lb_mpi.TreeSearch((), children, value=lambda board: len(board) == 8)
    solutions = lb_mpi.search(MPI.COMM_WORLD, tree)
"""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lb_mpi.checks import function as check_function
from lb_mpi.checks import show


@runtime_checkable
class Problem(Protocol):
    """One rank's part of a search.  All methods are called between work quanta, never concurrently.

    What any of them raises, and a value that isn't as it says here, ends the search with a SearchError on all ranks.
    """

    def start(self) -> None:
        """Take the whole problem in hand (called on rank 0 only, once, before the clock starts)."""

    def work(self, units: int) -> int:
        """Do at most `units` (>= 1) units of work; return the number done, 0 to `units`.

        Less than `units`, even 0, means nothing by itself: load() == 0.0 says that nothing is left in hand, `found`
        that the search is over; otherwise the call was cut short to stay responsive, and the next ones get on with it.
        """

    def load(self) -> float:
        """Value the unfinished work in hand: 0.0 exactly when there is none, otherwise > 0 and finite, in any unit."""

    def split(self) -> bytes | None:
        """Give away about half of the work in hand, packed; None when it can't be split.  Something is kept.

        On many ranks several of them are given work at once.  A problem may also have a method for that (see `Divisible`);
        one that hasn't is split in halves, again and again.
        """

    def absorb(self, payload: bytes) -> None:
        """Take in what another rank's `split` packed (only called with no work in hand)."""

    if TYPE_CHECKING:

        @property
        def found(self) -> bool:
            """True when this rank has an answer that ends the whole search ("any solution"); counting searches: False.

            A property, or a plain attribute of the instance or the class.
            """

    else:
        found: bool  # nothing stands here while the program runs, or an instance couldn't set it

    def result(self) -> Any:
        """This rank's partial result (picklable), read once, after the search has ended."""

    def merge(self, one: Any, other: Any) -> Any:
        """Combine two partial results into one (picklable); associative, applied on rank 0 in rank order."""


@runtime_checkable
class Savable(Problem, Protocol):
    """A problem whose search can be saved, and gone on with by any number of ranks: two methods more.

    What `save` returns holds all that counts: after it every rank of the search keeps still until all have written theirs.
    """

    def save(self) -> bytes:
        """Pack all work in hand and the partial result so far.  Nothing is changed."""

    def resume(self, states: Sequence[bytes], mine: Sequence[int]) -> None:
        """Take in hand the work and the results that `save` packed in states[i], for each i in `mine`; instead of `start`.

        `states` are those of all ranks that there were, and are read from the disk as they are looked at, so a problem
        that needs to know what all had visited can have it; but each is the work of one rank only.  `mine` may be empty.
        ValueError for the state of another problem.
        """


class Divisible(Problem, Protocol):
    """A problem that can give parts of its work to several ranks at once."""

    def shares(self, weights: Sequence[int]) -> list[bytes]:
        """Give away parts of the work in hand, each packed as by `split`, to len(weights) - 1 others.

        They are to be as large to each other as `weights`, the first of which is for what is kept, more than nothing.
        Fewer parts, of the first ranks, where there isn't enough in hand; [] when it can't be split at all.
        """


class Owning(Problem, Protocol):
    """A problem parts of which belong to certain ranks: what comes up elsewhere is sent to its owner, asked for or not.

    So ranks that share no memory need not find out by themselves what others have done: the owner of a part knows.  Drafts
    then walk (route "random").
    """

    def outgoing(self) -> list[tuple[int, bytes]]:
        """Give away work that belongs to others, packed, with the rank of each owner; [] when there is none.

        Called after every quantum, and whenever something has come.  It may be held back until it's worth a message, but
        not when load() is 0.0: this rank may not be called again then.
        """

    def incoming(self, payload: bytes) -> None:
        """Take in hand what another rank's `outgoing` packed, with or without other work in hand."""


def outgoing(problem: Problem) -> list[tuple[int, bytes]]:
    """Give away work that belongs to other ranks; none if the problem is not `Owning`."""
    own: Callable[[], list[tuple[int, bytes]]] | None = getattr(problem, "outgoing", None)
    return [] if own is None else own()


def shares(problem: Problem, weights: Sequence[int]) -> list[bytes]:
    """Give away parts of a problem's work as `Divisible.shares` does; by halves when it has no such method."""
    own: Callable[[Sequence[int]], list[bytes]] | None = getattr(problem, "shares", None)
    if own is not None:
        return own(weights)
    parts: list[bytes] = []
    while len(parts) < len(weights) - 1 and (part := problem.split()) is not None:
        parts.append(part)
    return parts


# --- a tree given by functions ----------------------------------------------------------------------------------------


class TreeSearch:
    """A search through all nodes of a tree, one rank's part of it (a `lb_mpi.Problem`).

    Parameters
    ----------
    root : the node to begin with; a node is any object that can be pickled.
    children : a function from a node to its children, any number of them, in a list or as a generator.
    value : a function from a node to what it counts; None: 1, so that the nodes are counted.  A node for which it returns
        None adds nothing.
    merge : a function that puts two such values together, in any order (+, max, ...).
    until : a function of what this rank has put together so far: once it is true on any rank, the search ends on all.

    Every rank makes it alike.  The search's value is what all nodes together count, None when none has counted.

    The last node in hand is the next one, so that few are in hand.  Every other one is given away, so that both ranks have
    old ones, with most below them.  The load is the number of nodes in hand.  Nodes travel as pickles, and ranks
    trust each other.  Nothing read from a disk is unpickled: a search that is to be saved needs a `lb_mpi.Savable`.

    TypeError when an argument is no function.
    """

    def __init__(
        self,
        root: Any,
        children: Callable[[Any], Iterable[Any]],
        *,
        value: Callable[[Any], Any] | None = None,
        merge: Callable[[Any, Any], Any] = operator.add,
        until: Callable[[Any], object] | None = None,
    ) -> None:
        self._root = root
        self._children = check_function("children", children)
        self._value_of = check_function("value", value, optional=True)
        self._merge = check_function("merge", merge)
        self._until = check_function("until", until, optional=True)
        self._nodes: list[Any] = []
        self._value: Any = None
        self.found = False

    def start(self) -> None:
        """Take the root in hand."""
        self._nodes = [self._root]

    def work(self, units: int) -> int:
        """Visit up to `units` nodes; return how many.  TypeError when `children` returns no such thing."""
        for done in range(units):
            if not self._nodes or self.found:
                return done
            node = self._nodes.pop()
            new = self._children(node)
            if not isinstance(new, Iterable):
                raise TypeError(
                    f"children({show(node)}) returned {show(new)}: expected a list of nodes, or a generator"
                )
            self._nodes.extend(new)
            self._value = self.merge(self._value, 1 if self._value_of is None else self._value_of(node))
            self.found = self._until is not None and self._value is not None and bool(self._until(self._value))
        return units

    def load(self) -> float:
        """Count the nodes in hand."""
        return float(len(self._nodes))

    def split(self) -> bytes | None:
        """Give away every other node in hand, the oldest among them; None when there is only one."""
        if len(self._nodes) < 2:
            return None
        given, self._nodes = self._nodes[::2], self._nodes[1::2]
        return pickle.dumps(given, pickle.HIGHEST_PROTOCOL)

    def absorb(self, payload: bytes) -> None:
        """Take in hand the nodes that another rank has given."""
        self._nodes = pickle.loads(payload)

    def result(self) -> Any:
        """Return what the nodes of this rank count together; None when none has counted."""
        return self._value

    def merge(self, one: Any, other: Any) -> Any:
        """Put two results together, of which None adds nothing."""
        if one is None or other is None:
            return other if one is None else one
        return self._merge(one, other)
