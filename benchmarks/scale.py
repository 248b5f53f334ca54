"""Diffusion on up to a hundred thousand ranks:   python -m benchmarks.scale [--graphs torus:32x32,ring:1000] [--hosts]

For each process graph and scheme: the steps to an imbalance of 5 %, for loads of 20 rows with lognormal costs each, and for
a warm region (up to five times the load, once round all ranks); the CPU seconds that the root takes to prepare the scheme
(its spectrum) whenever speeds have changed, and of `direct` to solve; and what the decision takes then, in milliseconds, by
a simple model: a step costs a latency of 5 us, a sum over all ranks log2 P of them (cg: one in each step), direct a gather
and a scatter, with 1 GB/s at the root.  Speeds are uniform in 1..4.  Loads are drawn with one seed; CPU seconds are noisy.

--hosts instead: a torus of all ranks beside process graphs that follow the hosts (`lb_mpi.graph_hosts`), hosts of 16.
A step takes 5 us, and 1 us more for each message that a host sends to others.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import NamedTuple

import numpy as np

from lb_mpi.diffusion.diffusion import MAX_STEPS, Diffusion, prepare
from lb_mpi.diffusion.setup import Setup, usual_scheme
from lb_mpi.graph import Floats, Graph, parse
from lb_mpi.graph_hosts import host_graph

SCHEMES = ("fos", "sos", "chebyshev", "cg", "dimension_exchange", "direct")
GRAPHS = (
    "torus:16x16,torus:32x32,torus:100x100,hypercube:10,hypercube:13,regular:1000,regular:10000,ring:1000,ring:10000"
)
MOST_FILLED = 10_000  # ranks of a short graph: of more, the factors of `direct` fill the memory
LATENCY_S, BYTES_PER_S, MESSAGE_S = 5e-6, 1e9, 1e-6
TOLERANCE = 0.05
PER_HOST = 16


class Found(NamedTuple):
    """One scheme on one graph and one kind of loads."""

    steps: int
    converged: bool
    root_s: float  # CPU seconds: to prepare, and of direct to solve
    decision_s: float  # root_s and the messages


def named(text: str) -> Graph:
    """A named graph, or "regular:N": two rings over random orders of all ranks, so four neighbours for nearly all."""
    kind, _, size = text.partition(":")
    if kind != "regular":
        return parse(text)
    rng, n = np.random.default_rng(1), int(size)
    tail = np.concatenate([rng.permutation(n) for _ in range(2)])
    head = np.concatenate([np.roll(tail[:n], 1), np.roll(tail[n:], 1)])
    once = np.unique(np.minimum(tail, head) * n + np.maximum(tail, head))
    return Graph.from_edges(n, once // n, once % n)


def drawn(n: int) -> tuple[Floats, Floats, Floats]:
    """(n,) speeds; (n,) loads by chance; (n,) loads of a warm region."""
    rng = np.random.default_rng(0)
    speeds, loads = rng.uniform(1.0, 4.0, n), rng.lognormal(0.0, 1.0, (n, 20)).sum(axis=1)
    return speeds, loads, 20.0 + 80.0 * np.maximum(0.0, np.cos(2.0 * np.pi * np.arange(n) / n))


def measure(setup: Setup, loads: Floats, prepare_s: float) -> Found:
    """Step to the tolerance, or MAX_STEPS times."""
    graph, began = setup.graph, time.process_time()
    diffusion = Diffusion(setup, loads)
    while not diffusion.converged(TOLERANCE) and diffusion.steps < MAX_STEPS:
        diffusion.step()
    hops = math.ceil(math.log2(graph.n))
    if setup.scheme == "direct":
        root_s = prepare_s + time.process_time() - began
        messages_s = 2 * hops * LATENCY_S + 8 * (graph.n + 2 * graph.n_edges) / BYTES_PER_S
    else:
        root_s = prepare_s
        messages_s = diffusion.steps * LATENCY_S * (1 + (hops if setup.scheme == "cg" else 0))
    return Found(diffusion.steps, diffusion.converged(TOLERANCE), root_s, root_s + messages_s)


def table_of_schemes(graphs: list[str]) -> None:
    """Print a line for each graph and scheme, as it is found."""
    print("| graph | ranks | hops | scheme | steps, by chance | warm region | root, CPU s | decision, ms |")
    print("|---" * 8 + "|")
    for name in graphs:
        graph = named(name)
        speeds, *kinds = drawn(graph.n)
        usual = usual_scheme(graph)
        for scheme in SCHEMES:
            if scheme == "direct" and usual == "fos" and graph.n > MOST_FILLED:
                continue
            began = time.process_time()
            setup = prepare(graph, speeds, scheme)
            prepare_s = time.process_time() - began if scheme in ("sos", "chebyshev") else 0.0
            found = [measure(setup, loads, prepare_s) for loads in kinds]
            steps = [f"{one.steps:,}" if one.converged else f"> {one.steps:,}" for one in found]
            title = f"**{scheme}**" if scheme == usual else scheme
            decision = ", ".join(f"{1e3 * one.decision_s:,.2f}" for one in found)
            cells = (name, f"{graph.n:,}", graph.hops(), title, *steps, f"{found[0].root_s:.2f}", decision)
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def table_of_hosts(sizes: list[int]) -> None:
    """Print a line for each process graph on so many hosts, in a square."""
    print("| ranks | process graph | edges between hosts | of all | steps of cg | decision, ms | work between hosts |")
    print("|---" * 7 + "|")
    for side in sizes:
        n_hosts = side * side
        n = PER_HOST * n_hosts
        place = np.arange(n)
        rows = named(f"torus:{4 * side}x{4 * side}")
        tile = place // (4 * side) // 4 * side + place % (4 * side) // 4
        in_order = place // PER_HOST
        for title, graph, host in (
            ("torus, ranks in order", rows, in_order),
            ("torus, hosts are 4x4 tiles", rows, tile),
            ("follows the hosts", host_graph(in_order.tolist()), in_order),
        ):
            speeds, loads, _ = drawn(n)
            diffusion = Diffusion(prepare(graph, speeds, "cg"), loads)
            while not diffusion.converged(TOLERANCE):
                diffusion.step()
            tails, heads = graph.edges()
            between = host[tails] != host[heads]
            sent = np.bincount(host[tails[between]], minlength=n_hosts) + np.bincount(
                host[heads[between]], minlength=n_hosts
            )
            step_s = LATENCY_S * (1 + math.ceil(math.log2(n))) + MESSAGE_S * int(sent.max())
            moved = float(np.abs(diffusion.flow()[between]).sum() / loads.sum())
            cells = (
                f"{n:,}", title, f"{int(between.sum()):,}", f"{graph.n_edges:,}", diffusion.steps,
                f"{1e3 * diffusion.steps * step_s:.2f}", f"{moved:.1%}",
            )  # fmt: skip
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--graphs", default=GRAPHS)
    parser.add_argument("--hosts", action="store_true")
    options = parser.parse_args()
    if options.hosts:
        table_of_hosts([4, 16, 32])
    else:
        table_of_schemes(options.graphs.split(","))


if __name__ == "__main__":
    main()
