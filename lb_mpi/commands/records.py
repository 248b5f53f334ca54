"""The records of a run, read from their folder."""

from __future__ import annotations

from pathlib import Path

from lb_mpi.record.launches import FILE, folder_of, parse
from lb_mpi.report.run import Run, assemble, belongs


def gather(folder: Path) -> Run:
    """Read the record of a run, with all its starts; ValueError when there is none that can be read, OSError for files."""
    launches = parse(place.read_text()) if (place := folder / FILE).exists() else []
    runs: list[Run] = []
    problem = ValueError("")
    for start in range(1 + max((it.start for it in launches), default=0)):
        within = folder / folder_of(start)
        files = (
            sorted(path for path in within.iterdir() if path.suffix == ".lbrec") if within.is_dir() or not start else []
        )
        try:
            run = assemble(((path.name, path.read_bytes()) for path in files), launches, start)
        except ValueError as error:
            problem = error
            continue
        runs.append(run)
        if not belongs(launches, run.ranks[0].about):
            break  # launch/run has told of a run before this one
    if not runs:
        raise ValueError(f"{folder}: {problem}")
    return runs[-1]._replace(earlier=tuple(runs[:-1]))
