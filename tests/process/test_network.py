"""What ssh has started for mpiexec on a host is known by the word of its run."""

import secrets
import sys

import pytest

from lb_mpi.launching import limit
from tests.process.started import started

pytestmark = pytest.mark.one_mpi


def test_what_has_the_word_of_a_run_in_its_command_line_is_ended() -> None:
    word = f"lb_mpi-{secrets.token_hex(4)}"
    waits = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"]
    with (
        started([*waits, "--launcher-exec", f"/tmp/{word}/ssh"]) as ours,
        started([*waits, "--launcher-exec", f"/tmp/{word[:-1]}/ssh"]) as other,
    ):
        for process in (ours, other):
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
        assert limit.bearers("no mark", word=word) == {ours.pid}
        assert limit.bearers("no mark") == set()
        limit.end("no mark", word=word)
        assert ours.wait(20) != 0
        assert other.poll() is None
