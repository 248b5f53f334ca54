"""mpiexec's daemons on the hosts, which outlive it when it is killed, or their host is cut off, while they start.

ssh starts them, so they bear no mark (limit.py).  Their command lines have a word that is this mpiexec's alone: where it
listens (MPICH), or the name of its job (Open MPI).  The command line of ssh has it, too.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

NAMES = ("hydra_pmi_proxy", "prted")
_WORD = re.compile(rb"--control-port[\0 ]+([\w.:-]+)|\b(prterun-[\w.-]+-\d+@)\d")


def word(pids: Iterable[int]) -> str:
    """Return the word of the mpiexec that has started the processes `pids`; "" as long as no daemon or ssh is among them."""
    for pid in pids:
        if found := _WORD.search(_command_line(Path(f"/proc/{pid}"))):
            return (found[1] or found[2]).decode()
    return ""


def running(word: str) -> set[int]:
    """Return the daemons of this user on this host whose command line has `word`; none for ""."""
    found = set()
    for path in Path("/proc").glob("[0-9]*") if word else ():
        with contextlib.suppress(OSError):  # gone meanwhile
            name, _, state = (path / "stat").read_text().partition("(")[2].rpartition(")")
            ours = name in NAMES and state.split()[0] not in "ZX" and path.stat().st_uid == os.geteuid()
            if ours and word.encode() in _command_line(path):
                found.add(int(path.name))
    return found


def _command_line(process: Path) -> bytes:
    with contextlib.suppress(OSError):
        return (process / "cmdline").read_bytes()
    return b""
