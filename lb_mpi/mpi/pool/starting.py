"""The start of a map, on the root and on the ranks that follow it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from lb_mpi.errors import Error
from lb_mpi.mpi.common.late import call as in_call
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import interrupts
from lb_mpi.mpi.pool.arguments import MapOptions, check_options, reads_lazily
from lb_mpi.mpi.pool.maps import PoolMaps, RootMap, RootTasks, WorkerMap
from lb_mpi.mpi.pool.messages import START, StartOrder
from lb_mpi.mpi.pool.running import MapCall
from lb_mpi.mpi.pool.serving import Serving, ServingPort
from lb_mpi.mpi.pool.session import MAP, Session
from lb_mpi.mpi.pool.streams import RootStream, WorkerStream


def begin_map(
    maps: PoolMaps, call: MapCall, items: Sequence[Any], options: MapOptions, *, lazy: bool = False, ordered: bool = False
) -> RootTasks | WorkerMap:
    """Begin a map on all ranks; if an argument is wrong on any of them, all that call this raise.

    `lazy`: results are taken one by one, so items may be read while tasks run; `ordered`: in the order of the items.
    """
    session = maps.session
    with contextlib.ExitStack() as opened:  # closed if not all ranks begin the map

        def plan() -> RootTasks | None:
            with interrupts().allowed():  # the items may come from the user's code
                checked = check_options(call.function, options, alone=session.ranks.alone)
                limited = call._replace(retries=options.get("retries") or 0, timeout_s=options.get("timeout") or 0.0)
                if not lazy and "buffersize" in options:
                    raise TypeError("a map got an unexpected keyword argument 'buffersize': expected it with imap")
                if not session.ranks.is_root:
                    return None
                if lazy and reads_lazily(items, options):
                    return RootStream(maps, limited, items, options, checked, ordered=ordered)
                return RootMap(maps, limited, items, options, checked, opened)

        if session.ranks.alone:
            planned = plan()
        else:
            with in_call(MAP, watched=True):
                planned = session.agree("map", plan)
        if planned is not None:
            planned.begin_all()
        opened.pop_all()
    if planned is not None:
        return planned
    with session.presence.notifying():
        session.work(Serving(session), ServingPort(session), MAP)
        return _follow(session, call.function)


def _follow(session: Session, function: Callable[..., Any] | None = None) -> WorkerMap:
    """Begin the map of the next order; `function`: None uses the one sent by the root."""
    header, data = session.orders.read(Tag.START)
    start = StartOrder(*START.unpack_from(header))
    return (WorkerStream if start.lazy else WorkerMap)(session, start, data, function)


def serve(session: Session) -> None:
    """Follow all orders of the root until it closes the pool; lb_mpi.Error if an error has ended the root's block."""
    with session.presence.notifying():
        while True:
            session.work(Serving(session), ServingPort(session))
            order = session.orders.first
            if order is None or order.tag != Tag.START:
                if text := bytes(session.orders.read(Tag.CLOSE)[1]).decode(errors="replace"):
                    raise session.presence.on_all(Error(text), session.ranks.root)
                return
            try:
                _, error = _follow(session).finish()
            except OSError as short:  # of shared memory for this map: the root may go on with a smaller one
                if not session.presence.is_of_all(short):
                    raise
                continue
            if isinstance(error, KeyboardInterrupt):
                raise error
