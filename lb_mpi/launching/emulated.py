"""./launch/cluster: a cluster on one machine, for whoever has no other.

Each host is a network namespace with an address, a host name and (for what `run` starts) a speed of its own; between them
is a bridge, or a switch that delays every frame, in a namespace of its own.  Nothing outside of these namespaces is touched.
All that belongs to a cluster bears its name, so that `down` finds it even if `up` was killed:

    /run/netns/lbmpi-NAME-switch, /run/netns/lbmpi-NAME-h1 ...  and the processes in them
    /etc/netns/lbmpi-NAME-h1/hosts ...                          the names, as `ip netns exec` shows them in the namespace
    /run/lbmpi-NAME/hosts.txt, ssh                              the host list, and what stands for ssh

The hosts share the machine's files and cores.
"""

from __future__ import annotations

import argparse
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

from lb_mpi.hosts import Host, format_hosts, read_hosts
from lb_mpi.launching import commands, limit
from lb_mpi.launching.delay import MTU
from lb_mpi.launching.slow import check_speed

NETNS, ETC_NETNS, RUN = Path("/run/netns"), Path("/etc/netns"), Path("/run")
NETWORK = "10.77.0."
MOST_HOSTS = 64
READY_S = 20.0
# What mpiexec would start with ssh gets no variables but these, as with ssh.
SSH = """#!/bin/sh
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
    ip netns exec "{prefix}$host" unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
"""


