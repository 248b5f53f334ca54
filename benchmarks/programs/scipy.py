"""Global optimisation: the parameters of an oscillator, fitted by differential evolution.

Source: scipy's reference of `differential_evolution` (`workers=`, a map-like callable), and its example of `solve_ivp`, the
Lotka-Volterra equations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py.futures import MPICommExecutor
from scipy.integrate import solve_ivp
from scipy.optimize import differential_evolution

import lb_mpi
from benchmarks.programs.script import main, task

NEEDS: dict[str, str] = {}
TIMES = np.linspace(0.0, 15.0, 60)


def lotkavolterra(t: float, z: Any, a: float, b: float, c: float, d: float) -> list[float]:
    """Foxes and rabbits."""
    x, y = z
    return [a * x - b * x * y, -c * y + d * x * y]


def populations(parameters: Any) -> Any:
    """(2, 60) of both."""
    return solve_ivp(lotkavolterra, (0.0, 15.0), [10.0, 5.0], t_eval=TIMES, args=tuple(parameters), rtol=1e-4).y


SEEN = populations([1.5, 1.0, 3.0, 1.0])


@task
def misfit(parameters: Any) -> float:
    """Sum of squares."""
    return float(np.sum((populations(parameters) - SEEN) ** 2))


def fit(workers: Any) -> list[float]:
    """The best parameters after some generations."""
    bounds = [(0.5, 3.0), (0.5, 2.0), (1.0, 5.0), (0.5, 2.0)]
    found = differential_evolution(
        misfit, bounds, workers=workers, updating="deferred", maxiter=10, popsize=12, seed=3, polish=False
    )
    return [float(one) for one in found.x]


def before(comm: Any) -> Any:
    """With mpi4py's executor."""
    with MPICommExecutor(comm, root=0) as pool:
        if pool is not None:
            return fit(pool.map)  # type: ignore[attr-defined]
    return None


def after(comm: Any) -> Any:
    """With lb_mpi."""
    with lb_mpi.Pool(comm, root=0) as pool:
        if pool is not None:
            return fit(pool.map)
    return None


if __name__ == "__main__":
    main(before, after)
