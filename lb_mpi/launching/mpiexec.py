"""Which mpiexec this is, and how it is told where the ranks run."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lb_mpi.hosts import Host

ASK_S = 20.0
# Open MPI takes only these variables to other hosts; MPICH takes all.
EXPORTED = re.compile(r"PATH|LD_LIBRARY_PATH|PYTHON\w+|VIRTUAL_ENV|\w+_NUM_THREADS|UCX_\w+|FI_\w+|NUMBA_\w+|LB_MPI_\w+")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class Mpiexec(NamedTuple):
    """A program that starts ranks."""

    path: str
    library: str  # "MPICH 5.0.2" or "Open MPI 5.0.8"

    @property
    def is_open_mpi(self) -> bool:
        """Whether its options are Open MPI's (5 or newer), or MPICH's."""
        return self.library.startswith("Open MPI")


def identify(path: str) -> Mpiexec:
    """Ask `path` what it is; ValueError unless it is MPICH's (Hydra), or Open MPI's."""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=ASK_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{path}: {error}") from None
    if found := re.search(r"\(Open MPI\) ([\w.]+)", done.stdout):
        if int(found[1].split(".")[0]) < 5:
            raise ValueError(f"{path} is Open MPI's {found[1]}: expected version 5 or newer")
        return Mpiexec(path, f"Open MPI {found[1]}")
    if found := re.match(r"HYDRA build details:\s+Version:\s+([\w.]+)", done.stdout):
        return Mpiexec(path, f"MPICH {found[1]}")
    said = (done.stdout + done.stderr).strip().partition("\n")[0]
    raise ValueError(f"{path} --version says {said!r}: expected MPICH's mpiexec (Hydra), or Open MPI's")


def fill(hosts: Sequence[Host], n: int | None) -> list[int]:
    """(n,) the host of each rank: slot by slot; n left out: all slots.  ValueError for more ranks than slots."""
    slots = [index for index, host in enumerate(hosts) for _ in range(host.slots)]
    if n is not None and not 1 <= n <= len(slots):
        raise ValueError(f"-n {n}: expected 1 to {len(slots)}, the slots of these hosts")
    return slots[:n]


def command(
    mpi: Mpiexec,
    hosts: Sequence[Host],
    ranks: Sequence[int],
    launcher: str | None,
    variables: Mapping[str, str],
    link: Path | None = None,
) -> list[str]:
    """Return the beginning of a command line that starts rank k on hosts[ranks[k]]; the program is to follow.

    `launcher` stands for ssh.  `link` leads to it, or to ssh, from a folder whose name is the word of this run: so the
    daemons have the word in their command lines, too.  MPICH passes the path of its launcher on to them, and Open MPI
    all parameters, known or not.  ValueError for a host that can't be named to mpiexec.
    """
    counts = Counter(ranks)
    used = sorted(counts)
    for index in used:
        if ":" in hosts[index].name:
            raise ValueError(f"host {hosts[index].name}: mpiexec takes no IPv6 address: expected a name")
    listed = ",".join(f"{hosts[index].name}:{counts[index]}" for index in used)
    in_order = list(ranks) == sorted(ranks)
    if mpi.is_open_mpi:
        # In a job of Slurm's it would start its daemons with srun, which waits for ever when a node of the job has died.
        argv = [mpi.path, "--prtemca", "plm", "^slurm", *(["--prtemca", "plm_ssh_agent", launcher] if launcher else [])]
        argv += ["--prtemca", "lb_mpi_run", link.parent.name] if link else []
        if in_order:
            argv += ["--host", listed, "--map-by", "slot"]
        else:
            argv += ["--host", ",".join(hosts[index].name for index in ranks), "--map-by", "seq"]
        argv += [part for name in sorted(variables) if EXPORTED.fullmatch(name) for part in ("-x", name)]
    else:
        launcher = str(link) if link else launcher
        argv = [mpi.path, "-launcher", "ssh", *(["-launcher-exec", launcher] if launcher else []), "-hosts", listed]
        if not in_order:
            argv += ["-rankmap", ",".join(str(used.index(index)) for index in ranks)]
    return [*argv, "-n", str(len(ranks))]
