"""The command `allocate`."""

import subprocess
import sys
from pathlib import Path

from lb_mpi.distributing.allocation import allocate

ROOT = Path(__file__).resolve().parents[2]
LINE = "--tasks 1000 --time 1,2,4 --edge-probability 0.1 --exchange 0.01,0.01,0.02"


def test_it_needs_no_compiler():
    line = "import sys; from lb_mpi.__main__ import main; main(sys.argv[1:]); assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", line, "allocate", *LINE.split()], check=True, timeout=120, cwd=ROOT)


def test_waits_and_the_method_of_the_paper(command):
    line = "--tasks 14 --time 0.1,0.2,0.4 --edge-probability 0.5 --exchange 0.05 --wait 0.1,0.2,0.1 --wait-probability 0.5"
    how = {"edge_probability": 0.5, "exchange": 0.05, "wait": [0.1, 0.2, 0.1], "wait_probability": 0.5}
    for method in ("exact", "paper"):
        given = command("allocate", line, "--method", method, "--json").json
        expected = allocate(14, [0.1, 0.2, 0.4], method=method, **how)
        assert (given["counts"], given["makespan"]) == (expected.counts.tolist(), expected.makespan)
        assert (given["method"], given["lower_bound"]) == (method, expected.lower_bound)
