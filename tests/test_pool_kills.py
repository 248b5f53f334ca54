"""Nothing is lost, nor run again, when ranks of a pool are killed; benchmarks.pool_kills has more runs of it."""

import random

from benchmarks.pool_kills import campaign
from tools.environment import here


def test_what_is_finished_stays_finished() -> None:
    chance = random.Random(7)
    for _ in range(2):
        assert campaign(here(), chance).faults == []
