"""The feeder of a stream: who gets items, in all orders of events; and what a slow rank and a full buffer change."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable

import pytest

from lb_mpi.errors import ProtocolError
from lb_mpi.pooling import feeding
from lb_mpi.pooling.feeding import AHEAD, MOST_AHEAD, ROOM, Feeder


def stream(seed: int, size: int, n: int, *, buffersize: int = 0, chunksize: int = 0, ordered: bool = True) -> None:
    """Run a stream of n items in a random order of events, checking the law."""
    rng = random.Random(seed)
    feeder = Feeder(range(size), buffersize=buffersize, chunksize=chunksize)
    at = {rank: deque[range]() for rank in range(size)}
    done, taken, read = set[int](), set[int](), 0
    most = buffersize or ROOM * size * 1000
    while len(taken) < n:
        need = feeder.need()
        results = sorted(done - taken)
        events: list[Callable[[], None]] = []
        if need is not None and read < n:
            rank, count = need
            assert 1 <= count <= feeder.room
            assert not chunksize or count <= chunksize

            def give(rank: int = rank, count: int = min(need.n, n - read)) -> None:
                nonlocal read
                first = feeder.gave(rank, count)
                assert first == read
                at[rank].append(range(first, first + count))
                read += count

            events += [give] * seed  # more and more often, with later seeds
            events = events or [give]
        for rank in range(size):
            if at[rank]:

                def run(rank: int = rank) -> None:
                    batch = at[rank].popleft()
                    assert not done & set(batch)
                    done.update(batch)
                    feeder.done(rank, len(batch) * 1e-3)

                events.append(run)
        takes = results[:1] if ordered else results
        if takes and (not ordered or takes[0] == len(taken)):

            def take(one: int = rng.choice(takes)) -> None:
                taken.add(one)
                feeder.took(1)

            events.append(take)
        assert events, "nothing can happen, and there are tasks left"
        rng.choice(events)()
        assert read - len(taken) <= most
        assert len(at[0]) <= 1
        assert all(len(batches) <= MOST_AHEAD for batches in at.values())
        assert feeder.under_way == any(at.values())
    assert done == taken == set(range(n))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("buffersize", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("chunksize", [0, 1, 4])
@pytest.mark.parametrize("ordered", [True, False])
def test_each_item_is_given_once_and_the_buffer_is_never_exceeded(
    size: int, buffersize: int, chunksize: int, ordered: bool
) -> None:
    for seed in range(4):
        for n in (0, 1, 2, 50):
            stream(seed, size, n, buffersize=buffersize, chunksize=chunksize, ordered=ordered)


def test_a_rank_that_is_alone_gets_one_batch_at_a_time() -> None:
    feeder = Feeder([3])
    assert feeder.need() == (3, 1)
    feeder.gave(3, 1)
    assert feeder.need() is None
    assert feeder.under_way


def test_the_root_gets_items_when_all_others_have_some_ahead() -> None:
    feeder = Feeder([0, 1, 2])
    given = []
    while (need := feeder.need()) is not None:
        given.append(need.rank)
        feeder.gave(*need)
    assert sorted(given) == [0] + [1] * AHEAD + [2] * AHEAD
    assert given[:2] in ([1, 2], [2, 1])
    assert given[-1] == 0


def test_batches_of_short_tasks_grow_and_those_of_long_tasks_do_not() -> None:
    for seconds, most in ((1e-6, feeding.MOST), (1e-3, 10), (1.0, 1)):
        feeder, sizes = Feeder([0, 1]), []
        for _ in range(20):
            need = feeder.need()
            assert need is not None
            assert need.rank == 1
            feeder.gave(*need)
            feeder.done(1, need.n * seconds)
            feeder.took(need.n)
            sizes.append(need.n)
        assert max(sizes) == sizes[-1] == most
        assert all(after <= 2 * before for before, after in itertools.pairwise(sizes))


def test_ranks_with_short_tasks_get_more_ahead_while_the_root_is_long_away() -> None:
    feeder = Feeder([0, 1], chunksize=1)
    for rank, seconds in ((1, 1e-2), (0, 5e-2)):
        feeder.gave(rank, 1)
        feeder.done(rank, seconds)
    n = 0
    while (need := feeder.need()) is not None and need.rank == 1:
        feeder.gave(1, need.n)
        n += 1
    assert n == 5


def test_results_that_nobody_owes_are_an_error() -> None:
    with pytest.raises(ProtocolError, match="results of rank 1: expected none"):
        Feeder([0, 1]).done(1, 1.0)


def no_buffer(self: Feeder) -> int:
    return 10




MUTANTS = {"a buffer that is not counted": ("room", property(no_buffer)), "no end of batches": ("_needs", lambda *_: True)}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_law_rejects_wrong_variants(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(Feeder, *MUTANTS[name])
    with pytest.raises(AssertionError):
        stream(50, 3, 100, buffersize=4 if "buffer" in name else 0)
