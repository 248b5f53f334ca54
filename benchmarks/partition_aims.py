"""What `lb_mpi.partition` can be asked for beside light cuts, on all graphs in a folder.

    python -m benchmarks.partition_aims FOLDER [--tables spectral,objective,connected] [--graphs uk] [--k 2,8] [--seeds 3]

spectral   cuts of multilevel spectral bisection beside effort good, beside spectral bisection of the whole graph by scipy's
           eigsh and by networkx's Fiedler vector, and beside Kernighan & Lin of networkx; and of effort good without its
           Fiedler starts, and with no others.  Geometric means of the ratio to good.
objective  max_j (C_j + K_j), computing and talking, of the partition by cut and of the one that aims at it, on a machine of
           three unequal hosts, one behind a slow link: one rank on each, and several.  Medians of the ratio.
connected  what parts in one piece cost: the ratio of the cuts, and the worst imbalance.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import networkx as nx
import numpy as np

from benchmarks.partition import chosen, show
from lb_mpi.graph import Graph, Ints
from lb_mpi.graph_files import as_graph
from lb_mpi.machine import Machine, read_machine, write_machine
from lb_mpi.partitioning import multilevel
from lb_mpi.partitioning.bisect import Starts
from lb_mpi.partitioning.partition import partition
from lb_mpi.partitioning.quality import partition_metrics
from lb_mpi.partitioning.spectral_bisection import split

Method = Callable[[Graph, int, int], Ints | None]  # of a graph, k and a seed; None: it can't
MOST_FOR_KERNIGHAN_LIN = 12_000  # vertices: more take it minutes

GOOD = multilevel.EFFORTS["good"]
STARTS = {
    "good without Fiedler starts": GOOD._replace(starts=Starts(GOOD.starts.tries, 0)),
    "Fiedler starts only": GOOD._replace(starts=Starts(0, 99), first=1),  # another first one would be the same
}


def by_networkx(graph: Graph, k: int, _: int) -> Ints | None:
    """Recursive bisection by networkx's Fiedler vector, split at the median as ours is: None where a part is in pieces."""
    part = np.zeros(graph.n, dtype=np.int64)
    whole = graph.to_networkx()
    todo = [(np.arange(graph.n), 0, k)]
    while todo:
        vertices, first, end = todo.pop()
        if end - first == 1:
            part[vertices] = first
            continue
        middle = (first + end) // 2
        piece = whole.subgraph(vertices.tolist())
        order = np.array(list(piece))
        if not nx.is_connected(piece):
            return None
        vector = nx.fiedler_vector(piece, method="tracemin_lu", tol=1e-6, seed=0)
        side = split(vector, graph.vertex_weights[order], (middle - first) / (end - first))
        todo += [(order[side == 0], first, middle), (order[side == 1], middle, end)]
    return part


def by_kernighan_lin(graph: Graph, k: int, seed: int) -> Ints | None:
    """Two parts by networkx's Kernighan & Lin, from a random start."""
    if k != 2 or graph.n > MOST_FOR_KERNIGHAN_LIN:
        return None
    one, _ = nx.community.kernighan_lin_bisection(graph.to_networkx(), seed=seed)
    part = np.ones(graph.n, dtype=np.int64)
    part[sorted(one)] = 0
    return part


def by_effort(effort: multilevel.Effort) -> Method:
    """Ours, with another effort."""

    def method(graph: Graph, k: int, seed: int) -> Ints:
        with patch.dict(multilevel.EFFORTS, {"good": effort}):
            return partition(graph, k, seed=seed)

    return method


METHODS: dict[str, Method] = {
    "good": by_effort(GOOD),
    "multilevel-spectral": lambda graph, k, seed: partition(graph, k, seed=seed, method="multilevel-spectral"),
    "scipy eigsh": lambda graph, k, seed: partition(graph, k, method="spectral"),
    "networkx Fiedler": by_networkx,
    "networkx Kernighan-Lin": by_kernighan_lin,
    **{name: by_effort(effort) for name, effort in STARTS.items()},
}
ONCE = ("scipy eigsh", "networkx Fiedler")  # know no seeds


