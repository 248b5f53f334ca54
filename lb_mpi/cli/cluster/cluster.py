"""./launch/cluster: an emulated cluster, several hosts on one machine.

Each host is a network namespace with an address, a host name and (for programs that `run` starts) a speed.  They are
connected by a bridge, or by a switch that delays every frame, in a separate namespace.  Nothing outside of these namespaces
is touched.  All parts of a cluster bear its name, so that `down` finds them even if `up` was killed:

    /run/netns/lbmpi-NAME-switch, /run/netns/lbmpi-NAME-h1 ...  and the processes in them
    /run/lbmpi-NAME/hosts.txt                                   the host list
    /run/lbmpi-NAME/enter, names                                runs a command on a host; names and addresses of the hosts
    /run/lbmpi-NAME/bin/ssh                                     replaces ssh

The hosts share the machine's files and cores.

An ordinary user is root in SHELL, which has a separate /run and /dev/shm.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from lb_mpi.checks import emulated_speeds
from lb_mpi.cli import run as launch
from lb_mpi.cli.cluster.network import MTU, need, run, start_daemon
from lb_mpi.cli.run import processes
from lb_mpi.cli.run.command import Parser, say
from lb_mpi.cli.run.hosts import Host, format_hosts, read_hosts
from lb_mpi.cli.run.options import add_slow_ranks
from lb_mpi.errors import ClusterError

NETNS, RUN = Path("/run/netns"), Path("/run")
NETWORK = "10.77.0."
MOST_HOSTS = 64
SHELL = (
    "unshare --user --map-root-user --mount --net "
    "sh -c 'mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /dev/shm && exec bash'"
)
ENTER = """#!/bin/sh
# Run a command on a host of the emulated cluster {name}: enter HOST COMMAND...
# It sees the hosts' names in /etc/hosts; no other process does.
host=$1
shift
exec ip netns exec "{prefix}$host" unshare --uts sh -c '
    mount --bind "$0/names" /etc/hosts && hostname "$1" && shift && exec "$@"' "{folder}" "$host" "$@"
"""
# As with ssh, programs that mpiexec would start with ssh get only these variables.
STAND_IN = """#!/bin/sh
# Stands for ssh in the emulated cluster {name}: ssh [options] HOST COMMAND...
while :; do
    case "$1" in
    -o | -l | -p | -i | -F) shift 2 ;;
    -*) shift ;;
    *) break ;;
    esac
done
host=${{1#*@}}
shift
case "$host" in
*[!A-Za-z0-9]* | "") found= ;;
*) found=/run/netns/{prefix}$host ;;
esac
if [ ! -e "$found" ]; then
    echo "ssh: no host $host in the emulated cluster {name}" >&2
    exit 255
fi
cd "$HOME" || exit 255
exec env -i HOME="$HOME" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin SHELL=/bin/sh \\
    "{folder}/enter" "$host" sh -c "$*"
