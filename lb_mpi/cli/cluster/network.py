"""The network of an emulated cluster: a switch that delays every frame; and how a cluster runs its tools.

`python lb_mpi/cli/run switch DELAY_S HOME NAMESPACE ...` puts a device eth0 (TAP) into each network namespace, prints
"ready", and carries frames between them until it is ended.  It runs in the namespace HOME, and its devices vanish when it
ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import shlex
import shutil
import struct
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from lb_mpi.cli.run.processes import silence
from lb_mpi.cli.run.rank import raise_priority
from lb_mpi.errors import ClusterError


def need(*tools: tuple[str, str]) -> None:
    """ClusterError unless each command is installed; `tools`: commands, and Debian's packages."""
    for tool, package in tools:
        if which(tool) is None:
            raise ClusterError(f"needs the command {tool}: install {package} (Debian's name)")


def which(tool: str) -> str | None:
    """Return the full path of a tool, also of one outside of an ordinary user's PATH."""
    return shutil.which(tool, path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin{os.pathsep}/sbin")


def run(argv: list[str]) -> str:
    """Run a command and return its output; ClusterError, with what it has said, if it fails."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"{shlex.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def start_daemon(argv: Sequence[str]) -> None:
    """Start a process that outlives this one, and wait until it is ready; ClusterError."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        if process.stdout.readline() == "ready\n":
            return
        said = process.stderr.read().strip()
    process.wait()
    raise ClusterError(said)


def say_ready() -> None:
    """Tell the process that called `start_daemon`; from now on this one prints nothing."""
    print("ready", flush=True)
    silence(1, 2)


# --- the switch --------------------------------------------------------------------------------------------------------


MTU = 9000  # fewer frames for the same bytes
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_MOST_FRAMES = 64  # read from a port before the others have their turn


class DelayedFrame(NamedTuple):
    """A frame under way."""

    due: float
    source: int
    data: bytes


class Switch:
    """A switch that delays each frame; ports are numbers from 0, times are on any clock."""

    def __init__(self, n_ports: int, delay_s: float) -> None:
        self._n_ports = n_ports
        self._delay_s = delay_s
        self._port_of: dict[bytes, int] = {}  # by Ethernet address
        self._under_way: deque[DelayedFrame] = deque()

    def receive(self, now: float, port: int, data: bytes) -> None:
        """Receive a frame."""
        self._port_of[data[6:12]] = port
        self._under_way.append(DelayedFrame(now + self._delay_s, port, data))

    def due(self, now: float) -> float | None:
        """Return the seconds until the next frame leaves, None without frames under way."""
        return max(self._under_way[0].due - now, 0.0) if self._under_way else None

    def send(self, now: float) -> list[tuple[int, bytes]]:
        """Return the frames that leave now, with their ports: all others if the address is unknown, or a group's."""
        out = []
        while self._under_way and self._under_way[0].due <= now:
            _, source, data = self._under_way.popleft()
            port = None if data[0] & 1 else self._port_of.get(data[:6])
            ports = range(self._n_ports) if port is None else (port,)
            out += [(port, data) for port in ports if port != source]
        return out


def open_tap(namespace: str) -> int:
    """Make eth0 in `namespace`; return the file from which its frames are read and to which they are written."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TAP | _IFF_NO_PI))
    return device


def switch(arguments: Sequence[str]) -> NoReturn:
    """Carry frames until the process is ended, which stays in the namespace HOME."""
    delay, home, *namespaces = arguments
    devices = [open_tap(namespace) for namespace in namespaces]
    with open(f"/run/netns/{home}") as file:
        ctypes.CDLL(None).setns(file.fileno(), _CLONE_NEWNET)
    frames = Switch(len(devices), float(delay))
    port_of = {device: port for port, device in enumerate(devices)}
    say_ready()
    raise_priority()  # a frame that waits for a core would be late
    while True:
        ready, _, _ = select.select(devices, [], [], frames.due(time.monotonic()))
        for device in ready:
            for _ in range(_MOST_FRAMES):
                try:
                    data = os.read(device, MTU + 18)
                except OSError:  # no more frames, or the device is down
                    break
                frames.receive(time.monotonic(), port_of[device], data)
        for port, data in frames.send(time.monotonic()):
            with contextlib.suppress(OSError):  # a host that is down loses its frames
                os.write(devices[port], data)
