"""Where the fast nodes should sit: what came after the greedy of Jin & Wang 2003.

    python -m benchmarks.arrangement [--seeds 10] [--large]

1. p of each method relative to the paper's greedy, on the 8x8 mesh and larger ones (--large: 32x32, some minutes more).
2. Steps of diffusion to an imbalance of 1e-6: predicted, and measured by doing it.

The paper's own experiments are in `python -m benchmarks.papers`.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from benchmarks.measuring import Watch, command, words
from lb_mpi.arranging.arrange import METHODS, OBJECTIVES, Arrangement, arrange
from lb_mpi.arranging.objectives import compile_kernels
from lb_mpi.diffusion.diffusion import balance
from lb_mpi.graph import Floats, Graph, parse

FAST = METHODS[1:]


def table_of_methods(names: dict[str, tuple[int, tuple[str, ...]]]) -> list[str]:
    """p relative to the greedy, and seconds; `names`: mesh -> number of seeds, methods."""
    lines = ["1. p / p of the paper's greedy, and seconds: medians", ""]
    lines += ["| mesh | seeds | greedy | fill | swap | anneal |", "|---" * 6 + "|"]
    compile_kernels()
    for name, (seeds, methods) in names.items():
        graph = parse(name)
        p: dict[str, list[float]] = {method: [] for method in methods}
        seconds: dict[str, list[float]] = {method: [] for method in methods}
        for seed in range(seeds):
            say(f"{name}, speeds {seed + 1} of {seeds}")
            speeds = np.random.default_rng(seed).uniform(1.0, 10.0, graph.n)
            for method in methods:
                began = time.perf_counter()
                p[method].append(arrange(graph, speeds, method=method).p)
                seconds[method].append(time.perf_counter() - began)
        cells = []
        for method in FAST:
            if method not in methods:
                cells.append("")
                continue
            ratio = float(np.median(np.divide(p[method], p["paper"])))
            value = f"p {np.median(p[method]):.1f}" if method == "paper" else f"{ratio:.3f}"
            cells.append(f"{value}, {np.median(seconds[method]):.2g} s")
        lines.append(f"| {name} | {seeds} | " + " | ".join(cells) + " |")
    return lines


def measure(graph: Graph, layout: Floats, objective: str, draws: int = 5) -> float:
    """Median steps of fos to 1e-6 on drawn times."""
    rng = np.random.default_rng(1)
    return float(
        np.median(
            [
                balance(graph, layout * rng.uniform(5.0, 15.0, graph.n), layout, tau=objective, tolerance=1e-6).steps
                for _ in range(draws)
            ]
        )
    )


def table_of_steps(names: tuple[str, ...]) -> list[str]:
    """Steps of fos: predicted and measured, before and after, with the tau that the objective is for."""
    lines = ["2. Steps to an imbalance of 1e-6: predicted / measured (median of 5 draws of times)", ""]
    lines += ["| graph, objective | as given | greedy | fill | swap |", "|---" * 5 + "|"]
    for name in names:
        graph = parse(name)
        speeds = np.random.default_rng(0).uniform(1.0, 10.0, graph.n)
        for objective in OBJECTIVES:
            say(f"steps on {name}, objective {objective}")
            found: dict[str, Arrangement] = {
                method: arrange(graph, speeds, objective=objective, method=method)
                for method in ("paper", "fill", "swap")
            }
            cells = [f"{found['swap'].steps_before} / {measure(graph, speeds, objective):g}"]
            cells += [
                f"{one.steps_predicted} / {measure(graph, speeds[one.positions], objective):g}"
                for one in found.values()
            ]
            lines.append(f"| {name}, {objective} | " + " | ".join(cells) + " |")
    return lines


def say(text: str) -> None:
    """Tell what is going on, beside the tables."""
    print(f"... {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Run all of it."""
    parser = command("arrangement", __doc__, seeds=(10, "of the 8x8 mesh"))
    parser.add_argument("--large", action="store_true", help="the 32x32 mesh, too")
    args = parser.parse_args()
    names = {"mesh:8x8": (args.seeds, FAST), "mesh:16x16": (3, FAST[:3])}
    if args.large:
        names["mesh:32x32"] = (1, FAST[:3])
    watch = Watch()
    print("\n".join([*table_of_methods(names), ""]), flush=True)
    others = words(watch.others())
    print("\n".join(table_of_steps(("mesh:3x3", "mesh:8x8", "mesh:16x16"))), flush=True)
    print(f"\nseconds in table 1: {others}", flush=True)


if __name__ == "__main__":
    main()
