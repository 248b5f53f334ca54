"""Unbalanced tree search (UTS): count the nodes of an unpredictable tree.   (pure)

Source: Olivier, Huan, Liu, Prins, Dinan, Sadayappan, Tseng, "UTS: An unbalanced tree search benchmark" (LCPC 2006).  It is
the standard benchmark of work stealing.  Trees are generated from hashes, so the size of a subtree can't be predicted from
its root.  The counts of nodes and leaves are published, so lost or repeated work is detected.

The state of a node is SHA-1(state of its parent, 20 bytes; number among its siblings, 4 bytes big-endian), that of the root
SHA-1(16 zero bytes; seed, 4 bytes big-endian).  Its random number, rand, is the last 4 bytes, big-endian, without the
highest bit; u = rand / 2^31.  It has

    geometric   floor(log(1 - u) / log(1 - p)) children, at most 100, with p = 1 / (1 + b_i) for an average of b_i;
                b_0 = branching in the root, below it at depth i, by shape:
                fixed   branching                                above depth `depth`, then none
                linear  branching * (1 - i / depth)
                cyclic  branching ^ sin(2 pi i / depth)          down to depth 5 * `depth`, then none
    binomial    the root floor(branching), all others m children when u < q, otherwise none
    hybrid      geometric above depth shift * `depth`, binomial (without its root) from there on

The inner loop is compiled, on plain arrays.  A node is a row of six words: its SHA-1 state of five words, and its depth.
Nodes wait on a stack of such rows, shape (capacity, 6); the oldest is at `bottom`, the youngest at `top` - 1.

Up to `BATCH` nodes are popped at a time, and the states of their children are hashed 64 at a time, one in each lane.  SHA-1
is one long chain of dependent operations, so only many messages side by side can use the vector units.  So the words of all
lanes are in ONE flat buffer at constant distances (with separate arrays the compiler can't prove that they don't overlap,
and does not vectorise), and indices are unsigned (no code for negative ones).

The kernel does not know the types of trees.  The number of children is a step function of a node's random number, the same
for all nodes of a depth (`Growth`), so no logarithm is computed per node.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy import uint32, uint64

from lb_mpi import checks
from lb_mpi.kernels import njit
from lb_mpi.metrics import deal

Words = npt.NDArray[np.uint32]
Word = np.uint32
Tuple = tuple[Word, ...]

WIDTH = 6  # words of a node
RAND_MASK = uint32(0x7FFFFFFF)  # the random number of a node is the last word of its state, without the highest bit
GUESS_SHIFT = 21  # the upper 10 of the random number's 31 bits give a first guess
BATCH = 512  # nodes popped at a time: enough to fill the lanes, few enough to stay in the fastest cache
LANES = 64
ROW = uint64(LANES)  # distance in the flat buffer between two words of one lane

# SHA-1: FIPS 180-4, sections 4.1.1, 4.2.1, 5.1.1, 5.3.1, 6.1.2.
START = (uint32(0x67452301), uint32(0xEFCDAB89), uint32(0x98BADCFE), uint32(0x10325476), uint32(0xC3D2E1F0))
K_CHOOSE, K_PARITY = uint32(0x5A827999), uint32(0x6ED9EBA1)
K_MAJORITY, K_PARITY_AGAIN = uint32(0x8F1BBCDC), uint32(0xCA62C1D6)
END = uint32(0x80000000)  # the bit that ends the message
NONE = uint32(0)
BITS = uint32(8 * 24)  # length of the message: 20 bytes of the parent's state, 4 of the child's number


class Growth(NamedTuple):
    """The numbers of children of nodes; rows are depths, and the last row applies to all deeper nodes.

    A node whose random number is rand has values[row, k] children, where k of the ascending steps[row] are <= rand.
    """

    steps: Words  # shape (depths, n); the last one of a row is never reached (2^31)
    values: Words  # shape (depths, n)
    guess: npt.NDArray[np.uint8]  # shape (depths, 1024); k for the least rand with these upper ten bits


class Scratch(NamedTuple):
    """Working memory for one batch."""

    parents: Words  # shape (BATCH, 6), the popped nodes that have children
    families: Words  # shape (BATCH,), their numbers of children
    lanes: Words  # shape (12 * LANES,): parents' states (5 rows), numbers, children's states (5 rows), their depths


def make_scratch() -> Scratch:
    """Return working memory for one batch."""
    return Scratch(np.zeros((BATCH, WIDTH), uint32), np.zeros(BATCH, uint32), np.zeros(12 * LANES, uint32))


@njit(forceinline=True)
def rotate(x: Word, n: int) -> Word:
    """Rotate to the left by n bits."""
    return uint32((x << uint32(n)) | (x >> uint32(32 - n)))


@njit(forceinline=True)
def choose(b: Word, c: Word, d: Word) -> Word:
    """Select bits of c where b is set, else of d."""
    return d ^ (b & (c ^ d))


@njit(forceinline=True)
def parity(b: Word, c: Word, d: Word) -> Word:
    """Set the bits that are set in one or three of b, c, d."""
    return b ^ c ^ d


@njit(forceinline=True)
def majority(b: Word, c: Word, d: Word) -> Word:
    """Set the bits that are set in two or three of b, c, d."""
    return (b & c) | (d & (b | c))


@njit(forceinline=True)
def five_rounds(f: Callable[[Word, Word, Word], Word], k: Word, h: Tuple, w: Tuple) -> Tuple:
    """Do five rounds, after which the five variables are back in their places."""
    a, b, c, d, e = h
    e, b = uint32(e + rotate(a, 5) + f(b, c, d) + k + w[0]), rotate(b, 30)
    d, a = uint32(d + rotate(e, 5) + f(a, b, c) + k + w[1]), rotate(a, 30)
    c, e = uint32(c + rotate(d, 5) + f(e, a, b) + k + w[2]), rotate(e, 30)
    b, d = uint32(b + rotate(c, 5) + f(d, e, a) + k + w[3]), rotate(d, 30)
    a, c = uint32(a + rotate(b, 5) + f(c, d, e) + k + w[4]), rotate(c, 30)
    return a, b, c, d, e


@njit(forceinline=True)
def twenty_rounds(f: Callable[[Word, Word, Word], Word], k: Word, h: Tuple, w: Tuple) -> Tuple:
    """Do the twenty rounds with the same function and constant."""
    h = five_rounds(f, k, h, w[0:5])
    h = five_rounds(f, k, h, w[5:10])
    h = five_rounds(f, k, h, w[10:15])
    return five_rounds(f, k, h, w[15:20])


@njit(forceinline=True)
def next_words(w: Tuple) -> Tuple:
    """Return the sixteen words of the message schedule that follow the sixteen given."""
    w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = w
    w0 = rotate(w13 ^ w8 ^ w2 ^ w0, 1)
    w1 = rotate(w14 ^ w9 ^ w3 ^ w1, 1)
    w2 = rotate(w15 ^ w10 ^ w4 ^ w2, 1)
    w3 = rotate(w0 ^ w11 ^ w5 ^ w3, 1)
    w4 = rotate(w1 ^ w12 ^ w6 ^ w4, 1)
    w5 = rotate(w2 ^ w13 ^ w7 ^ w5, 1)
    w6 = rotate(w3 ^ w14 ^ w8 ^ w6, 1)
    w7 = rotate(w4 ^ w15 ^ w9 ^ w7, 1)
    w8 = rotate(w5 ^ w0 ^ w10 ^ w8, 1)
    w9 = rotate(w6 ^ w1 ^ w11 ^ w9, 1)
    w10 = rotate(w7 ^ w2 ^ w12 ^ w10, 1)
    w11 = rotate(w8 ^ w3 ^ w13 ^ w11, 1)
    w12 = rotate(w9 ^ w4 ^ w14 ^ w12, 1)
    w13 = rotate(w10 ^ w5 ^ w15 ^ w13, 1)
    w14 = rotate(w11 ^ w6 ^ w0 ^ w14, 1)
    w15 = rotate(w12 ^ w7 ^ w1 ^ w15, 1)
    return w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15


@njit(cache=True, nogil=True)
def hash_lanes(lanes: Words) -> None:
    """Compute the children's states, rows 6 to 10 of all lanes, from the parents' states and numbers, rows 0 to 5.

    One lane is straight-line code, so that the loop over lanes is vectorised as a whole.
    """
    for i in range(LANES):
        at = uint64(i)
        state = (lanes[at], lanes[at + ROW], lanes[at + 2 * ROW], lanes[at + 3 * ROW], lanes[at + 4 * ROW])
        w = (*state, lanes[at + 5 * ROW], END, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, BITS)
        w16 = next_words(w)
        w32 = next_words(w16)
        w48 = next_words(w32)
        w64 = next_words(w48)
        h = twenty_rounds(choose, K_CHOOSE, START, w + w16[0:4])
        h = twenty_rounds(parity, K_PARITY, h, w16[4:16] + w32[0:8])
        h = twenty_rounds(majority, K_MAJORITY, h, w32[8:16] + w48[0:12])
        h = twenty_rounds(parity, K_PARITY_AGAIN, h, w48[12:16] + w64)
        lanes[at + 6 * ROW] = START[0] + h[0]
        lanes[at + 7 * ROW] = START[1] + h[1]
        lanes[at + 8 * ROW] = START[2] + h[2]
        lanes[at + 9 * ROW] = START[3] + h[3]
        lanes[at + 10 * ROW] = START[4] + h[4]


@njit(forceinline=True)
def copy_parents(stack: Words, first: int, top: int, growth: Growth, scratch: Scratch) -> tuple[int, int, int]:
    """Copy the nodes first..top - 1 that have children; return their number, their children's number, the largest depth."""
    steps, values, guess = growth
    parents, families, _ = scratch
    last = steps.shape[0] - 1
    n_parents = n_children = deepest = 0
    for i in range(first, top):
        at = uint64(i)
        depth = int(stack[at, 5])
        deepest = max(deepest, depth)
        row = uint64(min(depth, last))
        rand = stack[at, 4] & RAND_MASK
        k = uint64(guess[row, uint64(rand >> uint32(GUESS_SHIFT))])
        while steps[row, k] <= rand:
            k += uint64(1)
        n = values[row, k]
        if n > 0:
            parent = uint64(n_parents)
            for word in range(WIDTH):
                parents[parent, word] = stack[at, word]
            families[parent] = n
            n_parents += 1
            n_children += int(n)
    return n_parents, n_children, deepest


