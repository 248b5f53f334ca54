"""The heat app on real MPI: the same bits on any number of ranks and for any distribution; clear errors."""

import re
from functools import partialmethod

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from apps import heat
from lb_mpi.graph import Graph
from tests.mpi.sizes import COMM
from tests.mpi.test_apps import alone, answer, run

SMALL = ["mesh:17x23", "--steps", "6", "--work", "5"]
pytestmark = [pytest.mark.mpi, pytest.mark.one_mpi]


def test_saved_steps_go_on_with_another_distribution(monkeypatch, folder):
    save = ["--save", str(folder), "--save-every", "0", "--work", "5"]
    for graph, steps, balance, first in (("mesh:17x23", "4", "static", 0), ("mesh:17x23", "6", "random", 4)):
        given = answer(heat, monkeypatch, graph, "--steps", steps, "--balance", balance, *save)
        assert given["first_step"] == first
    assert given["checksum"] == alone(heat, *SMALL)["checksum"]
    assert sorted(path.name for path in folder.glob("save-*")) == ["save-00000004", "save-00000006"]
    for graph, extra, says in (
        ("mesh:17x24", [], "graph = '408 vertices, 775 edges, CRC"),
        ("mesh:17x23", ["--work", "6"], "work = 6: expected 5, as in what is saved in"),
    ):
        code, out, err = run(heat, monkeypatch, graph, *save, *extra)
        assert (code, out) == (2, "")
        assert says in err


def test_the_last_bit_does_not_depend_on_rebalancing(monkeypatch, folder):
    """Saved after some rebalancings, and continued with others; they do not depend on how busy the machine is."""
    monkeypatch.setattr(lb_mpi.HaloPlan, "rebalance", partialmethod(lb_mpi.HaloPlan.rebalance, when="always"))
    speeds = ",".join(map(str, [0.8 / (1 + rank % 4) for rank in range(COMM.size)]))
    options = ["--balance", "block", "--rebalance", "--speeds", speeds, "--speed-changes", "0:0:9:0.5", "--work", "4000"]
    for steps, first in (("15", 0), ("30", 15)):
        given = answer(heat, monkeypatch, "mesh:17x23", "--steps", steps, *options, "--save", str(folder))
        assert given["first_step"] == first
    assert given["checksum"] == alone(heat, "mesh:17x23", "--steps", "30", "--work", "4000")["checksum"]
    assert COMM.size == 1 or given["vertices_moved"] > 0
    assert sum(given["vertices"]) == 17 * 23
    code, out, err = run(heat, monkeypatch, "mesh:17x23", "--steps", "20", *options)
    assert (code, err) == (0, "")
    assert COMM.rank > 0 or re.search("rebalancings? moved", out), out


def test_the_step_against_numpy():
    """A step of a whole random graph, against the matrix form of the same law."""
    rng = np.random.default_rng(1)
    pairs = rng.integers(0, 40, (90, 2))
    tails, heads = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0).T
    graph = Graph.from_edges(40, tails, heads, rng.uniform(0, 3, len(tails)))
    before = rng.uniform(0.2, 1.0, 40)
    after = np.empty(40)
    dt = 0.01
    for work in (1, 4):
        heat.step(before, after, graph.indptr, graph.indices, graph.weights, dt, work, 0, 40)
        dense = graph.to_scipy().toarray()
        expected = before + dt * (dense @ before - dense.sum(axis=1) * before)
        for _ in range(work):
            expected += heat.RADIATION / work * (heat.AIR**4 - expected**4)
        np.testing.assert_allclose(after, expected, rtol=1e-13)
    parts = np.full(40, np.nan)
    for first, end in ((0, 13), (13, 14), (14, 40)):
        heat.step(before, parts, graph.indptr, graph.indices, graph.weights, dt, 4, first, end)
    np.testing.assert_array_equal(parts, after)


def test_checksums_depend_on_values_and_places():
    """Of a field in two pieces, swapped values, one bit, and what is on which vertex."""
    vertices, field = np.arange(10), np.linspace(0, 1, 10)
    mine = slice(COMM.rank * 10 // COMM.size, (COMM.rank + 1) * 10 // COMM.size)
    whole = heat.checksum(MPI.COMM_SELF, vertices, field)
    assert heat.checksum(COMM, vertices[mine], field[mine]) == whole
    assert heat.checksum(MPI.COMM_SELF, vertices[::-1], np.ascontiguousarray(field[::-1])) == whole
    nearly = np.nextafter(field, 2)
    others = [field[::-1].copy(), nearly, np.where(vertices == 3, nearly, field), field * 1.0]
    sums = {heat.checksum(MPI.COMM_SELF, vertices, other) for other in others}
    assert len(sums) == 4
    assert whole in sums
