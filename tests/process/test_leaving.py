"""A rank that leaves a `with` statement by an exception: its traceback is seen, and the program ends."""


import pytest

from tests.process.started import needs_mpiexec, on_ranks

pytest.importorskip("mpi4py", reason="runs a program under mpiexec")

SCRIPT = """
import sys
import lb_mpi
from mpi4py import MPI
from lb_mpi.graph import mesh
comm = MPI.COMM_WORLD
with lb_mpi.distribute(comm, mesh(4, 6) if comm.rank == 0 else None, method="block") as plan:
    for turn in range(100):
        plan.exchange(plan.vertices)
        if comm.rank == 1 and turn == 3:
            raise ZeroDivisionError("on purpose")
print("not reached", flush=True)
"""

LATE = """
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
import numpy as np
import lb_mpi
lb_mpi.Balancer
MPI.Init()
with lb_mpi.Balancer(MPI.COMM_WORLD) as balancer:
    if balancer.map_rows(np.copy, np.ones(3)).sum() == 3.0:
        print("right", flush=True)
MPI.Finalize()
"""


@needs_mpiexec
@pytest.mark.parametrize("python", [[], ["-m", "mpi4py"]], ids=["python", "python -m mpi4py"])
def test_leaving_a_plan(tmp_path, python):
    code, said = on_ranks(2, *python, str(tmp_path / "leaving.py"), text=SCRIPT)
    assert code not in (0, 124), said
    assert "ZeroDivisionError: on purpose" in said
    assert "not reached" not in said
    assert "hung" not in said


@needs_mpiexec
def test_lb_mpi_may_be_imported_before_mpi_is_initialised(tmp_path):
    code, said = on_ranks(2, str(tmp_path / "late.py"), text=LATE)
    assert (code, said.replace("\n", "")) == (0, "rightright"), said  # unbuffered, "right" and the end of a line are apart
