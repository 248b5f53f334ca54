"""Nodes of unbalanced trees, counted in plain Python."""

from __future__ import annotations

import hashlib

from lb_mpi.searching.uts import MAX_CHILDREN, RANDS, Tree, TreeCount, child_counter, root_state


def plain_count(tree: Tree, limit: int | None = None) -> TreeCount:
    """Count the nodes of a tree in plain Python with hashlib, depth first; at most `limit` of them."""
    count_children = child_counter(tree)
    most = int(tree.branching) if tree.type == "binomial" else 0
    suffixes = [number.to_bytes(4, "big") for number in range(max(most, MAX_CHILDREN))]
    sha1, to_int = hashlib.sha1, int.from_bytes
    nodes = leaves = deepest = 0
    stack = [(root_state(tree), 0)]
    while stack and nodes != limit:
        state, depth = stack.pop()
        nodes += 1
        deepest = max(deepest, depth)
        n = count_children(depth, to_int(state[16:], "big") & (RANDS - 1))
        if n == 0:
            leaves += 1
        else:
            depth += 1
            stack += [(sha1(state + suffix).digest(), depth) for suffix in suffixes[:n]]
    return TreeCount(nodes, leaves, deepest)
