"""Whether plan.rebalance pays: programs in virtual time, with it and without."""

from __future__ import annotations

import numpy as np
import pytest

from lb_mpi.rebalancing import deciding
from tests.protocol.mutate import rejects
from tests.protocol.rebalancing_steps import HEAT, Program, Speeds, changing

EQUAL = [1.0, 1.0, 1.0, 1.0]
IN_TURN = [(k % 4, 1.0 + k, 1.4 + k, 0.33) for k in range(60)]  # each rank is slow for 0.4 s, another one in each second


def compared(speeds: Speeds, steps: int, cost_s: float, *, seed: int = 0, noise: float = 0.02, **how: float) -> float:
    """The time / that without."""
    programs = [Program(speeds, cost_s=cost_s, seed=seed, noise=noise, **how) for _ in range(2)]
    return programs[0].run(steps).seconds / programs[1].run(steps, rebalances=False).seconds


@pytest.mark.parametrize(("cost_s", "most"), [(0.1, 0.95), (0.3, 1.1)])
def test_hosts_that_are_slow_in_turn_are_followed_where_a_move_costs_less_than_it_saves(cost_s: float, most: float) -> None:
    assert max(compared(HEAT, 400, cost_s, seed=seed, step_s=0.0257) for seed in range(3)) < most


@pytest.mark.parametrize("cost_s", [0.02, 0.1, 0.3])
def test_changes_that_are_over_when_a_move_pays_do_not_count(cost_s: float) -> None:
    """By the losses of all changes together, it took up to 1.6 times as long as without."""
    assert max(compared(changing(EQUAL, *IN_TURN), 600, cost_s, seed=seed) for seed in range(2)) < 1.09


def test_a_change_that_stays_is_followed_after_few_steps() -> None:
    run = Program(changing(EQUAL, (1, 1.0, 1e9, 0.33))).run(100)
    assert len(run.moves) == 1
    assert sum(run.step_s[: run.moves[0] - 1]) < 1.7  # within 0.7 s, since the cost of a move is not known yet
    assert run.step_s[-1] < 0.05  # level: 0.048


def test_noise_moves_next_to_nothing() -> None:
    assert compared(changing([0.8, 0.4, 0.2]), 400, 0.1) < 1.006
    assert compared(changing([0.8, 0.4, 0.2]), 400, 0.1, noise=0.1) < 1.04


def test_expensive_vertices_are_found() -> None:
    costs = np.where(np.arange(600) < 60, 8.0, 1.0)
    run = Program(changing(EQUAL), costs=costs, noise=0.02).run(200)
    assert max(run.step_s[-20:]) < 0.05
    assert len(run.moves) < 8


def find_fault() -> None:
    """Raise what is wrong with a program that moves, or with one that should not."""
    test_changes_that_are_over_when_a_move_pays_do_not_count(0.1)
    test_hosts_that_are_slow_in_turn_are_followed_where_a_move_costs_less_than_it_saves(0.1, 0.95)
    test_a_change_that_stays_is_followed_after_few_steps()


MUTANTS = [
    (deciding, "Payback.pays", "self.considered = self.lost_s + gain_s <=", "self.considered = False and 0.0 <="),
    (deciding, "Opportunities._decided", "measure(most, self._calls, mean_s)", "measure(most, 1, mean_s)"),
]  # fmt: skip
test_known_wrong_rules_are_caught = rejects(find_fault, MUTANTS)
