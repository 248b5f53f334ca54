"""The network between the hosts of a run: who has the token of a host speaks for it, and nobody else is listened to."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lb_mpi.launching import daemons, limit
from lb_mpi.launching.network import MOST_BYTES, MOST_UNKNOWN, Network, connect
from tests.process.lab import until
from tests.process.started import started

pytestmark = pytest.mark.one_mpi


@pytest.fixture
def network() -> Iterator[Network]:
    one = Network()
    yield one
    one.close()


def invited(network: Network, name: str) -> tuple[int, str]:
    """The port and the token that a host is given."""
    what, host, port, token = network.invite(name).split()
    assert (what, host) == ("network", socket.gethostname())
    return int(port), token


def test_a_host_with_its_token_is_listened_to(network: Network) -> None:
    network.listen()
    port, token = invited(network, "far")
    line = connect("127.0.0.1", port, token, 5.0)
    until(lambda: network.listen() or "far" in network.answered)
    network.silent_s["far"] = 7.0
    line.sendall(b"3\n")
    until(lambda: network.listen() or network.answered["far"] == 3)
    assert network.silent_s == {"far": 0.0}
    line.close()
    network.silent_s["far"] = 7.0
    network.listen()
    assert (network.answered, network.silent_s) == ({"far": 3}, {"far": 7.0})  # the caller sees that it is silent


@pytest.mark.parametrize("junk", [b"\n", b"\xff\n", b"x" * (MOST_BYTES + 1), b"0" * 32 + b"\n3\n"])
def test_who_has_no_token_is_not_listened_to(network: Network, junk: bytes) -> None:
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
    assert network.answered == {}


def test_a_token_is_good_for_one_connection(network: Network) -> None:
    port, token = invited(network, "far")
    lines = [connect("127.0.0.1", port, token, 5.0) for _ in range(2)]
    until(lambda: network.listen() or "far" in network.answered)
    lines[1].send(b"9\n")
    lines[0].send(b"3\n")
    until(lambda: network.listen() or network.answered["far"] == 3)
    for line in lines:
        line.close()


def test_strangers_who_say_nothing_do_not_keep_a_host_out(network: Network) -> None:
    port, token = invited(network, "far")
    strangers = []
    for _ in range(2 * MOST_UNKNOWN):
        strangers.append(socket.create_connection(("127.0.0.1", port), 5.0))
        network.listen()
    line = connect("127.0.0.1", port, token, 5.0)
    until(lambda: network.listen() or "far" in network.answered)
    for one in (*strangers, line):
        one.close()


def test_daemons_are_told_by_the_word_of_their_mpiexec(tmp_path: Path) -> None:
    command = {
        "hydra_pmi_proxy": ["--control-port", "h1:39463", "--rmk", "user"],
        "prted": ["--prtemca", "ess_base_nspace", f"prterun-h1-{os.getpid()}@0"],
        "other": ["--control-port", "h1:39463"],
    }
    pids, words = {}, {}
    for name in command:
        (tmp_path / name).write_text("#!/bin/sh\necho here\nread nothing\n")
        (tmp_path / name).chmod(0o755)
    with (
        started([tmp_path / "hydra_pmi_proxy", *command["hydra_pmi_proxy"]], stdin=-1) as hydra,
        started([tmp_path / "prted", *command["prted"]], stdin=-1) as prted,
        started([tmp_path / "other", *command["other"]], stdin=-1) as other,
    ):
        for name, process in (("hydra_pmi_proxy", hydra), ("prted", prted), ("other", other)):
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            pids[name], words[name] = process.pid, daemons.word([os.getpid(), process.pid])
        assert words == {"hydra_pmi_proxy": "h1:39463", "prted": f"prterun-h1-{os.getpid()}@", "other": "h1:39463"}
        assert daemons.running(words["hydra_pmi_proxy"]) == {pids["hydra_pmi_proxy"]}
        assert daemons.running(words["prted"]) == {pids["prted"]}
        assert daemons.running("") == set()
        limit.end("no mark", word=words["prted"])
        assert prted.wait(20) != 0
        assert hydra.poll() is None
