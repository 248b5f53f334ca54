"""A tree that unfolds, given by a function from a node to its children.   (pure)

Count the solutions of the eight-queens puzzle on all ranks (`mpiexec -n 4 python queens.py`):

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
from collections.abc import Callable, Iterable
from typing import Any

from lb_mpi.checks import function as check_function
from lb_mpi.checks import show


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
