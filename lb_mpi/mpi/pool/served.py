"""The arguments of a pool; and pools in a script that rank 0 runs alone (see `lb_mpi.mpi.pool.script`), all on one crew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpi4py import MPI

from lb_mpi import checks
from lb_mpi.errors import Error
from lb_mpi.mpi.common.presence import Tag, hang_s
from lb_mpi.mpi.pool.crew import Crew
from lb_mpi.mpi.pool.following import serve
from lb_mpi.mpi.pool.submitting import Leader

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
                with leader.ends:
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
