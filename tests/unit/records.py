"""Records of ranks, made up, for what reads them."""

from pathlib import Path

from lb_mpi.record.record import About, Record, header, snapshot, snapshot_offset

Files = list[tuple[str, bytes]]  # names, and what is in them


def about(rank: int, size: int, host: str = "host", **fields: object) -> About:
    return About(rank, size, host, 77 + rank, 100.0, 1e9, "Python 3", "/tmp/program.py --x <b>")._replace(**fields)


def whole(record: Record, now: float, what: About, *, ended: bool = True) -> tuple[str, bytes]:
    """The file of a record, with one snapshot."""
    data = header(what).ljust(snapshot_offset(0, what.size), b"\0") + snapshot(record, now, 0, ended=ended)
    return f"rank{what.rank:06d}.lbrec", data


def torn(files: Files, rank: int) -> None:
    name, data = files[rank]
    files[rank] = name, data[: snapshot_offset(0, 4) + 60]


def of_version(files: Files, rank: int, version: int) -> None:
    name, data = files[rank]
    files[rank] = name, data[:6] + bytes([version, 0]) + data[8:]


def written(folder: Path, files: Files) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files:
        (folder / name).write_bytes(data)
    return folder
