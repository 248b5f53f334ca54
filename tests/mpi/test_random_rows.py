"""Random Balancers and calls: the exact result, or an error on all ranks; then as new.

LB_MPI_RANDOM tells how many (usually 15); every rank draws the same, and its own rows.
"""

from __future__ import annotations

import os
import random
import warnings
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.diffusion.setup import ROWS_SCHEMES
from lb_mpi.graph import Graph, parse

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
N = int(os.environ.get("LB_MPI_RANDOM", "15"))
pytestmark = [pytest.mark.mpi, pytest.mark.every_size]


def draw_graph(rng: random.Random) -> Graph | None:
    pairs = [(a, b) for a in range(SIZE) for b in range(a + 1, SIZE)]
    some = sorted(rng.sample(pairs, rng.randint(0, len(pairs))))
    ends = [[a for a, _ in some], [b for _, b in some]]
    drawn = Graph.from_edges(SIZE, *np.array(ends, dtype=int))
    return rng.choice([None, parse(f"complete:{SIZE}"), parse(f"ring:{SIZE}"), drawn])


def calls(seed: int) -> int:
    """One Balancer with some calls; how many have failed, as they were meant to."""
    rng, mine = random.Random(seed), np.random.default_rng([seed, RANK])
    options: dict[str, Any] = {
        "graph": draw_graph(rng),
        "scheme": rng.choice(["auto", *ROWS_SCHEMES]),
        "when": rng.choice(["auto", "always", "always", 0.1]),
        "every": rng.choice([1, 1, 3]),
        "emulated_speed": rng.choice([1.0, 1.0 / (1 + RANK % 3)]),
    }
    dtype, order = np.dtype(rng.choice(["f8", ">f4", "i2", "c16"])), rng.choice("CF")
    row_s, size = rng.choice([0.0, 1e-6, 2e-5]), rng.choice([None, None, 1, 4])
    empty, failed = rng.choice([-1, 0, SIZE - 1]), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # graphs that are not connected
        balancer = lb_mpi.Balancer(COMM, **options)
    with balancer:
        for _ in range(rng.randint(2, 7)):
            bad, how = rng.choice([-1, -1, -1, rng.randrange(SIZE)]), rng.choice(["raises", "rows", "exits"])
            n = 0 if empty == RANK else int(mine.integers(0, 150))
            rows = np.array((mine.standard_normal((n, 3)) * 100).astype(dtype), order=order)  # type: ignore[call-overload]
            begun = [0]

            def function(
                block: np.ndarray, beside: np.ndarray, bad: int = bad, how: str = how, begun: list[int] = begun
            ) -> Any:
                begun[0] += 1
                until = MPI.Wtime() + row_s * len(block)
                while MPI.Wtime() < until:
                    pass
                if bad == RANK and how == "raises":
                    raise ArithmeticError("drawn")
                if bad == RANK and how == "exits":
                    raise SystemExit(3)
                return block[1:] if bad == RANK else (block + beside[:, None]).astype(dtype)

            beside = rows[:, 0].copy()
            expected = (rows + beside[:, None]).astype(dtype)
            try:
                result = balancer.map_rows(function, rows, beside, block_rows=size)
            except (lb_mpi.BalanceError, SystemExit) as error:
                failed += 1
                assert bad >= 0, error  # noqa: PT017
                assert isinstance(error, SystemExit) == (bad == RANK and how == "exits")  # noqa: PT017
            else:
                assert not COMM.allreduce(begun[0] if bad == RANK else 0), "it has failed, and nobody was told"
                assert result.dtype == dtype
                assert result.tobytes() == expected.tobytes()
                before = COMM.allreduce(len(rows))
                if rng.random() < 0.3:
                    assert COMM.allreduce(len(balancer.migrate(rows))) == before
                continue
            assert COMM.allreduce(1) == SIZE
        ones = np.ones((5, 2))
        assert np.array_equal(balancer.map_rows(np.negative, ones), -ones)
    return failed


def test_exact_or_told_and_then_as_new() -> None:
    first = int(os.environ.get("LB_MPI_SEED", "0"))
    failed = 0
    for seed in range(first, first + N):
        try:
            failed += calls(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert failed or N < 15
