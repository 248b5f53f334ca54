"""The unbalanced tree search without MPI: published counts, the kernel against plain Python, splits, bad input."""

import random
from functools import reduce

import numpy as np
import pytest

from lb_mpi.searching import uts as kernel
from lb_mpi.searching.uts import (
    NODE_BYTES,
    PUBLISHED,
    RANDS,
    SHAPES,
    TREES,
    Tree,
    UnbalancedTreeSearch,
    child_counter,
    compile_kernels,
    growth,
)
from tests.counting import plain_count

TOO_LARGE = 5000  # nodes: random trees beyond this are not counted


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    compile_kernels()


def random_tree(rng):
    m = rng.randint(1, 12)
    return Tree(
        type=rng.choice(("geometric", "binomial", "hybrid")),
        shape=rng.choice(SHAPES),
        depth=rng.randint(1, 9),
        branching=rng.choice((0.5, 1, 2.5, 4, 6.25, rng.uniform(0.01, 30))),
        seed=rng.randrange(RANDS),
        q=rng.uniform(0, 0.98 / m),
        m=m,
        shift=rng.choice((0, 0.3, 0.5, 1)),
    )


def random_trees(seed, n):
    """n trees with their counts, at most TOO_LARGE nodes each, one in two with more than 20."""
    rng = random.Random(seed)
    trees = []
    while len(trees) < n:
        tree = random_tree(rng)
        count = plain_count(tree, TOO_LARGE)
        if count.nodes < TOO_LARGE and (count.nodes > 20 or len(trees) % 2 == 0):
            trees.append((tree, count))
    return trees


def count_alone(tree, units):
    search = UnbalancedTreeSearch(tree)
    search.start()
    left = search.load()
    while left:
        done = search.work(units)
        left = search.load()
        assert done == units or not left
    return search.result()


@pytest.mark.parametrize("name", ["T1", "T2", "T3", "T4", "T5"])
def test_counts_are_the_published_ones(name):
    assert count_alone(TREES[name], 100_000) == PUBLISHED[name]


@pytest.mark.parametrize("seed", range(6))
def test_steps_are_those_of_the_definition(seed):
    """On both sides of each step, at the ends, and at random."""
    rng = random.Random(seed)
    for _ in range(25):
        tree = random_tree(rng)
        count_children = child_counter(tree)
        steps, values, guess = growth(tree)
        last = len(steps) - 1
        for depth in range(last + 3):
            row = min(depth, last)
            edges = [int(step) for step in steps[row] if step < RANDS]
            near = {rand + by for rand in edges for by in (-1, 0)} | {0, RANDS - 1, rng.randrange(RANDS)}
            for rand in near - {-1}:
                n_passed = sum(edge <= rand for edge in edges)
                assert values[row, n_passed] == count_children(depth, rand), (tree, depth, rand)
                guessed = guess[row, rand >> kernel.GUESS_SHIFT]
                assert guessed <= n_passed, (tree, depth, rand)