def spectral(graphs: dict[str, Graph], ks: list[int], seeds: int) -> Iterator[str]:
    """Lines of Markdown: mean cuts of all methods."""
    for k in ks:
        cuts: dict[str, list[float]] = {method: [] for method in METHODS}
        yield f"\nspectral, k = {k}: mean cuts of {seeds} seeds\n"
        yield "| graph | " + " | ".join(METHODS) + " |"
        yield "|---" * (len(METHODS) + 1) + "|"
        for name, graph in graphs.items():
            for method, function in METHODS.items():
                show(f"{name}, k = {k}: {method}")
                found = [function(graph, k, seed) for seed in range(1 if method in ONCE else seeds)]
                some = [partition_metrics(graph, part, k).cut for part in found if part is not None]
                cuts[method].append(float(np.mean(some)) if some else np.nan)
            show("")
            lasts = [values[-1] for values in cuts.values()]
            yield f"| {name} | " + " | ".join(f"{last:.1f}" if np.isfinite(last) else "-" for last in lasts) + " |"
        logs = {
            method: np.log(np.maximum(values, 1.0) / np.maximum(cuts["good"], 1.0)) for method, values in cuts.items()
        }
        yield "| / good | " + " | ".join(f"{np.exp(np.nanmean(log)):.3f}" for log in logs.values()) + " |"


def three_hosts(ranks: tuple[int, int, int]) -> Machine:
    """Speeds 4, 2, 1; 1 Gbit/s between a and b, 10 Mbit/s to c, with latencies of 50 and 200 us; memory within a host."""
    hosts = np.repeat(np.arange(3), ranks)
    latency_s = np.array([[1e-6, 50e-6, 200e-6], [50e-6, 1e-6, 200e-6], [200e-6, 200e-6, 1e-6]])
    s_per_byte = np.array([[2e-10, 8e-9, 8e-7], [8e-9, 2e-10, 8e-7], [8e-7, 8e-7, 2e-10]])
    off = 1.0 - np.eye(len(hosts))
    return Machine(
        tuple("abc"[host] for host in hosts),
        np.array([4.0, 2.0, 1.0])[hosts],
        off * latency_s[np.ix_(hosts, hosts)],
        off * s_per_byte[np.ix_(hosts, hosts)],
    )


UNIT_S, EDGE_BYTES = 1e-6, 8.0  # a vertex takes the fastest rank a microsecond, an edge carries a double


def objective(graphs: dict[str, Graph], seeds: int) -> Iterator[str]:
    """Lines of Markdown: milliseconds by cut and by time, on machines that were written to a file and read."""
    for ranks in ((1, 1, 1), (4, 2, 2)):
        with tempfile.TemporaryDirectory() as folder:
            write_machine(three_hosts(ranks), Path(folder) / "machine.json")
            machine = read_machine(Path(folder) / "machine.json")
        yield f"\nobjective, {' + '.join(map(str, ranks))} ranks on hosts of speeds 4, 2, 1: ms, {seeds} seeds\n"
        yield "| graph | bound | by cut | by time | / by cut | cut | cut by time | in one piece | / by cut |"
        yield "|---" * 9 + "|"
        ratios = []
        for name, one in graphs.items():
            graph = Graph(one.indptr, one.indices, one.weights * EDGE_BYTES, one.vertex_weights)
            figures = []
            for seed in range(seeds):
                show(f"{name}, {machine.size} ranks, seed {seed}")
                for how in ({}, {"aim": "time"}, {"connected": True}, {"aim": "time", "connected": True}):
                    part = partition(graph, machine.size, machine=machine, unit_s=UNIT_S, seed=seed, **how)
                    found = partition_metrics(graph, part, machine.size, machine=machine, unit_s=UNIT_S)
                    assert found.cost is not None
                    figures.append((1e3 * found.cost.objective_s, found.cut, 1e3 * found.cost.lower_bound_s))
            ms, cuts, bounds = np.array(figures).reshape(seeds, 4, 3).transpose(2, 0, 1)
            ratio, whole = ms[:, 1] / ms[:, 0], ms[:, 3] / ms[:, 2]
            ratios += [(a, b) for a, b in zip(ratio, whole, strict=True)]
            show("")
            mean, cut = ms.mean(axis=0), cuts.mean(axis=0) / EDGE_BYTES
            yield (
                f"| {name} | {bounds[0, 0]:.3f} | {mean[0]:.3f} | {mean[1]:.3f} | {ratio.mean():.3f} "
                f"| {cut[0]:.0f} | {cut[1]:.0f} | {mean[3]:.3f} | {whole.mean():.3f} |"
            )
        median, worst = np.median(ratios, axis=0), np.max(ratios, axis=0)
        yield f"\nmedian {median[0]:.3f}, in one piece {median[1]:.3f}; worst {worst[0]:.3f}, in one piece {worst[1]:.3f}"


