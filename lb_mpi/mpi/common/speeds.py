"""Speeds of a communicator's ranks, as known from one pool, executor, Balancer or `measure` to the next one there."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from lb_mpi.knowledge import KnownSpeeds
from lb_mpi.mpi.common.collective import bcast
from lb_mpi.mpi.common.communicator import presence_of, wait


def known_speeds(comm: MPI.Intracomm, emulated_speed: float) -> KnownSpeeds | None:
    """Collective, when a door opens: return what is known of the ranks, the same on all of them; None: nothing.

    comm : a duplicate of the user's communicator, with which all is kept.  emulated_speed : of this rank; if it has another
    one on any rank than in the last door, nothing is known.
    """
    sources = presence_of(comm).speeds
    changed = sources.open(emulated_speed)
    door, known = sources.newest()
    mine = np.array([changed, door * comm.size + comm.rank if door else -1], dtype=np.int64)
    most = np.empty_like(mine)
    wait(comm, comm.Iallreduce(mine, most, MPI.MAX), (mine, most))
    changed, newest = most.tolist()
    if changed:
        sources.forget()
        return None
    return None if newest < 0 else bcast(comm, known, newest % comm.size)
