"""The command `warmup`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from lb_mpi.commands.dispatch import Command

SMALL = "mesh:12x12"  # a graph that uses all kernels
NOTICED_S = 1.0


def kernels() -> dict[str, Callable[[], object]]:
    """Return functions that compile the kernels of the library, by purpose."""
    from lb_mpi.arranging.objectives import compile_kernels as arrange
    from lb_mpi.partitioning.partition import EFFORTS, partition
    from lb_mpi.problems.uts import compile_kernels as uts

    return {
        "partition": lambda: [partition(SMALL, 4, effort=effort) for effort in EFFORTS],
        "arrange": arrange,
        "unbalanced tree search": uts,
    }


def compile_all(given: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Compile or load the kernels; return the seconds for each.  Print a line on stderr for each slow one."""
    seconds = {}
    for name, compile_kernels in given.items():
        began = time.perf_counter()
        compile_kernels()
        seconds[name] = time.perf_counter() - began
        if seconds[name] > NOTICED_S:
            print(f"{name}: compiled in {seconds[name]:.1f} s", file=sys.stderr, flush=True)
    return seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command: there are none."""


def run(_: argparse.Namespace) -> dict[str, Any]:
    """Compile; return `kernels`, the seconds that each took."""
    return {"kernels": compile_all(kernels())}


def describe(answer: dict[str, Any]) -> list[str]:
    """Return the answer as a line for people."""
    return [f"all kernels are compiled ({sum(answer['kernels'].values()):.1f} s); later runs read them from the cache"]


COMMANDS = {"warmup": Command(add_arguments, run, describe)}
