"""One connection to each host, from before a program starts until it has ended: is the host there, what has it, is it alive?

On the other side is lb_mpi/launching/host.py, started by ssh, or by what stands for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

REACH_S = 20.0  # for all hosts, at the same time
SIGN_S = 12.0  # without a sign of life a host is given up
ASK_S = 1.0  # between two questions
CLOSE_S = 5.0
LOOK_S = 0.05  # between two looks at what the hosts have said
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
_HERE = Path(__file__).resolve().parent


class Connection:
    """To one host."""

    def __init__(self, name: str, launcher: Sequence[str], python: str, mark: str) -> None:
        """Begin to connect."""
        self.name = name
        self.facts: dict[str, str] = {}
        self.last_sign = time.monotonic()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._text = b""
        there = (
            f"cd {shlex.quote(os.getcwd())} && exec {shlex.quote(python)} {shlex.quote(str(_HERE / 'host.py'))} {mark}"
        )
        self._process = subprocess.Popen(
            ["sh", "-c", there] if is_here(name) else [*launcher, name, there],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for this program, which then ends the others in good order
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def fileno(self) -> int:
        """What can be read from when the host has said something, or is gone."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def listen(self) -> None:
        """Take in what the host has said."""
        with contextlib.suppress(BlockingIOError):
            while said := os.read(self.fileno(), 4096):
                self._text += said
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            if line.startswith(b"lb_mpi "):
                self.last_sign = time.monotonic()
                if line.startswith(b"lb_mpi {"):
                    self.facts = json.loads(line.removeprefix(b"lb_mpi "))

    def ask(self) -> None:
        """Ask for a sign of life."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            os.write(self._process.stdin.fileno(), b"?\n")

    def ended(self) -> str | None:
        """Why the connection has ended; None while it stands."""
        code = self._process.poll()
        if code is None:
            return None
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return (said[-1] if said else "the connection ended") + f" (exit code {code})"

    def hang_up(self) -> None:
        """Let the other side end what is left there."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def close(self, wait_s: float) -> None:
        """Wait for the other side, but not longer than `wait_s`."""
        assert self._process.stdout is not None
        try:
            self._process.wait(max(wait_s, 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


class Watch:
    """All connections; a context manager that closes them.  This machine is watched in any case, to compare with."""

    def __init__(self, names: Iterable[str], launcher: Sequence[str], python: str, mark: str) -> None:
        """Begin to connect to all."""
        self.here = Connection(socket.gethostname(), launcher, python, mark)
        self.hosts: list[Connection] = []
        try:
            for name in names:
                self.hosts.append(self.here if is_here(name) else Connection(name, launcher, python, mark))
        except BaseException:
            self.close()
            raise
        self._asked = 0.0

    @property
    def _all(self) -> set[Connection]:
        return {self.here, *self.hosts}

    def __enter__(self) -> Watch:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def reach(self) -> list[str]:
        """Wait until all hosts have said what they have; return a line for each host of which something is wrong."""
        deadline = time.monotonic() + REACH_S
        waiting = self._all
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            for connection in select.select(list(waiting), [], [], left_s)[0]:
                connection.listen()
            waiting = {one for one in waiting if not one.facts and one.ended() is None}
            time.sleep(0.01)
        return [line for one in (self.here, *self.hosts) if (line := self._problem(one))]

    def _problem(self, one: Connection) -> str:
        if not one.facts:
            return f"host {one.name}: " + (one.ended() or f"no answer within {REACH_S:g} s")
        if "error" in one.facts:
            return f"host {one.name}: {one.facts['error']}"
        own = {**self.here.facts, "host": one.facts["host"]}
        differs = [
            f"{what} {one.facts.get(what)}, here {own[what]}" for what in own if one.facts.get(what) != own[what]
        ]
        return f"host {one.name}: {'; '.join(differs)}" if differs else ""

    def lost(self) -> list[str]:
        """Listen, and ask now and then; return a line for each host that is gone."""
        for connection in select.select(list(self._all), [], [], 0)[0]:
            connection.listen()
        now = time.monotonic()
        if now > self._asked + ASK_S:
            self._asked = now
            for connection in self._all:
                connection.ask()
        lines = []
        for one in self.hosts:
            if (why := one.ended()) is not None:
                lines.append(f"host {one.name} is gone: {why}")
            elif now > one.last_sign + SIGN_S:
                lines.append(f"host {one.name} is gone: no sign of life for {SIGN_S:g} s")
        return list(dict.fromkeys(lines))

    def silent(self, seconds: float) -> list[str]:
        """Return a line for each host that is gone, or gives no sign of life within `seconds`."""
        began = time.monotonic()
        for connection in self._all:
            connection.ask()
        while True:
            lines = self.lost()
            late = [one for one in self.hosts if one.last_sign < began and one.ended() is None]
            if not late or time.monotonic() > began + seconds:
                return list(dict.fromkeys(lines + [f"host {one.name} is gone: no sign of life" for one in late]))
            time.sleep(LOOK_S)

    def close(self) -> None:
        """End on all hosts what the program may have left there."""
        deadline = time.monotonic() + CLOSE_S
        for one in self._all:
            one.hang_up()
        for one in self._all:
            one.close(deadline - time.monotonic())


def is_here(name: str) -> bool:
    """Whether the name means this machine, to which mpiexec needs no ssh."""
    return name in ("localhost", "127.0.0.1", socket.gethostname())


def launcher(given: str | None) -> list[str]:
    """Return the command that is followed by a host and a command line."""
    return [given] if given else list(SSH)
