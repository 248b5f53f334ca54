"""OpenSSH on an emulated cluster: a server on each host, and a client that knows their keys.

All keys are made for the cluster, and all files lie below its folder.  ~/.ssh and /etc/ssh are neither read nor written.

    bin/ssh                      the client with its configuration; first in the PATH of what `run` starts
    ssh/config, id, known_hosts  of the client
    ssh/h1/key, authorized_keys  of the server on h1, which reads the latter at each login
    ssh/h1/config, log           of the server, too

A server lets in the user who has made the cluster, by key only.  On a login it does what any sshd does: the user's shell
with the variables of a login, in the home folder.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from lb_mpi.errors import ClusterError

PORT = 2222  # an ordinary user's server gets no port below 1024
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
# StrictModes: in a user namespace the owner of / is nobody known; the folder is closed to others anyway.
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
# Root's sshd needs a folder /run/sshd.  It sees one of its own there, and of /run nothing else but the cluster's folder.
OWN_RUN = """
exec 3<"$1" && mount -t tmpfs -o mode=755 tmpfs /run && mkdir -p /run/sshd "$1" &&
mount --no-canonicalize --bind /proc/self/fd/3 "$1" && exec 3<&- && shift && exec "$@"
"""


def check() -> None:
    """ClusterError unless OpenSSH's server and client are here."""
    for tool, package in (("sshd", "openssh-server"), ("ssh", "openssh-client"), ("ssh-keygen", "openssh-client")):
        if _which(tool) is None:
            raise ClusterError(f"--ssh needs the command {tool}: install {package} (Debian's name)")


def start(folder: Path, addresses: Mapping[str, str]) -> None:
    """Make keys and files below the cluster's `folder`, start a server on each host, and log in to each; or ClusterError."""
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
    ssh.write_text(f'#!/bin/sh\nexec {_which("ssh")} -F "{own}/config" "$@"\n')
    ssh.chmod(0o700)
    for host in addresses:
        files = ["-f", str(own / host / "config"), "-E", str(own / host / "log")]
        _run([str(folder / "enter"), host, *_before(folder, user), str(_which("sshd")), *files])
    first = next(iter(addresses))
    for host in addresses:
        _wait([str(folder / "enter"), first, str(ssh), "-o", "BatchMode=yes", host, "true"], own / host / "log")


def login_user() -> pwd.struct_passwd:
    """Who has made the cluster: root, or the user that is called root in this user namespace."""
    outside, count = map(int, Path("/proc/self/uid_map").read_text().split()[1:3])
    return pwd.getpwuid(outside if count == 1 else os.geteuid())


def _before(folder: Path, user: pwd.struct_passwd) -> list[str]:
    """What stands before sshd.  As root it changes to other users; where there is but one, it must not be root."""
    if user.pw_uid == os.geteuid():
        return ["sh", "-c", OWN_RUN, "sh", str(folder)]
    return ["unshare", "--user", f"--map-user={user.pw_uid}", f"--map-group={user.pw_gid}"]


def _which(tool: str) -> str | None:
    """The full path, which sshd wants; it's where an ordinary user's PATH doesn't lead."""
    return shutil.which(tool, path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin{os.pathsep}/sbin")


def _make_key(path: Path) -> None:
    _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lbmpi", "-f", str(path)])


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise ClusterError(f"{' '.join(argv)}: {done.stderr.strip()}")


def _wait(login: list[str], log: Path) -> None:
    """Log in until it succeeds: a server listens a moment after its start."""
    deadline = time.monotonic() + READY_S
    while (done := subprocess.run(login, stdin=subprocess.DEVNULL, capture_output=True, text=True)).returncode:
        if time.monotonic() > deadline:
            told = log.read_text().strip() if log.exists() else "nothing"
            raise ClusterError(f"can't log in: {done.stderr.strip()}; the server has told: {told}")
        time.sleep(0.1)
