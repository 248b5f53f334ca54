"""The network between the hosts of a run: who has the token of a host speaks for it, and nobody else is listened to."""

import secrets
import socket
import sys
from collections.abc import Iterator

import pytest

from lb_mpi.launching import limit
from lb_mpi.launching.host import connect
from lb_mpi.launching.watch import MOST_BYTES, MOST_UNKNOWN, AnswerPort
from tests.process.lab import until
from tests.process.started import started

pytestmark = pytest.mark.one_mpi


@pytest.fixture
def network() -> Iterator[AnswerPort]:
    one = AnswerPort()
    yield one
    one.close()


def invited(network: AnswerPort, name: str) -> tuple[int, str]:
    """The port and the token that a host is given."""
    what, host, port, token = network.invite(name).split()
    assert (what, host) == ("network", socket.gethostname())
    return int(port), token


def test_a_host_with_its_token_is_listened_to(network: AnswerPort) -> None:
    network.listen()
    port, token = invited(network, "far")
    line = connect("127.0.0.1", port, token, 5.0)
    until(lambda: network.listen() or "far" in network.answers)
    answers = network.answers["far"]
    answers.silent_s = 7.0
    line.sendall(b"3\n")
    until(lambda: network.listen() or answers.number == 3)
    assert answers.silent_s == 0.0
    line.close()
    answers.silent_s = 7.0
    network.listen()
    assert (answers.number, answers.silent_s) == (3, 7.0)  # the caller sees that it is silent
    assert network.answers == {"far": answers}


@pytest.mark.parametrize("junk", [b"\n", b"\xff\n", b"x" * (MOST_BYTES + 1), b"0" * 32 + b"\n3\n"])
def test_who_has_no_token_is_not_listened_to(network: AnswerPort, junk: bytes) -> None:
    port, _ = invited(network, "far")
    with socket.create_connection(("127.0.0.1", port), 5.0) as stranger:
        stranger.sendall(junk)
        stranger.setblocking(False)

        def hung_up() -> bool:
            network.listen()
            try:
                return stranger.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True

        until(hung_up)
    assert network.answers == {}


def test_a_token_is_good_for_one_connection(network: AnswerPort) -> None:
    port, token = invited(network, "far")
    lines = [connect("127.0.0.1", port, token, 5.0) for _ in range(2)]
    until(lambda: network.listen() or "far" in network.answers)
    lines[1].send(b"9\n")
    lines[0].send(b"3\n")
    until(lambda: network.listen() or network.answers["far"].number == 3)
    for line in lines:
        line.close()


def test_strangers_who_say_nothing_do_not_keep_a_host_out(network: AnswerPort) -> None:
    port, token = invited(network, "far")
    strangers = []
    for _ in range(2 * MOST_UNKNOWN):
        strangers.append(socket.create_connection(("127.0.0.1", port), 5.0))
        network.listen()
    line = connect("127.0.0.1", port, token, 5.0)
    until(lambda: network.listen() or "far" in network.answers)
    for one in (*strangers, line):
        one.close()


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
