"""Random calls of all doors on these ranks, with Ctrl-C on one rank at any moment; the program catches it, and checks the
answer.  Run by `benchmarks.campaign_calls`.

    mpiexec -n 4 python -m mpi4py -m benchmarks.campaign_doors_ranks SEED OPERATIONS [rows]

An operation is a call of lb_mpi: `map_rows`, `migrate` (with "rows", only these), `distribute`, `exchange`, `rebalance`,
`search`, `save` and `load`, `map`, `imap` and `submit` of pools whose ranks all call or serve.  In half, a rank gets SIGINT
after a random time, often when the call hands over what it has computed; in others, a function fails.

Each rank either returns the exact value, or raises KeyboardInterrupt, `lb_mpi.Error` or the error that was meant.  After
each operation, whether a rank has raised or not, all rows and vertices have one owner, with their values, and a folder of
saves holds one of the steps that were saved.  A rank that raises outside of lb_mpi, since the signal came a moment late,
ends its case: this is counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import lb_mpi
from benchmarks.measuring import Meant, spin
from lb_mpi.graph_files import as_graph

OF_RANKS = ("interrupted", "on another rank", "failed as meant")  # counted on each rank


class Late(Exception):
    """Ctrl-C has arrived when the call had returned already: what it has returned is lost, without lb_mpi's doing."""


class Ended(NamedTuple):
    """How a call has ended."""

    value: Any
    returned: bool  # on this rank
    by_all: bool


class Alarm(threading.Thread):
    """Sends SIGINT to this process, some time after it was set, if it is still set."""

    def __init__(self) -> None:
        """Start, unset."""
        super().__init__(daemon=True)
        self._at, self._changed = float("inf"), threading.Condition()
        self.start()

    def run(self) -> None:
        """Wait for the time."""
        while True:
            with self._changed:
                while (left_s := self._at - time.perf_counter()) > 0.0:
                    self._changed.wait(None if left_s == float("inf") else left_s)
                if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    self._changed.wait(5e-5)  # the call has not begun: without it, Ctrl-C is none of lb_mpi's
                    continue
                self._at = float("inf")
                os.kill(os.getpid(), signal.SIGINT)

    def set(self, after_s: float) -> None:
        """Send it after some seconds; inf: not at all."""
        with self._changed:
            self._at = time.perf_counter() + after_s
            self._changed.notify()


