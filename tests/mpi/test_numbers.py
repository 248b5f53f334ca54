"""Every number that a door takes: it works, or all ranks raise a ValueError or TypeError that says what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lb_mpi
from lb_mpi.searching.uts import Tree, UnbalancedTreeSearch
from tests.mpi.sizes import COMM, SIZE

pytestmark = [pytest.mark.mpi, pytest.mark.one_mpi]

TINY = 5e-324
VALUES: list[Any] = [
    10**400, 2**70, 1e308, TINY, math.nan, math.inf, -1, 0, 0.5, 1j, "3", None, True, [1], np.bool_(True), np.int8(1),
    np.uint64(2**64 - 1), np.float32(0.5), np.longdouble("1e4000"), np.array(1), np.array([1.0, 2.0]),
]  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> Iterator[lb_mpi.Pool]:
    with lb_mpi.Pool(COMM) as pool:
        yield pool


def mapped(pool: lb_mpi.Pool, items: Any = 3, **options: Any) -> None:
    """Two maps, since the first one teaches the pool how fast ranks are."""
    for _ in range(2):
        pool.map(abs, items, **options)
    assert pool.map(abs, 3, to="all") == [0, 1, 2]


def made(**options: Any) -> None:
    with lb_mpi.Pool(COMM, **options) as pool:
        if pool:
            for _ in range(2):
                found = pool.map(abs, range(20), costs=range(20))
                assert found == (list(range(20)) if pool.is_root else None)


def balanced(block_rows: Any = None, **options: Any) -> None:
    with lb_mpi.Balancer(COMM, **options) as balancer:
        for _ in range(2):
            assert (balancer.map_rows(lambda rows: rows + 1.0, np.zeros(20), block_rows=block_rows) == 1.0).all()


def migrated(costs: Any) -> None:
    with lb_mpi.Balancer(COMM) as balancer:
        rows = balancer.migrate(np.zeros(4), costs=costs)
        assert COMM.allreduce(len(rows)) == 4 * SIZE


def searched(**options: Any) -> None:
    assert lb_mpi.search(COMM, UnbalancedTreeSearch(Tree(depth=3)), **options).value.nodes > 0


def distributed(**options: Any) -> None:
    lb_mpi.distribute(COMM, f"mesh:4x{SIZE}", **{"method": "block", **options}).close()


def reordered(speeds: list[float], **options: Any) -> None:
    lb_mpi.reorder_ranks(COMM, f"ring:{SIZE}", speeds, **options).Free()


def measured(**options: Any) -> None:
    lb_mpi.measure(COMM, messages=False, **{"rounds": 1, "round_s": 1e-3, **options})


GRAPH = "mesh:2x4"
TOO_LONG: dict[str, Callable[[Any], bool]] = {  # what works, and takes so long
    "emulated_speed": lambda value: 0.0 < value < 1e-3,
    "round_s": lambda value: 0.1 < value <= 1.0,
}
DOORS: dict[str, Callable[..., Any]] = {
    "Pool root": lambda v, pool, path: made(root=v),
    "Pool speeds": lambda v, pool, path: made(speeds=v),
    "Pool speeds[0]": lambda v, pool, path: made(speeds=[v] + [1.0] * (SIZE - 1)),
    "Pool emulated_speed": lambda v, pool, path: made(emulated_speed=v),
    "map items": lambda v, pool, path: mapped(pool, [] if isinstance(v, list | np.ndarray) else v),
    "map costs": lambda v, pool, path: mapped(pool, costs=v),
    "map costs[2]": lambda v, pool, path: mapped(pool, costs=[1, 2, v]),
    "map chunksize": lambda v, pool, path: mapped(pool, chunksize=v),
    "Balancer tolerance": lambda v, pool, path: balanced(tolerance=v),
    "Balancer when": lambda v, pool, path: balanced(when=v),
    "Balancer every": lambda v, pool, path: balanced(every=v),
    "Balancer emulated_speed": lambda v, pool, path: balanced(emulated_speed=v),
    "map_rows block_rows": lambda v, pool, path: balanced(block_rows=v),
    "migrate costs": lambda v, pool, path: migrated(v),
    "migrate costs[1]": lambda v, pool, path: migrated([1, v, 1, 1]),
    "search threshold": lambda v, pool, path: searched(threshold=v),
    "search quantum": lambda v, pool, path: searched(quantum=v),
    "search seed": lambda v, pool, path: searched(seed=v),
    "search emulated_speed": lambda v, pool, path: searched(emulated_speed=v),
    "distribute root": lambda v, pool, path: distributed(root=v),
    "distribute imbalance": lambda v, pool, path: distributed(imbalance=v),
    "distribute unit_s": lambda v, pool, path: distributed(unit_s=v),
    "distribute seed": lambda v, pool, path: distributed(seed=v),
    "distribute speeds": lambda v, pool, path: distributed(speeds=v),
    "distribute speeds[0]": lambda v, pool, path: distributed(speeds=[v] + [1.0] * (SIZE - 1)),
    "distribute emulated_speed": lambda v, pool, path: distributed(emulated_speed=v),
    "reorder_ranks speeds[0]": lambda v, pool, path: reordered([v] + [1.0] * (SIZE - 1)),
    "reorder_ranks seed": lambda v, pool, path: reordered([1.0] * SIZE, seed=v),
    "measure rounds": lambda v, pool, path: measured(rounds=v),
    "measure round_s": lambda v, pool, path: measured(round_s=v),
    "measure emulated_speed": lambda v, pool, path: measured(emulated_speed=v),
    "save step": lambda v, pool, path: lb_mpi.save(COMM, path / "saves", v, x=np.zeros(3)),
    "throttle speed": lambda v, pool, path: lb_mpi.throttle(v),
    "balance loads[0]": lambda v, pool, path: lb_mpi.balance(GRAPH, [v] + [1] * 7, np.ones(8)),
    "balance speeds[0]": lambda v, pool, path: lb_mpi.balance(GRAPH, np.ones(8), [v] + [1] * 7, max_steps=9),
    "balance tolerance": lambda v, pool, path: lb_mpi.balance(GRAPH, range(8), np.ones(8), tolerance=v, max_steps=99),
    "balance max_steps": lambda v, pool, path: lb_mpi.balance(GRAPH, range(8), np.ones(8), max_steps=v),
    "partition k": lambda v, pool, path: lb_mpi.partition(GRAPH, v, effort="fast"),
    "partition imbalance": lambda v, pool, path: lb_mpi.partition(GRAPH, 2, imbalance=v, effort="fast"),
    "partition seed": lambda v, pool, path: lb_mpi.partition(GRAPH, 2, seed=v, effort="fast"),
    "partition targets[0]": lambda v, pool, path: lb_mpi.partition(GRAPH, 2, targets=[v, 1], effort="fast"),
    "partition_metrics k": lambda v, pool, path: lb_mpi.partition_metrics(GRAPH, [0] * 8, v),
    "partition_metrics parts[0]": lambda v, pool, path: lb_mpi.partition_metrics(GRAPH, [v] + [0] * 7, 2),
    "arrange speeds[0]": lambda v, pool, path: lb_mpi.arrange("ring:4", [v, 1, 2, 3]),
    "arrange tolerance": lambda v, pool, path: lb_mpi.arrange("ring:4", [1, 2, 3, 4], tolerance=v),
    "arrange seed": lambda v, pool, path: lb_mpi.arrange("ring:4", [1, 2, 3, 4], seed=v),
    "allocate tasks": lambda v, pool, path: lb_mpi.allocate(v, [1.0, 2.0]),
    "allocate time[0]": lambda v, pool, path: lb_mpi.allocate(5, [v, 1.0]),
    "allocate edge_probability": lambda v, pool, path: lb_mpi.allocate(5, [1.0, 2.0], edge_probability=v),
    "allocate cap": lambda v, pool, path: lb_mpi.allocate(1, [1.0, 2.0], cap=v),
    "allocate wait": lambda v, pool, path: lb_mpi.allocate(5, [1.0, 2.0], wait=v),
    "update value": lambda v, pool, path: lb_mpi.Bound("min").update(v),
}  # fmt: skip


# Where there is no communicator, one rank shows all.
LOCAL = ("throttle", "balance", "partition", "partition_metrics", "arrange", "allocate", "update")


@pytest.mark.parametrize("door", [door for door in DOORS if SIZE == 1 or door.split()[0] not in LOCAL])
@pytest.mark.filterwarnings("ignore")
def test_a_number_works_or_is_refused_in_words(door, pool, tmp_path):
    name = door.split()[1].partition("[")[0]
    path = Path(COMM.bcast(str(tmp_path)))
    wrong, outcomes = [], []
    for value in VALUES:
        if isinstance(value, int | float | np.number) and TOO_LONG.get(name, lambda value: False)(value):
            continue
        try:
            DOORS[door](value, pool, path)
            reported = "works"
        except (ValueError, TypeError) as error:
            reported = type(error).__name__
            if name not in str(error) or " expected" not in str(error) or len(str(error)) > 500:
                wrong.append(f"{value!r:.40}: {type(error).__name__}: {error!s:.200}")
        except Exception as error:  # whatever it is, it is not what was promised
            reported = type(error).__name__
            wrong.append(f"{value!r:.40}: {type(error).__name__}: {error!s:.200}")
        outcomes.append((f"{value!r:.40}", reported))
    everywhere = COMM.allgather(outcomes)
    wrong += [f"{value}, on another rank {other}" for each in everywhere for value, other in set(each) ^ set(outcomes)]
    assert not wrong, "\n".join(wrong)
