"""Cuts and CPU seconds of `lb_mpi.partition`, on all graphs in a folder.

    pip install ".[peers]"
    python -m benchmarks.partition FOLDER [--tables peers,spectral,objective] [--graphs crack,uk] [--k 2,8]

peers      against METIS, KaHIP, Mt-KaHyPar and KaMinPar, each on one thread: geometric means over graphs and k of the ratio
           ours / peer's, at 3 % imbalance; the cut of each method is the mean over seeds.  The same with unequal targets
           (the speeds, repeated, for each k that is a multiple of their number) against all but KaHIP, which has no
           targets.  The peers receive the graph in their own form; the kernels of the library are compiled or loaded
           before the clock starts.
spectral   cuts of multilevel spectral bisection, compared with effort good, with spectral bisection of the whole graph by
           scipy's eigsh and by networkx's Fiedler vector, and with Kernighan & Lin of networkx; and of effort good without
           its Fiedler starts, and with no other starts.  Geometric means of the ratio to good.
objective  max_j (C_j + K_j), computing and communicating, of the partition by cut and of the one that minimises this time,
           on a machine of three unequal hosts, one behind a slow link: one rank on each, and several.  Medians of the ratio.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import networkx as nx
import numpy as np

from benchmarks.measuring import command
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.graph_files import as_graph
from lb_mpi.machine import Machine, read_machine, write_machine
from lb_mpi.partitioning import multilevel
from lb_mpi.partitioning.multilevel import Starts
from lb_mpi.partitioning.partition import EFFORTS, partition
from lb_mpi.partitioning.quality import partition_metrics
from lb_mpi.partitioning.spectral import split

# --- the peers: METIS, KaHIP, Mt-KaHyPar, KaMinPar ------------------------------------------------------------------
#
# All of them want whole numbers as weights.  Weights that are none, or too many, are scaled; edges of weight 0 are left
# out, since both programs crash on graphs with nothing but them.

_TOTAL = 1 << 28  # of all weights: what they are scaled to; sums of them fit into 32 bits


@dataclass(frozen=True, eq=False)
class WholeNumbers:
    """A graph in the form that the peers accept; the names are those of `Graph`."""

    indptr: Ints
    indices: Ints
    weights: Ints  # >= 1
    vertex_weights: Ints

    @functools.cached_property
    def for_mtkahypar(self) -> Any:
        """The graph as an object of Mt-KaHyPar."""
        module, initializer = mtkahypar_on_one_thread()
        tails = np.repeat(np.arange(len(self.vertex_weights)), np.diff(self.indptr))
        once = tails < self.indices
        edges = list(zip(tails[once].tolist(), self.indices[once].tolist(), strict=True))
        weights = self.vertex_weights.tolist(), self.weights[once].tolist()
        context = initializer.context_from_preset(module.PresetType.DEFAULT)
        return initializer.create_graph(context, len(weights[0]), len(edges), edges, *weights)

    @functools.cached_property
    def for_kaminpar(self) -> Any:
        """The graph as an object of KaMinPar, which reads it from a file."""
        module = _imported("kaminpar")
        pairs = np.stack([self.indices + 1, self.weights], axis=1)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "whole.graph"
            with path.open("w") as file:
                file.write(f"{len(self.vertex_weights)} {len(self.indices) // 2} 11\n")
                for vertex, weight in enumerate(self.vertex_weights.tolist()):
                    neighbours = pairs[self.indptr[vertex] : self.indptr[vertex + 1]].ravel().tolist()
                    file.write(" ".join(map(str, (weight, *neighbours))) + "\n")
            return module.load_graph(str(path), module.GraphFileFormat.METIS)

    def prepare_for(self, peer: str) -> None:
        """Make the graph as an object of a peer, if it has objects of its own."""
        getattr(self, f"for_{peer.partition('-')[0]}", None)


def whole_numbers(graph: Graph) -> WholeNumbers:
    """The graph without its edges of weight 0, all weights of vertices (>= 0) and edges (>= 1) whole numbers."""
    kept = graph.weights > 0.0
    indptr = np.concatenate([[0], np.cumsum(kept)])[graph.indptr].astype(np.int64)
    weights = np.maximum(_scaled(graph.weights[kept]), 1)
    vertex_weights = _scaled(graph.vertex_weights)
    if not vertex_weights.any():
        vertex_weights = np.ones(graph.n, dtype=np.int64)
    return WholeNumbers(indptr, graph.indices[kept], weights, vertex_weights)


def metis(whole: WholeNumbers, targets: Floats, imbalance: float, seed: int, *, recursive: bool = False) -> Ints:
    """(n,) part of each vertex by METIS, directly into k parts or by recursive bisection."""
    pymetis = _imported("pymetis")
    options = pymetis.Options(ufactor=max(1, round(min(imbalance, 1e3) * 1000)), seed=seed % (1 << 31))
    _, part = pymetis.part_graph(
        len(targets),
        pymetis.CSRAdjacency(whole.indptr, whole.indices),
        vweights=whole.vertex_weights,
        eweights=whole.weights,
        tpwgts=targets.tolist(),
        recursive=recursive,
        options=options,
    )
    return np.array(part, dtype=np.int64)


def kahip(whole: WholeNumbers, k: int, imbalance: float, seed: int, mode: str) -> Ints:
    """(n,) part of each vertex by KaHIP in its mode "FAST", "ECO" or "STRONG"."""
    module = _imported("kahip")
    arrays = (whole.vertex_weights, whole.indptr, whole.weights, whole.indices)
    quiet = True
    _, part = module.kaffpa(
        *(array.tolist() for array in arrays), k, imbalance, quiet, seed % (1 << 31), getattr(module, mode)
    )
    return np.array(part, dtype=np.int64)


@functools.cache
def mtkahypar_on_one_thread() -> tuple[ModuleType, Any]:
    """Mt-KaHyPar, and what its graphs and contexts are made by."""
    module = _imported("mtkahypar")
    return module, module.initialize(1, print_warnings=False)


def mtkahypar(whole: WholeNumbers, targets: Floats, imbalance: float, seed: int, preset: str) -> Ints:
    """(n,) part of each vertex by Mt-KaHyPar, with a preset "DEFAULT" or "QUALITY"."""
    graph = whole.for_mtkahypar
    module, initializer = mtkahypar_on_one_thread()
    module.set_seed(seed % (1 << 31))
    context = initializer.context_from_preset(module.PresetType.__members__[preset])
    context.logging = False
    context.set_partitioning_parameters(len(targets), imbalance, module.Objective.CUT)
    if len(set(targets.tolist())) > 1:
        context.set_individual_target_block_weights(most_weights(whole, targets, imbalance))
    return np.array(graph.partition(context).get_partition(), dtype=np.int64)


def kaminpar(whole: WholeNumbers, targets: Floats, imbalance: float, seed: int, context: str) -> Ints:
    """(n,) part of each vertex by KaMinPar, with a context of this name."""
    graph = whole.for_kaminpar
    module = _imported("kaminpar")
    module.reseed(seed % (1 << 31))
    solver = module.KaMinPar(1, module.context_by_name(context))
    part = solver.compute_partition(graph, max_block_weights=most_weights(whole, targets, imbalance))
    return np.array(part, dtype=np.int64)


def most_weights(whole: WholeNumbers, targets: Floats, imbalance: float) -> list[int]:
    """(k,) largest weights of the parts."""
    most = (1.0 + imbalance) * targets * whole.vertex_weights.sum()
    return [int(weight) for weight in np.ceil(most)]


def _scaled(weights: Floats) -> Ints:
    largest = float(weights.max(initial=0.0))
    total = float((weights / largest).sum()) if largest else 0.0  # in units of the largest: it can't overflow
    if total * largest > _TOTAL or (weights != np.floor(weights)).any():
        weights = weights / largest * (_TOTAL / total)
    return np.rint(weights).astype(np.int64)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SystemExit(f"python -m benchmarks.partition: error: no {name}: pip install '.[peers]' ({error})") from None


# --- ours beside theirs -----------------------------------------------------------------------------------------------

Peer = Callable[[WholeNumbers, Floats, float, int], Ints]
PEERS: dict[str, Peer] = {
    "metis-recursive": lambda graph, targets, imbalance, seed: metis(graph, targets, imbalance, seed, recursive=True),
    "metis-kway": metis,
    "kahip-eco": lambda graph, targets, imbalance, seed: kahip(graph, len(targets), imbalance, seed, "ECO"),
    "kahip-strong": lambda graph, targets, imbalance, seed: kahip(graph, len(targets), imbalance, seed, "STRONG"),
    "mtkahypar-default": lambda graph, targets, imbalance, seed: mtkahypar(graph, targets, imbalance, seed, "DEFAULT"),
    "mtkahypar-quality": lambda graph, targets, imbalance, seed: mtkahypar(graph, targets, imbalance, seed, "QUALITY"),
    "kaminpar-default": lambda graph, targets, imbalance, seed: kaminpar(graph, targets, imbalance, seed, "default"),
    "kaminpar-strong": lambda graph, targets, imbalance, seed: kaminpar(graph, targets, imbalance, seed, "strong"),
}
# The goals: cut and time relative to those of the peer.
WANTED = {"fast": ("metis-kway", 1.00, 4.0), "good": ("kahip-eco", 1.00, 2.0), "best": ("kahip-strong", 1.00, None)}
WANTED_UNEQUAL = 0.98


class Row(NamedTuple):
    """One method on one graph: means over seeds, the worst imbalance."""

    graph: str
    k: int
    unequal: bool
    method: str
    cut: float
    imbalance: float
    seconds: float  # of CPU


class Case(NamedTuple):
    """One task for all methods."""

    name: str
    graph: Graph
    targets: Floats  # (k,) fractions
    unequal: bool


def run(case: Case, methods: Iterable[str], imbalance: float, seeds: int) -> list[Row]:
    """All methods on one graph, in turn."""
    whole = whole_numbers(case.graph)
    k = len(case.targets)
    rows = []
    for method in methods:
        show(f"{case.name}, k = {k}{', unequal' if case.unequal else ''}: {method}")
        cuts, worst, seconds = [], 0.0, []
        whole.prepare_for(method)
        for seed in range(seeds):
            began = time.process_time()
            if method in PEERS:
                parts = PEERS[method](whole, case.targets, imbalance, seed)
            else:
                parts = partition(case.graph, k, targets=case.targets, imbalance=imbalance, effort=method, seed=seed)
            seconds.append(time.process_time() - began)
            figures = partition_metrics(case.graph, parts, k, targets=case.targets)
            cuts.append(figures.cut)
            worst = max(worst, figures.imbalance)
        rows.append(
            Row(case.name, k, case.unequal, method, float(np.mean(cuts)), worst, max(float(np.mean(seconds)), 1e-6))
        )
    return rows


def ratios(rows: list[Row], ours: str, peer: str) -> tuple[float, float, int]:
    """Geometric means over all cases of cut and time, ours / peer's, and of how many cases."""
    of = {(row.graph, row.k, row.method): row for row in rows}
    pairs = [(row, of[row.graph, row.k, peer]) for row in rows if row.method == ours]
    cut = np.mean([np.log(max(one.cut, 1.0) / max(other.cut, 1.0)) for one, other in pairs])  # some cuts are 0
    seconds = np.mean([np.log(one.seconds / other.seconds) for one, other in pairs])
    return float(np.exp(cut)), float(np.exp(seconds)), len(pairs)


