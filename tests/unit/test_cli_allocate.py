"""The command `allocate`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lb_mpi.__main__ import main
from lb_mpi.distributing.allocation import allocate

ROOT = Path(__file__).resolve().parents[2]
LINE = "--tasks 1000 --time 1,2,4 --edge-probability 0.1 --exchange 0.01,0.01,0.02"


def test_the_documented_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["allocate", *(LINE + " --cap 500,500,500").split(), "--json"]) == 0
    given = json.loads(capsys.readouterr().out)
    expected = allocate(1000, [1, 2, 4], edge_probability=0.1, exchange=[0.01, 0.01, 0.02], cap=[500] * 3)
    assert {"counts", "makespan", "lower_bound"} <= set(given)
    assert given["counts"] == expected.counts.tolist()
    assert (given["makespan"], given["lower_bound"]) == (expected.makespan, expected.lower_bound)


def test_it_needs_no_compiler() -> None:
    line = "import sys; from lb_mpi.__main__ import main; main(sys.argv[1:]); assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", line, "allocate", *LINE.split()], check=True, timeout=120, cwd=ROOT)


def test_waits_and_the_method_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    line = "--tasks 14 --time 0.1,0.2,0.4 --edge-probability 0.5 --exchange 0.05 --wait 0.1,0.2,0.1 --wait-probability 0.5"
    how = {"edge_probability": 0.5, "exchange": 0.05, "wait": [0.1, 0.2, 0.1], "wait_probability": 0.5}
    for method in ("exact", "paper"):
        assert main(["allocate", *line.split(), "--method", method, "--json"]) == 0
        given = json.loads(capsys.readouterr().out)
        expected = allocate(14, [0.1, 0.2, 0.4], method=method, **how)
        assert (given["counts"], given["makespan"]) == (expected.counts.tolist(), expected.makespan)
        assert (given["method"], given["lower_bound"]) == (method, expected.lower_bound)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--tasks 10 --time 1,0", "time[1] = 0.0"),
        ("--tasks 10 --time 1,,2", "time = '1,,2': expected numbers with commas between"),
        ("--tasks 10 --time 1,2 --exchange 1,2,3", "exchange of shape (3,) = [1.0, 2.0, 3.0]: expected 2 numbers"),
        ("--tasks 10 --time 1,2 --edge-probability 2", "--edge-probability = 2.0"),
        ("--tasks 10 --time 1,2 --cap 4,5", "expected at least tasks = 10"),
        ("--tasks 10 --time 1,2 --cap 9,1.5", "cap = 1.5: expected whole numbers"),
        ("--tasks -1 --time 1,2", "tasks = -1"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    assert main(["allocate", *line.split(), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
