"""An emulated cluster: hosts on one machine, for whoever has no others.

Each host is a network namespace with an address, a host name and (for what `run` starts) a speed of its own; between them
is a bridge, or a switch that delays every frame, in a namespace of its own.  Nothing outside of these namespaces is touched.
All that belongs to a cluster bears its name, so that `down` finds it even if `up` was killed:

    /run/netns/lbmpi-NAME-switch, /run/netns/lbmpi-NAME-h1 ...  and the processes in them
    /run/lbmpi-NAME/hosts.txt                                   the host list
    /run/lbmpi-NAME/enter, names                                runs a command on a host; the hosts' names and addresses
    /run/lbmpi-NAME/bin/ssh                                     what stands for ssh, or calls it (see openssh.py)

The hosts share the machine's files and cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from lb_mpi.emulation import openssh
from lb_mpi.emulation.delay import MTU
from lb_mpi.errors import ClusterError
from lb_mpi.hosts import Host, format_hosts, read_hosts
from lb_mpi.launching import commands, limit

NETNS, RUN = Path("/run/netns"), Path("/run")
NETWORK = "10.77.0."
MOST_HOSTS = 64
ENTER = """#!/bin/sh
# Run a command on a host of the emulated cluster {name}: enter HOST COMMAND...
# It sees the hosts' names in /etc/hosts; no other process does.
host=$1
shift
exec ip netns exec "{prefix}$host" unshare --uts sh -c '
    mount --bind "$0/names" /etc/hosts && hostname "$1" && shift && exec "$@"' "{folder}" "$host" "$@"
"""
# What mpiexec would start with ssh gets no variables but these, as with ssh.
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


class Cluster(NamedTuple):
    """What belongs to the cluster `name`, whether it is there or not."""

    name: str

    @property
    def prefix(self) -> str:
        """Of all its namespaces."""
        return f"lbmpi-{self.name}-"

    @property
    def folder(self) -> Path:
        """With its host list and its ssh."""
        return RUN / f"lbmpi-{self.name}"

    @property
    def hosts(self) -> list[Host]:
        """As they were asked for; ClusterError unless the cluster is up."""
        try:
            return read_hosts(self.folder / "hosts.txt")
        except FileNotFoundError:
            raise ClusterError(f"no cluster {self.name}: start one with `cluster up`") from None

    def namespaces(self) -> list[str]:
        """Those that are there."""
        return [path.name for path in _ours(NETNS, self.prefix)]

    def up(self, hosts: Sequence[Host], delay_s: float, *, ssh: bool = False) -> None:
        """Make it; on any way out but success, nothing is left of it."""
        if self.folder.exists() or self.namespaces():
            raise ClusterError(f"there is a cluster {self.name} already: `cluster down` ends it, or give a --name")
        try:
            self.folder.mkdir(mode=0o700)
            self._make_network(self.addresses(hosts), delay_s)
            self._write("enter", ENTER)
            if ssh:
                openssh.start(self.folder, self.addresses(hosts))
            else:
                self._write("bin/ssh", STAND_IN)
            (self.folder / "hosts.txt").write_text(format_hosts(hosts))
        except BaseException:
            self.down()
            raise

    @staticmethod
    def addresses(hosts: Sequence[Host]) -> dict[str, str]:
        """By name."""
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
            self._start_delay(delay_s, switch, list(namespaces))
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

    def _start_delay(self, delay_s: float, home: str, namespaces: list[str]) -> None:
        with (self.folder / "switch.log").open("w+") as log:
            process = subprocess.Popen(
                commands.argv(sys.executable, "switch", str(delay_s), home, *namespaces),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # it stays when this command has ended
            )
            assert process.stdout is not None
            with process.stdout:
                if process.stdout.readline() != b"ready\n":
                    log.seek(0)
                    process.kill()
                    process.wait()
                    raise ClusterError(f"the switch has failed: {log.read().strip()}")

    def down(self) -> None:
        """Remove all that belongs to it, and nothing else; nothing is there afterwards, as often as it is called."""
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            started = time.monotonic()
            while pids := self.processes():
                passed_s = time.monotonic() - started
                if passed_s > limit.GRACE_S + limit.LEFT_S:
                    raise ClusterError("".join(map(limit.cannot_be_ended, pids)).strip())
                number = signal.SIGKILL if passed_s > limit.GRACE_S else signal.SIGTERM
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
                        os.kill(pid, number)
                time.sleep(0.05)
            for namespace in self.namespaces():
                _ip("netns", "delete", namespace)
            shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def processes(self) -> list[int]:
        """All in its namespaces."""
        found = [_ip("netns", "pids", namespace).split() for namespace in self.namespaces()]
        return [int(pid) for pids in found for pid in pids if int(pid) != os.getpid()]

    def status(self) -> list[dict[str, Any]]:
        """Tell of each host what it is, and how many bytes its network device has carried."""
        answer = []
        addresses = self.addresses(self.hosts)
        for host in self.hosts:
            namespace = self.prefix + host.name
            device = json.loads(_ip("-j", "-s", "-n", namespace, "link", "show", "dev", "eth0"))[0]
            answer.append(
                {
                    "host": host.name,
                    "address": addresses[host.name],
                    "slots": host.slots,
                    "speed": host.speed,
                    "up": "UP" in device["flags"],
                    "received_bytes": device["stats64"]["rx"]["bytes"],
                    "sent_bytes": device["stats64"]["tx"]["bytes"],
                    "processes": len(_ip("netns", "pids", namespace).split()),
                }
            )
        return answer

    def run(self, arguments: Sequence[str]) -> NoReturn:
        """Become `launch/run` on the first host."""
        enter, ssh = self.folder / "enter", self.folder / "bin"
        start = commands.argv(sys.executable, "run", "--hosts", str(self.folder / "hosts.txt"), "--emulated", *arguments)
        env = {**os.environ, "PATH": f"{ssh}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        os.execve(enter, [str(enter), self.hosts[0].name, *start], env)


def check() -> None:
    """ClusterError, in plain words, unless what makes network namespaces is here."""
    if sys.platform != "linux":
        raise ClusterError(f"needs Linux: this is {sys.platform}")
    tools = (("ip", "iproute2"), ("unshare", "util-linux"), ("mount", "mount"), ("hostname", "hostname"))
    for tool, package in tools:
        if shutil.which(tool) is None:
            raise ClusterError(f"needs the command {tool}: install {package}")


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise ClusterError(f"{shlex.join(['ip', *arguments])}: {done.stderr.strip()}")
    return done.stdout


def _ours(folder: Path, prefix: str) -> list[Path]:
    pattern = re.compile(re.escape(prefix) + "(switch|h[0-9]+)")
    return sorted(path for path in folder.glob(prefix + "*") if pattern.fullmatch(path.name))
