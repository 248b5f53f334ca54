"""The network of an emulated cluster: OpenSSH between its hosts, and a switch that delays every frame.

All keys are made for the cluster, and all files lie in its folder.  ~/.ssh and /etc/ssh are neither read nor written.

    bin/ssh                      the client with its configuration; first in the PATH of what `run` starts
    ssh/config, id, known_hosts  of the client
    ssh/h1/key, authorized_keys  of the server on h1, which reads the latter at each login
    ssh/h1/config, log           also of the server

A server admits only the user who created the cluster, and only by key.  As with any sshd, a login starts the user's shell
with the variables of a login, in the home folder.

`python lb_mpi/launching switch DELAY_S HOME NAMESPACE ...` puts a device eth0 (TAP) into each network namespace, prints
"ready", and carries frames between them until it is ended.  It runs in the namespace HOME, and its devices vanish when it
ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pwd
import select
import shlex
import shutil
import struct
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from lb_mpi.errors import ClusterError

PORT = 2222  # an ordinary user's server can't use a port below 1024
READY_S = 20.0
CLIENT = """Host *
    User {user}
    Port {port}
    IdentityFile "{folder}/id"
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile "{folder}/known_hosts"
    GlobalKnownHostsFile none
    UpdateHostKeys no
"""
# StrictModes: in a user namespace, / belongs to an unknown user; the folder is closed to others anyway.
SERVER = """Port {port}
ListenAddress {address}
HostKey "{folder}/key"
AuthorizedKeysFile "{folder}/authorized_keys"
StrictModes no
AllowUsers {user}
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PidFile none
PrintMotd no
PrintLastLog no
"""
# Root's sshd needs a folder /run/sshd.  It sees a private one there, and otherwise only the cluster's folder in /run.
OWN_RUN = """
exec 3<"$1" && mount -t tmpfs -o mode=755 tmpfs /run && mkdir -p /run/sshd "$1" &&
mount --no-canonicalize --bind /proc/self/fd/3 "$1" && exec 3<&- && shift && exec "$@"
"""


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


def start_daemon(argv: Sequence[str]) -> int:
    """Start a process that outlives this one, and wait until it is ready; return its number, or ClusterError."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        if process.stdout.readline() == "ready\n":
            return process.pid
        said = process.stderr.read().strip()
    process.wait()
    raise ClusterError(said)


def say_ready() -> None:
    """Tell the process that called `start_daemon`; from now on this one prints nothing."""
    print("ready", flush=True)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(nothing, number)


def check_ssh() -> None:
    """ClusterError unless OpenSSH's server and client are installed."""
    need(("sshd", "openssh-server"), ("ssh", "openssh-client"), ("ssh-keygen", "openssh-client"))


def start_ssh(folder: Path, addresses: Mapping[str, str]) -> None:
    """Make keys and files in the cluster's `folder`, start a server on each host, and log in to each; or ClusterError."""
    own, user = folder / "ssh", login_user()
    own.mkdir()
    _make_key(own / "id")
    known = ""
    for host, address in addresses.items():
        (own / host).mkdir()
        _make_key(own / host / "key")
        shutil.copy(own / "id.pub", own / host / "authorized_keys")
        server = SERVER.format(port=PORT, address=address, folder=own / host, user=user.pw_name)
        (own / host / "config").write_text(server)
        known += f"[{host}]:{PORT},[{address}]:{PORT} {(own / host / 'key.pub').read_text()}"
    (own / "known_hosts").write_text(known)
    (own / "config").write_text(CLIENT.format(port=PORT, folder=own, user=user.pw_name))
    ssh = folder / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec {which("ssh")} -F "{own}/config" "$@"\n')
    ssh.chmod(0o700)
    for host in addresses:
        files = ["-f", str(own / host / "config"), "-E", str(own / host / "log")]
        run([str(folder / "enter"), host, *_before(folder, user), str(which("sshd")), *files])
    first = next(iter(addresses))
    for host in addresses:
        _wait([str(folder / "enter"), first, str(ssh), "-o", "BatchMode=yes", host, "true"], own / host / "log")


def login_user() -> pwd.struct_passwd:
    """Return the user who created the cluster: root, or the user mapped to root in this user namespace."""
    outside, count = map(int, Path("/proc/self/uid_map").read_text().split()[1:3])
    return pwd.getpwuid(outside if count == 1 else os.geteuid())


def _before(folder: Path, user: pwd.struct_passwd) -> list[str]:
    """Return the words before sshd.  As root, sshd changes to other users; if only one exists, it must not be root."""
    if user.pw_uid == os.geteuid():
        return ["sh", "-c", OWN_RUN, "sh", str(folder)]
    return ["unshare", "--user", f"--map-user={user.pw_uid}", f"--map-group={user.pw_gid}"]


def _make_key(path: Path) -> None:
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lbmpi", "-f", str(path)])


def _wait(login: list[str], log: Path) -> None:
    """Log in until it succeeds: a server needs a moment after its start."""
    deadline = time.monotonic() + READY_S
    while (done := subprocess.run(login, stdin=subprocess.DEVNULL, capture_output=True, text=True)).returncode:
        if time.monotonic() > deadline:
            told = log.read_text().strip() if log.exists() else "nothing"
            raise ClusterError(f"can't log in: {done.stderr.strip()}; the server reported: {told}")
        time.sleep(0.1)


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

    def take(self, now: float, port: int, data: bytes) -> None:
        """Receive a frame."""
        self._port_of[data[6:12]] = port
        self._under_way.append(DelayedFrame(now + self._delay_s, port, data))

    def due(self, now: float) -> float | None:
        """Return the seconds until the next frame leaves, None without frames under way."""
        return max(self._under_way[0].due - now, 0.0) if self._under_way else None

    def give(self, now: float) -> list[tuple[int, bytes]]:
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
    with open(f"/run/netns/{namespace}") as place:
        if libc.setns(place.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TAP | _IFF_NO_PI))
    return device


def switch(arguments: Sequence[str], _prog: str) -> NoReturn:
    """Carry frames until the process is ended, which stays in the namespace HOME."""
    delay, home, *namespaces = arguments
    devices = [open_tap(namespace) for namespace in namespaces]
    with open(f"/run/netns/{home}") as place:
        ctypes.CDLL(None).setns(place.fileno(), _CLONE_NEWNET)
    frames = Switch(len(devices), float(delay))
    port_of = {device: port for port, device in enumerate(devices)}
    say_ready()
    while True:
        ready, _, _ = select.select(devices, [], [], frames.due(time.monotonic()))
        for device in ready:
            for _ in range(_MOST_FRAMES):
                try:
                    data = os.read(device, MTU + 18)
                except OSError:  # no more frames, or the device is down
                    break
                frames.take(time.monotonic(), port_of[device], data)
        for port, data in frames.give(time.monotonic()):
            with contextlib.suppress(OSError):  # a host that is down loses its frames
                os.write(devices[port], data)
