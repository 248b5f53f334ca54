"""Where the fast nodes should sit: the experiments of Jin & Wang 2003 beside their printed values, and what came after.

    python -m benchmarks.arrangement [--out out] [--seeds 10] [--parts 12345] [--large] [--no-plots]

1. Speeds 1..9 on six graphs of 9 nodes: p of the paper's greedy, and of all 362,880 arrangements.
2. Three sets of measured speeds, likewise.
3. 64 speeds uniform in [1, 10] on the 8x8 mesh: the methods among random arrangements, as a histogram in
   arrangement_8x8.png (needs the extra `plot`).
4. p of each method relative to the greedy, on the 8x8 mesh and larger ones (--large: 32x32, some minutes more).
5. Steps of diffusion to an imbalance of 1e-6: predicted, and measured by doing it.

What agrees is marked =, what can't be reproduced !.  The paper's printed minima are below every arrangement there is (its
columns are shifted in places, and its eigenvalues were most likely not converged).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.arranging.arrange import METHODS, OBJECTIVES, Arrangement, arrange
from lb_mpi.arranging.methods import all_costs
from lb_mpi.arranging.objectives import UniformAim, costs
from lb_mpi.arranging.secular import compile_kernels
from lb_mpi.diffusion.diffusion import balance
from lb_mpi.graph import Floats, Graph, parse

FAST = METHODS[1:]
TIE = 1e-9  # symmetries of a graph make exact ties


class Printed(NamedTuple):
    """A row of the paper's experiment 1."""

    greedy: float
    least: float
    greatest: float
    below: int  # arrangements with a smaller p than the greedy's
    above: int


GRAPHS = {
    "T1": "3/3/1,2,4/3,5,7/4,6/5/4,8,9/7/7",
    "T2": "2,4,6/1,3,7/2,4,8/1,3,5/4,9/1,9/2,9/3,9/5,6,7,8",
    "T3": "2,7,6/1,3/2,4/3,9,5/4,6/5,1/1,8/7,9/8,4",
    "T4": "6,2/1,8,3/2,5/6,5,8/4,9,3/4,1,9,7/6,8/4,2,7/6,5",
    "T7": "2,3/1,4,6,8/1,5,9,7/2/3/2/3/2/3",
    "T9": "2,4/1,3,5/2,6/1,5,7/2,4,6,8/3,5,9/4,8/5,7,9/6,8",
}
PRINTED = {
    "T1": Printed(15.3, 9.2, 88.2, 278, 362_601),
    "T2": Printed(8.0, 5.4, 25.1, 472, 362_407),
    "T3": Printed(13.5, 7.7, 33.4, 1831, 361_049),
    "T4": Printed(7.9, 6.6, 29.1, 36, 362_843),
    "T7": Printed(23.9, 7.1, 144.8, 159, 362_720),
    "T9": Printed(9.3, 7.4, 32.6, 184, 362_694),
}
SPEED_SETS = {
    1: (8.67, 4.08, 3.27, 3.24, 2.97, 2.08, 1.87, 1.27, 1.00),
    2: (9.13, 6.07, 5.96, 5.53, 5.34, 3.90, 2.83, 1.45, 1.00),
    3: (9.53, 4.00, 3.51, 2.89, 2.63, 1.56, 1.39, 1.29, 1.00),
}
PRINTED_SETS = {  # Pr and Pct, in %
    ("T9", 1): (4.5, 0.005),
    ("T9", 2): (6.3, 0.03),
    ("T9", 3): (0.1, 0.0003),
    ("T2", 1): (8.3, 0.02),
    ("T2", 2): (9.5, 0.05),
    ("T2", 3): (12.5, 0.21),
}


class Place(NamedTuple):
    """A value among all arrangements."""

    least: float
    greatest: float
    below: int
    above: int

    def relative(self, p: float) -> float:
        """The paper's Pr: (p - least) / (greatest - least), in %."""
        return 100.0 * (p - self.least) / (self.greatest - self.least)

    @property
    def percentile(self) -> float:
        """The paper's Pct: the share of arrangements that are better, in %."""
        return 100.0 * self.below / (self.below + self.above)


def place(values: Floats, p: float) -> Place:
    """Where p is among the values; ties count as above, as they do in the paper."""
    below = int((values < p * (1.0 - TIE)).sum())
    return Place(float(values.min()), float(values.max()), below, len(values) - below)


