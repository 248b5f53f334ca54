"""The sweep on real MPI: the same file on any number of ranks, clear errors."""

import json
import pathlib

import numpy as np
import pytest

from apps import sweep
from tests.mpi.sizes import COMM
from tests.mpi.test_apps import run

SMALL = ["--tasks", "30", "--until", "5"]
pytestmark = [pytest.mark.mpi, pytest.mark.one_mpi]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder that all ranks see."""
    return COMM.bcast(tmp_path_factory.mktemp("sweep"))


@pytest.mark.parametrize("extra", [[], ["--costs", "--speeds", ",".join(["0.5"] * COMM.size)]])
def test_the_file_holds_what_one_rank_finds(monkeypatch, folder, extra):
    file = str(folder / f"{len(extra)}.npz")
    code, out, err = run(sweep, monkeypatch, *SMALL, *extra, "--output", file, "--json")
    assert (code, err) == (0, "")
    given = json.loads(out)
    assert given["ranks"] == len(given["busy_fraction"]) == COMM.size
    assert given["tasks"] == sum(given["tasks_by_rank"]) == 30
    mu = sweep.stiffnesses(30, 0)
    expected = np.array([sweep.solve(one, 5.0) for one in mu])
    with np.load(file) as found:
        assert np.array_equal(found["mu"], mu)
        for name, column in zip(sweep.Motion._fields, expected.T, strict=True):
            assert np.array_equal(found[name], column), name
    assert given["evaluations"] == expected[:, -1].sum()


def test_tasks_in_the_checkpoint_are_not_repeated(monkeypatch, folder):
    log = str(folder / "sweep.log")
    answers = [run(sweep, monkeypatch, *SMALL, "--checkpoint", log, "--json") for _ in range(2)]
    assert [(code, err) for code, _, err in answers] == [(0, "")] * 2
    first, again = (json.loads(out) for _, out, _ in answers)
    assert (sum(first["tasks_by_rank"]), sum(again["tasks_by_rank"])) == (30, 0)
    assert again["evaluations"] == first["evaluations"]
    code, out, err = run(sweep, monkeypatch, "--tasks", "30", "--until", "6", "--checkpoint", log)
    assert (code, out) == (2, "")
    assert "sweep.log" in err


def test_costs_are_known_well():
    mu = sweep.stiffnesses(20, 1)
    costs = [sweep.solve(one, 20.0)[-1] for one in mu]
    assert np.corrcoef(np.log(costs), np.log(sweep.predicted_costs(mu, 20.0)))[0, 1] > 0.8
