"""Rows: particles in the double gyre, advected with steps as small as their surroundings need.

Source: Shadden, Lekien, Marsden, "Definition and properties of Lagrangian coherent structures" (Physica D 212, 2005),
section 6; the program is ours, and does what ocean particle codes do.  Before, each rank keeps its particles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

import lb_mpi
from benchmarks.programs.script import main, task

NEEDS: dict[str, str] = {}
PARTICLES, STEPS = 480, 16


def velocity(t: float, place: Any) -> list[float]:
    """The double gyre."""
    a = 0.25 * np.sin(2.0 * np.pi * t / 10.0)
    x, y = place
    f, slope = a * x * x + (1.0 - 2.0 * a) * x, 2.0 * a * x + 1.0 - 2.0 * a
    u = -np.pi * 0.1 * np.sin(np.pi * f) * np.cos(np.pi * y)
    return [float(u), float(np.pi * 0.1 * np.cos(np.pi * f) * np.sin(np.pi * y) * slope)]


@task
def move(place: Any, t: float) -> Any:
    """A particle's place, one step later."""
    return solve_ivp(velocity, (t, t + 1.0), place, rtol=1e-8 if place[0] < 1.0 else 1e-4).y[:, -1]


def advect(places: Any, t: float) -> Any:
    """(n, 2) of particles, one step later."""
    return np.array([move(place, t) for place in places]).reshape(-1, 2)


def initial(comm: Any) -> Any:
    """This rank's particles, sorted from left to right."""
    places = np.random.default_rng(1).uniform((0.0, 0.0), (2.0, 1.0), (PARTICLES, 2))
    return np.array_split(places[places[:, 0].argsort()], comm.size)[comm.rank]


def gathered(comm: Any, places: Any) -> Any:
    """All places, on rank 0."""
    everyone = comm.gather(places)
    return np.concatenate(everyone).tolist() if comm.rank == 0 else None


def before(comm: Any) -> Any:
    """Each rank advects its own particles."""
    places = initial(comm)
    for step in range(STEPS):
        places = advect(places, float(step))
        comm.Barrier()
    return gathered(comm, places)


def after(comm: Any) -> Any:
    """With lb_mpi."""
    places = initial(comm)
    with lb_mpi.Balancer(comm) as balancer:
        for step in range(STEPS):
            places = balancer.map_rows(advect, places, float(step))
    return gathered(comm, places)


if __name__ == "__main__":
    main(before, after)
