"""Count the nodes of an unbalanced tree (UTS) on all ranks, balanced by drafting.

mpiexec -n 4 python -m apps.uts --tree T1
mpiexec -n 4 python -m apps.uts --tree T3 --speeds 0.8,0.4,0.2,0.2 --json

The counts are exact: they are the proof that no work is lost or done twice.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from mpi4py import MPI

from apps.command import add_search_options, app, compile_once, figures, lines, run, search
from lb_mpi.mpi.common.collective import agree
from lb_mpi.searching.uts import PUBLISHED, TREES, Tree, UnbalancedTreeSearch, compile_kernels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the app."""
    tree = parser.add_argument_group("tree", "a published one, or with other parameters; T1 if nothing is given")
    tree.add_argument("--tree", choices=sorted(TREES), help="a published tree; the options below change it")
    tree.add_argument("--type", choices=("geometric", "binomial", "hybrid"), help="how numbers of children are drawn")
    tree.add_argument("--shape", choices=("fixed", "linear", "cyclic"), help="how branching changes with the depth")
    tree.add_argument("--depth", type=int, help="depth of a geometric tree")
    tree.add_argument("--branching", type=float,
        help="average number of children; binomial tree: number of children of the root")
    tree.add_argument("--seed", type=int, help="seed of the root")
    tree.add_argument("--q", type=float, help="binomial tree: probability that a node has children")
    tree.add_argument("--m", type=int, help="binomial tree: number of children of such a node")
    add_search_options(parser, threshold=16.0)


def main(comm: MPI.Intracomm, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Count, and check the count where it is known."""
    changes = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(Tree)
        if getattr(options, field.name, None) is not None
    }
    name = options.tree or ("T1" if not changes else None)
    tree = dataclasses.replace(TREES[name] if name else Tree(), **changes)
    problem = agree(comm, lambda: UnbalancedTreeSearch(tree))
    compile_once(comm, compile_kernels)
    result = search(comm, problem, options)
    count = result.value
    known = next((PUBLISHED[key] for key, published in TREES.items() if published == tree and key in PUBLISHED), None)
    if known is not None and known != count:
        raise AssertionError(f"{tree} has {known} as published, but {count} were counted")
    return (
        {"tree": name, "nodes": count.nodes, "leaves": count.leaves, "depth": count.depth, **figures(result)},
        [
            f"{count.nodes:,} nodes, {count.leaves:,} leaves, depth {count.depth}"
            + (" (as published)" if known else ""),
            *lines(result),
        ],
    )


COMMAND = app("uts", "count the nodes of an unbalanced tree on all ranks, balanced by drafting", add_arguments, main)

if __name__ == "__main__":
    run(COMMAND)
