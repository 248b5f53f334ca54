"""The real half of benchmarks.convergence, one rank for each node.

    mpiexec -n 25 python -m benchmarks.convergence --real [--exchange paper]

Steps of every scheme on real ranks, by the chosen exchange between neighbours, against simulation; and the time from loads
to a flow that balances to 1 %, by each exchange: milliseconds of the slowest rank, all schemes and exchanges in turn
(A B A B ...), medians over the rounds; what depends on no load is prepared before.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from mpi4py import MPI

from benchmarks.convergence_cases import REFERENCE, TOLERANCES, Case, draw
from lb_mpi.graph import Floats, most_square_mesh, parse
from lb_mpi.mpi.collective import barrier
from lb_mpi.mpi.diffuse import Diffused, Diffuser
from lb_mpi.mpi.exchange import METHODS

ROUNDS = 7


def diffuser(comm: MPI.Intracomm, name: str, scheme: str, tau: str, exchange: str, tolerance: float) -> Diffuser:
    """This rank's."""
    return Diffuser(comm, parse(name), scheme=scheme, tau=tau, exchange=exchange, tolerance=tolerance)


def diffuse(rank: int, one: Diffuser, case: Case) -> Diffused:
    """Balance a drawn problem."""
    speed = float(case.speeds[rank])
    return one.diffuse(speed * float(case.times[rank]), speed)


def steps(comm: MPI.Intracomm, name: str, scheme: str, tau: str, seeds: int, exchange: str) -> tuple[Floats, Floats]:
    """Steps on real ranks and in simulation: (seeds, TOLERANCES) each; an error unless all are equal."""
    real, simulated = np.zeros((seeds, len(TOLERANCES))), np.zeros((seeds, len(TOLERANCES)))
    cases = [draw(name, seed) for seed in range(seeds)]
    for k, tolerance in enumerate(TOLERANCES):
        with diffuser(comm, name, scheme, tau, exchange, tolerance) as one:
            real[:, k] = [diffuse(comm.rank, one, case).steps for case in cases]
        if comm.rank == 0:
            simulated[:, k] = [case.balance(scheme, tau, tolerance).steps for case in cases]
    barrier(comm)
    comm.Bcast(simulated, 0)
    if not np.array_equal(real, simulated):
        raise AssertionError(f"{name}, {scheme}, {tau}: {real.tolist()} steps, but {simulated.tolist()} in simulation")
    return real, simulated


def milliseconds(comm: MPI.Intracomm, name: str) -> dict[tuple[str, str, str], float]:
    """From loads to a flow, by scheme, tau and exchange."""
    case = draw(name, 0)
    ready = {(*key, how): diffuser(comm, name, *key, how, TOLERANCES[1]) for key in REFERENCE for how in METHODS}
    taken: dict[tuple[str, str, str], list[float]] = {key: [] for key in ready}
    for _ in range(ROUNDS):
        for key, one in ready.items():
            diffuse(comm.rank, one, case)  # wake up
            comm.Barrier()
            began = time.perf_counter()
            diffuse(comm.rank, one, case)
            taken[key].append(comm.allreduce(1e3 * (time.perf_counter() - began), MPI.MAX))
    for one in ready.values():
        one.close()
    return {key: statistics.median(values) for key, values in taken.items()}


def _medians(counts: Floats) -> str:
    return "/".join(f"{n:g}" for n in np.median(counts, axis=0))


def main(seeds: int, exchange: str) -> None:
    """Print the table on rank 0."""
    comm = MPI.COMM_WORLD
    rows, columns = most_square_mesh(comm.size)
    name = f"mesh:{rows}x{columns}"
    tables = {key: steps(comm, name, *key, seeds, exchange) for key in REFERENCE}
    ms = milliseconds(comm, name)
    if comm.rank:
        return
    print(
        f"{name} on {comm.size} real ranks, exchange of the steps: {exchange}",
        f"steps to 5 % / 1 % / 1e-6, medians of {seeds} seeds; milliseconds to 1 % by each exchange\n",
        f"| scheme, tau | real | simulated | {' | '.join(f'ms, {how}' for how in METHODS)} |",
        "|---|---|---|---|---|",
        *(
            f"| {scheme}, {tau} | {_medians(real)} | {_medians(simulated)} "
            f"| {' | '.join(f'{ms[scheme, tau, how]:.3f}' for how in METHODS)} |"
            for (scheme, tau), (real, simulated) in tables.items()
        ),
        f"\nAll {seeds * len(TOLERANCES) * len(tables)} step counts are equal to those in simulation.",
        sep="\n",
        flush=True,
    )
