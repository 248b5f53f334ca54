"""Arguments that several commands accept: a graph, speeds, a seed, numbers that are drawn or listed, files to be written."""

from __future__ import annotations

import argparse
import errno
import os
from typing import TYPE_CHECKING

from lb_mpi.checks import comma_list, number, show
from lb_mpi.cli.run.command import STDOUT, say
from lb_mpi.files import write_whole

if TYPE_CHECKING:
    import numpy as np

    from lb_mpi.graph import Floats

GRAPH = (
    "mesh:RxC, torus:RxC, hypercube:D, cube:N (a hypercube of any size), ring:N or complete:N; or the neighbours of vertex "
    "1, of vertex 2, ..., separated by slashes, such as 2/1,3/2; or a METIS (.graph) or Matrix Market file"
)
PATIENCE_S = 1.0  # before the first line of progress
Options = argparse._ActionsContainer  # a parser, or a group of it


def add_slow_ranks(options: Options, of: str = "the ranks", default: str = " (default: 1)") -> None:
    """Add --speeds of ranks or hosts that are to be slower than their machine, for `lb_mpi.checks.emulated_speeds`."""
    options.add_argument("--speeds", metavar="F,F,...",
        help=f"emulate unequal machines: speeds of {of}, above 0 and at most 1{default}")


def add_speeds(options: Options, of: str, default: str, more: str = "") -> None:
    """Add --speeds `of` ranks or nodes that exist on paper, for `draw`."""
    options.add_argument("--speeds", default=default, metavar="X,X,...",
        help=f"relative speeds of the {of}: drawn from uniform:LOW:HIGH, or a list 1,2,...{more}")


def add_seed(options: Options, of: str = "all random numbers") -> None:
    """Add --seed."""
    options.add_argument("--seed", type=int, default=0, help=f"seed of {of}")


def draw(name: str, text: str, n: int, rng: np.random.Generator) -> Floats:
    """Return (n,) numbers drawn from "uniform:LOW:HIGH", or the listed ones; ValueError, naming `name`."""
    kind, *bounds = text.split(":")
    if kind != "uniform":
        import numpy as np

        return np.array(comma_list(name, text))
    if len(bounds) != 2:
        raise ValueError(f"{name} = {show(text)}: expected uniform:LOW:HIGH, or numbers with commas between them")
    low, high = (number(name, comma_list(name, bound, 1)[0], least=0.0) for bound in bounds)
    if low > high:
        raise ValueError(f"{name} = {show(text)}: expected uniform:LOW:HIGH with LOW <= HIGH")
    return rng.uniform(low, high, n)


def output(path: str) -> str:
    """Return the path of a file to be written, the type of an option; OSError if it can't be; -: standard output."""
    folder = os.path.dirname(path) or "."
    if path != STDOUT and (os.path.isdir(path) or not os.path.isdir(folder)):
        number = errno.EISDIR if os.path.isdir(path) else errno.ENOENT
        raise OSError(number, os.strerror(number), path)
    if path != STDOUT and not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
    return path


def deliver(path: str, text: str) -> None:
    """Write a file of `output`; OSError, and SystemExit if standard output can't have it."""
    if path == STDOUT:
        if code := say(text):
            raise SystemExit(code)
    else:
        write_whole(path, text)


def written(path: str | None) -> list[str]:
    """Return a line about a file of `output` that was written; none without."""
    return [f"{path} ({os.path.getsize(path) / 1e3:,.1f} kB)"] if path is not None and path != STDOUT else []
