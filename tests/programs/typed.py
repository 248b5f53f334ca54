"""Uses each public name of lb_mpi as typed programs do: `mypy --strict` finds nothing (tests/unit/test_typing.py)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import lb_mpi


def square(number: int) -> float:
    """Compute a task."""
    return float(number**2)


def heat(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute rows."""
    cosines: NDArray[np.float64] = np.cos(rows)
    return cosines


def children(node: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Unfold a tree."""
    if len(node) < 4:
        yield (*node, len(node))


def pools() -> list[float] | None:
    """Map on all ranks."""
    with lb_mpi.Pool(MPI.COMM_WORLD) as pool:
        doubled = [2.0 * one for one in pool.imap(square, range(10), costs=range(10), chunksize=2)]
        indexed: dict[int, float] = dict(pool.imap_indexed(square, range(10)))
        pool.map(square, range(10), checkpoint="squares", retries=2, retry_pause=0.5)
        kept: dict[int, float] = lb_mpi.read_checkpoint("squares")
        print(doubled, indexed, kept, sorted(pool.imap_unordered(square, range(10), return_exceptions=True)))
        try:
            return pool.map(square, range(10))
        except lb_mpi.TaskError as error:
            raise lb_mpi.Error(error.traceback) from error


def executors() -> list[float]:
    """Submit on rank 0."""
    with lb_mpi.Executor(MPI.COMM_WORLD, initializer=square, initargs=(1.0,)) as executor:
        if executor is None:
            return []
        futures: Executor = executor
        future: Future[float] = executor.submit(square, 3)
        print(futures.submit(square, 4).result())
        return [future.result(), *executor.map(square, range(10), unordered=True)]


def rows(comm: MPI.Intracomm) -> float:
    """Balance rows."""
    mine = np.ones((10, 3))
    with lb_mpi.Balancer(comm, graph=f"ring:{comm.size}", scheme="fos") as balancer:
        mine = balancer.migrate(balancer.map_rows(heat, mine), costs=np.ones(10))
        last: lb_mpi.Balanced | None = balancer.history[-1] if balancer.history else None
        report: lb_mpi.Report = balancer.report()
        first: lb_mpi.RankWork = report.ranks[0]
        print(report, first.busy_s)
    return 0.0 if last is None else last.imbalance_after


def searches(comm: MPI.Intracomm, folder: Path) -> int:
    """Search a tree, with a bound and saves."""
    bound = lb_mpi.Bound("min")
    tree = lb_mpi.TreeSearch((), children, value=lambda node: len(node))
    problem: lb_mpi.Problem = tree
    try:
        result: lb_mpi.SearchResult = lb_mpi.search(comm, problem, bound=bound, save=folder / "search")
    except (lb_mpi.ProtocolError, lb_mpi.SearchError, lb_mpi.SaveError):
        return 0
    work: list[lb_mpi.RankWork] = result.ranks
    print(result.found, result.seconds)
    return sum(rank.done for rank in work)


def resumed(problem: lb_mpi.Savable, states: list[bytes]) -> lb_mpi.Savable:
    """Go on from saved states."""
    problem.resume(states, range(len(states)))
    return problem


def graphs(comm: MPI.Intracomm, folder: Path) -> float:
    """Cut a graph, say who computes which part, and exchange values."""
    machine: lb_mpi.Machine = lb_mpi.measure(comm, messages=False)
    lb_mpi.write_machine(machine, folder / "machine.json")
    machine = lb_mpi.read_machine(folder / "machine.json")
    graph: lb_mpi.Graph = lb_mpi.as_graph("mesh:10x10")
    order: lb_mpi.Fiedler = lb_mpi.fiedler(graph)
    assert order.value > 0.0
    shares: lb_mpi.Allocation = lb_mpi.allocate(100, 1.0 / machine.speeds)
    parts = lb_mpi.partition(graph, comm.size, targets=shares.counts)
    metrics: lb_mpi.PartitionMetrics = lb_mpi.partition_metrics(graph, parts, comm.size)
    cost: lb_mpi.MappingCost | None = metrics.cost
    layout: lb_mpi.Arrangement = lb_mpi.arrange(f"ring:{comm.size}", machine.speeds)
    try:
        flow: lb_mpi.Balance = lb_mpi.balance(f"ring:{comm.size}", np.ones(comm.size), machine.speeds)
    except lb_mpi.BalanceError:
        return 0.0
    placed: MPI.Intracomm = lb_mpi.reorder_ranks(comm, f"ring:{comm.size}", machine.speeds)
    placed.Free()
    with lb_mpi.distribute(comm, graph, speeds=machine.speeds) as plan:
        mine: lb_mpi.HaloPlan = plan
        around = plan.exchange(np.ones(len(mine.vertices)))
        (around,) = plan.rebalance(around[: len(mine.vertices)])
        moved: lb_mpi.Rebalanced | None = plan.last
        assert moved is not None
    print(cost, layout.positions, flow.converged)
    return float(around.sum())


def steps(comm: MPI.Intracomm, folder: Path) -> int:
    """Save and load; stop when people want it."""
    saved = lb_mpi.load(comm, folder)
    step, heat_there = (0, np.zeros(10)) if saved is None else (saved[0], saved[1]["heat"])
    with lb_mpi.asked_to_stop(comm) as stop:
        while not stop() and step < 3:
            step += 1
            lb_mpi.save(comm, folder, step, heat=heat_there)
    if step < 3:
        raise lb_mpi.Stopped
    return step


if __name__ == "__main__":
    lb_mpi.throttle(0.5)
    print(pools(), rows(MPI.COMM_WORLD))