"""


class EmulatedCluster(NamedTuple):
    """All parts of the cluster `name`, whether or not it exists."""

    name: str

    @property
    def prefix(self) -> str:
        """The start of the names of all its namespaces."""
        return f"lbmpi-{self.name}-"

    @property
    def folder(self) -> Path:
        """The folder of its host list and its ssh."""
        return RUN / f"lbmpi-{self.name}"

    @property
    def hosts(self) -> list[Host]:
        """The requested hosts; ClusterError unless the cluster is up."""
        try:
            return read_hosts(self.folder / "hosts.txt")
        except FileNotFoundError:
            raise ClusterError(f"no cluster {self.name}: start one with `cluster up`") from None

    def namespaces(self) -> list[str]:
        """Return the existing ones."""
        pattern = re.compile(re.escape(self.prefix) + "(switch|h[0-9]+)")
        return sorted(path.name for path in NETNS.glob(self.prefix + "*") if pattern.fullmatch(path.name))

    def up(self, hosts: Sequence[Host], delay_s: float) -> None:
        """Create the cluster; if that fails, nothing of it is left."""
        existing = ClusterError(f"there is a cluster {self.name} already: `cluster down` ends it, or give a --name")
        if self.namespaces():
            raise existing
        try:
            self.folder.mkdir(mode=0o700)
        except FileExistsError:
            raise existing from None
        try:
            self._make_network(self.addresses(hosts), delay_s)
            self._write("enter", ENTER)
            self._write("bin/ssh", STAND_IN)
            (self.folder / "hosts.txt").write_text(format_hosts(hosts))
        except BaseException:
            self.down()
            raise

    @staticmethod
    def addresses(hosts: Sequence[Host]) -> dict[str, str]:
        """Return the address of each host, by name."""
        return {host.name: f"{NETWORK}{k}" for k, host in enumerate(hosts, start=1)}

    def _write(self, script: str, text: str) -> None:
        path = self.folder / script
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.format(name=self.name, prefix=self.prefix, folder=self.folder))
        path.chmod(0o700)

    def _make_network(self, addresses: dict[str, str], delay_s: float) -> None:
        switch, namespaces = f"{self.prefix}switch", {f"{self.prefix}{name}": at for name, at in addresses.items()}
        table = "".join(f"{at} {name}\n" for name, at in addresses.items())
        (self.folder / "names").write_text("127.0.0.1 localhost\n" + table)
        for namespace in (switch, *namespaces):
            _ip("netns", "add", namespace)
        if delay_s > 0:
            start_daemon(launch.argv(sys.executable, "switch", str(delay_s), switch, *namespaces))
        else:
            _ip("-n", switch, "link", "add", "br0", "type", "bridge")
            _ip("-n", switch, "link", "set", "br0", "up")
        for k, (namespace, address) in enumerate(namespaces.items(), start=1):
            if delay_s > 0:
                _ip("-n", namespace, "link", "set", "eth0", "mtu", str(MTU))
            else:
                peer = ["type", "veth", "peer", "name", "eth0", "netns", namespace]
                _ip("-n", switch, "link", "add", f"port{k}", *peer)
                _ip("-n", switch, "link", "set", f"port{k}", "master", "br0", "up")
            _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "link", "set", "eth0", "up")

    def down(self) -> None:
        """Remove all parts of the cluster, and nothing else; repeated calls do no harm."""
        with processes.uninterrupted():
            if left := processes.end_found(self.processes):
                raise ClusterError(processes.cannot_be_ended(left).strip())
            for namespace in self.namespaces():
                _ip("netns", "delete", namespace)
            shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self) -> set[int]:
        """Return the processes in its namespaces."""
        found = [_ip("netns", "pids", namespace).split() for namespace in self.namespaces()]
        return {int(pid) for pids in found for pid in pids} - {os.getpid()}

    def run(self, arguments: Sequence[str]) -> NoReturn:
        """Become `launch/run` on the first host."""
        enter, ssh = self.folder / "enter", self.folder / "bin"
        start = launch.argv(sys.executable, "run", "--hosts", str(self.folder / "hosts.txt"), "--emulated", *arguments)
        env = {**os.environ, "PATH": f"{ssh}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        os.execve(enter, [str(enter), self.hosts[0].name, *start], env)


def check() -> None:
    """ClusterError, in plain words, unless this is root, and the tools for network namespaces are here."""
    if os.geteuid() != 0:
        raise ClusterError(f"needs root, or a shell in which you are: {SHELL}")
    need(("ip", "iproute2"), ("unshare", "util-linux"), ("mount", "mount"), ("hostname", "hostname"))


def _ip(*arguments: str) -> str:
    return run(["ip", *arguments])


def names() -> list[str]:
    """Return the names of all clusters."""
    return sorted(path.parent.name.removeprefix("lbmpi-") for path in RUN.glob("lbmpi-*/hosts.txt"))


# --- the command line --------------------------------------------------------------------------------------------------


def wanted_hosts(n_hosts: int, slots: int, speeds: str | None) -> list[Host]:
    """Return the hosts h1, h2 ...; ValueError for unusable numbers."""
    if not 1 <= n_hosts <= MOST_HOSTS:
        raise ValueError(f"--hosts {n_hosts}: expected 1 to {MOST_HOSTS}")
    names = [f"h{k}" for k in range(1, n_hosts + 1)]
    given = emulated_speeds(speeds, n_hosts, [f"host {name}" for name in names])
    return [Host(name, slots, speed) for name, speed in zip(names, given, strict=True)]


def add_arguments(parser: Parser) -> None:
    """Add the arguments of `cluster`."""
    parser.description = (
        "Create virtual hosts on this machine, each with a name, an address and a speed, and TCP between them."
    )
    name: Any = {"metavar": "NAME", "help": "name of the cluster, if there are several"}
    parser.add_argument("--name", default="lab", **name)
    parsers = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    up = parsers.add_parser("up", help="create the cluster", description="Create the cluster.", strict=True)
    up.add_argument("--hosts", type=int, required=True, metavar="N", help="number of hosts; their names are h1, h2, ...")
    up.add_argument("--slots", type=int, default=1, metavar="N", help="number of ranks on each host")
    add_slow_ranks(up, "the hosts")
    up.add_argument("--delay-ms", type=float, default=0.0, metavar="MS",
        help="delay of each frame between two hosts, in milliseconds (default: 0)")
    run = parsers.add_parser("run", help="start a program there: options of `run`, --, the program", add_help=False,
        allow_abbrev=False)
    down = parsers.add_parser("down", help="end all programs on the cluster, and remove it", strict=True,
        description="End all programs on the cluster, and remove it.")
    parsers.add_parser("list", help="print the names of the clusters of this machine", strict=True,
        description="Print the names of the clusters of this machine.")
    parser.set_defaults(prog=parser.prog)
    for one in (up, run, down):
        one.add_argument("--name", default=argparse.SUPPRESS, **name)


def up(cluster: EmulatedCluster, options: argparse.Namespace) -> None:
    """Create the cluster as the options say; ValueError for unusable numbers, or ClusterError."""
    if not 0 <= options.delay_ms <= 1000:
        raise ValueError(f"--delay-ms {options.delay_ms:g}: expected 0 to 1000")
    hosts = wanted_hosts(options.hosts, options.slots, options.speeds)
    cluster.up(hosts, options.delay_ms / 1000)
    print(f"cluster {cluster.name}: {', '.join(host.name for host in hosts)} in {cluster.folder}/hosts.txt")


def n_own(arguments: Sequence[str]) -> int:
    """Return the number of arguments before those of `run`, after --."""
    at = 0  # of the command
    while arguments[at : at + 1] and arguments[at].startswith("-"):
        at += 2 if arguments[at] == "--name" else 1
    if list(arguments[at : at + 1]) != ["run"]:
        return len(arguments)
    return arguments.index("--") if "--" in arguments else at + 1


def main(options: argparse.Namespace) -> int:
    """Run `cluster`."""
    cluster = EmulatedCluster(options.name)
    if not re.fullmatch("[a-z0-9]{1,20}", options.name):
        raise ValueError(f"--name {options.name!r}: expected at most 20 lower-case letters and digits")
    if options.command == "run" and {"-h", "--help"} & {*itertools.takewhile("--".__ne__, options.passed_on)}:
        return launch.main("run", ["--help"], f"{options.prog} run")
    if options.command == "list":
        return say("".join(f"{name}\n" for name in names()))
    with processes.interruptible("cluster: "):
        check()
        try:
            if options.command == "up":
                up(cluster, options)
            elif options.command == "run":
                cluster.run(options.passed_on)
            else:
                cluster.down()
        except OSError as error:
            raise ClusterError(str(error)) from None
    return 0
