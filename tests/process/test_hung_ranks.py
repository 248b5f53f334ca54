"""launch/run --hang-s: ranks that hang or leave are named with their stacks, and the run goes on."""

import re

import pytest

from lb_mpi.cli.run import processes
from tests.process.mishaps import DONE, HOST, run
from tests.process.started import needs_mpiexec

AWAITED = "for [0-9]+ s, while the other ranks wait in "
BLOCKED = "outside of lb_mpi, computing or blocked in MPI, for [0-9]+ s, "


@needs_mpiexec
@pytest.mark.parametrize(("what", "hang_s", "reported", "line"), [  # what is said of rank 1, and a line of its stack
    ("stop", "1", ["hangs: stopped for [0-9]+ s, in a map of lb_mpi.Pool$"], "in task\n"),
    ("receive-outside", "2", [f"hangs: {BLOCKED}"], "in main"),
    pytest.param(
        "wait-outside", "4", [f"hangs: neither computing nor answering {AWAITED}"], "in main", marks=pytest.mark.one_mpi
    ),
    ("end", "4", [f"hangs: at the end of its program {AWAITED}"], ""),
    ("interrupted", "4", [f"hangs: at the end of its program {AWAITED}"], ""),
])  # fmt: skip
def test_a_rank_that_hangs_is_named_with_its_stack_and_the_run_goes_on(tmp_path, run_env, what, hang_s, reported, line):
    code, out, err = run(what, tmp_path, run_env, "--restarts", "1", "--hang-s", hang_s)
    assert code == 0, err
    assert out.endswith(DONE)
    for words in reported:
        assert len(re.findall(f"^run: rank 1 on host {HOST} {words}", err, re.MULTILINE)) == 1, err
    assert line in err.partition("run: Python stack of rank 1:\n")[2]
    assert "rank 0 on" not in err
    assert "restart 1 of 1" in err


@needs_mpiexec
@pytest.mark.parametrize(("what", "rank"), [("leave", "1"), ("leave-together", "[01]")])
def test_a_rank_that_leaves_without_finalizing_mpi_is_named_and_has_failed(tmp_path, run_env, what, rank):
    code, _, err = run(what, tmp_path, run_env, "--restarts", "1")
    assert code not in (0, processes.HUNG), err
    assert re.search(f"^run: rank {rank} on host {HOST} ended with exit code 0, but without MPI_Finalize ", err, re.M)
    assert "run: no restart: the program has failed\n" in err