def tables(rows: list[Row], efforts: list[str], peers: list[str]) -> list[str]:
    """Lines of Markdown: relative to every peer, over all k and by k, then with unequal targets."""
    lines = []
    for unequal in (False, True):
        those = [row for row in rows if row.unequal == unequal]
        columns = [peer for peer in peers if any(row.method == peer for row in those)]
        if not those or not columns:
            continue
        ks = sorted({row.k for row in those})
        lines += ["", "unequal targets" if unequal else "equal targets", ""]
        lines += ["| effort | k | " + " | ".join(f"cut / {peer}, time" for peer in columns) + " | imbalance |"]
        lines += ["|---" * (len(columns) + 3) + "|"]
        for effort in efforts:
            for some in (ks, *([k] for k in ks)):
                selected = [row for row in those if row.k in some]
                cells = ["{:.3f}, {:.2f}".format(*ratios(selected, effort, peer)[:2]) for peer in columns]
                worst = max(row.imbalance for row in selected if row.method == effort)
                label = "all" if some is ks else f"{some[0]}"
                lines.append(f"| {effort} | {label} | " + " | ".join(cells) + f" | {worst:.4f} |")
        worst_of = {peer: max(row.imbalance for row in those if row.method == peer) for peer in columns}
        lines += ["", "worst imbalance: " + ", ".join(f"{peer} {worst:.3f}" for peer, worst in worst_of.items())]
    return lines