@njit(forceinline=True)
def push_lanes(stack: Words, top: int, lanes: Words, n: int) -> int:
    """Hash and push the children in the first n lanes; return the new top."""
    hash_lanes(lanes)
    for i in range(n):
        at = uint64(top + i)
        for word in range(WIDTH):
            stack[at, word] = lanes[uint64(i) + uint64(6 + word) * ROW]
    return top + n


@njit(forceinline=True)
def push_children(stack: Words, top: int, n_parents: int, scratch: Scratch) -> int:
    """Push all children of the copied parents; return the new top."""
    parents, families, lanes = scratch
    lane = 0
    for i in range(n_parents):
        parent = uint64(i)
        for number in range(families[parent]):
            at = uint64(lane)
            for word in range(5):
                lanes[at + uint64(word) * ROW] = parents[parent, word]
            lanes[at + 5 * ROW] = uint32(number)
            lanes[at + 11 * ROW] = parents[parent, 5] + uint32(1)
            lane += 1
            if lane == LANES:
                top = push_lanes(stack, top, lanes, lane)
                lane = 0
    if lane > 0:
        top = push_lanes(stack, top, lanes, lane)
    return top


@njit(cache=True, nogil=True)
def expand(
    stack: Words, bottom: int, top: int, units: int, growth: Growth, scratch: Scratch
) -> tuple[int, int, int, int]:
    """Pop up to `units` nodes, youngest first, and push their children.

    Return the new top, and of the popped nodes: their number, the number of leaves, the largest depth (0 without nodes).
    Pops fewer than `units` if the stack is empty, or has no room for the children of the next batch.
    """
    done = leaves = deepest = 0
    while done < units and bottom < top:
        batch = min(units - done, top - bottom, BATCH)
        n_parents, n_children, depth = copy_parents(stack, top - batch, top, growth, scratch)
        if top - batch + n_children > stack.shape[0]:
            break
        top = push_children(stack, top - batch, n_parents, scratch)
        done += batch
        leaves += batch - n_parents
        deepest = max(deepest, depth)
    return top, done, leaves, deepest


