"""What an MPI that is killed can't remove: shared memory, which is megabytes a job, and Open MPI's folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")
_FOLDER = Path("/dev/shm")
_NAMES = ("mpich_shm_", "vader_segment", "sm_segment", "osc_", "ucx_shm_")  # MPICH's, Open MPI's, UCX's


def remove_orphans() -> None:
    """Remove the segments of this user that no process has open or mapped, whichever job they are of."""
    for path in orphans():
        with contextlib.suppress(OSError):
            path.unlink()


def remove_sessions(pids: Iterable[int]) -> None:
    """Remove the folders of those processes, gone by now, that were Open MPI's mpiexec or daemons."""
    for pid in pids:
        folder = Path(tempfile.gettempdir()) / f"ompi.{pid}"
        if _is_ours(folder):
            shutil.rmtree(folder, ignore_errors=True)  # which follows no link


def orphans() -> set[Path]:
    """Return them.

    A rank that is starting has its segment open until it has mapped it.  So the list is made first, then it is seen
    who has them open, and then who has them mapped: one that is in use is found at one of the two.
    """
    unused = {path for path in _listed() if _is_ours(path)}
    for pid in _pids() if unused else ():
        unused -= _opened(pid)
    for pid in _pids() if unused else ():
        unused -= mapped(pid)
    return unused


def _listed() -> list[Path]:
    with contextlib.suppress(OSError):
        return [_FOLDER / name for name in os.listdir(_FOLDER) if name.startswith(_NAMES)]
    return []


def _is_ours(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.lstat().st_uid == os.geteuid()
    return False


def _pids() -> Iterable[Path]:
    return _PROC.glob("[0-9]*")


def _opened(process: Path) -> set[Path]:
    found = set()
    with contextlib.suppress(OSError):  # gone meanwhile, or somebody else's
        for file in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                found.add(Path(os.readlink(file)))
    return found


def mapped(process: Path) -> set[Path]:
    """Return the shared memory that /proc/PID has mapped."""
    with contextlib.suppress(OSError):
        lines = (process / "maps").read_text(errors="replace").splitlines()
        return {Path(line.split(None, 5)[5]) for line in lines if str(_FOLDER) in line}
    return set()
