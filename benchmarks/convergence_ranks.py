"""The real half of benchmarks.convergence, one rank for each node:  mpiexec -n 25 python -m benchmarks.convergence --real

Steps of every scheme on real ranks against simulation, and the time from loads to a flow that balances to 1 %: milliseconds
of the slowest rank, all schemes in turn (A B A B ...), medians over the rounds; what depends on no load is prepared before.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from mpi4py import MPI

from benchmarks.convergence import PUBLISHED, TOLERANCES, Case, draw
from lb_mpi.graph import most_square_mesh
from lb_mpi.mpi.diffuse import Diffuser

ROUNDS = 15


def diffuser(comm: MPI.Intracomm, case: Case, scheme: str, tau: str, tolerance: float) -> Diffuser:
    """This rank's."""
    return Diffuser(comm, case.graph, float(case.speeds[comm.rank]), scheme, tau, tolerance=tolerance)


def steps(comm: MPI.Intracomm, name: str, scheme: str, tau: str, seeds: int) -> tuple[list[float], list[float]]:
    """Medians of the steps on real ranks and in simulation, for each of TOLERANCES; an error unless all are equal."""
    real, simulated = np.zeros((seeds, len(TOLERANCES))), np.zeros((seeds, len(TOLERANCES)))
    for seed in range(seeds):
        case = draw(name, seed)
        load = float((case.speeds * case.times)[comm.rank])
        for k, tolerance in enumerate(TOLERANCES):
            with diffuser(comm, case, scheme, tau, tolerance) as one:
                real[seed, k] = one.diffuse(load).steps
            if comm.rank == 0:
                simulated[seed, k] = case.balance(scheme, tau, tolerance).steps
    comm.Bcast(simulated, 0)
    if not np.array_equal(real, simulated):
        raise AssertionError(f"{name}, {scheme}, {tau}: {real.tolist()} steps, but {simulated.tolist()} in simulation")
    return np.median(real, axis=0).tolist(), np.median(simulated, axis=0).tolist()


def milliseconds(comm: MPI.Intracomm, name: str) -> dict[tuple[str, str], float]:
    """From loads to a flow, by scheme and tau."""
    case = draw(name, 0)
    load = float((case.speeds * case.times)[comm.rank])
    ready = {key: diffuser(comm, case, *key, TOLERANCES[1]) for key in PUBLISHED}
    taken: dict[tuple[str, str], list[float]] = {key: [] for key in ready}
    for _ in range(ROUNDS):
        for key, one in ready.items():
            one.diffuse(load)  # wake up
            comm.Barrier()
            began = time.perf_counter()
            one.diffuse(load)
            taken[key].append(comm.allreduce(1e3 * (time.perf_counter() - began), MPI.MAX))
    for one in ready.values():
        one.close()
    return {key: statistics.median(values) for key, values in taken.items()}


def main(seeds: int) -> None:
    """Print the table on rank 0."""
    comm = MPI.COMM_WORLD
    rows, columns = most_square_mesh(comm.size)
    name = f"mesh:{rows}x{columns}"
    tables = {key: steps(comm, name, *key, seeds) for key in PUBLISHED}
    ms = milliseconds(comm, name)
    if comm.rank:
        return
    print(
        f"{name} on {comm.size} real ranks: steps to 5 % / 1 % / 1e-6, medians of {seeds} seeds; milliseconds to 1 %\n",
        "| scheme, tau | real | simulated | ms |",
        "|---|---|---|---|",
        *(
            f"| {scheme}, {tau} | {'/'.join(f'{n:g}' for n in real)} | {'/'.join(f'{n:g}' for n in simulated)} "
            f"| {ms[scheme, tau]:.3f} |"
            for (scheme, tau), (real, simulated) in tables.items()
        ),
        f"\nAll {seeds * len(TOLERANCES) * len(tables)} step counts are equal to those in simulation.",
        sep="\n",
        flush=True,
    )
