"""The folder of a profile: a file of each rank, written as it goes, and the whole profile at the end.

profile.rank-N.json   what rank N has told so far; all that is left of a run that was killed
profile.json          the whole, with the metrics, when all ranks have come to their end
profile.txt           the same as a table
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lb_mpi.checks import show
from lb_mpi.files import write_whole
from lb_mpi.profiling.profile import Profile, RankProfile, profile_from, rank_from, rank_json
from lb_mpi.profiling.table import table

T = TypeVar("T")
WHOLE, TABLE = "profile.json", "profile.txt"


def clear(folder: Path) -> None:
    """Make the folder, without what an earlier run has left in it; OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in [folder / WHOLE, folder / TABLE, *folder.glob("profile.rank-*.json")]:
        path.unlink(missing_ok=True)


def write_rank(folder: Path, program: str, rank: RankProfile) -> None:
    """Write what one rank has told so far; OSError."""
    write_whole(folder / f"profile.rank-{rank.rank}.json", json.dumps({"program": program, **rank_json(rank)}))


def write_profile(folder: Path, profile: Profile) -> None:
    """Write the whole; OSError."""
    write_whole(folder / WHOLE, json.dumps(profile.to_json()))
    write_whole(folder / TABLE, "\n".join(table(profile)) + "\n")


def read_profile(folder: Path) -> Profile:
    """The profile in a folder, or what the ranks of a run that didn't end have left there; OSError, ValueError."""
    if (folder / WHOLE).exists():
        return _made(folder / WHOLE, profile_from)
    paths = sorted(folder.glob("profile.rank-*.json"))
    if not paths:
        raise ValueError(f"{folder}: expected a folder with {WHOLE}, or with files profile.rank-N.json")
    ranks = sorted((_made(path, rank_from) for path in paths), key=lambda rank: rank.rank)
    program = _made(paths[0], lambda found: str(found["program"]))
    note = f"the run did not come to its end: this is what {len(ranks)} of its ranks had written before"
    return Profile(program, ranks, [1.0] * len(ranks), notes=[note])


def _made(path: Path, make: Callable[[Any], T]) -> T:
    try:
        return make(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not what a profile has written ({show(error)})") from None
