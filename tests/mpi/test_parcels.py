"""Parcels and objects of all sizes arrive, whole and in their order."""

import numpy as np
import pytest
from mpi4py import MPI

from lb_mpi.mpi.common.collective import SLOT_BYTES, allgather, bcast, gather
from lb_mpi.mpi.common.parcels import POLL_BYTES, UNIT_BYTES, Parcels, as_units
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import Nap
from tests.mpi.sizes import COMM, RANK, SIZE, parameters

pytestmark = pytest.mark.mpi
SIZES = [64, POLL_BYTES, POLL_BYTES + UNIT_BYTES, 128, 5_000_000 // 64 * 64, 64, 3 * POLL_BYTES, 64]


def contents(source, target, number):
    rng = np.random.default_rng([source, target, number])
    return rng.integers(0, 256, SIZES[number], dtype=np.uint8)


@pytest.mark.parametrize("tag", parameters([7, MPI.ANY_TAG], every_size=[7]))
def test_parcels_of_all_sizes_arrive_whole_and_in_their_order(tag):
    own = COMM.Dup()
    parcels, came, nap = Parcels(own, tag), [0] * SIZE, Nap(1e-3)
    for number in range(len(SIZES)):
        for rank in range(SIZE):
            parcels.send(rank, 7, contents(RANK, rank, number))
    while sum(came) < len(SIZES) * SIZE:
        for source, its_tag, buffer in parcels.receive():
            assert its_tag == 7
            np.testing.assert_array_equal(buffer, contents(source, RANK, came[source]))
            came[source] += 1
        nap.sleep()
    parcels.drain()
    assert not parcels.under_way
    assert parcels.unsent_bytes == 0
    assert parcels.sent_bytes == SIZE * sum(SIZES)
    own.Free()


def test_messages_that_no_rank_receives_are_drained():
    own = COMM.Dup()
    parcels = Parcels(own, 7)
    for number in range(len(SIZES)):
        parcels.send((RANK + 1) % SIZE, 7, contents(RANK, 0, number))
    parcels.drain()
    assert not parcels.under_way
    own.Free()


def test_a_parcel_that_is_arriving_is_awaited_for_a_while(monkeypatch):
    own, naps = COMM.Dup(), []
    parcels, content = Parcels(own, 7), contents(RANK, RANK, 2)
    announced = own.Isend(np.array([content.nbytes]), RANK, 7)
    while not parcels.under_way:
        assert parcels.receive() == []
    assert parcels.awaited(0.0) == []

    def sleep(_nap, at_most):
        naps.append(own.Isend(as_units(content), RANK, Tag.ANNOUNCED) if len(naps) == 2 else at_most)

    monkeypatch.setattr(Nap, "sleep", sleep)
    ((source, tag, buffer),) = parcels.awaited(10.0)
    assert (source, tag, len(naps) > 2, parcels.under_way) == (RANK, 7, True, False)
    np.testing.assert_array_equal(buffer, content)
    assert parcels.awaited(10.0) == []  # nothing is arriving
    MPI.Request.Waitall([announced, naps[2]])
    own.Free()


def test_a_push_completes_the_sends():
    """MPICH holds back more than 64 messages until the next call."""
    own = COMM.Dup()
    parcels, n = Parcels(own, 7), 200
    if RANK == 0:
        for _ in range(n):
            parcels.send(SIZE - 1, 7, np.zeros(UNIT_BYTES, dtype=np.uint8))
        if SIZE > 1:
            parcels.push()
            assert not parcels.under_way
    came, nap = 0, Nap(1e-3)
    while RANK == SIZE - 1 and came < n:
        came += len(parcels.receive())
        nap.sleep()
    parcels.drain()
    own.Free()


@pytest.mark.parametrize("fewer", [False, True])
def test_objects_of_all_lengths_are_collected_in_the_order_of_the_ranks(fewer):
    own = COMM.Dup()
    for length in (0, 1, UNIT_BYTES - 1, *range(SLOT_BYTES - 40, SLOT_BYTES), 1_000_003):
        expected = [(rank, bytes([rank]) * (0 if fewer and rank % 2 else length + rank)) for rank in range(SIZE)]
        assert allgather(own, expected[RANK]) == expected, length
        for root in range(SIZE):
            assert gather(own, expected[RANK], root) == (expected if root == RANK else []), length
            assert bcast(own, expected[RANK] if root == RANK else None, root) == expected[root], length
    own.Free()
