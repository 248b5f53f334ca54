"""A process graph that follows the hosts: many edges inside a host, few between hosts.   (pure)"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from lb_mpi.graph import Graph, mesh, most_square_mesh


def host_graph(hosts: Sequence[Hashable]) -> Graph:
    """The process graph of ranks on `hosts`, one name for each rank, whose order and numbers may be any.

    On each host the ranks form a hypercube (as much of it as there are ranks); the hosts, in the order of their first
    ranks, form the most square torus, and its edges are dealt out to the ranks of a host in turn.  So a host talks to four
    others by one message each, where in a torus of all ranks each of its ranks has neighbours elsewhere.
    ValueError for no rank at all.
    """
    if not len(hosts):
        raise ValueError("hosts = []: expected one for each rank")
    ranks: dict[Hashable, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    groups = list(ranks.values())
    edges = [
        (group[place], group[place ^ bit])
        for group in groups
        for place in range(len(group))
        for bit in (1 << k for k in range((len(group) - 1).bit_length()))
        if place < place ^ bit < len(group)
    ]
    n_dealt = [0] * len(groups)
    for pair in zip(*(ends.tolist() for ends in _torus(len(groups)).edges()), strict=True):
        edges.append((_next(groups, n_dealt, pair[0]), _next(groups, n_dealt, pair[1])))
    tails, heads = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return Graph.from_edges(len(hosts), tails, heads)


def _torus(n: int) -> Graph:
    return mesh(*most_square_mesh(n), periodic=True)


def _next(groups: list[list[int]], n_dealt: list[int], host: int) -> int:
    n_dealt[host] += 1
    return groups[host][(n_dealt[host] - 1) % len(groups[host])]
