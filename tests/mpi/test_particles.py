"""Particles on real MPI: the same bits on any number of ranks, with and without rebalancing; clear errors."""

import re

import numpy as np
import pytest

from apps import particles
from tests.mpi.sizes import COMM
from tests.mpi.test_apps import alone, answer, run

SMALL = ["--shape", "9x12", "--particles", "3000", "--steps", "25", "--work", "20"]
pytestmark = [pytest.mark.mpi, pytest.mark.one_mpi]


@pytest.mark.parametrize("extra", [[], ["--rebalance"], ["--rebalance", "--speeds", "slow"]])
def test_the_last_bit_does_not_depend_on_the_ranks(monkeypatch, extra):
    expected = alone(particles, *SMALL)
    speeds = ",".join(map(str, [0.8 / (1 + rank % 4) for rank in range(COMM.size)]))
    arguments = [*SMALL, *[speeds if one == "slow" else one for one in extra]]
    given = answer(particles, monkeypatch, *arguments)
    assert given["checksum"] == expected["checksum"]
    assert sum(given["particles"]) == 3000
    assert (given["rebalanced"] > 0) >= (given["cells_moved"] > 0)
    assert alone(particles, *SMALL, "--steps", "26")["checksum"] != expected["checksum"]
    code, out, err = run(particles, monkeypatch, *arguments)
    assert (code, err) == (0, "")
    assert COMM.rank > 0 or bool(extra) == bool(re.search("rebalancings? moved", out)), out


def test_particles_stay_within_their_neighbourhood():
    """In a step, a particle reaches one of the cells around its own at most."""
    positions = particles.initial(5000, (9, 12))
    before = positions.copy()
    particles.advect(positions, 9, 12, 4.0, 6.0, 7)
    assert np.abs(positions[:, 1:] - before[:, 1:]).max() <= 1.0
    assert len(np.unique(particles.cells_of(positions, 12))) > 50