def mark(ours: float, printed: float, rounding: float) -> str:
    """The printed value, and whether ours is that one."""
    return f"{printed:g} {'=' if abs(ours - printed) <= rounding else '!'}"


def experiment_1() -> list[str]:
    """Speeds 1..9 on graphs of 9 nodes; ours first, then the paper's."""
    lines = [
        "1. Speeds 1..9: p, ours and (printed: = agrees, ! doesn't)",
        "",
        "| graph | greedy | least | greatest | Pr of greedy, % | better | not better | fill | swap | anneal |",
        "|---" * 10 + "|",
    ]
    speeds = np.arange(1.0, 10.0)
    for name, text in GRAPHS.items():
        graph, printed = parse(text), PRINTED[name]
        values = np.concatenate([values for _, values in all_costs(UniformAim(graph), speeds)])
        p = {method: arrange(graph, speeds, method=method).p for method in FAST}
        where = place(values, p["paper"])
        pr = 100.0 * (printed.greedy - printed.least) / (printed.greatest - printed.least)
        cells = [
            f"{p['paper']:.2f} ({mark(p['paper'], printed.greedy, 0.06)})",
            f"{where.least:.2f} ({mark(where.least, printed.least, 0.06)})",
            f"{where.greatest:.2f} ({mark(where.greatest, printed.greatest, 0.06)})",
            f"{where.relative(p['paper']):.1f} ({mark(where.relative(p['paper']), round(pr, 1), 0.06)})",
            f"{where.below} ({mark(where.below, printed.below, 0)})",
            f"{where.above} ({mark(where.above, printed.above, 0)})",
            *(f"{p[method]:.2f}" for method in ("fill", "swap", "anneal")),
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def experiment_2() -> list[str]:
    """Measured speeds on T9 and T2."""
    lines = [
        "2. Sets of speeds: greedy among all arrangements, ours and (printed)",
        "",
        "| graph, set | greedy | least | greatest | Pr, % | Pct, % | fill | swap | anneal |",
        "|---" * 9 + "|",
    ]
    for (name, number), (pr, pct) in PRINTED_SETS.items():
        graph, speeds = parse(GRAPHS[name]), np.array(SPEED_SETS[number])
        values = np.concatenate([values for _, values in all_costs(UniformAim(graph), speeds)])
        p = {method: arrange(graph, speeds, method=method).p for method in FAST}
        where = place(values, p["paper"])
        cells = [
            f"{p['paper']:.2f}",
            f"{where.least:.2f}",
            f"{where.greatest:.2f}",
            f"{where.relative(p['paper']):.1f} ({mark(where.relative(p['paper']), pr, 0.06)})",
            f"{where.percentile:.4f} ({mark(where.percentile, pct, 0.1 * pct)})",
            *(f"{p[method]:.2f}" for method in ("fill", "swap", "anneal")),
        ]
        lines.append(f"| {name}, {number} | " + " | ".join(cells) + " |")
    return lines


def experiment_3(draws: int, seed: int) -> tuple[list[str], Floats, dict[str, float]]:
    """The 8x8 mesh: lines, p of random arrangements, and p of the methods."""
    graph, rng = parse("mesh:8x8"), np.random.default_rng(seed)
    speeds = rng.uniform(1.0, 10.0, graph.n)
    aim = UniformAim(graph)
    values = np.concatenate(
        [
            costs(aim, rng.permuted(np.tile(speeds, (size, 1)), axis=1))
            for size in np.diff([*range(0, draws, 1000), draws]).tolist()
        ]
    )
    found = {method: arrange(graph, speeds, method=method) for method in FAST}
    p = {"as given": found["paper"].p_before} | {method: one.p for method, one in found.items()}
    lines = [
        f"3. 8x8 mesh, speeds uniform in [1, 10] (seed {seed}), {draws} random arrangements: p from {values.min():.1f} to "
        f"{values.max():.1f}, mean {values.mean():.1f}, standard deviation {values.std():.1f}",
        "   (printed, for another draw of speeds: 63.8 to 225.2, greedy 93.9, and 23 of 100000 below it)",
        "",
        "| arrangement | p | random ones below it |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {one:.1f} | {place(values, one).below} |" for name, one in p.items()]
    return lines, values, p


def plot(plt: Any, path: Path, values: Floats, p: dict[str, float], seed: int) -> None:
    """The histogram of experiment 3, with the place of each method."""
    figure, axis = plt.subplots(figsize=(9, 5), layout="constrained")
    axis.hist(values, bins=120, color="0.75")
    top = axis.get_ylim()[1]
    for k, one in enumerate(sorted(p.values(), reverse=True)):
        axis.axvline(one, color=f"C{k}", lw=1.4)
    for k, (name, one) in enumerate(sorted(p.items(), key=lambda item: -item[1])):
        colour = f"C{k}"
        label = "greedy of the paper" if name == "paper" else name
        axis.text(
            one + 1.0,
            top * (0.97 - 0.08 * k),
            f"{label} {one:.1f}",
            color=colour,
            va="top",
            bbox={"color": "white", "pad": 1.0},
        )
    axis.set(
        title=f"{len(values)} random arrangements of 64 speeds, uniform in [1, 10], on the 8x8 mesh (seed {seed})",
        xlabel="p = lambda_P / lambda_2: steps of diffusion are proportional to it",
        ylabel="arrangements",
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def table_of_methods(names: dict[str, tuple[int, tuple[str, ...]]]) -> list[str]:
    """p relative to the greedy, and seconds; `names`: mesh -> number of seeds, methods."""
    lines = ["4. p / p of the paper's greedy, and seconds: medians", ""]
    lines += ["| mesh | seeds | greedy | fill | swap | anneal |", "|---" * 6 + "|"]
    compile_kernels()
    for name, (seeds, methods) in names.items():
        graph = parse(name)
        p: dict[str, list[float]] = {method: [] for method in methods}
        seconds: dict[str, list[float]] = {method: [] for method in methods}
        for seed in range(seeds):
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
    lines = ["5. Steps to an imbalance of 1e-6: predicted / measured (median of 5 draws of times)", ""]
    lines += ["| graph, objective | as given | greedy | fill | swap |", "|---" * 5 + "|"]
    for name in names:
        graph = parse(name)
        speeds = np.random.default_rng(0).uniform(1.0, 10.0, graph.n)
        for objective in OBJECTIVES:
            found: dict[str, Arrangement] = {
                method: arrange(graph, speeds, objective=objective, method=method) for method in ("paper", "fill", "swap")
            }
            cells = [f"{found['swap'].steps_before} / {measure(graph, speeds, objective):g}"]
            cells += [
                f"{one.steps_predicted} / {measure(graph, speeds[one.positions], objective):g}"
                for one in found.values()
            ]
            lines.append(f"| {name}, {objective} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.arrangement",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the picture (%(default)s)")
    parser.add_argument("--seeds", type=int, default=10, help="of the 8x8 mesh in table 4 (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of experiment 3 (%(default)s)")
    parser.add_argument("--draws", type=int, default=100_000, help="random arrangements (%(default)s)")
    parser.add_argument("--parts", default="12345", metavar="DIGITS", help="which of these (%(default)s)")
    parser.add_argument("--large", action="store_true", help="table 4 for the 32x32 mesh, too")
    parser.add_argument("--no-plots", action="store_true", help="tables only; needs no matplotlib")
    args = parser.parse_args()
    if args.seeds < 1 or args.draws < 1 or args.seed < 0:
        parser.error("expected --seeds >= 1, --draws >= 1, --seed >= 0")
    if "1" in args.parts:
        print("\n".join([*experiment_1(), ""]), flush=True)
    if "2" in args.parts:
        print("\n".join([*experiment_2(), ""]), flush=True)
    if "3" in args.parts:
        lines, values, p = experiment_3(args.draws, args.seed)
        print("\n".join([*lines, ""]), flush=True)
        if not args.no_plots:
            try:
                import matplotlib as mpl
            except ModuleNotFoundError:
                parser.error('the picture needs matplotlib: pip install "lb_mpi[plot]", or give --no-plots')
            mpl.use("Agg")
            import matplotlib.pyplot as plt

            args.out.mkdir(parents=True, exist_ok=True)
            plot(plt, args.out / "arrangement_8x8.png", values, p, args.seed)
            print(f"picture: {args.out}/arrangement_8x8.png\n", flush=True)
    if "4" in args.parts:
        names = {"mesh:8x8": (args.seeds, FAST), "mesh:16x16": (3, FAST[:3])}
        if args.large:
            names["mesh:32x32"] = (1, FAST[:3])
        print("\n".join([*table_of_methods(names), ""]), flush=True)
    if "5" in args.parts:
        print("\n".join(table_of_steps(("mesh:3x3", "mesh:8x8", "mesh:16x16"))), flush=True)


if __name__ == "__main__":
    main()
