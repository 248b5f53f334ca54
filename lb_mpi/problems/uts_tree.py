"""The trees of the unbalanced tree search (UTS): parameters, definition, and a plain count.   (pure)

Source: Olivier, Huan, Liu, Prins, Dinan, Sadayappan, Tseng, "UTS: An unbalanced tree search benchmark" (LCPC 2006).  It
is the yardstick of work stealing: the trees are made up of hashes, so that the size of a subtree can't be told from its
root, and the counts of nodes and leaves are published, so that work lost or done twice shows.

The state of a node is SHA-1(state of its parent, 20 bytes; number among its siblings, 4 bytes big-endian), that of the
root SHA-1(16 zero bytes; seed, 4 bytes big-endian).  Its random number, rand, is the last 4 bytes, big-endian, without
the highest bit; u = rand / 2^31.  It has

    geometric   floor(log(1 - u) / log(1 - p)) children, at most 100, with p = 1 / (1 + b_i) for an average of b_i;
                b_0 = branching in the root, below it at depth i, by shape:
                fixed   branching                                above depth `depth`, then none
                linear  branching * (1 - i / depth)
                cyclic  branching ^ sin(2 pi i / depth)          down to depth 5 * `depth`, then none
    binomial    the root floor(branching), all others m children when u < q, otherwise none
    hybrid      geometric above depth shift * `depth`, binomial (without its root) from there on
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from lb_mpi import checks

TYPES = ("geometric", "binomial", "hybrid")
SHAPES = ("fixed", "linear", "cyclic")

MAX_CHILDREN = 100  # of a node; not so for the root of a binomial tree
MAX_DEPTH = 1000  # parameter `depth`, not the depth of the tree
MAX_BRANCHING = 1e6
RANDS = 2**31


@dataclass(frozen=True)
class Tree:
    """Parameters of a tree; their defaults are those of the published benchmark (1732 nodes).

    Errors: TypeError, ValueError with name, value and expectation.  A binomial part with q * m >= 1 has an infinite
    expected size, and for q * m > 1 the tree may be infinite: it is an error, unless `may_be_infinite` says that this
    is known.  (The published T3L is such a tree: it is finite by the luck of its seed.)
    """

    type: str = "geometric"  # "geometric", "binomial" or "hybrid"
    shape: str = "linear"  # "fixed", "linear" or "cyclic": how b_i changes with the depth (geometric, hybrid)
    depth: int = 6  # 1 to 1000; what it means depends on the shape (geometric, hybrid)
    branching: float = 4.0  # 1e-6 to 1e6; average (binomial: exact) number of children of the root
    seed: int = 0  # 0 to 2^31 - 1
    q: float = 15 / 64  # 0 to 1, probability of children (binomial, hybrid)
    m: int = 4  # 1 to 100, their number (binomial, hybrid)
    shift: float = 0.5  # 0 to 1, fraction of depth at which the binomial part begins (hybrid)
    may_be_infinite: bool = False  # accept q * m >= 1

    def __post_init__(self) -> None:
        checks.choice("type", self.type, TYPES)
        checks.choice("shape", self.shape, SHAPES)
        limits = {"depth": (1, MAX_DEPTH), "seed": (0, RANDS - 1), "m": (1, MAX_CHILDREN)}
        for name, (least, most) in limits.items():
            object.__setattr__(self, name, checks.integer(name, getattr(self, name), least, most))
        ranges = {"branching": (1 / MAX_BRANCHING, MAX_BRANCHING), "q": (0.0, 1.0), "shift": (0.0, 1.0)}
        for name, (low, high) in ranges.items():
            object.__setattr__(self, name, checks.number(name, getattr(self, name), least=low, most=high))
        if not isinstance(self.may_be_infinite, bool):
            raise TypeError(f"may_be_infinite = {self.may_be_infinite!r}: expected True or False")
        if self.type != "geometric" and self.q * self.m >= 1 and not self.may_be_infinite:
            raise ValueError(
                f"q * m = {self.q!r} * {self.m!r} = {self.q * self.m!r}: expected less than 1, for a finite expected size"
            )


class TreeCount(NamedTuple):
    """What one rank, or all together, counted."""

    nodes: int
    leaves: int  # nodes without children
    depth: int  # of the deepest node; the root's is 0


# The sample trees of the benchmark, with their published counts.
TREES = {
    "T1": Tree("geometric", "fixed", depth=10, branching=4, seed=19),
    "T2": Tree("geometric", "cyclic", depth=16, branching=6, seed=502),
    "T3": Tree("binomial", branching=2000, q=0.124875, m=8, seed=42),
    "T4": Tree("hybrid", "linear", depth=16, branching=6, q=0.234375, m=4, seed=1),
    "T5": Tree("geometric", "linear", depth=20, branching=4, seed=34),
    "T1L": Tree("geometric", "fixed", depth=13, branching=4, seed=29),
    "T2L": Tree("geometric", "cyclic", depth=23, branching=7, seed=220),
    "T3L": Tree("binomial", branching=2000, q=0.200014, m=5, seed=7, may_be_infinite=True),
    "T1XL": Tree("geometric", "fixed", depth=15, branching=4, seed=29),
}
PUBLISHED = {
    "T1": TreeCount(4130071, 3305118, 10),
    "T2": TreeCount(4117769, 2342762, 81),
    "T3": TreeCount(4112897, 3599034, 1572),
    "T4": TreeCount(4132453, 3108986, 134),
    "T5": TreeCount(4147582, 2181318, 20),
    "T1L": TreeCount(102181082, 81746377, 13),
    "T2L": TreeCount(96793510, 53791152, 67),
    "T3L": TreeCount(111345631, 89076904, 17844),
    "T1XL": TreeCount(1635119272, 1308100063, 15),
}


def root_state(tree: Tree) -> bytes:
    """Return the state of the root, 20 bytes."""
    return hashlib.sha1(bytes(16) + tree.seed.to_bytes(4, "big")).digest()


def child_counter(tree: Tree) -> Callable[[int, int], int]:
    """Return the function (depth, rand) -> number of children, the definition of the tree."""
    logs = [math.log(1 - 1 / (1 + average)) for average in averages(tree)]
    n_geometric = len(logs)
    root_children = int(tree.branching)
    log, q, m = math.log, tree.q, tree.m

    def geometric(depth: int, rand: int) -> int:
        return min(int(log(1 - rand / RANDS) / logs[depth]), MAX_CHILDREN) if depth < n_geometric else 0

    def binomial(depth: int, rand: int) -> int:
        return root_children if depth == 0 else (m if rand / RANDS < q else 0)

    def hybrid(depth: int, rand: int) -> int:
        return geometric(depth, rand) if depth < n_geometric else (m if rand / RANDS < q else 0)

    return {"geometric": geometric, "binomial": binomial, "hybrid": hybrid}[tree.type]


def averages(tree: Tree) -> list[float]:
    """Return b_i for the depths i at which the tree is geometric and not bound to have no children."""
    depth, branching = tree.depth, tree.branching
    if tree.type == "binomial":
        return []
    if tree.shape == "fixed":
        b = [branching] * depth
    elif tree.shape == "linear":
        b = [branching * (1 - i / depth) for i in range(depth)]
    else:  # the root has b_0 here, too, although the formula gives 1
        b = [branching] + [branching ** math.sin(2 * math.pi * i / depth) for i in range(1, 5 * depth + 1)]
    return b if tree.type == "geometric" else b[: math.ceil(tree.shift * depth)]


def plain_count(tree: Tree, limit: int | None = None) -> TreeCount:
    """Count the nodes of a tree in plain Python with hashlib, depth first; at most `limit` of them."""
    if limit is not None:
        limit = checks.integer("limit", limit, 0)
    count_children = child_counter(tree)
    most = int(tree.branching) if tree.type == "binomial" else 0
    suffixes = [number.to_bytes(4, "big") for number in range(max(most, MAX_CHILDREN))]
    sha1, to_int = hashlib.sha1, int.from_bytes
    nodes = leaves = deepest = 0
    stack = [(root_state(tree), 0)]
    while stack and nodes != limit:
        state, depth = stack.pop()
        nodes += 1
        deepest = max(deepest, depth)
        n = count_children(depth, to_int(state[16:], "big") & (RANDS - 1))
        if n == 0:
            leaves += 1
        else:
            depth += 1
            stack += [(sha1(state + suffix).digest(), depth) for suffix in suffixes[:n]]
    return TreeCount(nodes, leaves, deepest)
