"""launch/run --hang-s: ranks that hang or leave are named with their stacks, and the run goes on."""

import re
from pathlib import Path

import pytest

from lb_mpi.cli.run import limit
from tests.process.mishaps import DONE, HOST, run
from tests.process.started import needs_mpiexec


@needs_mpiexec
def test_a_rank_that_is_stopped_is_named_with_its_stack_and_the_run_goes_on(
    tmp_path: Path, mark: dict[str, str]
) -> None:
    code, out, err = run("stop", tmp_path, mark, "--restarts", "1", "--hang-s", "1")
    assert code == 0, err
    assert out.endswith(DONE)
    assert re.search(
        f"^run: rank 2 on host {HOST} hangs: stopped for [0-9]+ s, in a map of lb_mpi.Pool$", err, re.MULTILINE
    )
    assert "run: Python stack of rank 2:\n" in err
    assert "in task\n" in err
    assert "rank 0 on" not in err
    assert "restart 1 of 1" in err


@needs_mpiexec
@pytest.mark.parametrize(("what", "rank"), [("leave", "2"), ("leave-together", "[012]")])
def test_a_rank_that_leaves_without_finalizing_mpi_is_named_and_has_failed(
    tmp_path: Path, mark: dict[str, str], what: str, rank: str
) -> None:
    code, _, err = run(what, tmp_path, mark, "--restarts", "1")
    assert code not in (0, limit.HUNG), err
    assert re.search(f"^run: rank {rank} on host {HOST} ended with exit code 0, but without MPI_Finalize ", err, re.M)
    assert "run: no restart: the program itself has failed\n" in err


@needs_mpiexec
@pytest.mark.parametrize(("what", "how", "line"), [
    pytest.param("wait-outside", "neither computing nor answering", "in main", marks=pytest.mark.one_mpi),
    ("end", "at the end of its program", ""),
    ("interrupted", "at the end of its program", ""),
])  # fmt: skip
def test_a_rank_for_which_all_others_wait_is_named_with_its_stack_and_the_run_goes_on(
    tmp_path: Path, mark: dict[str, str], what: str, how: str, line: str
) -> None:
    code, out, err = run(what, tmp_path, mark, "--restarts", "1", "--hang-s", "4")
    assert code == 0, err
    assert out.endswith(DONE)
    words = f"^run: rank 2 on host {HOST} hangs: {how} for [0-9]+ s, while the other ranks wait in "
    assert re.search(words, err, re.MULTILINE), err
    assert line in err.partition("run: Python stack of rank 2:\n")[2]
    assert "rank 0 on" not in err
    assert "restart 1 of 1" in err


@needs_mpiexec
def test_a_rank_that_is_blocked_in_mpi_is_late_then_hangs(tmp_path: Path, mark: dict[str, str]) -> None:
    code, out, err = run("receive-outside", tmp_path, mark, "--restarts", "1", "--hang-s", "2")
    assert code == 0, err
    assert out.endswith(DONE)
    for word in ("is late", "hangs"):
        words = f"^run: rank 2 on host {HOST} {word}: outside of lb_mpi, computing or blocked in MPI, for [0-9]+ s, "
        assert len(re.findall(words, err, re.MULTILINE)) == 1, err
    assert "in main" in err.partition("run: Python stack of rank 2:\n")[2]


@needs_mpiexec
def test_a_dead_process_that_watches_ranks_is_named_and_the_run_goes_on(tmp_path: Path, mark: dict[str, str]) -> None:
    words = f"hydra_pmi_proxy on host {HOST}, the process of MPI that watches rank [012], has died|mpiexec died by"
    code, out, err = run("watcher-SIGKILL-2", tmp_path, mark, "--restarts", "1", "--hang-s", "2")
    assert code == 0, err
    assert out.endswith(DONE)
    assert re.search(f"^run: ({words})", err, re.MULTILINE), err
    assert "restart 1 of 1" in err
