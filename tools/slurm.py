"""Slurm on this machine, to try `python -m lb_mpi slurm-script`: one slurmctld, a slurmd on each emulated host.

    python -m tools.slurm up --speeds 0.8,0.4,0.2
    python -m lb_mpi slurm-script > job.sbatch
    python -m tools.slurm run sbatch job.sbatch -- python -m apps.weather --save saves
    python -m tools.slurm run squeue
    python -m tools.slurm down

Debian's packages slurmctld, slurmd, slurm-client and munge are needed, and root.  Their own configuration in /etc is not
used: all files lie in /run/lbmpi-slurm/slurm, with a key for munge that is made for the occasion, and go with the cluster.
Nodes reach each other by a real OpenSSH.  A node's speed is its feature, such as speed_0.4.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

from lb_mpi.cli.cluster import cluster as emulated
from lb_mpi.cli.cluster.cluster import EmulatedCluster, wanted_hosts
from lb_mpi.cli.run.hosts import Host
from lb_mpi.errors import ClusterError
from tools import openssh

CLUSTER = EmulatedCluster("slurm")
FOLDER = CLUSTER.folder / "slurm"
READY_S = 30.0
# Nodes share this machine's cores: each has as many as it is asked for (config_overrides), and nothing is bound or limited.
CONFIGURATION = """ClusterName=lbmpi
SlurmctldHost={first}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
KillWait=5
PartitionName=lab Nodes=ALL Default=YES MaxTime=60 State=UP
"""
# slurmd doesn't start without control groups, though none is used here: /sys on a host is the network's own, without any.
SLURMD = 'mount -t tmpfs tmpfs /sys/fs/cgroup && exec slurmd -f "$0" -N "$(hostname)"'


def node(host: Host, address: str) -> str:
    """The line of a host in slurm.conf."""
    return f"NodeName={host.name} NodeAddr={address} CPUs={host.slots} Feature=speed_{host.speed:g} State=UNKNOWN\n"


def check() -> None:
    """ClusterError unless all that is needed is here."""
    emulated.check()
    openssh.check()
    if os.geteuid() != 0:
        raise ClusterError("needs root: Slurm's daemons act for all users")
    tools = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client"}
    for tool, package in tools.items():
        if shutil.which(tool) is None:
            raise ClusterError(f"needs the command {tool}: install {package} (Debian's name)")


def up(hosts: Sequence[Host]) -> None:
    """Make the cluster and start the daemons; on any way out but success, nothing is left of it."""
    CLUSTER.up(hosts, 0.0)
    try:
        openssh.start(CLUSTER)
        FOLDER.mkdir(mode=0o755)
        CLUSTER.folder.chmod(0o755)  # munged asks that others can reach its socket
        addresses = CLUSTER.addresses(hosts)
        nodes = "".join(node(host, addresses[host.name]) for host in hosts)
        (FOLDER / "slurm.conf").write_text(CONFIGURATION.format(folder=FOLDER, first=hosts[0].name) + nodes)
        for host in hosts:
            for use in ("spool", "tmp"):  # where PMIx has a folder of the same name on each node
                (FOLDER / f"{use}-{host.name}").mkdir()
        (FOLDER / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        _start_munge(hosts[0].name)
        on(hosts[0].name, "slurmctld", "-f", f"{FOLDER}/slurm.conf")
        for host in hosts:
            on(host.name, "sh", "-c", SLURMD, FOLDER / "slurm.conf")
        _wait(hosts)
    except BaseException as error:
        if isinstance(error, ClusterError):
            error.add_note(logs())
        CLUSTER.down()
        raise


def _start_munge(host: str) -> None:
    """Who has the key belongs to the cluster."""
    key = FOLDER / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    files = {"socket": "munge", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "munged.seed"}
    on(host, "munged", f"--key-file={key}", *(f"--{option}={FOLDER / name}" for option, name in files.items()))


def on(host: str, *argv: str | os.PathLike[str]) -> str:
    """Run a command on a host and return what it prints; ClusterError when it fails."""
    command = [CLUSTER.folder / "enter", host, *argv]
    done = subprocess.run(command, env=variables(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"{' '.join(map(str, argv))}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def variables() -> dict[str, str]:
    """This process's, and where Slurm's configuration and the cluster's ssh are; PYTHONPATH and venv as they are."""
    path = os.pathsep.join([str(CLUSTER.folder / "bin"), os.environ.get("PATH", os.defpath), "/usr/sbin"])
    return {**os.environ, "SLURM_CONF": str(FOLDER / "slurm.conf"), "PATH": path}


def _wait(hosts: Sequence[Host]) -> None:
    """Wait until all nodes take jobs."""
    deadline = time.monotonic() + READY_S
    states: list[str] = []
    while len(states) < len(hosts) or set(states) != {"idle"}:
        if time.monotonic() > deadline:
            raise ClusterError(f"nodes are {', '.join(states) or 'unknown'} after {READY_S:g} s")
        time.sleep(0.2)
        try:
            states = on(hosts[0].name, "sinfo", "--noheader", "--Node", "--format=%t").split()
        except ClusterError:
            states = []


def logs() -> str:
    """The last lines of the daemons' logs, which go with the cluster."""
    return "\n".join(f"{log.name}: {line}" for log in FOLDER.glob("*.log") for line in log.read_text().splitlines()[-8:])


def numbers(text: str) -> list[int]:
    """Read numbers above 0."""
    found = [int(one) for one in text.split(",")]
    if min(found) < 1:
        raise ValueError(f"{text}: expected numbers above 0")
    return found


def main() -> int:
    """`python -m tools.slurm`."""
    parser = argparse.ArgumentParser(prog="tools.slurm", description=__doc__.partition("\n")[0] if __doc__ else None)
    parsers = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    start = parsers.add_parser("up", help="start the cluster")
    start.add_argument("--nodes", type=int, default=3, metavar="N",
        help="number of nodes; their names are h1, h2, ... (default: %(default)s)")
    start.add_argument("--cpus", type=numbers, default=[1], metavar="N,N,...", help="CPUs of the nodes (default: 1)")
    start.add_argument("--speeds", metavar="F,F,...", help="speeds of the nodes, above 0 and at most 1 (default: 1)")
    run = parsers.add_parser("run", help="run a command on the first node, such as sbatch, squeue, scontrol")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="...")
    parsers.add_parser("down", help="end all jobs, and remove the cluster")
    options = parser.parse_args()
    try:
        check()
        if options.command == "up":
            hosts = wanted_hosts(options.nodes, options.cpus[0], options.speeds)
            up([dataclasses.replace(host, slots=n) for host, n in zip(hosts, itertools.cycle(options.cpus), strict=False)])
        elif options.command == "run":
            enter = CLUSTER.folder / "enter"
            os.execve(enter, [str(enter), CLUSTER.hosts[0].name, *options.argv], variables())
        else:
            CLUSTER.down()
    except (ClusterError, ValueError, OSError) as error:
        print(f"{parser.prog}: {error}", *getattr(error, "__notes__", []), sep="\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