def connected(graphs: dict[str, Graph], ks: list[int], seeds: int) -> Iterator[str]:
    """Lines of Markdown: parts in several pieces, and what it costs to have none."""
    yield "\nconnected: parts in several pieces as they are, with connected=True, ratio of the cuts, worst imbalance\n"
    yield "| graph | " + " | ".join(f"k = {k}" for k in ks) + " |"
    yield "|---" * (len(ks) + 1) + "|"
    logs: dict[int, list[float]] = {k: [] for k in ks}
    for name, graph in graphs.items():
        cells = []
        for k in ks:
            show(f"{name}, k = {k}")
            figures = []
            for seed in range(seeds):
                for how in (False, True):
                    found = partition_metrics(graph, partition(graph, k, seed=seed, connected=how), k)
                    figures.append((float(np.count_nonzero(~found.connected)), found.cut, found.imbalance))
            broken, cuts, imbalances = np.array(figures).reshape(seeds, 2, 3).transpose(2, 1, 0)
            logs[k].append(float(np.mean(np.log(np.maximum(cuts[1], 1.0) / np.maximum(cuts[0], 1.0)))))
            pieces = f"{broken[0].mean():.1f}, {broken[1].mean():.1f}"
            cells.append(f"{pieces}, {np.exp(logs[k][-1]):.3f}, {imbalances[1].max():.4f}")
        show("")
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield "| geometric mean | " + " | ".join(f"{np.exp(np.mean(log)):.3f}" for log in logs.values()) + " |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.partition_aims",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tables = ("spectral", "objective", "connected")
    parser.add_argument("folder", type=Path, help="of METIS .graph or Matrix Market .mtx files")
    parser.add_argument("--tables", type=lambda text: chosen(text, tables, "some"), default=",".join(tables))
    parser.add_argument("--graphs", help="names of files, without .graph or .mtx, with commas (all)")
    parser.add_argument("--k", default="2,8", help="of spectral and connected (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each method (%(default)s)")
    options = parser.parse_args()
    files = {path.stem: path for suffix in ("graph", "mtx") for path in sorted(options.folder.glob(f"*.{suffix}"))}
    names = sorted(files) if options.graphs is None else options.graphs.split(",")
    if not names or not set(names) <= set(files):
        parser.error(f"expected graphs in {options.folder}: {', '.join(sorted(files)) or 'there are none'}")
    ks = [int(word) for word in options.k.split(",")]
    graphs = {name: as_graph(files[name]) for name in names}
    for table in options.tables:
        lines = {
            "spectral": lambda: spectral(graphs, ks, options.seeds),
            "objective": lambda: objective(graphs, options.seeds),
            "connected": lambda: connected(graphs, ks, options.seeds),
        }[table]()
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
