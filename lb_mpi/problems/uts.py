"""Unbalanced tree search (UTS): count the nodes of a tree that nobody can foresee.   (pure)

Source: Olivier et al., "UTS: An unbalanced tree search benchmark" (LCPC 2006); the trees are in `uts_tree`, the inner
loop in `uts_kernel`.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lb_mpi import checks
from lb_mpi.problems import uts_kernel as kernel
from lb_mpi.problems.uts_tree import (
    MAX_CHILDREN,
    PUBLISHED,
    RANDS,
    TREES,
    Tree,
    TreeCount,
    averages,
    child_counter,
    plain_count,
    root_state,
)

__all__ = [
    "PUBLISHED",
    "TREES",
    "Tree",
    "TreeCount",
    "UnbalancedTreeSearch",
    "compile_kernels",
    "growth",
    "plain_count",
]

SPLIT_RULES = ("half", "one", "alternate")
NODE_BYTES = 4 * kernel.WIDTH
SAVED = struct.Struct("<iqqq")  # bytes of the tree's text; nodes, leaves and depth counted


class UnbalancedTreeSearch:
    """One rank's part of the search (a `lb_mpi.searching.problem.Problem`); one unit of work is one node counted.

    A node is counted when it is taken off the stack and its children, if any, are made, so that at any time each node
    of the tree is counted, or in hand somewhere, or below one that is.  The load is the number of nodes in hand.

    split_rule  what `split` gives: "half": the oldest half of the nodes in hand, so almost all of the work, since the
                oldest nodes are the nearest to the root; "alternate": every second node, so about half of the work in
                a geometric tree; "one": the oldest node

    Errors: TypeError, ValueError for what is no tree or no split rule.
    """

    def __init__(self, tree: Tree, split_rule: str = "alternate") -> None:
        if not isinstance(tree, Tree):
            raise TypeError(f"tree = {tree!r}: expected a Tree")
        checks.choice("split_rule", split_rule, SPLIT_RULES)
        self.tree = tree
        self._split_rule = split_rule
        self._growth = growth(tree)
        self._scratch = kernel.make_scratch()
        self._stack: kernel.Words = np.empty((4096, kernel.WIDTH), np.uint32)
        self._bottom, self._top = 0, 0
        self._count = TreeCount(0, 0, 0)

    def start(self) -> None:
        """Take the root in hand."""
        self._stack[0, :5] = np.frombuffer(root_state(self.tree), ">u4")
        self._stack[0, 5] = 0
        self._bottom, self._top = 0, 1

    def work(self, units: int) -> int:
        """Count up to `units` nodes, youngest first; returns how many, fewer only when no more are left."""
        units = checks.integer("units", units, 1)
        done = 0
        while done < units and self._bottom < self._top:
            self._top, n, leaves, depth = kernel.expand(
                self._stack, self._bottom, self._top, units - done, self._growth, self._scratch
            )
            done += n
            self._count = self.merge(self._count, TreeCount(n, leaves, depth))
            if done < units and self._bottom < self._top:
                self._make_room()
        return done

    def load(self) -> float:
        """Return the number of nodes in hand."""
        return float(self._top - self._bottom)

    def split(self) -> bytes | None:
        """Give away nodes in hand by the split rule, at most half of them; None when there are fewer than two.

        Packed as 24 bytes a node, oldest first: five words of its state and its depth, little-endian.
        """
        in_hand = self._top - self._bottom
        if in_hand < 2:
            return None
        n = 1 if self._split_rule == "one" else in_hand // 2
        nodes = self._stack[self._bottom : self._top]
        if self._split_rule == "alternate":
            part = nodes[: 2 * n : 2].astype("<u4").tobytes()
            nodes[n : 2 * n] = nodes[1 : 2 * n : 2].copy()
        else:
            part = nodes[:n].astype("<u4").tobytes()
        self._bottom += n
        return part

    def shares(self, weights: Sequence[int]) -> list[bytes]:
        """Give away nodes in hand to several at once, by weight, packed as by `split`; the first weight is for what is kept.

        Each gets one node at least, as far as they last, and the nodes of all ages are dealt out evenly.  So it is whatever
        the split rule: rules differ in how one half is chosen.
        """
        in_hand = self._top - self._bottom
        n = min(len(weights), in_hand)
        if n < 2:
            return []
        owner = _deal(np.asarray(weights[:n], float), in_hand)
        nodes = self._stack[self._bottom : self._top]
        parts = [nodes[owner == k].astype("<u4").tobytes() for k in range(1, n)]
        keep = nodes[owner == 0]
        self._bottom = self._top - len(keep)
        self._stack[self._bottom : self._top] = keep
        return parts

    def absorb(self, payload: bytes) -> None:
        """Take in what another rank's `split` packed, on top of what is in hand; ValueError when it isn't that."""
        if len(payload) == 0 or len(payload) % NODE_BYTES != 0:
            raise ValueError(f"payload of {len(payload)} bytes: expected a positive multiple of {NODE_BYTES}")
        part = np.frombuffer(payload, "<u4").reshape(-1, kernel.WIDTH)
        while self._top + len(part) > len(self._stack):
            self._make_room()
        self._stack[self._top : self._top + len(part)] = part
        self._top += len(part)

    def save(self) -> bytes:
        """Pack the tree, what was counted, and the nodes in hand."""
        tree = repr(self.tree).encode()
        nodes = self._stack[self._bottom : self._top].astype("<u4").tobytes()
        return SAVED.pack(len(tree), *self._count) + tree + nodes

    def resume(self, states: Sequence[bytes], mine: Sequence[int]) -> None:
        """Take in hand the counts and the nodes of states[i] for i in `mine`; ValueError for those of another tree."""
        for index in mine:
            n, *count = SAVED.unpack_from(states[index])
            tree, nodes = states[index][SAVED.size : SAVED.size + n].decode(), states[index][SAVED.size + n :]
            if tree != repr(self.tree):
                raise ValueError(f"tree = {self.tree}: expected {tree}, as it was saved")
            self._count = self.merge(self._count, TreeCount(*count))
            if nodes:
                self.absorb(nodes)

    @property
    def found(self) -> bool:
        """False: all nodes must be counted."""
        return False

    def result(self) -> TreeCount:
        """Return what this rank counted."""
        return self._count

    def merge(self, one: TreeCount, other: TreeCount) -> TreeCount:
        """Add nodes and leaves; the deeper of the depths."""
        return TreeCount(one.nodes + other.nodes, one.leaves + other.leaves, max(one.depth, other.depth))

    def _make_room(self) -> None:
        # Use again what has been given away from below, and only when that is less than half take more memory.
        in_hand = self._stack[self._bottom : self._top]
        if 2 * self._bottom < len(self._stack):
            self._stack = np.empty((2 * len(self._stack), kernel.WIDTH), np.uint32)
        self._stack[: len(in_hand)] = in_hand
        self._bottom, self._top = 0, len(in_hand)


def _deal(weights: npt.NDArray[np.float64], n: int) -> npt.NDArray[np.int64]:
    """Deal n cards to as many as there are weights, at least one each; shape (n,), the owner of each card in turn.

    Owners take turns as evenly as can be: the j-th card of one with m cards comes up at (j + 1/2) / m of the way.
    """
    exact = np.cumsum(weights) / weights.sum() * (n - len(weights))
    cards = 1 + np.diff(np.rint(exact).astype(np.int64), prepend=0)
    owners = np.repeat(np.arange(len(weights)), cards)
    turns = (np.arange(n) - np.repeat(np.cumsum(cards) - cards, cards) + 0.5) / cards[owners]
    return owners[np.argsort(turns, kind="stable")]


@functools.lru_cache(maxsize=16)
def growth(tree: Tree) -> kernel.Growth:
    """Tabulate `child_counter` for the kernel, exactly: where it steps up as rand does, and to what."""
    b = averages(tree)
    n_rows = len(b) + (2 if tree.type == "binomial" else 1)
    count_children = child_counter(tree)
    steps = np.full((n_rows, MAX_CHILDREN + 1), RANDS, np.uint32)
    values = np.zeros((n_rows, MAX_CHILDREN + 1), np.uint32)
    for depth, average in enumerate(b):
        if depth > 1 and average == b[depth - 1]:
            steps[depth], values[depth] = steps[depth - 1], values[depth - 1]
            continue
        values[depth] = np.arange(MAX_CHILDREN + 1)
        for n in range(1, count_children(depth, RANDS - 1) + 1):
            rand = int(RANDS * (1 - (average / (1 + average)) ** n))  # but for rounding
            while rand > 0 and count_children(depth, rand - 1) >= n:
                rand -= 1
            while count_children(depth, rand) < n:
                rand += 1
            steps[depth, n - 1] = rand
    if tree.type == "binomial":
        values[0] = int(tree.branching)
    if tree.type != "geometric":
        steps[-1, 0], values[-1, 0] = math.ceil(tree.q * RANDS), tree.m
    edges = np.arange(RANDS >> kernel.GUESS_SHIFT, dtype=np.int64) << kernel.GUESS_SHIFT
    guess = np.array([np.searchsorted(row, edges, side="right") for row in steps], np.uint8)
    return kernel.Growth(steps, values, guess)


def compile_kernels() -> None:
    """Compile the inner loop (or load it from numba's cache) before anything is timed."""
    search = UnbalancedTreeSearch(Tree())
    search.start()
    search.work(1)
