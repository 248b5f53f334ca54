"""The compiled inner loop of the unbalanced tree search (`lb_mpi.problems.uts`), on plain arrays.   (pure)

A node is a row of six words: the five of its SHA-1 state, and its depth.  Nodes wait on a stack of such rows, shape
(capacity, 6); the oldest stands at `bottom`, the youngest at `top` - 1.

Up to `BATCH` nodes are popped at a time, and the states of their children are hashed 64 at a time, one in a lane.
SHA-1 is one long chain of operations that wait for each other: only many messages side by side can use the vector
units.  For this the words of all lanes stand in ONE flat buffer at constant distances (of separate arrays the compiler
can't tell that they don't overlap, and gives up), and indices are unsigned (no code for negative ones).

The kernel knows no types of trees.  How many children a node has is a step function of its random number, the same for
all nodes of a depth (`Growth`), so that no logarithm is computed for any node.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy import uint32, uint64

from lb_mpi.kernels import njit

Words = npt.NDArray[np.uint32]
Word = np.uint32
Tuple = tuple[Word, ...]

WIDTH = 6  # words of a node
RAND_MASK = uint32(0x7FFFFFFF)  # the random number of a node is the last word of its state, without the highest bit
GUESS_SHIFT = 21  # of the 31 bits of the random number the upper 10 lead to a first guess
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
    """How many children nodes have; rows are depths, the last row is for all depths from there on.

    A node whose random number is rand has values[row, k] children, where k of the ascending steps[row] are <= rand.
    """

    steps: Words  # shape (depths, n); the last one of a row is never reached (2^31)
    values: Words  # shape (depths, n)
    guess: npt.NDArray[np.uint8]  # shape (depths, 1024); k for the least rand with these upper ten bits


class Scratch(NamedTuple):
    """Room for one batch."""

    parents: Words  # shape (BATCH, 6), the nodes popped that have children
    families: Words  # shape (BATCH,), their numbers of children
    lanes: Words  # shape (12 * LANES,): parents' states (5 rows), numbers, children's states (5 rows), their depths


def make_scratch() -> Scratch:
    """Return room for one batch."""
    return Scratch(np.zeros((BATCH, WIDTH), uint32), np.zeros(BATCH, uint32), np.zeros(12 * LANES, uint32))


@njit(forceinline=True)
def rotate(x: Word, n: int) -> Word:
    """Rotate to the left by n bits."""
    return uint32((x << uint32(n)) | (x >> uint32(32 - n)))


@njit(forceinline=True)
def choose(b: Word, c: Word, d: Word) -> Word:
    """Take c where b is set, d where it isn't."""
    return d ^ (b & (c ^ d))


@njit(forceinline=True)
def parity(b: Word, c: Word, d: Word) -> Word:
    """Set what is set in one or three."""
    return b ^ c ^ d


@njit(forceinline=True)
def majority(b: Word, c: Word, d: Word) -> Word:
    """Set what is set in two or three."""
    return (b & c) | (d & (b | c))


@njit(forceinline=True)
def five_rounds(f: Callable[[Word, Word, Word], Word], k: Word, h: Tuple, w: Tuple) -> Tuple:
    """Do five rounds, after which each of the five variables is back in its place."""
    a, b, c, d, e = h
    e, b = uint32(e + rotate(a, 5) + f(b, c, d) + k + w[0]), rotate(b, 30)
    d, a = uint32(d + rotate(e, 5) + f(a, b, c) + k + w[1]), rotate(a, 30)
    c, e = uint32(c + rotate(d, 5) + f(e, a, b) + k + w[2]), rotate(e, 30)
    b, d = uint32(b + rotate(c, 5) + f(d, e, a) + k + w[3]), rotate(d, 30)
    a, c = uint32(a + rotate(b, 5) + f(c, d, e) + k + w[4]), rotate(c, 30)
    return a, b, c, d, e


@njit(forceinline=True)
def twenty_rounds(f: Callable[[Word, Word, Word], Word], k: Word, h: Tuple, w: Tuple) -> Tuple:
    """Do the twenty rounds that have function and constant in common."""
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

    One straight line of code for each lane, so that the loop is vectorised as a whole.
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
def take_parents(stack: Words, first: int, top: int, growth: Growth, scratch: Scratch) -> tuple[int, int, int]:
    """Copy the nodes first..top - 1 that have children; returns the numbers of these and of children, largest depth."""
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
    """Hash, and push the children in the first n lanes; returns the new top."""
    hash_lanes(lanes)
    for i in range(n):
        at = uint64(top + i)
        for word in range(WIDTH):
            stack[at, word] = lanes[uint64(i) + uint64(6 + word) * ROW]
    return top + n


@njit(forceinline=True)
def push_children(stack: Words, top: int, n_parents: int, scratch: Scratch) -> int:
    """Push all children of the parents taken; returns the new top."""
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
                top = push_lanes(stack, top, lanes, LANES)
                lane = 0
    if lane > 0:
        top = push_lanes(stack, top, lanes, lane)
    return top


@njit(cache=True, nogil=True)
def expand(
    stack: Words, bottom: int, top: int, units: int, growth: Growth, scratch: Scratch
) -> tuple[int, int, int, int]:
    """Pop up to `units` nodes, youngest first, and push their children.

    Returns the new top, and of the nodes popped: their number, the number without children, the largest depth (0 when
    there are none).  Fewer than `units` when the stack is empty, or has no room for the children of the next batch.
    """
    done = leaves = deepest = 0
    while done < units and bottom < top:
        batch = min(units - done, top - bottom, BATCH)
        n_parents, n_children, depth = take_parents(stack, top - batch, top, growth, scratch)
        if top - batch + n_children > stack.shape[0]:
            break
        top = push_children(stack, top - batch, n_parents, scratch)
        done += batch
        leaves += batch - n_parents
        deepest = max(deepest, depth)
    return top, done, leaves, deepest
