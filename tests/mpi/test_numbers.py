"""Every number that a door takes: it works, or all ranks raise a ValueError or TypeError that says what was expected."""

import math

import numpy as np
import pytest

import lb_mpi
from tests.mpi.calls import CALLS
from tests.mpi.sizes import COMM, SIZE

pytestmark = [pytest.mark.mpi, pytest.mark.one_mpi, pytest.mark.pair]

TINY = 5e-324
VALUES = [
    10**400, 2**70, 1e308, TINY, math.nan, math.inf, -1, 0, 0.5, 1j, "3", None, True, [1], np.bool_(True), np.int8(1),
    np.uint64(2**64 - 1), np.float32(0.5), np.longdouble("1e4000"), np.array(1), np.array([1.0, 2.0]),
]  # fmt: skip
NUMBERS = {  # by door: arguments that are numbers or have some
    "Pool": "root speeds speeds[0] emulated_speed",
    "map": "items costs costs[2] chunksize",
    "Balancer": "tolerance when every emulated_speed",
    "map_rows": "block_rows",
    "migrate": "costs costs[1]",
    "search": "threshold quantum seed emulated_speed",
    "distribute": "root imbalance unit_s seed speeds speeds[0] emulated_speed",
    "reorder_ranks": "speeds[0] seed",
    "measure": "rounds round_s emulated_speed",
    "save": "step",
}
LENGTHS = {"map": 3, "migrate": 5}  # of costs; of speeds: SIZE
OPTIONS = {"distribute": {"method": "block", "speeds": None}}
LEFT_OUT = {  # what works, and takes so long; and items that are no number
    "emulated_speed": lambda value: isinstance(value, int | float | np.number) and 0.0 < value < 1e-3,
    "round_s": lambda value: isinstance(value, int | float | np.number) and 0.1 < value <= 1.0,
    "items": lambda value: isinstance(value, list | np.ndarray),
}
GRAPH = "mesh:2x4"
LOCAL = {  # doors without a communicator: one rank shows all
    "throttle speed": lambda v: lb_mpi.throttle(v),
    "balance loads[0]": lambda v: lb_mpi.balance(GRAPH, [v] + [1] * 7, np.ones(8)),
    "balance speeds[0]": lambda v: lb_mpi.balance(GRAPH, np.ones(8), [v] + [1] * 7, max_steps=9),
    "balance tolerance": lambda v: lb_mpi.balance(GRAPH, range(8), np.ones(8), tolerance=v, max_steps=99),
    "balance max_steps": lambda v: lb_mpi.balance(GRAPH, range(8), np.ones(8), max_steps=v),
    "partition k": lambda v: lb_mpi.partition(GRAPH, v, effort="fast"),
    "partition imbalance": lambda v: lb_mpi.partition(GRAPH, 2, imbalance=v, effort="fast"),
    "partition seed": lambda v: lb_mpi.partition(GRAPH, 2, seed=v, effort="fast"),
    "partition targets[0]": lambda v: lb_mpi.partition(GRAPH, 2, targets=[v, 1], effort="fast"),
    "partition_metrics k": lambda v: lb_mpi.partition_metrics(GRAPH, [0] * 8, v),
    "partition_metrics parts[0]": lambda v: lb_mpi.partition_metrics(GRAPH, [v] + [0] * 7, 2),
    "arrange speeds[0]": lambda v: lb_mpi.arrange("ring:4", [v, 1, 2, 3]),
    "arrange tolerance": lambda v: lb_mpi.arrange("ring:4", [1, 2, 3, 4], tolerance=v),
    "arrange seed": lambda v: lb_mpi.arrange("ring:4", [1, 2, 3, 4], seed=v),
    "allocate tasks": lambda v: lb_mpi.allocate(v, [1.0, 2.0]),
    "allocate time[0]": lambda v: lb_mpi.allocate(5, [v, 1.0]),
    "allocate edge_probability": lambda v: lb_mpi.allocate(5, [1.0, 2.0], edge_probability=v),
    "allocate cap": lambda v: lb_mpi.allocate(1, [1.0, 2.0], cap=v),
    "allocate wait": lambda v: lb_mpi.allocate(5, [1.0, 2.0], wait=v),
    "update value": lambda v: lb_mpi.Bound("min").update(v),
}  # fmt: skip


def outcome(name, call):
    """Whether it works or what it raises, and what is wrong with that."""
    try:
        call()
    except Exception as error:
        text = f"{type(error).__name__}: {error!s:.200}"
        refused = isinstance(error, ValueError | TypeError) and name in str(error) and " expected" in str(error)
        return type(error).__name__, "" if refused and len(str(error)) <= 500 else text
    return "works", ""


def check(name, call):
    values = [value for value in VALUES if not LEFT_OUT.get(name, lambda _: False)(value)]
    found = [(f"{value!r:.40}", *outcome(name, lambda: call(value))) for value in values]  # noqa: B023
    wrong = [f"{value}: {text}" for value, _, text in found if text]
    short = [(value, how) for value, how, _ in found]
    wrong += [f"{value}, on another rank {how}" for each in COMM.allgather(short) for value, how in {*each} ^ {*short}]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("door", "argument"), [(door, one) for door in NUMBERS for one in NUMBERS[door].split()])
@pytest.mark.filterwarnings("ignore")
def test_a_number_works_or_is_refused_in_words(door, argument, folder):
    (made, call), (name, _, place) = CALLS[door], argument.partition("[")

    def given(value):
        whole = [1.0] * LENGTHS.get(door, SIZE)
        if place:
            whole[int(place[:-1])] = value
        return {**OPTIONS.get(door, {}), name: whole if place else value}

    with made(folder / "saves") as one:
        check(name, lambda value: call(one, **given(value)))


@pytest.mark.skipif(SIZE > 1, reason="one rank shows all")
@pytest.mark.parametrize("door", LOCAL)
@pytest.mark.filterwarnings("ignore")
def test_a_number_works_or_is_refused_in_words_without_mpi(door):
    check(door.split()[1].partition("[")[0], LOCAL[door])
