"""The network between the hosts of a run: does each host still reach this one over it?

What starts host.py may go another way than MPI: ssh over a network for administration, or what stands for ssh.  So each
host.py connects to a port of launch/run, too, under the name of its host, as the daemons of both MPIs do with mpiexec, and
answers all questions there once more.  A host that has never come this way, behind a firewall for example, is not judged by
it.  Anybody may connect, but who doesn't begin with the token that a host has been given over ssh isn't listened to.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket

MOST_BYTES = 4096  # of a line that is not complete
MOST_UNKNOWN = 64  # connections that have not said who they are


class _Peer:
    """Who has connected."""

    def __init__(self, line: socket.socket) -> None:
        self.socket = line
        self.name = ""  # of the host; "": it has not said so
        self.text = b""


class Network:
    """The port, and what hosts have answered there.  It is opened when the first host is invited."""

    def __init__(self) -> None:
        self._server: socket.socket | None = None
        self._ready = selectors.DefaultSelector()
        self._tokens: dict[str, str] = {}  # host names by them
        self._unknown: list[_Peer] = []
        self._peers: list[_Peer] = []
        self.answered: dict[str, int] = {}  # by host, once it has come: the number of the last question
        self.silent_s: dict[str, float] = {}  # for so long it has not answered; the caller counts

    def invite(self, name: str) -> str:
        """Return the line by which the host.py of the host `name` learns where to connect."""
        if self._server is None:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            self._server = socket.create_server(("", 0), family=family, dualstack_ipv6=both)
            self._server.setblocking(False)
            self._ready.register(self._server, selectors.EVENT_READ)
        token = secrets.token_hex(16)
        self._tokens[token] = name
        return f"network {socket.gethostname()} {self._server.getsockname()[1]} {token}"

    def listen(self) -> None:
        """Take in what has been said."""
        for key, _ in self._ready.select(0.0):
            if key.data is not None:
                self._hear(key.data)
            elif self._server is not None:
                with contextlib.suppress(OSError):
                    self._accept(self._server.accept()[0])

    def close(self) -> None:
        """Listen no longer."""
        for one in (*self._unknown, *self._peers):
            one.socket.close()
        if self._server is not None:
            self._server.close()
        self._ready.close()

    def _accept(self, line: socket.socket) -> None:
        line.setblocking(False)
        peer = _Peer(line)
        self._ready.register(line, selectors.EVENT_READ, peer)
        self._unknown.append(peer)
        if len(self._unknown) > MOST_UNKNOWN:
            self._drop(self._unknown[0])

    def _hear(self, peer: _Peer) -> None:
        if peer not in (*self._unknown, *self._peers):  # dropped a moment ago
            return
        said = b""
        with contextlib.suppress(OSError):
            said = peer.socket.recv(MOST_BYTES)
        *lines, peer.text = (peer.text + said).split(b"\n")
        try:
            if not said or len(peer.text) > MOST_BYTES:
                raise ValueError("expected more lines")
            for line in lines:
                self._take(peer, line.decode())
        except ValueError:  # it has hung up, or isn't a host of this run
            self._drop(peer)

    def _take(self, peer: _Peer, line: str) -> None:
        if peer.name:
            self.answered[peer.name], self.silent_s[peer.name] = int(line), 0.0
        elif name := self._tokens.pop(line, ""):
            peer.name = name
            self._unknown.remove(peer)
            self._peers.append(peer)
            self.answered[name], self.silent_s[name] = 0, 0.0
        else:
            raise ValueError(f"{line}: expected a token")

    def _drop(self, peer: _Peer) -> None:
        self._ready.unregister(peer.socket)
        peer.socket.close()
        (self._peers if peer.name else self._unknown).remove(peer)


def connect(host: str, port: int, token: str, wait_s: float) -> socket.socket:
    """Connect to launch/run on `host`; OSError when it can't be reached."""
    line = socket.create_connection((host, port), wait_s)
    line.sendall(f"{token}\n".encode())
    line.setblocking(False)
    return line
