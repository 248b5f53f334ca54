"""The notes of launch/run about a recorded run: starts, deaths, restarts, the end; lines of JSON in a file.   (pure)

A killed rank can't record its own death, and a restarted run begins with new records.  So launch/run writes FILE beside the
records of the first start; those of restart k are in its subfolder `restart-K`.  Only the standard library is needed.
"""

from __future__ import annotations

import json
from typing import NamedTuple

FILE = "launch.jsonl"
START, DEATH, RESTART, END = "start", "death", "restart", "end"
KINDS = (START, DEATH, RESTART, END)


class Happened(NamedTuple):
    """An event in a run."""

    what: str  # of KINDS
    wall_s: float  # seconds since 1970, by the clock of the host of launch/run
    start: int  # 0: the first one; k: restart k
    rank: int  # the rank that died; -1: none, or a whole host
    words: str


def folder_of(start: int) -> str:
    """Return the name of a start's record folder within the requested one; "": that one itself."""
    return f"restart-{start}" if start else ""


def line(it: Happened) -> str:
    """Return the event as one line."""
    return json.dumps(it._asdict()) + "\n"


def parse(text: str) -> list[Happened]:
    """Read a file; invalid lines are skipped, such as the last one of a killed launch/run."""
    found = []
    for words in text.splitlines():
        try:
            it = Happened(**json.loads(words))
        except (ValueError, TypeError):
            continue
        numbers = (it.wall_s, it.start, it.rank)
        if it.what in KINDS and isinstance(it.words, str) and all(isinstance(one, int | float) for one in numbers):
            found.append(it)
    return found
