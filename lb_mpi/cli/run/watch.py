"""Connections to the hosts, from before the start of a program to its end: what each host has, and whether it is alive.

At the other end is host.py, started by ssh: the first in PATH.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from lb_mpi.cli.run import argv
from lb_mpi.cli.run.lines import End, RankState, Stack, parse, printable, read

# The first match wins: the message about a changed key ends like that about an unknown one.
_ADVICE = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "Its key has changed. If you know why, run `ssh-keygen -R {host}`"),
    ("Host key verification failed", "Its key is not known here: run `ssh {host}` once by hand, and accept the key"),
    ("Permission denied", "It accepts none of your keys: run `ssh-copy-id {host}`"),
    ("Could not resolve hostname", "It has no address: correct the hostfile, or add the name to DNS or /etc/hosts"),
    ("Connection refused", "It is running, but has no ssh server"),
    (
        "timed out|No route to host|Network is unreachable|Connection (?:closed|reset)",
        "Check with `ssh {host}` whether it is running and can be reached",
    ),
    (r"\bcd: ", "The folder {folder} must exist there under the same path"),
    ("not found|No such file or directory|can't find '__main__'", "Python and lb_mpi must exist there under the same path"),
)


def advice(said: Iterable[str], host: str, folder: str) -> str:
    """Return a sentence without its full stop about lines `said` instead of an answer, or ""; `folder`: the program's."""
    text = "\n".join(said)
    for pattern, words in _ADVICE:
        if re.search(pattern, text):
            return words.format(host=host, folder=folder)
    return ""


REACH_S = 20.0  # for all hosts, at the same time
SIGN_S = 12.0  # another host is given up after this time without a sign of life
ASK_S = 1.0  # between two questions
CLOSE_S = 5.0
MOST_LINES = 40  # kept of a host's output before it answers: banners, warnings
POLL_S = 0.05  # between two polls of the hosts' output
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")


