"""OpenSSH between the hosts of an emulated cluster, to try `launch/run` over it.  It needs root.

All keys are made for the cluster, and all files lie in its folder.  ~/.ssh and /etc/ssh are neither read nor written.

    bin/ssh                      the client with its configuration, in place of the script that replaces ssh
    ssh/config, id, known_hosts  of the client
    ssh/h1/key, authorized_keys  of the server on h1, which reads the latter at each login
    ssh/h1/config, log           also of the server

A server admits only root, and only by key.  As with any sshd, a login starts the user's shell with the variables of a login,
in the home folder.  `EmulatedCluster.down` ends the servers.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from lb_mpi.cli.cluster.cluster import EmulatedCluster
from lb_mpi.cli.cluster.network import need, run, which
from lb_mpi.errors import ClusterError

PORT = 2222  # beside a server of the machine
READY_S = 20.0
CLIENT = """Host *
    User root
    Port {port}
    IdentityFile "{folder}/id"
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile "{folder}/known_hosts"
    GlobalKnownHostsFile none
    UpdateHostKeys no
"""
SERVER = """Port {port}
ListenAddress {address}
HostKey "{folder}/key"
AuthorizedKeysFile "{folder}/authorized_keys"
AllowUsers root
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PidFile none
PrintMotd no
PrintLastLog no
"""
# sshd needs a folder /run/sshd.  It sees a private one there, and otherwise only the cluster's folder in /run.
OWN_RUN = """
exec 3<"$1" && mount -t tmpfs -o mode=755 tmpfs /run && mkdir -p /run/sshd "$1" &&
mount --no-canonicalize --bind /proc/self/fd/3 "$1" && exec 3<&- && shift && exec "$@"
"""


def check() -> None:
    """ClusterError unless OpenSSH's server and client are installed."""
    need(("sshd", "openssh-server"), ("ssh", "openssh-client"), ("ssh-keygen", "openssh-client"))


def start(cluster: EmulatedCluster) -> None:
    """Make keys and files in the cluster's folder, start a server on each host, and log in to each; or ClusterError."""
    folder, own = cluster.folder, cluster.folder / "ssh"
    addresses = cluster.addresses(cluster.hosts)
    own.mkdir()
    _make_key(own / "id")
    known = ""
    for host, address in addresses.items():
        (own / host).mkdir()
        _make_key(own / host / "key")
        shutil.copy(own / "id.pub", own / host / "authorized_keys")
        (own / host / "config").write_text(SERVER.format(port=PORT, address=address, folder=own / host))
        known += f"[{host}]:{PORT},[{address}]:{PORT} {(own / host / 'key.pub').read_text()}"
    (own / "known_hosts").write_text(known)
    (own / "config").write_text(CLIENT.format(port=PORT, folder=own))
    ssh = folder / "bin" / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {which("ssh")} -F "{own}/config" "$@"\n')
    for host in addresses:
        server = [str(which("sshd")), "-f", str(own / host / "config"), "-E", str(own / host / "log")]
        run([str(folder / "enter"), host, "sh", "-c", OWN_RUN, "sh", str(folder), *server])
    first = next(iter(addresses))
    for host in addresses:
        _wait([str(folder / "enter"), first, str(ssh), "-o", "BatchMode=yes", host, "true"], own / host / "log")


def _make_key(path: Path) -> None:
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lbmpi", "-f", str(path)])


def _wait(login: list[str], log: Path) -> None:
    """Log in until it succeeds: a server needs a moment after its start."""
    deadline = time.monotonic() + READY_S
    while (done := subprocess.run(login, stdin=subprocess.DEVNULL, capture_output=True, text=True)).returncode:
        if time.monotonic() > deadline:
            said = log.read_text().strip() if log.exists() else "nothing"
            raise ClusterError(f"can't log in: {done.stderr.strip()}; the server reported: {said}")
        time.sleep(0.1)
