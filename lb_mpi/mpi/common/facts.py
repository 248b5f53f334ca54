"""Facts of this host: versions of Python, mpi4py, the MPI library and lb_mpi.  MPI is loaded, but not started.

`python -m lb_mpi.mpi.common.facts` prints one JSON object; launch/run compares those of all hosts before it
starts a program.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import socket
from pathlib import Path

import mpi4py

import lb_mpi


def facts() -> dict[str, str]:
    """Return the facts by name; "sources" is a digest of lb_mpi's own files."""
    mpi4py.rc.initialize = False
    from mpi4py import MPI

    sources = hashlib.sha256()
    folder = Path(lb_mpi.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        sources.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return {
        "host": socket.gethostname(),
        "Python": platform.python_version(),
        "mpi4py": mpi4py.__version__,
        "MPI library": library(MPI.Get_library_version()),
        "lb_mpi": lb_mpi.__version__,
        "sources": sources.hexdigest()[:12],
    }


def library(version: str) -> str:
    """Shorten the text of MPI_Get_library_version to name and version."""
    found = re.match(r"(MPICH) Version:\s*([\w.]+)|(Open MPI) v([\w.]+)", version)
    return " ".join(filter(None, found.groups())) if found else version.strip("\0 \n").partition("\n")[0]


if __name__ == "__main__":
    print(json.dumps(facts()))
