"""Cuts and CPU seconds of `lb_mpi.partition` and of other programs, on all graphs in a folder.

    pip install ".[peers]"
    python -m benchmarks.partition FOLDER [--graphs crack,uk] [--k 2,8]

The others are METIS, KaHIP, Mt-KaHyPar and KaMinPar, each on one thread.  Entries are geometric means over graphs and k of
the ratio ours / peer's, at 3 % imbalance; the cut of each method is the mean over seeds.  The same with unequal targets (the
speeds, repeated, for each k that is a multiple of their number) against all but KaHIP, which has no targets.  The peers
receive the graph in their own form; the kernels of the library are compiled or loaded before the clock starts.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measuring import command
from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.graph_files import as_graph
from lb_mpi.partitioning.partition import EFFORTS, partition
from lb_mpi.partitioning.quality import partition_metrics

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


IMBALANCE = 0.03


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


def run(case: Case, methods: Iterable[str], seeds: int) -> list[Row]:
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
                parts = PEERS[method](whole, case.targets, IMBALANCE, seed)
            else:
                parts = partition(case.graph, k, targets=case.targets, imbalance=IMBALANCE, effort=method, seed=seed)
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
            rows += run(equal, [*options.peers, *options.efforts], options.seeds)
            if speeds and k % len(speeds) == 0:
                shares = np.tile(speeds, k // len(speeds))
                unequal = Case(name, graph, shares / shares.sum(), True)
                know_targets = [peer for peer in options.peers if not peer.startswith("kahip")]
                rows += run(unequal, [*know_targets, *options.efforts], options.seeds)
    show("")
    if options.json:
        print(json.dumps([row._asdict() for row in rows]))
        return
    print(f"{len(graphs)} graphs, ours / peer's, imbalance {IMBALANCE:g}, {options.seeds} seeds")
    print("\n".join(tables(rows, options.efforts, options.peers)))


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
    parser.add_argument("--graphs", help="comma-separated names of files, without .graph or .mtx (all)")
    parser.add_argument("--k", type=numbers, default="2,4,8,16,32,64", help="(%(default)s)")
    parser.add_argument("--efforts", type=lambda text: chosen(text, EFFORTS, "some"), default=",".join(EFFORTS))
    parser.add_argument("--peers", type=lambda text: chosen(text, PEERS, "some"), default=",".join(PEERS))
    parser.add_argument(
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
    against_peers(graphs, ks, options)


if __name__ == "__main__":
    main()
