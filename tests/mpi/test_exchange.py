"""Jin and Wang's exchange between neighbours, and diffusion by it, on real ranks: the same numbers as on a whole graph."""

import contextlib
import io
import json

import numpy as np
import pytest

import lb_mpi
from apps import diffusion
from apps.diffusion import diffuse
from lb_mpi.__main__ import main
from lb_mpi.cli.balance import STEPPING
from lb_mpi.diffusion.diffusion import edges_at
from lb_mpi.diffusion.setup import prepare
from lb_mpi.graph import mesh, most_square_mesh, parse
from tests.mpi.sizes import COMM, RANK, SIZE, parameters
from tests.mpi.test_apps import run

pytestmark = pytest.mark.mpi


def graphs():
    return [mesh(*most_square_mesh(SIZE)), parse(f"ring:{SIZE}"), parse(f"complete:{SIZE}"), mesh(1, SIZE)]


@pytest.mark.parametrize("scheme", parameters(STEPPING, every_size=["fos", "cg"]))
def test_steps_and_flows_are_those_of_the_whole_graph(scheme):
    for seed, graph in enumerate(graphs()):
        rng = np.random.default_rng(seed)
        speeds = 10.0 ** rng.uniform(-0.5, 0.5, SIZE)
        loads = speeds * rng.uniform(5, 15, SIZE)
        setup = prepare(graph, speeds, scheme)
        mean = setup.mean_times(loads)
        mine = edges_at(graph, RANK)
        outward = np.where(graph.edges()[0][mine] == RANK, 1.0, -1.0)
        for tolerance in (0.05, 1e-3):
            whole = lb_mpi.balance(graph, loads, speeds, scheme=scheme, tolerance=tolerance)
            found = diffuse(COMM, setup, float(loads[RANK]), float(mean[RANK]), tolerance, 1000)
            assert (found.steps, found.converged, found.imbalance) == (whole.steps, True, whole.imbalance)
            np.testing.assert_array_equal(found.flow, outward * whole.flow[mine])  # so both ends agree
            assert found.loads[0] == whole.loads[RANK]


def test_the_app_answers_as_the_command_does(monkeypatch):
    graph = f"ring:{SIZE}"
    with contextlib.redirect_stdout(printed := io.StringIO()):
        assert main(["balance", graph, "--json"]) == 0
    code, out, _ = run(diffusion, monkeypatch, "--graph", graph, "--json")
    assert code == 0
    assert json.loads(out) == json.loads(COMM.bcast(printed.getvalue()))
    code, _, err = run(diffusion, monkeypatch, "--graph", f"ring:{SIZE + 1}")
    assert (code, f"expected {SIZE}, one for each rank" in err) == (2, True)
    for wrong in ("--tolerance=0", "--steps=-1", f"--times={'1,' * SIZE}1", "--speeds=uniform:0:0"):
        assert run(diffusion, monkeypatch, wrong)[0] == 2
