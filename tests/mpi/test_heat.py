"""The heat app on real MPI: the same bits on any number of ranks and for any distribution; clear errors."""

import pathlib
import re
from functools import partialmethod

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from apps import heat
from apps.saved_steps import SavedSteps
from lb_mpi.graph import Graph, parse
from lb_mpi.machine import Machine, write_machine
from tests.mpi.sizes import COMM
from tests.mpi.test_apps import alone, answer, run

SMALL = ["mesh:17x23", "--steps", "6", "--work", "5"]
METIS = "4 4 011\n1 2 3 4 1\n2 1 3 3 2\n1 2 2 4 9\n1 3 9 1 1\n"  # weights of vertices and edges
MATRIX = "%%MatrixMarket matrix coordinate real symmetric\n5 5 5\n2 1 0.5\n3 2 1e-3\n4 4 7\n4 3 2\n5 1 0.25\n"
pytestmark = [pytest.mark.mpi, pytest.mark.one_mpi]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder that all ranks see, with graphs and a measured machine."""
    folder: pathlib.Path = COMM.bcast(tmp_path_factory.mktemp("heat"))
    hosts = tuple(COMM.allgather(MPI.Get_processor_name()))
    if COMM.rank == 0:
        (folder / "small.graph").write_text(METIS)
        (folder / "small.mtx").write_text(MATRIX)
        (folder / "one-sided.graph").write_text("3 2\n2\n1 3\n\n")
        none = np.zeros((COMM.size, COMM.size))
        write_machine(Machine(hosts, np.arange(1.0, COMM.size + 1), none, none), folder / "machine.json")
        bigger = np.zeros((COMM.size + 1, COMM.size + 1))
        write_machine(Machine((*hosts, "x"), np.ones(COMM.size + 1), bigger, bigger), folder / "bigger.json")
        (folder / "broken.json").write_text('{"format": "lb_mpi machine",\n "version": 1,\n "hosts": }')
    COMM.Barrier()
    return folder


@pytest.mark.parametrize("extra", [["block"], ["random"], ["random", "--seed", "3"], ["static", "--effort", "fast"]])
def test_the_last_bit_does_not_depend_on_the_distribution(monkeypatch, extra):
    expected = alone(heat, *SMALL)
    given = answer(heat, monkeypatch, *SMALL, "--balance", *extra)
    assert given["checksum"] == expected["checksum"]
    assert sum(given["vertices"]) == 17 * 23
    assert 0 < given["lower_bound_seconds"] <= 1.05 * given["seconds"]
    assert given["lower_bound_seconds"] == pytest.approx(given["cpu_seconds"] / COMM.size)
    assert (given["cut"] > 0) == (given["halo_bytes"] > 0) == (COMM.size > 1)
    assert given["halo_bytes"] % 8 == 0
    assert alone(heat, *SMALL, "--work", "6")["checksum"] != expected["checksum"]
    assert alone(heat, *SMALL, "--steps", "7")["checksum"] != expected["checksum"]


def test_saved_steps_go_on_with_another_distribution(monkeypatch, files):
    folder = files / f"saves-{COMM.size}"
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


def test_the_last_bit_does_not_depend_on_rebalancing(monkeypatch, files):
    """Saved after some rebalancings, and continued with others; they do not depend on how busy the machine is."""
    monkeypatch.setattr(lb_mpi.HaloPlan, "rebalance", partialmethod(lb_mpi.HaloPlan.rebalance, when="always"))
    folder = files / f"rebalanced-{COMM.size}"
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


def test_speeds_of_a_machine(monkeypatch, files):
    given = answer(heat, monkeypatch, *SMALL, "--machine", str(files / "machine.json"))
    assert given["checksum"] == alone(heat, *SMALL)["checksum"]
    if COMM.size > 1:  # speeds 1, 2, ...
        assert given["vertices"][-1] > 1.5 * given["vertices"][0]


@pytest.mark.parametrize("name", ["small.graph", "small.mtx", "ring:3", "mesh:1x1", "complete:8"])
def test_graphs(monkeypatch, files, name):
    graph = str(files / name) if "." in name else name
    expected = alone(heat, graph, "--steps", "20", "--work", "3")
    for balance in ("static", "block", "random"):
        given = answer(heat, monkeypatch, graph, "--steps", "20", "--work", "3", "--balance", balance)
        assert given["checksum"] == expected["checksum"]


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


def test_heat_flows_and_is_lost():
    with lb_mpi.distribute(COMM, parse("ring:60") if COMM.rank == 0 else None, method="block") as plan:
        dt = heat.time_step(COMM, plan)
        assert dt == 0.25
        begun = heat.initial(plan.vertices)
        steps = SavedSteps(COMM, None, 0, 50, index=plan.vertices, options={})
        ended, cpu_s = heat.simulate(plan, dt, steps, 2, 1.0)
    assert cpu_s > 0
    assert COMM.allreduce(float(begun.sum())) > COMM.allreduce(float(ended.sum())) > 60 * heat.AIR
    assert COMM.allreduce(float(begun.max()), MPI.MAX) == heat.HOTTEST
    assert COMM.allreduce(float(ended.max()), MPI.MAX) < heat.HOTTEST


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


@pytest.mark.parametrize(("arguments", "says"), [
    (["{files}"], "{files}"),
    (["{files}/one-sided.graph"], "one-sided.graph:"),
    (["--machine", "{files}/broken.json"], "broken.json:3:"),
    (["--machine", "{files}/bigger.json"], f"machine of {COMM.size + 1} ranks: expected {COMM.size}"),
])  # fmt: skip
def test_files_that_are_wrong_are_named(monkeypatch, files, arguments, says):
    named = [text.replace("{files}", str(files)) for text in arguments]
    code, out, err = run(heat, monkeypatch, *named)
    assert (code, out) == (2, "")
    assert says.replace("{files}", str(files)) in err
    assert err.count("\n") == 1
