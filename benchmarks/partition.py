"""Cuts and CPU seconds of `lb_mpi.partition` against METIS and KaHIP, on all graphs in a folder.

    pip install "lb_mpi[peers]"
    python -m benchmarks.partition FOLDER [--graphs crack,uk] [--k 2,4,8] [--efforts fast,good] [--peers metis-kway] [--json]

Geometric means over graphs and k of the ratio ours / peer's, at 3 % imbalance; of each method the cut is the mean over
seeds.  The same with unequal targets (the speeds, over and over, for each k that is a multiple of their number) against
METIS alone, which knows targets.  METIS and KaHIP get the graph ready made; the kernels of the library are compiled or
loaded before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.graph import Floats, Graph, Ints
from lb_mpi.graph_files import as_graph
from lb_mpi.partitioning.external import WholeNumbers, kahip, metis, whole_numbers
from lb_mpi.partitioning.partition import EFFORTS, partition
from lb_mpi.partitioning.quality import partition_metrics

Peer = Callable[[WholeNumbers, Floats, float, int], Ints]
PEERS: dict[str, Peer] = {
    "metis-recursive": lambda graph, targets, imbalance, seed: metis(graph, targets, imbalance, seed, recursive=True),
    "metis-kway": metis,
    "kahip-eco": lambda graph, targets, imbalance, seed: kahip(graph, len(targets), imbalance, seed, "ECO"),
    "kahip-strong": lambda graph, targets, imbalance, seed: kahip(graph, len(targets), imbalance, seed, "STRONG"),
}
# What this project set out to reach: cut and time relative to this peer's.
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
    """What was reached of what was wanted, where both methods have run."""
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
    """Progress, where somebody is looking."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def chosen(text: str, allowed: Iterable[str], what: str) -> list[str]:
    """The words in "a,b", all of them allowed."""
    words = [word for word in text.split(",") if word]
    for word in words:
        if word not in allowed:
            raise argparse.ArgumentTypeError(f"{word!r}: expected {what} of {', '.join(allowed)}")
    return words


def main() -> None:
    """Run, print the tables or JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.partition", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of METIS .graph or Matrix Market .mtx files")
    parser.add_argument("--graphs", help="names of files, without .graph or .mtx, with commas (all)")
    parser.add_argument("--k", default="2,4,8,16,32,64", help="(%(default)s)")
    parser.add_argument("--efforts", type=lambda text: chosen(text, EFFORTS, "some"), default=",".join(EFFORTS))
    parser.add_argument("--peers", type=lambda text: chosen(text, PEERS, "some"), default=",".join(PEERS))
    parser.add_argument("--imbalance", type=float, default=0.03, help="(%(default)s)")
    parser.add_argument("--speeds", default="1,1,2,4", help="of the unequal targets; empty: none (%(default)s)")
    parser.add_argument("--only-unequal", action="store_true", help="unequal targets only")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each method (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, with a row for every case")
    options = parser.parse_args()
    try:
        ks = [int(word) for word in options.k.split(",")]
        speeds = [float(word) for word in options.speeds.split(",") if word]
    except ValueError:
        parser.error("expected numbers with commas between in --k and --speeds")
    if options.seeds < 1 or min(ks) < 2 or any(speed <= 0 for speed in speeds):
        parser.error("expected --seeds >= 1, --k >= 2 and --speeds > 0")
    files = {path.stem: path for suffix in ("graph", "mtx") for path in sorted(options.folder.glob(f"*.{suffix}"))}
    names = sorted(files) if options.graphs is None else options.graphs.split(",")
    if not names or not set(names) <= set(files):
        parser.error(f"expected graphs in {options.folder}: {', '.join(sorted(files)) or 'there are none'}")

    for effort in options.efforts:
        for targets in (None, [1, 1, 2, 4]):  # compiles, or loads what was compiled
            partition("mesh:60x60", 4, targets=targets, effort=effort)
    rows: list[Row] = []
    for name in names:
        graph = as_graph(files[name])
        for k in ks:
            if not options.only_unequal:
                equal = Case(name, graph, np.full(k, 1.0 / k), False)
                rows += run(equal, [*options.peers, *options.efforts], options.imbalance, options.seeds)
            if speeds and k % len(speeds) == 0:
                shares = np.tile(speeds, k // len(speeds))
                unequal = Case(name, graph, shares / shares.sum(), True)
                know_targets = [peer for peer in options.peers if peer.startswith("metis")]
                rows += run(unequal, [*know_targets, *options.efforts], options.imbalance, options.seeds)
    show("")
    reached = against_wanted(rows)
    if options.json:
        print(json.dumps({"reached": reached, "rows": [row._asdict() for row in rows]}))
        return
    print(f"{len(names)} graphs, ours / peer's, imbalance {options.imbalance:g}, {options.seeds} seeds")
    print("\n".join(tables(rows, options.efforts, options.peers)), end="\n\n")
    for what, found in reached.items():
        limit = "" if found["wanted_time"] is None else f" (wanted <= {found['wanted_time']:g})"
        print(f"{what}: cut {found['cut']:.3f} of {found['peer']} (wanted <= {found['wanted_cut']}), ", end="")
        print(f"time {found['time']:.2f}{limit}, {found['cases']} cases")


if __name__ == "__main__":
    main()