class ClusterError(Exception):
    """It can't be done; the message says why."""


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

    def up(self, hosts: Sequence[Host], delay_s: float) -> None:
        """Make it; on any way out but success, nothing is left of it."""
        if self.folder.exists() or self.namespaces():
            raise ClusterError(f"there is a cluster {self.name} already: `cluster down` ends it, or give a --name")
        try:
            self._up(hosts, delay_s)
        except BaseException:
            self.down()
            raise

    def _up(self, hosts: Sequence[Host], delay_s: float) -> None:
        self.folder.mkdir(mode=0o700)
        switch, names = f"{self.prefix}switch", {host.name: f"{self.prefix}{host.name}" for host in hosts}
        table = "127.0.0.1 localhost\n" + "".join(f"{NETWORK}{k} {name}\n" for k, name in enumerate(names, start=1))
        for namespace in (switch, *names.values()):
            _ip("netns", "add", namespace)
            (ETC_NETNS / namespace).mkdir(parents=True)
            (ETC_NETNS / namespace / "hosts").write_text(table)
        if delay_s > 0:
            self._start_delay(delay_s, switch, list(names.values()))
        else:
            _ip("-n", switch, "link", "add", "br0", "type", "bridge")
            _ip("-n", switch, "link", "set", "br0", "up")
        for k, namespace in enumerate(names.values(), start=1):
            if delay_s > 0:
                _ip("-n", namespace, "link", "set", "eth0", "mtu", str(MTU))
            else:
                peer = ["type", "veth", "peer", "name", "eth0", "netns", namespace]
                _ip("-n", switch, "link", "add", f"port{k}", *peer)
                _ip("-n", switch, "link", "set", f"port{k}", "master", "br0", "up")
            _ip("-n", namespace, "addr", "add", f"{NETWORK}{k}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "link", "set", "eth0", "up")
        (self.folder / "ssh").write_text(SSH.format(name=self.name, prefix=self.prefix))
        (self.folder / "ssh").chmod(0o700)
        (self.folder / "hosts.txt").write_text(format_hosts(hosts))

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
            for path in [*_ours(ETC_NETNS, self.prefix), self.folder]:
                shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):  # others have theirs in it, or it is not there
                ETC_NETNS.rmdir()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def processes(self) -> list[int]:
        """All in its namespaces."""
        found = [_ip("netns", "pids", namespace).split() for namespace in self.namespaces()]
        return [int(pid) for pids in found for pid in pids if int(pid) != os.getpid()]

    def status(self) -> list[dict[str, Any]]:
        """Tell of each host what it is, and how many bytes its network device has carried."""
        answer = []
        for k, host in enumerate(self.hosts, start=1):
            namespace = self.prefix + host.name
            device = json.loads(_ip("-j", "-s", "-n", namespace, "link", "show", "dev", "eth0"))[0]
            answer.append(
                {
                    "host": host.name,
                    "address": f"{NETWORK}{k}",
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
        first = self.hosts[0].name
        start = commands.argv(sys.executable, "run", "--hosts", str(self.folder / "hosts.txt"), "--emulated")
        start += ["--launcher", str(self.folder / "ssh"), *arguments]
        uts = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', first]
        argv = ["ip", "netns", "exec", self.prefix + first, *uts, *start]
        os.execvp(argv[0], argv)


def check() -> None:
    """ClusterError, in plain words, unless network namespaces can be made here."""
    if sys.platform != "linux":
        raise ClusterError(f"needs Linux: this is {sys.platform}")
    if os.geteuid() != 0:
        raise ClusterError('needs root, to make network namespaces: sudo env PATH="$PATH" ...')
    for tool, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("hostname", "hostname")):
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


def wanted_hosts(n_hosts: int, slots: int, speeds: str | None) -> list[Host]:
    """Hosts h1, h2 ...; ValueError for numbers that won't do."""
    if not 1 <= n_hosts <= MOST_HOSTS:
        raise ValueError(f"--hosts {n_hosts}: expected 1 to {MOST_HOSTS}")
    given = ["1"] * n_hosts if speeds is None else speeds.split(",")
    if len(given) != n_hosts:
        raise ValueError(f"--speeds has {len(given)} numbers: expected {n_hosts}, one for each host")
    return [Host(f"h{k}", slots, check_speed(text, f"--speeds: host h{k}")) for k, text in enumerate(given, start=1)]


def parser(prog: str) -> argparse.ArgumentParser:
    """Make the command line."""
    top = argparse.ArgumentParser(
        prog=prog,
        description="A cluster on one machine: hosts with names, addresses and speeds of their own, TCP between them.",
        epilog="example: %(prog)s up --hosts 3 --speeds 0.8,0.4,0.2; %(prog)s run -- python -m apps.uts; %(prog)s down",
        allow_abbrev=False,
    )
    top.add_argument("--name", default="lab", help="of the cluster, if there are several (default: %(default)s)")
    parsers = top.add_subparsers(required=True, metavar="COMMAND", dest="command")
    up = parsers.add_parser("up", help="make it")
    up.add_argument("--hosts", type=int, required=True, metavar="N", help="how many: h1, h2, ...")
    up.add_argument("--slots", type=int, default=1, metavar="N", help="ranks on each host (default: %(default)s)")
    up.add_argument("--speeds", metavar="F,F,...", help="of the hosts, above 0 and at most 1 (default: 1)")
    up.add_argument("--delay-ms", type=float, default=0.0, metavar="MS", help="that each frame takes (default: 0)")
    status = parsers.add_parser("status", help="tell of each host its address and what went over its network")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    run = parsers.add_parser(
        "run", help="start a program on it: options of launch/run, --, the program", add_help=False
    )
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    parsers.add_parser("down", help="remove it, with all that runs on it")
    return top


def main(arguments: Sequence[str], prog: str) -> int:
    """./launch/cluster."""
    top = parser(prog)
    given = list(arguments)
    mine = given.index("run") + 1 if "run" in given else len(given)  # the rest is for launch/run
    options = top.parse_args(given[:mine])
    cluster = Cluster(options.name)
    with limit.interruptible():
        try:
            if not re.fullmatch("[a-z0-9]{1,20}", options.name):
                raise ValueError(f"--name {options.name!r}: expected at most 20 lower-case letters and digits")
            check()
            if options.command == "up":
                if not 0 <= options.delay_ms <= 1000:
                    raise ValueError(f"--delay-ms {options.delay_ms:g}: expected 0 to 1000")
                hosts = wanted_hosts(options.hosts, options.slots, options.speeds)
                cluster.up(hosts, options.delay_ms / 1000)
                print(f"cluster {options.name}: {', '.join(host.name for host in hosts)} in {cluster.folder}/hosts.txt")
            elif options.command == "status":
                show(cluster.status(), as_json=options.json)
            elif options.command == "run":
                cluster.run(given[mine:])
            else:
                cluster.down()
        except ValueError as error:
            print(f"{top.prog}: error: {error}", file=sys.stderr)
            return 2
        except (ClusterError, OSError) as error:
            print(f"{top.prog}: {error}", file=sys.stderr)
            return 1
    return 0


def show(status: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print what `Cluster.status` tells."""
    if as_json:
        print(json.dumps(status))
        return
    for host in status:
        print(
            f"{host['host']:<4} {host['address']:<12} slots {host['slots']}  speed {host['speed']:g}  "
            f"received {host['received_bytes']:,} bytes, sent {host['sent_bytes']:,}  processes {host['processes']}"
            + ("" if host["up"] else "  DOWN")
        )
