"""Net flow over the edges of a graph: what it does to the loads, and its cycles.   (pure)

A flow is (E,) in the order of `Graph.edges`, in units of work, positive from tail to head.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from lb_mpi.graph import Floats, Graph


def outflow(graph: Graph, flow: Floats) -> Floats:
    """(P,) what leaves each vertex less what reaches it; loads after the flow = loads - outflow."""
    tails, heads = graph.edges()
    return np.asarray(np.bincount(tails, flow, graph.n) - np.bincount(heads, flow, graph.n), dtype=float)


def at_ends(graph: Graph, flow: Floats) -> Floats:
    """(2E,) the (E,) flow as each vertex sees it, away from it, beside `graph.indices`."""
    tails, heads = graph.edges()
    seen = np.empty(len(graph.indices))
    upper = graph.indices > np.repeat(np.arange(graph.n), graph.degrees)
    seen[upper] = flow
    seen[~upper] = -flow[np.lexsort((tails, heads))]
    return seen


def cancel_cycles(graph: Graph, flow: Floats) -> Floats:
    """The flow without the parts that run in circles: the outflow stays, no |flow| grows, no sign turns, no cycle is left.

    A walk follows the flow; where it meets itself, the least flow on the loop is taken off all of it.
    """
    tails, heads = graph.edges()
    source, target = np.where(flow > 0, tails, heads), np.where(flow > 0, heads, tails)
    moving = np.flatnonzero(flow)
    arcs = sparse.coo_array((np.ones(len(moving)), (source[moving], target[moving])), shape=(graph.n, graph.n))
    label = csgraph.connected_components(arcs.tocsr(), directed=True, connection="strong")[1]
    circling = moving[label[source[moving]] == label[target[moving]]]
    if not len(circling):
        return flow.copy()
    amount = dict(zip(circling.tolist(), np.abs(flow[circling]).tolist(), strict=True))
    to = dict(zip(circling.tolist(), target[circling].tolist(), strict=True))
    leaving: dict[int, list[int]] = {}
    for edge, vertex in zip(circling.tolist(), source[circling].tolist(), strict=True):
        leaving.setdefault(vertex, []).append(edge)
    for start in sorted(leaving):
        _walk(start, leaving, to, amount)
    result = flow.copy()
    result[circling] = np.copysign([amount[edge] for edge in circling.tolist()], flow[circling])
    return result


def _walk(start: int, leaving: dict[int, list[int]], to: dict[int, int], amount: dict[int, float]) -> None:
    """Take off all cycles that can be reached from `start`; edges that are on none are dropped from `leaving`."""
    path, edges, at = [start], list[int](), {start: 0}
    while True:
        choice = leaving.get(path[-1], [])
        while choice and amount[choice[-1]] == 0.0:
            choice.pop()
        if not choice:
            if not edges:
                return
            edges.pop()
            del at[path.pop()]
            leaving[path[-1]].pop()
            continue
        edge = choice[-1]
        vertex = to[edge]
        if vertex not in at:
            at[vertex] = len(path)
            path.append(vertex)
            edges.append(edge)
            continue
        loop = [*edges[at[vertex] :], edge]
        least = min(amount[edge] for edge in loop)
        for edge in loop:
            amount[edge] -= least
        for left in path[at[vertex] + 1 :]:
            del at[left]
        del path[at[vertex] + 1 :], edges[at[vertex] :]
