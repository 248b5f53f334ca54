"""The task of benchmarks.pool_kills, in a module of its own: a log knows a function by its module and name."""

from __future__ import annotations

import time

TASK_S = 3e-3


def square(k: int) -> int:
    """What a task computes."""
    return k * k


def run_task(k: int) -> tuple[int, int]:
    """One task, and a number that tells this run of it from another one."""
    until = time.perf_counter() + TASK_S
    while time.perf_counter() < until:
        pass
    return square(k), time.time_ns()
