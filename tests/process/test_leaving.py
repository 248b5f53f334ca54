"""A rank that leaves a `with` statement by an exception: its traceback is seen, and the program ends."""

import sys
import tempfile
from pathlib import Path

import pytest

from tools.environment import here

pytest.importorskip("mpi4py", reason="runs a program under mpiexec")

BIN = Path(sys.prefix) / "bin"
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


@pytest.mark.skipif(not (BIN / "mpiexec").exists(), reason="no mpiexec here")
@pytest.mark.parametrize("python", [[], ["-m", "mpi4py"]], ids=["python", "python -m mpi4py"])
def test_leaving_a_plan(tmp_path: Path, python: list[str]) -> None:
    script = tmp_path / "leaving.py"
    script.write_text(SCRIPT)
    with tempfile.TemporaryFile() as output:
        code = here().mpiexec(3, [sys.executable, *python, str(script)], 120.0, stdout=output, stderr=output)
        output.seek(0)
        said = output.read().decode(errors="replace")
    assert code not in (0, 124), said
    assert "ZeroDivisionError: on purpose" in said
    assert "not reached" not in said
    assert "hung" not in said
