"""Each app in processes of its own: nothing has used lb_mpi there before."""

import json

import pytest

from tests.process.started import needs_mpiexec, on_ranks

pytestmark = [pytest.mark.one_mpi, needs_mpiexec]
N = 2
LINES = [
    "maze --dim 100",
    "maze --dim 100 --tile 8",
    "uts --depth 4",
    "tsp --cities 7",
    "heat mesh:8x8 --steps 3 --rebalance",
    "weather --shape 8x8 --steps 2",
    "particles --steps 2 --particles 1000 --rebalance",
    "sweep --tasks 20 --until 5",
]


@pytest.mark.parametrize("line", LINES)
def test_an_app_by_itself(line):
    app, *options = line.split()
    code, text = on_ranks(N, "-m", f"apps.{app}", *options, "--json")
    assert code == 0, text
    assert json.loads(text.splitlines()[-1])["ranks"] == N
