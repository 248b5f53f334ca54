"""A script that rank 0 runs alone, with a pool that all other ranks serve: `python -m lb_mpi pool script.py`.

Functions of the script are pickled by name, so a rank that is sent one runs the script, too, but not as `__main__`: what
stands behind `if __name__ == "__main__":` is left out, as with multiprocessing and mpi4py.futures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from mpi4py import MPI

from lb_mpi import checks
from lb_mpi.errors import Error
from lb_mpi.files import Load, find_script, folder_of
from lb_mpi.mpi.common.collective import agree, duplicate
from lb_mpi.mpi.common.presence import Tag, hang_s
from lb_mpi.mpi.pool.serving import serve
from lb_mpi.mpi.pool.session import Crew
from lb_mpi.mpi.pool.submitting import Leader

WORKER = "__worker__"  # what __name__ is on ranks that serve; by this name their objects of its classes travel, too


class _Main(ModuleType):
    """The script as the module `__main__` of a rank that serves: run when it's first asked for a name."""

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
    """A script that all ranks have found."""

    crew: Crew
    load: Load
    folder: str  # where it imports from


def open_script(target: str, *, module: bool) -> Script:
    """Collective: find a script (or a module, by name); ValueError, SyntaxError or OSError on all ranks if one can't."""
    own = duplicate(MPI.COMM_WORLD)
    load = agree(own, lambda: find_script(target, module=module))
    return Script(Crew(own, 0), load, folder_of(target, module=module))


def run_script(script: Script, argv: Sequence[str]) -> None:
    """Collective: run it on rank 0, while all others serve its `lb_mpi.Pool()`; raises there what the script raises."""
    crew, load, folder = script
    sys.argv = [*argv]
    sys.path[0] = folder
    if crew.rank != crew.root:
        sys.modules["__main__"] = sys.modules[WORKER] = _Main(load)

    def run() -> None:
        main = sys.modules["__main__"] = sys.modules[WORKER] = ModuleType("__main__")
        code, names = load("__main__")
        main.__dict__.update(names)
        exec(code, main.__dict__)

    run_alone(crew, run)


_leaders: list[Leader] = []  # of the script that is running, if any


def leader() -> Leader | None:
    """What leads all pools of the script that is running; None when each pool has its own."""
    return _leaders[-1] if _leaders else None


def run_alone(crew: Crew, run: Callable[[], None]) -> None:
    """Collective: run() on the root, whose pools are all on `crew`, which the other ranks serve; then `crew` is closed."""
    leader = Leader(crew, alone=True)
    _leaders.append(leader)
    try:
        if crew.rank != crew.root:
            serve(crew)
        else:
            try:
                run()
            finally:
                with crew.news.telling():
                    leader.close()
                    crew.send_all(Tag.CLOSE)
    finally:
        _leaders.pop()
        crew.close()


def check(
    crew: Crew, comm: MPI.Intracomm | None, root: int | None, speeds: Sequence[float] | None, emulated_speed: float
) -> list[float] | None:
    """Hold the arguments of a pool against what is possible in a script that rank 0 runs alone."""
    if crew.rank != crew.root:
        raise Error("a pool on a rank that serves: expected `if __name__ == '__main__':` before what makes it")
    if (comm is not None and comm.size not in (1, crew.size)) or root not in (None, crew.root) or emulated_speed != 1.0:
        raise ValueError(
            "a pool of a script that rank 0 runs alone: expected Pool(), of all ranks and at their own speeds"
        )
    return check_pool(crew.size, None, speeds, emulated_speed)


def check_pool(
    size: int, root: int | None, speeds: Sequence[float] | None, emulated_speed: float
) -> list[float] | None:
    """Hold the arguments of a pool against what is expected; the speeds, where there are any."""
    checks.emulated_speed(emulated_speed)
    hang_s()
    if root is not None:
        checks.integer("root", root, least=0, most=size - 1)
    if speeds is None:
        return None
    try:
        listed = list(speeds)
    except TypeError:
        raise TypeError(f"speeds = {checks.show(speeds)}: expected {size} numbers, one for each rank") from None
    given = [checks.number(f"speeds[{rank}]", speed, above=0.0) for rank, speed in enumerate(listed)]
    if len(given) != size:
        raise ValueError(f"speeds: {len(given)} of them: expected {size}, one for each rank")
    return given
