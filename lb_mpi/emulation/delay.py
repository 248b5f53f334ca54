"""The switch of an emulated cluster whose network takes its time: every frame arrives DELAY_S later.

`python lb_mpi/launching switch DELAY_S HOME NAMESPACE ...` puts a device eth0 (TAP) into each network namespace, says
"ready", and carries frames between them until it is ended, itself in the namespace HOME; when it ends, the devices are
gone.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

MTU = 9000  # fewer frames for the same bytes
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_MOST_FRAMES = 64  # read from a port before others have their turn


class Frame(NamedTuple):
    """A frame under way."""

    due: float
    source: int
    data: bytes


class Switch:
    """Which frame goes out where and when; ports are numbers from 0, times are on any clock."""

    def __init__(self, n_ports: int, delay_s: float) -> None:
        """Know no address yet."""
        self._n_ports = n_ports
        self._delay_s = delay_s
        self._port_of: dict[bytes, int] = {}  # by Ethernet address
        self._under_way: deque[Frame] = deque()

    def take(self, now: float, port: int, data: bytes) -> None:
        """A frame has come in."""
        self._port_of[data[6:12]] = port
        self._under_way.append(Frame(now + self._delay_s, port, data))

    def due(self, now: float) -> float | None:
        """Return the seconds until the next frame goes out, None when none is under way."""
        return max(self._under_way[0].due - now, 0.0) if self._under_way else None

    def give(self, now: float) -> list[tuple[int, bytes]]:
        """Return the frames that go out now, with their ports; to all others when the address is not known, or a group's."""
        out = []
        while self._under_way and self._under_way[0].due <= now:
            _, source, data = self._under_way.popleft()
            port = None if data[0] & 1 else self._port_of.get(data[:6])
            ports = range(self._n_ports) if port is None else (port,)
            out += [(port, data) for port in ports if port != source]
        return out


def open_tap(namespace: str) -> int:
    """Make eth0 in `namespace`; return what its frames are read from and written to."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as place:
        if libc.setns(place.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TAP | _IFF_NO_PI))
    return device


def carry(devices: list[int], delay_s: float) -> NoReturn:
    """Carry frames until the process is ended."""
    switch = Switch(len(devices), delay_s)
    port_of = {device: port for port, device in enumerate(devices)}
    while True:
        ready, _, _ = select.select(devices, [], [], switch.due(time.monotonic()))
        for device in ready:
            for _ in range(_MOST_FRAMES):
                try:
                    data = os.read(device, MTU + 18)
                except OSError:  # no more, or the device is down
                    break
                switch.take(time.monotonic(), port_of[device], data)
        for port, data in switch.give(time.monotonic()):
            try:
                os.write(devices[port], data)
            except OSError:  # a host that is down loses its frames
                continue


def main(arguments: Sequence[str], _prog: str) -> NoReturn:
    """Run the switch; its process stays in the namespace HOME."""
    delay_s, home, *namespaces = arguments
    devices = [open_tap(namespace) for namespace in namespaces]
    with open(f"/run/netns/{home}") as place:
        ctypes.CDLL(None).setns(place.fileno(), _CLONE_NEWNET)
    print("ready", flush=True)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    carry(devices, float(delay_s))