class Case:
    """Everything that the operations of one start share."""

    def __init__(self, seed: int) -> None:
        """Open; `seed` is the same on all ranks."""
        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.rng, self.own = random.Random(seed), random.Random(f"{seed} {self.comm.rank}")  # the first: alike on all ranks
        self.alarm, self.counts = Alarm(), Counter[str](dict.fromkeys(("operations", "cases", *OF_RANKS, "late"), 0))
        self.victim = -1  # which gets SIGINT in the next call
        self.guilty = -1  # on which the next function fails
        self.folder = Path(self.comm.bcast(tempfile.mkdtemp() if self.rank == 0 else None))

    def misfortune(self) -> None:
        """Draw what happens in the next call."""
        kind = self.rng.random()
        self.victim = self.rng.randrange(self.size) if kind < 0.5 else -1
        self.guilty = self.rng.randrange(self.size) if 0.5 <= kind < 0.6 else -1

    def fail(self) -> None:
        """Raise Meant on the rank that is to fail."""
        if self.guilty == self.rank:
            raise Meant("meant")

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Ended:
        """Call a function of lb_mpi, in which one rank may get SIGINT; AssertionError if it ends as it may not.

        `Late` on all ranks if Ctrl-C is raised outside of lb_mpi.
        """
        self.misfortune()
        value, how = None, "returned"
        if self.victim == self.rank:
            self.alarm.set(self.own.choice([0.0, 2e-4, 1e-3, 5e-3, 2e-2]) * self.own.random())
        try:
            value = function(*args, **options)
        except KeyboardInterrupt as error:
            files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            how = "interrupted" if any(f"{os.sep}lb_mpi{os.sep}" in file for file in files) else "late"
        except (lb_mpi.Error, BrokenExecutor, Meant) as error:
            how = "meant" if "Meant" in repr(error) or "meant" in str(error) else "other"
            if how == "other" and "KeyboardInterrupt" not in str(error) and "after a failure" not in str(error):
                how = f"{type(error).__name__}: {error}"
        with contextlib.suppress(KeyboardInterrupt):
            self.alarm.set(float("inf"))
            time.sleep(0)
        ends = self.all(how)
        self.counts["operations"] += 1
        for word, one in (("interrupted", "interrupted"), ("on another rank", "other"), ("failed as meant", "meant")):
            self.counts[word] += how == one
        self.counts["late"] += "late" in ends
        assert {"returned", "interrupted", "late", "other", "meant"}.issuperset(ends), f"{function.__name__}: {ends}"
        if "late" in ends:
            raise Late
        assert "interrupted" in ends or "other" not in ends, f"{function.__name__}: {ends}: nobody was interrupted"
        return Ended(value, how == "returned", set(ends) == {"returned"})

    def all(self, value: Any) -> list[Any]:
        """Return the values of all ranks, whatever signals arrive."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        found: list[Any] = self.comm.allgather(value)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return found


# --- the doors ----------------------------------------------------------------------------------------------------------


def rows_of(ids: np.ndarray) -> np.ndarray:
    """Return the rows with these numbers: (n, 3)."""
    return np.column_stack([ids, np.sin(ids), ids * ids]).astype(float)


def draw_form(case: Case) -> tuple[Callable[[np.ndarray], Any], Callable[[Any], np.ndarray], Callable[[Any], Any]]:
    """Draw a form of rows; return the rows with given numbers, the numbers of given rows, and what the function returns."""
    kind: Any = case.rng.choice(["C", "F", "flat", "tuple", "objects"])
    dtype: Any = case.rng.choice(["f8", ">f4", "c16", "i8"])
    if kind == "objects":
        return (
            lambda ids: [[k, "x" * (k % 5)] for k in ids.tolist()],
            lambda rows: np.array([one[0] for one in rows], dtype=int),
            lambda rows: [[2 * number + 1, text + "!"] for number, text in rows],
        )
    if kind == "tuple":
        return (
            lambda ids: (rows_of(ids).astype(dtype), ids % 3 == 0), lambda rows: rows[0][:, 0].real.astype(int),
            lambda rows: (rows[1], rows[0] * 2 + 1, rows[0][:, 1] > 0),
        )  # fmt: skip
    if kind == "flat":
        return lambda ids: ids.astype(dtype), lambda rows: rows.real.astype(int), lambda rows: rows * 2 + 1
    of = lambda ids: np.array(rows_of(ids), dtype, order=kind)  # noqa: E731
    return of, lambda rows: rows[:, 0].real.astype(int), lambda rows: rows * 2 + 1


def bits(value: Any) -> Any:
    """Return the types and bits of arrays, also in a tuple, or a list as it is."""
    if isinstance(value, tuple):
        return tuple(map(bits, value))
    return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def rows(case: Case) -> None:
    """Rows: map_rows and migrate of one or two Balancers of all ranks, or of some, until one of them raises."""
    rng, (rows_with, ids_of, result), block_rows = case.rng, draw_form(case), case.rng.choice([None, None, 1, 4])
    comm: Any = case.comm.Split(rng.choice([0, case.rank % 2, case.rank // 2]), rng.choice([1, -1]) * case.rank)
    counts = [rng.choice([0, 1, 5, 20, 200]) for _ in range(case.size)]
    first = sum(counts[: case.rank])
    mine, total = rows_with(np.arange(first, first + counts[case.rank])), sum(counts)
    packs: dict[str, Any] = {"pack": pickle.dumps, "unpack": pickle.loads} if isinstance(mine, list) else {}

    def function(block: Any, *beside: np.ndarray) -> Any:
        spin((2e-5 if total < 200 else 2e-6) * len(ids_of(block)) / speeds[case.rank])
        case.fail()
        assert all(np.array_equal(ids_of(block), ids) for ids in beside), f"rows {ids_of(block)} with numbers {beside}"
        return result(block)

    with contextlib.suppress(lb_mpi.Error, KeyboardInterrupt, Meant), contextlib.ExitStack() as opened:
        balancers = []
        for _ in range(rng.choice([1, 1, 2])):
            scheme = rng.choice(["auto", "direct", "fos", "sos"])
            whens = ("auto", "always", 0.05) if scheme in ("auto", "direct") else ("auto", 0.05)
            balancer = lb_mpi.Balancer(comm, scheme=scheme, when=rng.choice(whens), every=rng.choice([1, 1, 3]))
            balancers.append(opened.enter_context(balancer))
        for number in range(rng.randint(1, 12)):
            if number == 0 or rng.random() < 0.3:
                speeds = [rng.choice([1.0, 0.5, 0.1]) for _ in range(case.size)]
            balancer, ids = rng.choice(balancers), ids_of(mine)
            if rng.random() < 0.6:
                beside = () if packs else (ids,)
                ended = case.call(balancer.map_rows, function, mine, *beside, block_rows=block_rows, **packs)
                if comm.allreduce(len(ids)) and ended.returned:  # otherwise the form of the results is unknown
                    assert bits(ended.value) == bits(result(mine)), "map_rows: wrong rows"
            else:
                costs = rng.choice([None, 1.0 + 3 * (case.rank == 0) * np.ones(len(ids)), 1.0 + ids % 7])
                order = rng.choice(["appended", "kept"])
                ended = case.call(balancer.migrate, mine, costs=costs, order=order, **packs)
                if ended.returned:
                    mine = ended.value
                ids = ids_of(mine)
                assert bits(mine) == bits(rows_with(ids)), "migrate: wrong values"
                ids = np.sort(np.concatenate(case.all(ids)))
                assert np.array_equal(ids, np.arange(total)), f"migrate: rows {np.bincount(ids, minlength=total)} times"
            if case.victim < 0:
                assert len({*comm.allgather(ended.returned)}) == 1, "only some ranks have failed"
            if not ended.by_all:
                raise lb_mpi.Error("this balancer has failed")
    comm.Free()


def mesh(case: Case) -> None:
    """A mesh: distribute, exchange and rebalance, until one of them raises."""
    name = case.rng.choice(["mesh:6x6", "mesh:1x30", "torus:5x5", "complete:9"])
    graph = as_graph(name)
    slabs = case.rng.random() < 0.3
    parts = np.sort(np.random.default_rng(case.rng.randrange(1 << 30)).integers(0, case.size, graph.n))
    given: dict[str, Any] = {"parts": parts if case.rank == 0 else None, "method": "slabs" if slabs else "static"}
    case.guilty = -1
    ended = case.call(lb_mpi.distribute, case.comm, graph if case.rank == 0 else None, **given)
    if not ended.by_all:
        return
    plan = ended.value
    with contextlib.suppress(lb_mpi.Error, KeyboardInterrupt, Meant), plan:
        values = np.sin(plan.vertices.astype(float)) if case.rng.random() < 0.8 else rows_of(plan.vertices)
        wide = values.ndim == 2
        for _ in range(case.rng.randint(1, 8)):
            if case.rng.random() < 0.4:
                ended = case.call(plan.exchange, values)
                if ended.returned:
                    both = np.concatenate([plan.vertices, plan.ghosts])
                    expected = rows_of(both) if wide else np.sin(both.astype(float))
                    assert np.array_equal(ended.value, expected), "exchange: wrong ghosts"
            else:
                costs = np.where(plan.vertices < case.rng.randrange(graph.n), 5.0, 1.0)
                ended = case.call(plan.rebalance, values, costs=costs, when="always")
                if ended.returned:
                    (values,) = ended.value
                everyone = case.all((plan.vertices, values))
                owned = np.concatenate([vertices for vertices, _ in everyone])
                assert np.array_equal(np.sort(owned), np.arange(graph.n)), "rebalance: vertices without one owner"
                expected = rows_of(plan.vertices) if wide else np.sin(plan.vertices.astype(float))
                assert np.array_equal(values, expected), "rebalance: wrong values"
            if not ended.by_all:
                raise lb_mpi.Error("this plan has failed")


def tree(case: Case) -> None:
    """A search that counts the nodes of a tree."""
    depth = case.rng.randint(3, 9)

    def children(node: int) -> list[int]:
        if node.bit_length() == depth:
            case.fail()
            return []
        return [2 * node, 2 * node + 1]

    problem = lb_mpi.TreeSearch(1, children)
    ended = case.call(lb_mpi.search, case.comm, problem, balance=case.rng.random() < 0.9)
    if ended.returned:
        assert ended.value.value == 2**depth - 1, f"search: {ended.value.value} of {2**depth - 1} nodes"


def saves(case: Case) -> None:
    """Saves into one folder, and a load after each."""
    folder = case.folder / f"{case.rng.random()}"
    possible = {-1}  # what the folder may hold
    case_rows = [case.rng.choice([0, 1, 7]) for _ in range(case.size)]
    first = sum(case_rows[: case.rank])
    ids = np.arange(first, first + case_rows[case.rank])
    for step in range(case.rng.randint(1, 4)):
        ended = case.call(lb_mpi.save, case.comm, folder, step, rows=rows_of(ids) + step)
        possible = {step} if ended.by_all else possible | {step}
        ended = case.call(lb_mpi.load, case.comm, folder)
        found = ended.value
        if not ended.by_all:
            continue
        steps = case.all(-1 if found is None else found[0])
        assert {*steps}.issubset(possible), f"load: steps {steps}, of {possible}"
        assert len({*steps}) == 1, f"load: steps {steps}"
        possible = {steps[0]}
        if found is not None:
            everything = np.concatenate(case.all(found[1]["rows"]))
            assert np.array_equal(everything, rows_of(np.arange(sum(case_rows))) + steps[0]), "load: other rows"


def square(x: int) -> int:
    """A task."""
    spin(1e-5)
    if x < 0:
        raise Meant("meant")
    return x * x


def pools(case: Case) -> None:
    """A pool, all of whose ranks call its methods, or serve; its maps, streams and single tasks."""
    alone, n = case.rng.random() < 0.5, case.rng.choice([0, 1, 10, 60])
    kind = case.rng.choice(["map", "imap", "submit", "to all"])
    fails = case.rng.random() < 0.1 and n
    items = [-1 if fails and k == n // 2 else k for k in range(n)]

    def work() -> Any:
        with lb_mpi.Pool(case.comm, root=0 if alone else None) as pool:
            if alone and pool is None:
                return None
            if alone and kind == "submit":
                return [one.get() for one in [pool.apply_async(square, (item,)) for item in items]]
            if kind == "imap":
                return list(pool.imap(square, iter(items) if alone else items))
            return pool.map(square, items, to="all" if kind == "to all" and not alone else "root")

    case.guilty = -1
    ended = case.call(work)
    if ended.returned and (case.rank == 0 or (kind == "to all" and not alone)):
        assert ended.value == [x * x for x in items], f"{kind}: wrong results"


DOORS = (rows, rows, mesh, mesh, tree, saves, pools, pools)


def main() -> None:
    """Run operations until there are so many; rank 0 prints what came of them as a JSON object."""
    seed, n_operations = (int(word) for word in sys.argv[1:3])
    case, doors = Case(seed), (rows,) if sys.argv[3:] == ["rows"] else DOORS
    while case.counts["operations"] < n_operations:
        door = case.rng.choice(doors)
        case.victim = case.guilty = -1
        try:
            with contextlib.suppress(Late):
                door(case)
        except Exception as error:  # an AssertionError: a wrong value
            where = f"seed {seed}, operation {case.counts['operations']}, {door.__name__}, rank {case.rank}"
            print(f"{where}: {''.join(traceback.format_exception(error))}", file=sys.stderr, flush=True)
            case.comm.Abort(3)
        case.counts["cases"] += 1
    totals = case.comm.allgather([case.counts[name] for name in OF_RANKS])
    counts = {**case.counts, **dict(zip(OF_RANKS, map(sum, zip(*totals, strict=True)), strict=True))}
    if case.rank == 0:
        shutil.rmtree(case.folder)
        print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