# --- the trees, and the search -----------------------------------------------------------------------------------------


TYPES = ("geometric", "binomial", "hybrid")
SHAPES = ("fixed", "linear", "cyclic")

MAX_CHILDREN = 100  # of a node, except the root of a binomial tree
MAX_DEPTH = 1000  # parameter `depth`, not the depth of the tree
MAX_BRANCHING = 1e6
RANDS = 2**31


@dataclass(frozen=True)
class Tree:
    """Parameters of a tree; their defaults are those of the published benchmark (1732 nodes).

    Errors: TypeError, ValueError with name, value and expectation.  A binomial part with q * m >= 1 has an infinite expected
    size, and for q * m > 1 the tree may be infinite.  That is an error without `may_be_infinite`.  (The published T3L is
    such a tree, but finite with its seed.)
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
    """The counts of one rank, or of all together."""

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
    """Return b_i for the depths i at which the tree is geometric and may have children."""
    depth, branching = tree.depth, tree.branching
    if tree.type == "binomial":
        return []
    if tree.shape == "fixed":
        b = [branching] * depth
    elif tree.shape == "linear":
        b = [branching * (1 - i / depth) for i in range(depth)]
    else:  # the root has b_0 even here, although the formula gives 1
        b = [branching] + [branching ** math.sin(2 * math.pi * i / depth) for i in range(1, 5 * depth + 1)]
    return b if tree.type == "geometric" else b[: math.ceil(tree.shift * depth)]


# --- The search -------------------------------------------------------------------------------------------------------

NODE_BYTES = 4 * WIDTH
SAVED = struct.Struct("<iqqq")  # bytes of the tree's text; nodes, leaves and depth counted


class UnbalancedTreeSearch:
    """One rank's part of the search (a `lb_mpi.searching.problem.Problem`); one unit of work is one node counted.

    A node is counted when it is popped and its children are pushed.  So at any time each node of the tree is counted, on a
    stack, or below a node on a stack.  The load is the number of nodes on the stack.  Every second node is given away:
    about half of the work in a geometric tree, since the oldest nodes are nearest to the root.

    Errors: TypeError for an invalid tree.
    """

    def __init__(self, tree: Tree) -> None:
        if not isinstance(tree, Tree):
            raise TypeError(f"tree = {tree!r}: expected a Tree")
        self.tree = tree
        self._growth = growth(tree)
        self._scratch = make_scratch()
        self._stack: Words = np.empty((4096, WIDTH), np.uint32)
        self._bottom, self._top = 0, 0
        self._count = TreeCount(0, 0, 0)

    def start(self) -> None:
        """Start with the root."""
        self._stack[0, :5] = np.frombuffer(root_state(self.tree), ">u4")
        self._stack[0, 5] = 0
        self._bottom, self._top = 0, 1

    def work(self, units: int) -> int:
        """Count up to `units` nodes, youngest first; return how many, fewer only if none are left."""
        units = checks.integer("units", units, 1)
        done = 0
        while done < units and self._bottom < self._top:
            self._top, n, leaves, depth = expand(
                self._stack, self._bottom, self._top, units - done, self._growth, self._scratch
            )
            done += n
            self._count = self.merge(self._count, TreeCount(n, leaves, depth))
            if done < units and self._bottom < self._top:
                self._make_room()
        return done

    def load(self) -> float:
        """Return the number of nodes on the stack."""
        return float(self._top - self._bottom)

    def split(self) -> bytes | None:
        """Give away every second node, beginning with the oldest; None if there are fewer than two.

        Packed as 24 bytes a node, oldest first: five words of its state and its depth, little-endian.
        """
        in_hand = self._top - self._bottom
        if in_hand < 2:
            return None
        n = in_hand // 2
        nodes = self._stack[self._bottom : self._top]
        part = nodes[: 2 * n : 2].astype("<u4").tobytes()
        nodes[n : 2 * n] = nodes[1 : 2 * n : 2].copy()
        self._bottom += n
        return part

    def shares(self, weights: Sequence[int]) -> list[bytes]:
        """Give away nodes to several ranks at once, by weight, packed as by `split`; the first weight is for the part kept.

        Each rank gets at least one node while they last, and nodes of all ages are distributed evenly.
        """
        in_hand = self._top - self._bottom
        n = min(len(weights), in_hand)
        if n < 2:
            return []
        owner = deal(weights[:n], in_hand)
        nodes = self._stack[self._bottom : self._top]
        parts = [nodes[owner == k].astype("<u4").tobytes() for k in range(1, n)]
        keep = nodes[owner == 0]
        self._bottom = self._top - len(keep)
        self._stack[self._bottom : self._top] = keep
        return parts

    def absorb(self, payload: bytes) -> None:
        """Push nodes packed by another rank's `split`; ValueError for anything else."""
        if len(payload) == 0 or len(payload) % NODE_BYTES != 0:
            raise ValueError(f"payload of {len(payload)} bytes: expected a positive multiple of {NODE_BYTES}")
        part = np.frombuffer(payload, "<u4").reshape(-1, WIDTH)
        while self._top + len(part) > len(self._stack):
            self._make_room()
        self._stack[self._top : self._top + len(part)] = part
        self._top += len(part)

    def save(self) -> bytes:
        """Pack the tree, the counts, and the nodes on the stack."""
        tree = repr(self.tree).encode()
        nodes = self._stack[self._bottom : self._top].astype("<u4").tobytes()
        return SAVED.pack(len(tree), *self._count) + tree + nodes

    def resume(self, states: Sequence[bytes], mine: Sequence[int]) -> None:
        """Resume with the counts and nodes of states[i] for i in `mine`; ValueError for those of another tree."""
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
        """Return this rank's counts."""
        return self._count

    def merge(self, one: TreeCount, other: TreeCount) -> TreeCount:
        """Add nodes and leaves; keep the larger depth."""
        return TreeCount(one.nodes + other.nodes, one.leaves + other.leaves, max(one.depth, other.depth))

    def _make_room(self) -> None:
        # Reuse the space of nodes given away at the bottom; allocate more only if that is less than half.
        in_hand = self._stack[self._bottom : self._top]
        if 2 * self._bottom < len(self._stack):
            self._stack = np.empty((2 * len(self._stack), WIDTH), np.uint32)
        self._stack[: len(in_hand)] = in_hand
        self._bottom, self._top = 0, len(in_hand)


@functools.lru_cache(maxsize=16)
def growth(tree: Tree) -> Growth:
    """Tabulate `child_counter` for the kernel, exactly: the random numbers where it steps up, and its values."""
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
            rand = int(RANDS * (1 - (average / (1 + average)) ** n))  # except for rounding
            while rand > 0 and count_children(depth, rand - 1) >= n:
                rand -= 1
            while count_children(depth, rand) < n:
                rand += 1
            steps[depth, n - 1] = rand
    if tree.type == "binomial":
        values[0] = int(tree.branching)
    if tree.type != "geometric":
        steps[-1, 0], values[-1, 0] = math.ceil(tree.q * RANDS), tree.m
    edges = np.arange(RANDS >> GUESS_SHIFT, dtype=np.int64) << GUESS_SHIFT
    guess = np.array([np.searchsorted(row, edges, side="right") for row in steps], np.uint8)
    return Growth(steps, values, guess)


def compile_kernels() -> None:
    """Compile the inner loop (or load it from numba's cache) before timing."""
    search = UnbalancedTreeSearch(Tree())
    search.start()
    search.work(1)
