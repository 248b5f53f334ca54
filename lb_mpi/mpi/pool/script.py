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

from lb_mpi.errors import Error
from lb_mpi.files import Load, as_main, find_script, import_as
from lb_mpi.mpi.common.calls import call as in_call
from lb_mpi.mpi.common.collective import agree, agree_on, meet
from lb_mpi.mpi.common.communicator import duplicate, presence_of
from lb_mpi.mpi.pool.member import serve
from lb_mpi.mpi.pool.ranks import PoolRanks

WORKER = "__worker__"  # __name__ on ranks that serve; objects of the script's classes are pickled under it


class _Main(ModuleType):
    """The script as the module `__main__` of a rank that serves; it runs when a name is first requested."""

    def __init__(self, load: Load) -> None:
        super().__init__("__main__")
        self.__dict__["_load"] = load

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"the script has no {name!r}")
        if (load := self.__dict__.pop("_load", None)) is not None:
            code, names = load(WORKER)
            self.__dict__.update(names)
            try:
                exec(code, self.__dict__)
            except BaseException as error:  # SystemExit, too
                for defined in [one for one in self.__dict__ if not one.startswith("__")]:
                    del self.__dict__[defined]  # so that all tasks get this error, not only the first
                self.__dict__["_error"] = error
                raise
            return getattr(self, name)
        raise self.__dict__.get("_error") or AttributeError(f"the script has no {name!r}")


class Script(NamedTuple):
    """A script found by all ranks."""

    ranks: PoolRanks
    load: Load

    @property
    def ran_alone(self) -> bool:
        """True on rank 0 if there are other ranks, and none of them has run a task of the script."""
        ranks = self.ranks
        return ranks.is_root and ranks.size > 1 and not self.ranks.helpers


def open_script(target: str, *, module: bool, prepare: Callable[[], None] = lambda: None) -> Script:
    """Collective: find a script (or a module, by name); ValueError, SyntaxError or OSError on all ranks if one fails.

    `prepare` is called before, on each rank.
    """
    own = duplicate(MPI.COMM_WORLD)
    agree(own, prepare)
    import_as(target, module=module)
    load = agree(own, lambda: find_script(target, module=module))
    return Script(PoolRanks(own, 0, alone=True), load)


def run_script(script: Script, argv: Sequence[str]) -> None:
    """Collective: run it on rank 0, while the others serve its `lb_mpi.Pool()`; rank 0 raises the script's exceptions."""
    ranks, load = script
    sys.argv = [*argv]
    if not ranks.is_root:
        sys.modules["__main__"] = sys.modules[WORKER] = _Main(load)

    def run() -> None:
        code, main = as_main(load)
        sys.modules[WORKER] = main
        exec(code, main.__dict__)

    run_alone(ranks, run)

# --- the ranks of a script ---------------------------------------------------------------------------------------------

_shared: list[PoolRanks] = []  # at most one: the ranks of all pools and executors of a running script


def open_ranks(
    comm: MPI.Intracomm | None,
    root: int | None,
    check: Callable[[MPI.Intracomm], dict[str, Any]],
    *,
    name: str,
    emulated_speed: float = 1.0,
) -> PoolRanks:
    """Return the ranks for a new `name`: those of the running script, or else new ones (collective).

    `root`: the rank that alone runs the user's code; None: all do.  `check(comm)` checks the other arguments, and returns
    those that must be the same on all ranks.
    """
    if _shared:
        ranks = _shared[-1]
        if not ranks.is_root:
            raise Error(f"{name} on a rank that runs tasks: expected it under `if __name__ == '__main__':`")
        ours = comm is None or comm.size in (1, ranks.size)
        if not ours or root not in (None, ranks.root) or emulated_speed != 1.0:
            raise ValueError(f"{name} in a script that rank 0 runs alone: expected all ranks, and no emulated_speed")
        check(ranks.presence.comm)
        return ranks
    comm = MPI.COMM_WORLD if comm is None else comm
    with in_call(name):
        own = duplicate(comm)
        try:
            meet(own, name)
            agree_on(own, root=root, **agree(own, lambda: check(own)))
            return PoolRanks(own, root or 0, alone=root is not None, emulated_speed=emulated_speed)
        except BaseException as error:
            presence_of(own).close(error=error)
            raise


def run_alone(ranks: PoolRanks, run: Callable[[], None]) -> None:
    """Collective: run() on the root, whose pools all share `ranks`, which the other ranks serve; then it is closed."""
    _shared.append(ranks)
    ranks.share()
    error: BaseException | None = None
    try:
        if not ranks.is_root:
            serve(ranks)
        else:
            ranks.bind_others()
            try:
                run()
            except BaseException as caught:
                error = caught
                raise
            finally:
                with ranks.presence.notifying():
                    if ranks.operation is not None:
                        ranks.operation.leave(error)
    finally:
        _shared.pop()
        ranks.close()