def against_wanted(rows: list[Row]) -> dict[str, Any]:
    """Compare with the goals, for pairs of methods that have both run."""
    reached: dict[str, Any] = {}
    methods = {row.method for row in rows}
    for effort, (peer, cut, seconds) in WANTED.items():
        those = [row for row in rows if not row.unequal]
        if {effort, peer} <= methods and those:
            found = ratios(those, effort, peer)
            reached[effort] = {"peer": peer, "cut": found[0], "time": found[1], "cases": found[2]}
            reached[effort] |= {"wanted_cut": cut, "wanted_time": seconds}
        those = [row for row in rows if row.unequal]
        if {effort, "metis-kway"} <= methods and those:
            found = ratios(those, effort, "metis-kway")
            reached[f"{effort}, unequal"] = {"peer": "metis-kway", "cut": found[0], "time": found[1], "cases": found[2]}
            reached[f"{effort}, unequal"] |= {"wanted_cut": WANTED_UNEQUAL, "wanted_time": None}
    return reached


def show(text: str) -> None:
    """Show progress on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def chosen(text: str, allowed: Iterable[str], what: str) -> list[str]:
    """Parse "a,b"; ValueError for a word that is not allowed."""
    words = [word for word in text.split(",") if word]
    for word in words:
        if word not in allowed:
            raise argparse.ArgumentTypeError(f"{word!r}: expected {what} of {', '.join(allowed)}")
    return words


# --- other goals than light cuts --------------------------------------------------------------------------------------

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
        logs = {method: np.log(np.maximum(values, 1.0) / np.maximum(cuts["good"], 1.0)) for method, values in cuts.items()}
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
        yield "| graph | bound | by cut | by time | / by cut | cut | cut by time |"
        yield "|---" * 7 + "|"
        ratios = []
        for name, one in graphs.items():
            graph = Graph(one.indptr, one.indices, one.weights * EDGE_BYTES, one.vertex_weights)
            figures = []
            for seed in range(seeds):
                show(f"{name}, {machine.size} ranks, seed {seed}")
                for aim in ("cut", "time"):
                    part = partition(graph, machine.size, machine=machine, unit_s=UNIT_S, seed=seed, aim=aim)
                    found = partition_metrics(graph, part, machine.size, machine=machine, unit_s=UNIT_S)
                    assert found.cost is not None
                    figures.append((1e3 * found.cost.objective_s, found.cut, 1e3 * found.cost.lower_bound_s))
            ms, cuts, bounds = np.array(figures).reshape(seeds, 2, 3).transpose(2, 0, 1)
            ratio = ms[:, 1] / ms[:, 0]
            ratios += ratio.tolist()
            show("")
            mean, cut = ms.mean(axis=0), cuts.mean(axis=0) / EDGE_BYTES
            yield (
                f"| {name} | {bounds[0, 0]:.3f} | {mean[0]:.3f} | {mean[1]:.3f} | {ratio.mean():.3f} "
                f"| {cut[0]:.0f} | {cut[1]:.0f} |"
            )
        yield f"\nmedian {np.median(ratios):.3f}, worst {np.max(ratios):.3f}"


# --- the command ------------------------------------------------------------------------------------------------------

TABLES = ("peers", "spectral", "objective")


def against_peers(graphs: dict[str, Graph], ks: list[int], options: argparse.Namespace) -> None:
    """Run lb_mpi and the peers; print the tables or JSON."""
    speeds = options.speeds
    for effort in options.efforts:
        for targets in (None, [1, 1, 2, 4]):  # compiles, or loads what was compiled
            partition("mesh:60x60", 4, targets=targets, effort=effort)
    rows: list[Row] = []
    for name, graph in graphs.items():
        for k in ks:
            equal = Case(name, graph, np.full(k, 1.0 / k), False)
            rows += run(equal, [*options.peers, *options.efforts], options.imbalance, options.seeds)
            if speeds and k % len(speeds) == 0:
                shares = np.tile(speeds, k // len(speeds))
                unequal = Case(name, graph, shares / shares.sum(), True)
                know_targets = [peer for peer in options.peers if not peer.startswith("kahip")]
                rows += run(unequal, [*know_targets, *options.efforts], options.imbalance, options.seeds)
    show("")
    reached = against_wanted(rows)
    if options.json:
        print(json.dumps({"reached": reached, "rows": [row._asdict() for row in rows]}))
        return
    print(f"{len(graphs)} graphs, ours / peer's, imbalance {options.imbalance:g}, {options.seeds} seeds")
    print("\n".join(tables(rows, options.efforts, options.peers)), end="\n\n")
    for what, found in reached.items():
        limit = "" if found["wanted_time"] is None else f" (wanted <= {found['wanted_time']:g})"
        print(f"{what}: cut {found['cut']:.3f} of {found['peer']} (wanted <= {found['wanted_cut']}), ", end="")
        print(f"time {found['time']:.2f}{limit}, {found['cases']} cases")


def numbers(text: str) -> list[float]:
    """The numbers in "1,2"; argparse turns a ValueError into its own."""
    found = [float(word) for word in text.split(",") if word]
    if any(not one > 0 for one in found):
        raise ValueError
    return found


def main() -> None:
    """Print the tables."""
    parser = command("partition", __doc__, seeds=(1, "runs of each method"))
    parser.add_argument("folder", type=Path, help="folder with METIS .graph or Matrix Market .mtx files")
    parser.add_argument("--tables", type=lambda text: chosen(text, TABLES, "some"), default="peers", help="(%(default)s)")
    parser.add_argument("--graphs", help="comma-separated names of files, without .graph or .mtx (all)")
    parser.add_argument("--k", type=numbers, default="2,4,8,16,32,64", help="(%(default)s)")
    peers = parser.add_argument_group("of peers, as --json is")
    peers.add_argument("--efforts", type=lambda text: chosen(text, EFFORTS, "some"), default=",".join(EFFORTS))
    peers.add_argument("--peers", type=lambda text: chosen(text, PEERS, "some"), default=",".join(PEERS))
    peers.add_argument("--imbalance", type=float, default=0.03, help="(%(default)s)")
    peers.add_argument(
        "--speeds",
        type=numbers,
        default="1,1,2,4",
        help="speeds for unequal targets; empty: no unequal targets (%(default)s)",
    )
    options = parser.parse_args()
    ks = [int(k) for k in options.k]
    if min(ks) < 2:
        parser.error("expected --k >= 2")
    files = {path.stem: path for suffix in ("graph", "mtx") for path in sorted(options.folder.glob(f"*.{suffix}"))}
    names = sorted(files) if options.graphs is None else options.graphs.split(",")
    if not names or not set(names) <= set(files):
        parser.error(f"expected graphs in {options.folder}: {', '.join(sorted(files)) or 'there are none'}")
    graphs = {name: as_graph(files[name]) for name in names}
    for table in options.tables:
        if table == "peers":
            against_peers(graphs, ks, options)
            continue
        lines = {
            "spectral": lambda: spectral(graphs, ks, options.seeds),
            "objective": lambda: objective(graphs, options.seeds),
        }[table]()
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
