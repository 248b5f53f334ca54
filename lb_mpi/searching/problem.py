"""The problems of a search: the abilities that let its work move between ranks.

The protocol knows work only as an opaque object that can do some of its units, report its load, split, absorb a part, and be
packed as bytes.  Every rank makes the problem alike; only rank 0 calls `start`.

`docs/tutorial/4-a-tree.md` has complete programs: one with a `TreeSearch`, and one with a `Problem` of its own.
"""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lb_mpi.checks import function as check_function
from lb_mpi.checks import returned, show
from lb_mpi.errors import SearchError


@runtime_checkable
class Problem(Protocol):
    """One rank's part of a search.  All methods are called between work quanta, never concurrently.

    If a method raises an exception, or returns a value other than described here, the search ends with a SearchError on
    all ranks.
    """

    def start(self) -> None:
        """Begin with all the work of the problem; called on rank 0 only, once, before the clock starts."""

    def work(self, units: int) -> int:
        """Do at most `units` (>= 1) units of work; return the number done, 0 to `units`.

        The unit is chosen by the problem, for example one node of a tree.  To return less than `units`, even 0, does
        not end the search, and later calls continue the work: only load() == 0.0 says that this rank has no work left,
        and only `found` that the search is over.
        """

    def load(self) -> float:
        """Return how much work this rank has left, in any unit: 0.0 if there is none, otherwise > 0 and finite."""

    def split(self) -> bytes | None:
        """Give away about half of this rank's work, as bytes, and keep the rest, never nothing; None: cannot be split.

        On many ranks or several hosts, a rank may give work to several others at once, and more to faster ones.  A
        problem can have a method for this (see `Divisible`); otherwise `split` is called repeatedly.
        """

    def absorb(self, payload: bytes) -> None:
        """Receive the work that another rank's `split` has packed; called only if this rank has no work."""

    if TYPE_CHECKING:

        @property
        def found(self) -> bool:
            """True if this rank has an answer that ends the search on all ranks; False in a search that counts.

            A property, or a plain attribute of the instance or the class.
            """

    else:
        found: bool  # no default exists at run time, or an instance couldn't set it

    def result(self) -> Any:
        """Return this rank's partial result, which can be pickled; called once, after the search has ended."""

    def merge(self, one: Any, other: Any) -> Any:
        """Combine two partial results into one, which can be pickled.

        Must be associative; it is called on rank 0, in the order of the ranks.
        """


@runtime_checkable
class Savable(Problem, Protocol):
    """A problem whose search can be saved, and resumed on any number of ranks.  It has two more methods.

    The states that `save` returns on all ranks are the complete search: no rank works on until all states are written.
    """

    def save(self) -> bytes:
        """Return all work of this rank and its partial result so far, as bytes; must not change the problem."""

    def resume(self, states: Sequence[bytes], mine: Sequence[int]) -> None:
        """Begin with the work and results that `save` packed in states[i], for each i in `mine`.

        Called instead of `start`.

        `states` has the states of all ranks of the saved run, each read from the disk when it is accessed.  A problem
        may look at all of them, for example to know what the other ranks had visited, but the work in a state belongs
        to one rank only.  `mine` may be empty.  Must raise ValueError for the state of another problem.
        """


class Divisible(Problem, Protocol):
    """A problem that can give parts of its work to several ranks at once, by another method."""

    def shares(self, weights: Sequence[int]) -> list[bytes]:
        """Give away parts of this rank's work, each packed as by `split`, to len(weights) - 1 other ranks.

        The parts should be in proportion to `weights`; weights[0] is for the part that is kept, which must not be
        empty.  If there is too little work, return fewer parts, for the first of the ranks; [] if it cannot be split at
        all.
        """


class Owning(Problem, Protocol):
    """A problem in which each part of the work belongs to a certain rank, its owner.

    Work that comes up on another rank is sent to its owner, whether or not the owner has asked for work.  The owner of
    a part knows what has been done in it, so ranks that share no memory do not repeat each other's work.  Drafts then
    use the route "random" (see `lb_mpi.search`).
    """

    def outgoing(self) -> list[tuple[int, bytes]]:
        """Give away work that belongs to other ranks: a list of pairs of owner and bytes; [] if there is none.

        Called after every work quantum, and whenever work has arrived.  Small amounts may be held back for a later
        message, but not if load() is 0.0, since the method may then not be called again on this rank.
        """

    def incoming(self, payload: bytes) -> None:
        """Receive the work that another rank's `outgoing` has packed; this rank may or may not have other work."""