class Connection:
    """A connection to one host.  It uses one socket for all, since file descriptors are scarce with many hosts."""

    def __init__(self, name: str, ssh: Sequence[str], python: str, run_id: str, word: str) -> None:
        self.name = name
        self.facts: dict[str, str] = {}
        self.answered = 0  # number of the last question that it has answered
        self.silent_s = 0.0  # seconds without an answer; the caller counts them
        self.ends: list[End] = []  # of its ranks, not yet read by the caller
        self.states: dict[str, RankState] = {}  # of its ranks, as last reported
        self.stacks: dict[str, str] = {}  # of ranks, on request
        self.said: deque[str] = deque(maxlen=MOST_LINES)  # lines not from host.py: why there is no connection
        self._text = b""
        there = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(argv(python, 'host'))}"
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                ["sh", "-c", there] if is_here(name) else [*ssh, name, there],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=theirs.fileno(),
                start_new_session=True,  # Ctrl-C reaches this program, which then ends the others in good order
            )
        self._socket.setblocking(False)
        self.send(f"{run_id} {word}")

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the host has sent something, or is gone."""
        return self._socket.fileno()

    def listen(self) -> None:
        """Process what the host has sent."""
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while said := self._socket.recv(4096):
                self._text += said
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            try:
                self._process_line(line.decode())
            except ValueError:
                self._hear_others(line)
            else:
                self.said.clear()

    def _hear_others(self, line: bytes) -> None:
        if said := line.decode(errors="replace").strip():
            self.said.append(printable(said))

    def _process_line(self, line: str) -> None:
        """Process a line of host.py; ValueError for other lines, like those of a login shell."""
        by, _, said = line.partition(" ")
        what, _, about = said.partition(" ")
        if by != "lb_mpi":
            raise ValueError(f"{line}: expected a line of host.py")
        if said.startswith("{"):
            facts = parse(said)
            if not all(isinstance(has, str) for has in facts.values()) or not facts.keys() & {"host", "error"}:
                raise ValueError(f"{line}: expected what a host has")
            self.facts = {printable(what): printable(has) for what, has in facts.items()}
        elif what == "alive":
            self.answered, self.silent_s = int(about), 0.0
        elif what == "state":
            state = read(RankState, about)
            self.states[state.rank] = state
        elif what == "end":
            self.ends.append(read(End, about))
        elif what == "stack":
            stack = read(Stack, about)
            self.stacks[stack.rank] = stack.text
        else:
            raise ValueError(f"{line}: expected what host.py says")

    def send(self, line: str) -> None:
        """Send host.py a line; "? K" asks for a sign of life."""
        with contextlib.suppress(OSError):
            self._socket.send(f"{line}\n".encode())

    def ended(self) -> str | None:
        """Return why the connection has ended; None if it has not."""
        code = self._process.poll()
        if code is None:
            return None
        self.listen()
        self._hear_others(self._text)
        self._text = b""
        return (self.said[-1] if self.said else "the connection ended") + f" (exit code {code})"

    def hang_up(self) -> None:
        """Close the connection, so that the other side ends the processes there."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self, wait_s: float) -> None:
        """Wait for the other side, at most `wait_s` seconds."""
        try:
            self._process.wait(max(wait_s, 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
                self._process.wait(1.0)
        self._socket.close()


class Watch(contextlib.AbstractContextManager["Watch"]):
    """All connections; a context manager that closes them.  This machine is always watched, for comparison."""

    def __init__(self, names: Iterable[str], ssh: Sequence[str], python: str, run_id: str, word: str = "") -> None:
        """Start to connect to all hosts."""
        self._asked, self._n_asked = 0.0, 0  # time and number of the last question
        self._polled = time.monotonic()
        self._gone: dict[str, str] = {}  # a line for each host that is gone, by name
        self._ready = selectors.DefaultSelector()  # select(2) can't count beyond 1024
        self.here = Connection(socket.gethostname(), ssh, python, run_id, word)
        self.hosts: list[Connection] = []
        self._all = {self.here}
        try:
            for name in names:
                self.hosts.append(self.here if is_here(name) else Connection(name, ssh, python, run_id, word))
                self._all.add(self.hosts[-1])
        except BaseException:
            self.close()
            raise
        for connection in self._all:
            self._ready.register(connection, selectors.EVENT_READ, connection)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self) -> int:
        """Ask all hosts for a sign of life; return the number of the question."""
        self._asked = time.monotonic()
        self._n_asked += 1
        self.send(f"? {self._n_asked}")
        return self._n_asked

    def _listen(self, wait_s: float) -> None:
        """Ask from time to time, and process what the hosts have sent; wait up to `wait_s` seconds for something."""
        if time.monotonic() > self._asked + ASK_S:
            self._ask()
        for key, _ in self._ready.select(wait_s):
            connection: Connection = key.data
            connection.listen()
            if connection.ended() is not None:  # no more output will come
                self._ready.unregister(connection)

    def _listen_until(self, done: Callable[[], bool], seconds: float) -> None:
        """Listen until `done`, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        while not done() and time.monotonic() < deadline:
            self._listen(POLL_S)
            time.sleep(0.01)  # a host that is ending is ready at once

    def reach(self) -> dict[str, str]:
        """Wait until all hosts have reported what they have; return a line, by name, for each host with a problem."""
        self._listen_until(lambda: all(one.facts or one.ended() is not None for one in self._all), REACH_S)
        return {one.name: line for one in (self.here, *self.hosts) if (line := self._problem(one))}

    def watch_only(self, names: Iterable[str]) -> None:
        """Watch only these hosts from now on: no rank is on the others."""
        kept = {self.here.name if is_here(name) else name for name in names}
        self.hosts = [one for one in self.hosts if one.name in kept]

    def _problem(self, one: Connection) -> str:
        if not one.facts:
            why = one.ended()
            words = advice(one.said, one.name, os.getcwd()) if why else ""
            return f"host {one.name}: {why or f'no answer within {REACH_S:.0f} s'}{words and f'. {words}'}"
        if "error" in one.facts:
            return f"host {one.name}: {one.facts['error']}"
        own = {**self.here.facts, "host": one.facts["host"]}
        differs = [f"{what} {one.facts.get(what)}, here {own[what]}" for what in own if one.facts.get(what) != own[what]]
        return f"host {one.name}: {'; '.join(differs)}" if differs else ""

    def lost(self) -> list[str]:
        """Listen; return a line for each host that is gone.  This machine counts as busy while its host.py exists."""
        self._listen(0.0)
        now = time.monotonic()
        waited_s = min(now - self._polled, ASK_S)  # time in which this process was stopped does not count as waiting
        self._polled = now
        for one in self.hosts:
            why = one.ended()
            one.silent_s += waited_s
            if why is None and one is not self.here and one.silent_s > SIGN_S:
                why = f"no sign of life for {SIGN_S:g} s"
            if why is not None:
                self._gone.setdefault(one.name, f"host {one.name} is gone: {why}")
        return list(self._gone.values())

    def send(self, line: str) -> None:
        """Send all hosts a line."""
        for connection in self._all:
            connection.send(line)

    def ends(self) -> list[End]:
        """Return the ends of ranks reported since the last call, in the order of each host."""
        ends = []
        for one in self._all:
            ends += one.ends
            one.ends = []
        return ends

    def states(self) -> list[RankState]:
        """Return the states of all ranks."""
        return [state for one in self._all for state in one.states.values()]

    def stack(self, rank: str, wait_s: float) -> str:
        """Return the Python stack of a rank, or "" after `wait_s` seconds; a stopped rank is continued for that."""
        asked = [one for one in self._all if rank in one.states]
        for one in asked:
            one.stacks.pop(rank, None)
            one.send(f"stack {rank}")
        self._listen_until(lambda: any(rank in one.stacks for one in asked), wait_s)
        return next((one.stacks[rank] for one in asked if rank in one.stacks), "")

    def hear(self, seconds: float) -> list[str]:
        """Ask all hosts for news, for at most `seconds`; return the names of those that have not answered by then."""
        asked = self._ask()

        def late() -> list[str]:
            expected = [one for one in self.hosts if one.name not in self._gone and one.ended() is None]
            return [one.name for one in expected if one.answered < asked]

        self._listen_until(lambda: not late(), seconds)
        return late()

    def silent(self) -> list[str]:
        """Return a line for each host that is gone, or gives no sign of life when asked."""
        late = [name for name in self.hear(SIGN_S) if name != self.here.name]
        for name in late:
            self._gone.setdefault(name, f"host {name} is gone: no sign of life")
        return self.lost()

    def close(self) -> None:
        """End the remaining processes of the program on all hosts."""
        deadline = time.monotonic() + CLOSE_S
        for one in self._all:
            one.hang_up()
        for one in self._all:
            one.close(deadline - time.monotonic())
        self._ready.close()


def is_here(name: str) -> bool:
    """Return whether the name means this machine, which mpiexec reaches without ssh."""
    return name in ("localhost", "127.0.0.1", socket.gethostname())
