"""A script that rank 0 runs alone, with a pool that all other ranks serve: `python -m lb_mpi pool script.py`.

Functions of the script are pickled by name, so a rank that receives one also runs the script, but not as `__main__`: the
code under `if __name__ == "__main__":` is skipped, as with multiprocessing and mpi4py.futures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from mpi4py import MPI

from lb_mpi.files import Load, find_script, folder_of
from lb_mpi.mpi.common.collective import agree, duplicate
from lb_mpi.mpi.common.presence import Tag
from lb_mpi.mpi.pool.serving import serve
from lb_mpi.mpi.pool.session import Session
from lb_mpi.mpi.pool.submitting import TaskQueue

WORKER = "__worker__"  # __name__ on ranks that serve; objects of the script's classes are pickled under it


class _Main(ModuleType):
    """The script as the module `__main__` of a rank that serves; it runs when a name is first requested."""

    def __init__(self, load: Load) -> None:
        super().__init__("__main__")
        self.__dict__["_load"] = load

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or (load := self.__dict__.pop("_load", None)) is None:
            raise AttributeError(f"the script has no {name!r}")
        code, names = load(WORKER)
        self.__dict__.update(names)
        exec(code, self.__dict__)
        return getattr(self, name)


class Script(NamedTuple):
    """A script found by all ranks."""

    session: Session
    load: Load
    folder: str  # its import folder


def open_script(target: str, *, module: bool) -> Script:
    """Collective: find a script (or a module, by name); ValueError, SyntaxError or OSError on all ranks if one fails."""
    own = duplicate(MPI.COMM_WORLD)
    load = agree(own, lambda: find_script(target, module=module))
    return Script(Session(own, 0, alone=True), load, folder_of(target, module=module))


def run_script(script: Script, argv: Sequence[str]) -> None:
    """Collective: run it on rank 0, while the others serve its `lb_mpi.Pool()`; rank 0 raises the script's exceptions."""
    session, load, folder = script
    sys.argv = [*argv]
    sys.path[0] = folder
    if session.rank != session.root:
        sys.modules["__main__"] = sys.modules[WORKER] = _Main(load)

    def run() -> None:
        main = sys.modules["__main__"] = sys.modules[WORKER] = ModuleType("__main__")
        code, names = load("__main__")
        main.__dict__.update(names)
        exec(code, main.__dict__)

    run_alone(session, run)

_queues: list[TaskQueue] = []  # of the running script, if any


def queue() -> TaskQueue | None:
    """Return the task queue that all pools of the running script share; None if each pool has its own."""
    return _queues[-1] if _queues else None


def run_alone(session: Session, run: Callable[[], None]) -> None:
    """Collective: run() on the root, whose pools share `session`, served by the other ranks; then close the session."""
    queue = TaskQueue(session)
    _queues.append(queue)
    try:
        if session.rank != session.root:
            serve(session)
        else:
            try:
                with queue.ends:
                    run()
            finally:
                with session.presence.telling():
                    queue.close()
                    session.send_all(Tag.CLOSE, [b""] * session.size)
    finally:
        _queues.pop()
        session.close()
