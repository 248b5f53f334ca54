"""Rows that leave for good: parcels straight from the old owner to the new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from lb_mpi.graph import Floats, Ints
from lb_mpi.mpi.blame import blame
from lb_mpi.mpi.rows import Buffer, Rows, columns_of, concatenate, empty_parcel, head, in_form
from lb_mpi.mpi.waiting import Nap

_TAGS = (3, 4)  # of rows, of their table
_KIND = 0
_BROKEN = 1


class Moved(NamedTuple):
    """One rank's part."""

    value: Any  # its new rows, in the user's form
    table: Floats  # (n', c) beside them
    rows: int  # given away
    bytes: int  # sent
    error: Exception | None  # of the user's pack or unpack


def move(
    comm: MPI.Intracomm, rows: Rows, table: Floats, leaving: Mapping[int, Ints], sources: Sequence[int]
) -> Moved:
    """Collective: send rows `leaving[rank]`, with theirs of the (n, c) table, to each rank; receive from each source.

    Stays in step with the others when packing or unpacking fails on some rank.
    """
    error: Exception | None = None
    numbers = Rows(table)
    sends: list[tuple[MPI.Request, Buffer]] = []
    for target, index in leaving.items():
        parcel, beside = empty_parcel(_BROKEN), empty_parcel(_BROKEN)
        if error is None:
            try:
                parcel, beside = rows.parcel(index, kind=_KIND), numbers.parcel(index, kind=_KIND)
            except Exception as caught:
                error = blame(caught, comm.rank, f"rows for rank {target}")
        for buffer, tag in zip((parcel, beside), _TAGS, strict=True):
            sends.append((comm.Isend([buffer, MPI.BYTE], target, tag), buffer))
    n_bytes = sum(buffer.nbytes for _, buffer in sends)
    arrived = _receive(comm, sends, sources)
    staying = np.ones(rows.n, dtype=np.bool_)
    for index in leaving.values():
        staying[index] = False
    kept = np.flatnonzero(staying)
    blocks, tables = [rows.block(kept)], [numbers.block(kept)]
    for source in sorted(sources):
        parcel, beside = (arrived[source, tag] for tag in _TAGS)
        if error is None and head(parcel).kind != _BROKEN:
            try:
                blocks.append(columns_of(parcel, rows.spec, rows.unpack))
                tables.append(columns_of(beside, numbers.spec, None))
            except Exception as caught:
                error = blame(caught, comm.rank, f"rows of rank {source}")
    value = in_form(rows.spec, concatenate(rows.spec, blocks))
    return Moved(value, concatenate(numbers.spec, tables)[0], rows.n - len(kept), n_bytes, error)


def _receive(
    comm: MPI.Intracomm, sends: list[tuple[MPI.Request, Buffer]], sources: Sequence[int]
) -> dict[tuple[int, int], Buffer]:
    """The parcels by (source, tag), received as they come, asleep in between; all sends are complete afterwards."""
    expected = [(source, tag) for source in sources for tag in _TAGS]
    arrived: dict[tuple[int, int], Buffer] = {}
    receiving: list[MPI.Request] = []
    status, nap = MPI.Status(), Nap(0.5e-3)
    requests = [request for request, _ in sends]
    while expected or receiving or requests:
        for source, tag in list(expected):
            message = comm.Improbe(source, tag, status)
            if message is not None:
                buffer = np.empty(status.Get_count(MPI.BYTE), dtype=np.uint8)
                receiving.append(message.Irecv([buffer, MPI.BYTE]))
                arrived[source, tag] = buffer
                expected.remove((source, tag))
                nap.reset()
        receiving = [request for request in receiving if not request.Test()]
        requests = [request for request in requests if not request.Test()]
        if expected or receiving or requests:
            nap.take()
    return arrived