def outgoing(problem: Problem) -> list[tuple[int, bytes]]:
    """Give away work that belongs to other ranks; none if the problem is not `Owning`."""
    own: Callable[[], list[tuple[int, bytes]]] | None = getattr(problem, "outgoing", None)
    return [] if own is None else own()


def shares(problem: Problem, weights: Sequence[int]) -> list[bytes]:
    """Give away parts of a problem's work as `Divisible.shares` does, or by halves if it has no such method."""
    own: Callable[[Sequence[int]], list[bytes]] | None = getattr(problem, "shares", None)
    if own is not None:
        return own(weights)
    parts: list[bytes] = []
    while len(parts) < len(weights) - 1 and (part := problem.split()) is not None:
        parts.append(part)
    return parts


# --- a tree given by functions ----------------------------------------------------------------------------------------


class TreeSearch:
    """A search through all nodes of a tree: one rank's part of it (an `lb_mpi.Problem`).

    Parameters
    ----------
    root : the node to begin with; a node is any object that can be pickled.
    children : a function from a node to its children, any number of them, as a list or a generator.
    value : a function from a node to its contribution to the result; a node for which it returns None contributes
        nothing.  None: every node contributes 1, so that the nodes are counted.
    merge : a function that combines two contributions into one, in any order (+, max, ...).
    until : a function of this rank's combined contributions so far; once it returns a true value on any rank, the
        search ends on all ranks.  None: visit all nodes.

    Every rank makes it in the same way, and each search of it starts anew.  The `value` of the search's result combines the
    contributions of all nodes; it is None if no node has contributed.

    Of the nodes not yet visited, a rank visits the newest first, which keeps them few.  It gives away every other one
    (or more, to a faster rank), so that both ranks have old nodes, with most of the tree below them.  The load is the
    number of nodes not yet visited.  Nodes are sent as pickles, so the ranks must trust each other.  Nothing read from
    a disk is unpickled: a search that is to be saved needs an `lb_mpi.Savable` instead.

    Raises TypeError if an argument that must be a function is not one.
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
        self.forget()

    def forget(self) -> None:
        """Forget the nodes and the result of an earlier search, on each rank."""
        self._nodes: list[Any] = []
        self._value: Any = None
        self.found = False

    def start(self) -> None:
        """Start with the root."""
        self._nodes = [self._root]

    def work(self, units: int) -> int:
        """Visit up to `units` nodes; return how many.  SearchError if `children` returns anything but nodes."""
        for done in range(units):
            if not self._nodes or self.found:
                return done
            node = self._nodes.pop()
            new = self._children(node)
            if not isinstance(new, Iterable):
                expected = f"a list of nodes, or a generator, for the node {show(node)}"
                raise SearchError(returned(self._children, show(new), expected))
            self._nodes.extend(new)
            self._value = self.merge(self._value, 1 if self._value_of is None else self._value_of(node))
            self.found = self._until is not None and self._value is not None and bool(self._until(self._value))
        return units

    def load(self) -> float:
        """Return the number of nodes not yet visited."""
        return float(len(self._nodes))

    def split(self) -> bytes | None:
        """Give away every other node; None if there is only one."""
        parts = self.shares([1, 1])
        return parts[0] if parts else None

    def shares(self, weights: Sequence[int]) -> list[bytes]:
        """Give away nodes of all ages to several ranks, by weight; the first weight is for the part kept."""
        from lb_mpi.metrics import deal  # here, since `import lb_mpi` must not need numpy

        n = min(len(weights), len(self._nodes))
        if n < 2:
            return []
        parts: list[list[Any]] = [[] for _ in range(n)]
        for node, owner in zip(self._nodes, deal(weights[:n], len(self._nodes)).tolist(), strict=True):
            parts[owner].append(node)
        self._nodes = parts[0]
        return [pickle.dumps(part, pickle.HIGHEST_PROTOCOL) for part in parts[1:]]

    def absorb(self, payload: bytes) -> None:
        """Receive nodes from another rank."""
        self._nodes = pickle.loads(payload)

    def result(self) -> Any:
        """Return the combined contributions of this rank's nodes; None if there are none."""
        return self._value

    def merge(self, one: Any, other: Any) -> Any:
        """Combine two results; None adds nothing."""
        if one is None or other is None:
            return other if one is None else one
        try:
            return self._merge(one, other)
        except TypeError as error:
            if self._merge is not operator.add:
                raise
            expected = "numbers, or a function merge= that combines two contributions"
            raise SearchError(f"contributions {show(one)} and {show(other)}: {error}: expected {expected}") from error
