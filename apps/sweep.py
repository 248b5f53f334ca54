"""A parameter sweep: Van der Pol's oscillator for many stiffnesses mu, each an independent task of `lb_mpi.Pool`.

mpiexec -n 4 python -m apps.sweep --output sweep.npz --checkpoint sweep.tasks
mpiexec -n 4 python -m apps.sweep --speeds 0.8,0.4,0.2,0.2 --costs --json

    x'' = mu (1 - x^2) x' - x,   x(0) = 2, x'(0) = 0,   mu drawn log-uniformly from 1 to 10,000

A few tasks take most of the time: near mu = 10 there are many periods of many steps each, and a hundred times less is to be
done at mu = 10,000.  The results are the same to the last bit on any number of ranks.
"""

from __future__ import annotations

import argparse
import io
import math
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy
from mpi4py import MPI
from numpy.typing import NDArray

import lb_mpi
from apps.command import app, own_speed, run
from lb_mpi import checks
from lb_mpi.cli.run.options import add_seed, add_slow_ranks
from lb_mpi.files import write_whole
from lb_mpi.mpi.common.collective import agree

DECADES = 4.0  # of mu, from 1 on
STEPS_A_PERIOD = 40  # about, in units of what a task costs at least

Floats = NDArray[np.float64]


class Motion(NamedTuple):
    """What a task finds."""

    x: float  # at the end
    v: float  # x' there
    amplitude: float  # the greatest |x| in the second half of the time
    periods: int  # that have begun: how often x has risen above 0
    evaluations: int  # of the right-hand side


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the app."""
    parser.add_argument("--tasks", type=int, default=2000, metavar="N", help="number of parameters (default: 2000)")
    parser.add_argument("--until", type=float, default=50.0, metavar="T",
        help="time until which the oscillator is computed (default: 50)")
    add_seed(parser, "the parameters")
    parser.add_argument("--output", metavar="FILE.npz", help="write parameters and results to this file")
    parser.add_argument("--checkpoint", metavar="FILE",
        help="save the results of finished tasks in FILE; a later run with this FILE computes only the others")
    group = parser.add_argument_group("balancing")
    group.add_argument("--costs", action="store_true",
        help="predict the cost of each task, and start the largest tasks first")
    add_slow_ranks(group)


def stiffnesses(n: int, seed: int) -> Floats:
    """(n,) values of mu."""
    return np.asarray(10.0 ** np.random.default_rng(seed).uniform(0.0, DECADES, n))


def predicted_costs(mu: Floats, until: float) -> Floats:
    """(n,) costs in any unit, by the number of periods: one lasts 2 pi for small mu, (3 - 2 ln 2) mu for large."""
    period = 2.0 * math.pi + (3.0 - 2.0 * math.log(2.0)) * mu
    return 1.0 + STEPS_A_PERIOD * until / period


def oscillator(_time: float, state: Sequence[float], mu: float) -> tuple[float, float]:
    """The right-hand side: (x', v') of (x, v)."""
    x, v = state
    return v, mu * (1.0 - x * x) * v - x


def solve(mu: float, until: float) -> tuple[float, float, float, int, int]:
    """A task: the fields of the motion for one mu, as a plain tuple, which a checkpoint can hold; ArithmeticError."""
    found = scipy.integrate.solve_ivp(oscillator, (0.0, until), (2.0, 0.0), "LSODA", args=(float(mu),), rtol=1e-6, atol=1e-9)
    if not found.success:
        raise ArithmeticError(f"mu = {mu}: {found.message}")
    x, v = found.y
    late = np.abs(x[found.t >= 0.5 * until])
    begun = np.count_nonzero((x[:-1] < 0.0) & (x[1:] >= 0.0))
    return float(x[-1]), float(v[-1]), float(late.max()), int(begun), int(found.nfev)


def check_output(path: str | None) -> None:
    """Check before the work that the file of its results can be written; OSError."""
    if path is not None and os.path.isdir(path):
        raise IsADirectoryError(f"--output {path}: expected a file, and this is a folder")
    if path is not None and not os.path.isdir(os.path.dirname(path) or "."):
        raise FileNotFoundError(f"--output {path}: expected a file in a folder that exists")


def write(path: str, mu: Floats, motions: Sequence[Motion]) -> None:
    """Write mu and, by their names, what was found, each as an array of shape (tasks,); the file whole or not at all."""
    columns = {name: np.array(column) for name, column in zip(Motion._fields, zip(*motions, strict=True), strict=True)}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, mu=mu, **columns)
    write_whole(path, file.getvalue())


def main(comm: MPI.Intracomm, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Solve for all mu, write what was found, and say how the time was spent."""
    speed = own_speed(comm, options.speeds)
    until = checks.number("--until", options.until, above=0.0)
    mu = stiffnesses(checks.integer("--tasks", options.tasks, least=1), checks.integer("--seed", options.seed, least=0))
    costs = predicted_costs(mu, until) if options.costs else None
    agree(comm, lambda: check_output(options.output) if comm.rank == 0 else None)
    with lb_mpi.Pool(comm, emulated_speed=speed) as pool:
        found = pool.map(partial(solve, until=until), mu, costs=costs, checkpoint=options.checkpoint)
        report = pool.report()
    motions = [Motion(*one) for one in found or ()]
    agree(comm, lambda: write(options.output, mu, motions) if motions and options.output else None)
    if report is None:
        return {}, []
    answer = {
        "ranks": comm.size,
        "tasks": report.n,
        "seconds": report.seconds,
        "lower_bound_seconds": report.lower_bound_s,
        "work_seconds": sum(rank.useful_s * rank.speed for rank in report.ranks),
        "tasks_by_rank": [rank.done for rank in report.ranks],
        "busy_fraction": [rank.busy_s / report.seconds for rank in report.ranks],
        "steals": sum(rank.received for rank in report.ranks),
        "sent_bytes": sum(rank.sent_bytes for rank in report.ranks),
        "evaluations": sum(motion.evaluations for motion in motions),
    }
    share = report.lower_bound_s / report.seconds
    return answer, [str(report), f"{answer['evaluations']:,} evaluations; lower bound / time {share:.3f}"]


COMMAND = app("sweep", "solve a stiff differential equation for many parameters, on all ranks", add_arguments, main)

if __name__ == "__main__":
    run(COMMAND)
