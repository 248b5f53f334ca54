"""Host lists: the machines, and the number and speed of each one's ranks.

One host per line; `#` begins a comment, and blank lines are skipped:

    # name     slots (ranks)   speed, in any unit that all hosts share
    fast       slots=4         speed=2.5
    slow1      slots=2
    slow2:2                                  # MPICH's way to write slots

Slots and speed default to 1.  The contents of a list become arguments of mpiexec and ssh, so a name can't look like an
option, or contain characters that are special to a shell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lb_mpi import checks

MAX_SLOTS = 1_000_000
_NAME = re.compile(r"(?!-)[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Host:
    """One line of a host list; ValueError, naming the field, for invalid values.

    name   letters, digits, ".", "_" and "-"; doesn't begin with "-"
    slots  number of its ranks, 1 to MAX_SLOTS
    speed  of one rank there, relative to the other hosts' ranks, above 0
    """

    name: str
    slots: int = 1
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(f"host name {self.name!r}: expected letters, digits, '.', '_', '-', not beginning with '-'")
        object.__setattr__(self, "slots", checks.integer(f"host {self.name}: slots", self.slots, 1, MAX_SLOTS))
        object.__setattr__(self, "speed", checks.number(f"host {self.name}: speed", self.speed, above=0.0))


def parse_hosts(text: str, where: str) -> list[Host]:
    """Return the hosts in `text`, in order; `where` names it in errors.

    ValueError, beginning with where:line, for an invalid or repeated host, or an empty list.
    """
    hosts: list[Host] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            host = _host(words)
        except ValueError as error:
            raise ValueError(f"{where}:{number}: {error}") from None
        name = host.name.lower()  # case is ignored, as in DNS
        if name in lines:
            raise ValueError(f"{where}:{number}: host {host.name} is in line {lines[name]} already: expected it once")
        lines[name] = number
        hosts.append(host)
    if not hosts:
        raise ValueError(f"{where}:1: no host in this list: expected at least one")
    return hosts


def read_hosts(path: str | os.PathLike[str]) -> list[Host]:
    """Return the hosts in the file `path`; OSError if it can't be read, otherwise errors as for `parse_hosts`."""
    where = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{where}:{line}: not UTF-8 text: expected a hostfile") from None
    return parse_hosts(text, where)


def format_hosts(hosts: Iterable[Host]) -> str:
    """Return the host list that `parse_hosts` reads as `hosts`."""
    return "".join(f"{host.name} slots={host.slots} speed={host.speed!r}\n" for host in hosts)


def _host(words: list[str]) -> Host:
    name, colon, slots = words[0].partition(":")
    given = {"slots": slots} if colon else {}
    for option in words[1:]:
        key, equals, value = option.partition("=")
        if not equals or key not in ("slots", "speed"):
            raise ValueError(f"{option!r}: expected slots=N or speed=X")
        if key in given:
            raise ValueError(f"{option!r}: {key} is given twice")
        given[key] = value
    slots = given.get("slots", "1")
    if not re.fullmatch("[0-9]{1,9}", slots):
        raise ValueError(f"host {name}: slots = {slots!r}: expected an integer, 1 to {MAX_SLOTS}")
    return Host(name, int(slots), checks.comma_list(f"host {name}: speed", given.get("speed", "1"), 1)[0])
