"""Rows: homogeneous reactors at different temperatures, in a field that is advanced step by step.

Source: Cantera's example "Constant-pressure, adiabatic kinetics simulation", one reactor for each cell of a field.  A cell
that ignites costs many times as much as one that stays cold.
"""

from __future__ import annotations

from typing import Any

import cantera
import numpy as np

import lb_mpi
from benchmarks.programs.script import main, task

NEEDS = {"cantera": "cantera"}
CELLS, STEPS, STEP_S = 192, 12, 1e-4
GAS = cantera.Solution("h2o2.yaml")


@task
def react(row: Any) -> Any:
    """Advance the reactor of a cell; a row is temperature, pressure and mass fractions."""
    GAS.TPY = row[0], row[1], row[2:]
    reactor = cantera.IdealGasConstPressureReactor(GAS, clone=False)
    cantera.ReactorNet([reactor]).advance(STEP_S)
    return GAS.T, GAS.P, *GAS.Y


def advance(rows: Any) -> Any:
    """Advance some cells."""
    return np.array([react(row) for row in rows]).reshape(rows.shape)


def initial(comm: Any) -> Any:
    """This rank's cells: cold on one side, hot on the other."""
    rows = np.empty((CELLS, 2 + GAS.n_species))
    for row, temperature in zip(rows, np.linspace(800.0, 1500.0, CELLS), strict=True):
        GAS.TPX = temperature, cantera.one_atm, "H2:2,O2:1,N2:4"
        row[:] = GAS.T, GAS.P, *GAS.Y
    return np.array_split(rows, comm.size)[comm.rank]


def gathered(comm: Any, rows: Any) -> Any:
    """Temperatures of all cells, on rank 0."""
    all_rows = comm.gather(rows)
    return np.concatenate(all_rows)[:, 0].tolist() if comm.rank == 0 else None


def before(comm: Any) -> Any:
    """Each rank advances its own cells."""
    rows = initial(comm)
    for _ in range(STEPS):
        rows = advance(rows)
        comm.Barrier()
    return gathered(comm, rows)


def after(comm: Any) -> Any:
    """With lb_mpi."""
    rows = initial(comm)
    with lb_mpi.Balancer(comm) as balancer:
        for _ in range(STEPS):
            rows = balancer.map_rows(advance, rows)
    return gathered(comm, rows)


if __name__ == "__main__":
    main(before, after)
