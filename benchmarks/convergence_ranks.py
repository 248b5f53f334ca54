"""The real half of benchmarks.convergence, one rank for each node.

    mpiexec -n 25 python -m benchmarks.convergence --real [--exchange paper]

Steps of every scheme on real ranks against simulation, and the time from loads to a flow that balances to 1 %: milliseconds
of the slowest rank, all schemes in turn (A B A B ...), medians over the rounds; what depends on no load is prepared before.
"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from benchmarks.convergence_cases import REFERENCE, TOLERANCES, Case, draw
from lb_mpi.graph import most_square_mesh
from lb_mpi.mpi.diffuse import Diffused, Diffuser

ROUNDS = 15


class Nodes(NamedTuple):
    """The ranks, one for each node of a drawn problem."""

    comm: MPI.Intracomm
    case: Case
    exchange: str

    def diffuser(self, scheme: str, tau: str, tolerance: float) -> Diffuser:
        """This rank's."""
        options = {"scheme": scheme, "tau": tau, "exchange": self.exchange}
        return Diffuser(self.comm, self.case.graph, tolerance=tolerance, **options)  # type: ignore[arg-type]

    def diffuse(self, one: Diffuser) -> Diffused:
        """Balance it."""
        speed = float(self.case.speeds[self.comm.rank])
        return one.diffuse(speed * float(self.case.times[self.comm.rank]), speed)


def steps(
    comm: MPI.Intracomm, name: str, scheme: str, tau: str, seeds: int, exchange: str
) -> tuple[list[float], list[float]]:
    """Medians of the steps on real ranks and in simulation, for each of TOLERANCES; an error unless all are equal."""
    real, simulated = np.zeros((seeds, len(TOLERANCES))), np.zeros((seeds, len(TOLERANCES)))
    for seed in range(seeds):
        nodes = Nodes(comm, draw(name, seed), exchange)
        for k, tolerance in enumerate(TOLERANCES):
            with nodes.diffuser(scheme, tau, tolerance) as one:
                real[seed, k] = nodes.diffuse(one).steps
            if comm.rank == 0:
                simulated[seed, k] = nodes.case.balance(scheme, tau, tolerance).steps
    comm.Bcast(simulated, 0)
    if not np.array_equal(real, simulated):
        raise AssertionError(f"{name}, {scheme}, {tau}: {real.tolist()} steps, but {simulated.tolist()} in simulation")
    return np.median(real, axis=0).tolist(), np.median(simulated, axis=0).tolist()


def milliseconds(comm: MPI.Intracomm, name: str, exchange: str) -> dict[tuple[str, str], float]:
    """From loads to a flow, by scheme and tau."""
    nodes = Nodes(comm, draw(name, 0), exchange)
    ready = {key: nodes.diffuser(*key, TOLERANCES[1]) for key in REFERENCE}
    taken: dict[tuple[str, str], list[float]] = {key: [] for key in ready}
    for _ in range(ROUNDS):
        for key, one in ready.items():
            nodes.diffuse(one)  # wake up
            comm.Barrier()
            began = time.perf_counter()
            nodes.diffuse(one)
            taken[key].append(comm.allreduce(1e3 * (time.perf_counter() - began), MPI.MAX))
    for one in ready.values():
        one.close()
    return {key: statistics.median(values) for key, values in taken.items()}


def main(seeds: int, exchange: str) -> None:
    """Print the table on rank 0."""
    comm = MPI.COMM_WORLD
    rows, columns = most_square_mesh(comm.size)
    name = f"mesh:{rows}x{columns}"
    tables = {key: steps(comm, name, *key, seeds, exchange) for key in REFERENCE}
    ms = milliseconds(comm, name, exchange)
    if comm.rank:
        return
    print(
        f"{name} on {comm.size} real ranks, exchange: {exchange}",
        f"steps to 5 % / 1 % / 1e-6, medians of {seeds} seeds; milliseconds to 1 %\n",
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
