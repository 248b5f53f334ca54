"""Rows between ranks in global order: every small case, a sweep of larger ones, and known-wrong variants."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lb_mpi.actor import Story
from lb_mpi.graph import Ints
from lb_mpi.reduction import Reduction
from lb_mpi.saving import rows as reorder
from lb_mpi.saving.rows import Arrays
from lb_mpi.virtual import Network, Stories, run_together
from tests.protocol.explore import for_each_seed
from tests.protocol.mutate import rejects
from tests.protocol.reorder_mutants import MUTANTS


class Ranks(Stories):
    """Answers of an exchange on all ranks: rows are copied from offset to offset, as Alltoallv does, and no others."""

    def answer(self, target: int, everyone: Sequence[Any]) -> tuple[Sequence[Any], float]:
        if isinstance(everyone[0], Reduction):
            return super().answer(target, everyone)
        for source, mine in enumerate(everyone):
            assert len(mine.sent) == len(mine.received) == len(everyone), "a count for each rank"
            assert len(mine.rows) == mine.sent.sum(), "rows that nobody gets, or that aren't there"
            for rank, theirs in enumerate(everyone):
                assert mine.sent[rank] == theirs.received[source], f"{source} -> {rank}: sent and expected differ"
                assert mine.rows.dtype == theirs.rows.dtype
                assert mine.rows.shape[1:] == theirs.rows.shape[1:]
        arrived = [np.zeros((int(one.received.sum()), *one.rows.shape[1:]), one.rows.dtype) for one in everyone]
        for source, mine in enumerate(everyone):
            for rank, theirs in enumerate(everyone):
                from_, to, n = reorder.starts(mine.sent)[rank], reorder.starts(theirs.received)[source], mine.sent[rank]
                arrived[rank][to : to + n] = mine.rows[from_ : from_ + n]
        return arrived, 0.0


def carried(exchanges: Sequence[Any]) -> list[Any]:
    """Arrays that each rank returns; ValueError if all ranks raise it."""
    ranks = [Story(each) for each in exchanges]
    try:
        return run_together(Ranks(ranks, Network()), ranks)
    except ValueError:
        return [rank._end for rank in ranks]


def kinds(n: int) -> Arrays:
    """Arrays of n rows, each row of each of which is another."""
    numbers = np.arange(n)
    return {
        "one": 10.0 * numbers,
        "pairs": np.stack([numbers + 100, numbers + 200], 1).astype("i4"),
        "none": numbers[:, None][:, :0],
    }


def check_to_blocks(index: Sequence[Ints], bounds: Ints) -> None:
    whole = kinds(int(bounds[-1]))
    rows = [{name: array[mine] for name, array in whole.items()} for mine in index]
    found = carried([reorder.to_blocks(r, mine, bounds, rows[r]) for r, mine in enumerate(index)])
    times = np.bincount(np.concatenate(index), minlength=bounds[-1])
    wrong = np.flatnonzero(times != 1)
    for rank, block in enumerate(found):
        if len(wrong):
            assert f"row {wrong[0]} occurs {times[wrong[0]]} times on all ranks together" in str(block), block
        else:
            check_rows(block, {name: array[bounds[rank] : bounds[rank + 1]] for name, array in whole.items()})


def check_from_blocks(index: Sequence[Ints], bounds: Ints) -> None:
    whole = kinds(int(bounds[-1]))
    blocks = [{name: array[a:b] for name, array in whole.items()} for a, b in itertools.pairwise(bounds)]
    found = carried([reorder.from_blocks(r, mine, bounds, blocks[r]) for r, mine in enumerate(index)])
    for mine, arrays in zip(index, found, strict=True):
        check_rows(arrays, {name: array[mine] for name, array in whole.items()})


def check_rows(found: Arrays, expected: Arrays) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tolist() == array.tolist(), name


def splits(n: int, size: int) -> Iterator[Ints]:
    """All bounds of n rows on so many ranks, some of which may have none."""
    for cuts in itertools.combinations_with_replacement(range(n + 1), size - 1):
        yield np.array([0, *cuts, n])


def cut(numbers: Sequence[int], bounds: Ints) -> list[Ints]:
    return [np.array(numbers[a:b], dtype=np.int64) for a, b in itertools.pairwise(bounds)]


def check_small() -> int:
    """Every case: any rows in any order on any ranks (also some twice, and some nowhere), any blocks; how many."""
    n_cases = 0
    for size, n in [(1, 0), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3)]:
        for bounds, held in itertools.product(splits(n, size), splits(n, size)):
            for numbers in itertools.product(range(n), repeat=n) if size * n < 9 else itertools.permutations(range(n)):
                index = cut(numbers, held)
                check_to_blocks(index, bounds)
                check_from_blocks(index, bounds)
                n_cases += 1
    return n_cases


def check_random(seed: int) -> None:
    """Up to 9 ranks, up to 60 rows, blocks and holdings of any sizes."""
    rng = np.random.default_rng(seed)
    size, n = int(rng.integers(1, 10)), int(rng.integers(0, 60))
    bounds, held = ([0, *np.sort(rng.integers(0, n + 1, size - 1)), n] for _ in range(2))
    check_to_blocks(cut(rng.permutation(n).tolist(), np.array(held)), np.array(bounds))
    if n:
        wanted = [rng.integers(0, n, rng.integers(0, 30)) for _ in range(size)]
        check_from_blocks(wanted, np.array(bounds))


def test_every_small_case_is_reordered_exactly():
    assert check_small() > 1000


def test_larger_cases_are_reordered_exactly():
    for_each_seed(range(100), check_random)


mutants = [(reorder, *one) for one in MUTANTS]
test_known_wrong_variants_are_caught = rejects(check_small, mutants, ValueError, IndexError, TypeError, right=False)
