"""Objects: micro simulations, each with a state of its own, that a macro program advances from window to window.

Source: the interface of preCICE's Micro Manager (`MicroSimulation.solve`); the simulations are ours, a nonlinear
spring each.  Before, each rank keeps its simulations; after, they are lent as pickles.
"""

from __future__ import annotations

import pickle
from typing import Any

import lb_mpi
from benchmarks.programs.script import main, task

NEEDS: dict[str, str] = {}
SIMULATIONS, WINDOWS = 64, 16


class MicroSimulation:
    """A spring whose stiffness decides how many steps a window needs."""

    def __init__(self, number: int) -> None:
        """Make it; a few are much stiffer than the others."""
        self.stiffness = 1.0 + 15.0 * (number % 8 == 0) + number / SIMULATIONS
        self.position, self.speed = 1.0, 0.0

    @task
    def solve(self, macro: float, dt: float) -> float:
        """Advance by a window; the force."""
        n = int(1500 * self.stiffness)
        for _ in range(n):
            self.speed -= dt / n * (self.stiffness * self.position**3 + macro)
            self.position += dt / n * self.speed
        return float(self.stiffness * self.position**3)


def solve(simulations: list[MicroSimulation], macro: float) -> list[MicroSimulation]:
    """Advance some simulations; they are new objects, with new states."""
    advanced = [pickle.loads(pickle.dumps(one)) for one in simulations]
    for one in advanced:
        one.solve(macro, 0.1)
    return advanced


def initial(comm: Any) -> list[MicroSimulation]:
    """This rank's simulations."""
    share = SIMULATIONS // comm.size
    return [MicroSimulation(number) for number in range(comm.rank * share, (comm.rank + 1) * share)]


def force(comm: Any, simulations: list[MicroSimulation]) -> float:
    """Return the mean force, the result for the macro program; the same on any number of ranks."""
    positions = [position for some in comm.allgather([one.position for one in simulations]) for position in some]
    return float(sum(positions) / len(positions))


def before(comm: Any) -> Any:
    """Each rank advances its own."""
    simulations, macro = initial(comm), 0.1
    for _ in range(WINDOWS):
        simulations = solve(simulations, macro)
        macro = force(comm, simulations)
    return macro


def after(comm: Any) -> Any:
    """With lb_mpi."""
    simulations, macro = initial(comm), 0.1
    with lb_mpi.Balancer(comm) as balancer:
        for _ in range(WINDOWS):
            simulations = balancer.map_rows(solve, simulations, macro, pack=pickle.dumps, unpack=pickle.loads)
            macro = force(comm, simulations)
    return macro


if __name__ == "__main__":
    main(before, after)