@pytest.mark.parametrize(("tree", "depth", "rand", "expected"), [
    (Tree("geometric", "fixed", depth=3, branching=4), 2, RANDS // 2, 3),  # log(1/2) / log(4/5) = 3.1
    (Tree("geometric", "fixed", depth=3, branching=4), 3, RANDS - 1, 0),
    (Tree("geometric", "linear", depth=4, branching=4), 2, RANDS // 2, 1),  # b = 2: log(1/2) / log(2/3) = 1.7
    (Tree("geometric", "cyclic", depth=8, branching=4), 0, RANDS // 2, 3),  # the root has b_0, not b^sin(0) = 1
    (Tree("geometric", "cyclic", depth=8, branching=4), 2, RANDS // 2, 3),  # sin = 1
    (Tree("geometric", "cyclic", depth=8, branching=4), 6, RANDS - 1, 13),  # b = 1/4: 21.5 / 1.61
    (Tree("geometric", "cyclic", depth=8, branching=4), 41, RANDS - 1, 0),
    (Tree("geometric", "fixed", depth=3, branching=1000), 0, RANDS - 1, 100),  # truncated, the root too
    (Tree("binomial", branching=2000.9, q=0.25, m=3), 0, RANDS - 1, 2000),  # a binomial root isn't
    (Tree("binomial", branching=2000, q=0.25, m=3), 1, RANDS // 4 - 1, 3),
    (Tree("binomial", branching=2000, q=0.25, m=3), 1, RANDS // 4, 0),
    (Tree("hybrid", "fixed", depth=5, branching=4, q=0.25, m=3), 2, RANDS // 2, 3),  # 2 < 2.5
    (Tree("hybrid", "fixed", depth=5, branching=4, q=0.25, m=3), 3, RANDS // 2, 0),
    (Tree("hybrid", "fixed", depth=5, branching=4, q=0.25, m=3, shift=0), 0, 0, 3),  # no binomial root
])  # fmt: skip
def test_a_node_has_as_many_children_as_the_paper_says(tree, depth, rand, expected):
    assert child_counter(tree)(depth, rand) == expected


@pytest.mark.parametrize("seed", range(8))
def test_any_splits_lose_and_double_nothing(seed):
    """Any quanta, any splits among any number of searches; each call does what it says."""
    rng = random.Random(seed)
    for tree, expected in random_trees(100 + seed, 15):
        searches = [UnbalancedTreeSearch(tree) for _ in range(rng.randint(1, 6))]
        searches[0].start()
        counted = 0
        quantum = rng.choice((1, 10, 300))
        while any(search.load() for search in searches):
            search = rng.choice(searches)
            if search.load():
                units = rng.randint(1, quantum)
                done = search.work(units)
                assert done == units or not search.load(), tree
                counted += done
            else:
                move(rng.choice(searches), search)
        total = reduce(searches[0].merge, [search.result() for search in searches])
        assert total == expected, (tree, len(searches))
        assert counted == expected.nodes


def move(giver, taker):
    before = giver.load()
    payload = giver.split()
    if before < 2:
        assert payload is None
    else:
        n = len(payload) / NODE_BYTES
        assert n == before // 2
        assert giver.load() == before - n
        taker.absorb(payload)


def started(branching=8):
    """A search with the root's children in hand, and their rows."""
    search = UnbalancedTreeSearch(Tree("binomial", branching=branching, q=0.1, m=2))
    search.start()
    assert search.work(1) == 1
    return search, search._stack[: int(search.load())].copy()


def test_split_gives_every_second_node_beginning_with_the_oldest():
    given, kept = [0, 2, 4, 6], [1, 3, 5, 7, 8]
    search, rows = started(branching=9)
    payload = search.split()
    assert payload == rows[given].astype("<u4").tobytes()
    np.testing.assert_array_equal(search._stack[search._bottom : search._top], rows[kept])


def test_a_lone_node_is_kept():
    search = UnbalancedTreeSearch(Tree())
    assert (search.split(), search.shares([1, 1])) == (None, [])
    search.start()
    assert (search.split(), search.shares([1, 1])) == (None, [])
    assert search.load() == 1.0


def test_the_stack_grows_and_is_used_again():
    expected = plain_count(Tree("binomial", branching=5000, q=0.1, m=2))
    search, _ = started(branching=5000)
    size = len(search._stack)
    assert size > 5000  # it has grown
    parts = [search.split() for _ in range(3)]
    for part in parts:
        search.absorb(part)
    assert len(search._stack) == size  # room given away below is taken again
    assert search.load() == 5000
    search.work(10**9)
    assert search.result() == expected


@pytest.mark.parametrize("type_", ["binomial", "hybrid"])
def test_an_infinite_tree_is_refused_unless_it_is_asked_for(type_):
    with pytest.raises(ValueError, match=r"^q \* m = 0\.25 \* 4 = 1\.0: expected less than 1"):
        Tree(type_, q=0.25, m=4)
    assert Tree(type_, q=0.25, m=4, may_be_infinite=True).q == 0.25
    assert Tree("geometric", q=0.25, m=4).m == 4  # not used


@pytest.mark.parametrize("weights", [[1, 1], [1, 1, 1, 1], [1, 512, 256, 1], [5, 1], [1] * 40])
def test_shares_are_by_weight_and_lose_nothing(weights):
    search = UnbalancedTreeSearch(TREES["T1"])
    search.start()
    search.work(200)
    before = int(search.load())
    parts = search.shares(weights)
    given = [len(part) // 24 for part in parts]
    assert len(parts) == min(len(weights), before) - 1
    sizes = [int(search.load()), *given]
    assert sum(sizes) == before
    spare = before - len(sizes)  # everybody gets one
    for size, weight in zip(sizes, weights[: len(sizes)], strict=True):
        assert abs(size - 1 - spare * weight / sum(weights[: len(sizes)])) <= 1.0
    searches = [search, *(UnbalancedTreeSearch(TREES["T1"]) for _ in parts)]
    for other, part in zip(searches[1:], parts, strict=True):
        other.absorb(part)
    for each in searches:
        while each.load():
            each.work(100_000)
    assert reduce(search.merge, [each.result() for each in searches]) == PUBLISHED["T1"]
