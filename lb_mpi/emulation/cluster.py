"""./launch/cluster: the command line of the emulated cluster (see emulated.py), for root and for ordinary users."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from lb_mpi.emulation import openssh, unprivileged
from lb_mpi.emulation.emulated import MOST_HOSTS, Cluster, check
from lb_mpi.emulation.slow import check_speed
from lb_mpi.errors import ClusterError
from lb_mpi.hosts import Host
from lb_mpi.launching import limit


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
    up.add_argument(
        "--ssh",
        action="store_true",
        help="an OpenSSH server on each host, with keys made for it, in place of what stands for ssh",
    )
    status = parsers.add_parser("status", help="tell of each host its address and what went over its network")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    run = parsers.add_parser(
        "run", help="start a program on it: options of launch/run, --, the program", add_help=False
    )
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    parsers.add_parser("down", help="remove it, with all that runs on it")
    return top


def act(cluster: Cluster, options: argparse.Namespace, rest: Sequence[str]) -> None:
    """Do what the command line says; `rest` is for launch/run.  ValueError for numbers that won't do, or ClusterError."""
    if options.command == "up":
        if not 0 <= options.delay_ms <= 1000:
            raise ValueError(f"--delay-ms {options.delay_ms:g}: expected 0 to 1000")
        hosts = wanted_hosts(options.hosts, options.slots, options.speeds)
        if options.ssh:
            openssh.check()
        cluster.up(hosts, options.delay_ms / 1000, ssh=options.ssh)
        print(f"cluster {cluster.name}: {', '.join(host.name for host in hosts)} in {cluster.folder}/hosts.txt")
    elif options.command == "status":
        show(cluster.status(), as_json=options.json)
    elif options.command == "run":
        cluster.run(rest)
    else:
        cluster.down()


def main(arguments: Sequence[str], prog: str) -> int:
    """./launch/cluster."""
    top = parser(prog)
    given = list(arguments)
    mine = given.index("run") + 1 if "run" in given else len(given)  # the rest is for launch/run
    options = top.parse_args(given[:mine])
    with limit.interruptible():
        try:
            if not re.fullmatch("[a-z0-9]{1,20}", options.name):
                raise ValueError(f"--name {options.name!r}: expected at most 20 lower-case letters and digits")
            check()
            if os.geteuid() != 0:
                return unprivileged.act(options.name, options.command, given)
            act(Cluster(options.name), options, given[mine:])
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
