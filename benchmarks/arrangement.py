"""Who sits where: the experiments of Jin & Wang 2003 beside what they print, and how far other methods get.

    python -m benchmarks.arrangement [--out out] [--samples 20000] [--no-plots]

1   Nine nodes of speeds 1..9 on six graphs: the greedy, the best and the worst of all 362,880 arrangements, and how many are
    better than the greedy.  Where the printed value is missed by more than rounding, the row says which: the printed minima
    are below what any arrangement reaches.
2   Three sets of nine speeds on T9 and T2: how far the greedy is from the best, Pr = (p - min)/(max - min), and which part
    of all arrangements is better, Pct; printed values in brackets.
3   64 nodes, speeds uniform in [1, 10], on an 8x8 mesh: random arrangements and the place of each method among them; with
    the extra `plot` installed the histogram, arrangement_8x8.png.
    Then steps to 1e-6, predicted, and measured in simulation (fos with the best uniform tau).

Equal p, up to rounding, counts as neither better nor worse: graphs have symmetries.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lb_mpi.arrangement import arrange, predict_steps
from lb_mpi.arranging.aims import TIE, UniformAim, costs
from lb_mpi.arranging.methods import all_costs
from lb_mpi.cli_arrange import graph_from
from lb_mpi.diffusion import balance
from lb_mpi.graph import Floats, Graph, parse

GRAPHS = {
    "T1": "3/3/1,2,4/3,5,7/4,6/5/4,8,9/7/7",
    "T2": "2,4,6/1,3,7/2,4,8/1,3,5/4,9/1,9/2,9/3,9/5,6,7,8",
    "T3": "2,7,6/1,3/2,4/3,9,5/4,6/5,1/1,8/7,9/8,4",
    "T4": "6,2/1,8,3/2,5/6,5,8/4,9,3/4,1,9,7/6,8/4,2,7/6,5",
    "T7": "2,3/1,4,6,8/1,5,9,7/2/3/2/3/2/3",
    "T9": "mesh:3x3",
}
# As printed: p of the greedy, its minimum and maximum, Pr in %, arrangements below and above the greedy.
PRINTED = {
    "T1": (15.3, 9.2, 88.2, 7.7, 278, 362_601),
    "T2": (8.0, 5.4, 25.1, 13.2, 472, 362_407),
    "T3": (13.5, 7.7, 33.4, 25.6, 1831, 361_049),
    "T4": (7.9, 6.6, 29.1, 5.8, 36, 362_843),
    "T7": (23.9, 7.1, 144.8, 12.2, 159, 362_720),
    "T9": (9.3, 7.4, 32.6, 7.5, 184, 362_694),
}
SETS = (
    (8.67, 4.08, 3.27, 3.24, 2.97, 2.08, 1.87, 1.27, 1.00),
    (9.13, 6.07, 5.96, 5.53, 5.34, 3.90, 2.83, 1.45, 1.00),
    (9.53, 4.00, 3.51, 2.89, 2.63, 1.56, 1.39, 1.29, 1.00),
)
PRINTED_SETS = {"T9": ((4.5, 0.005), (6.3, 0.03), (0.1, 0.0003)), "T2": ((8.3, 0.02), (9.5, 0.05), (12.5, 0.21))}
METHODS = ("paper", "fill", "swap", "anneal")


class Place(NamedTuple):
    """Where the greedy stands among all arrangements."""

    greedy: float  # p
    least: float
    most: float
    below: int  # arrangements with smaller p
    above: int

    @property
    def part(self) -> float:
        """Pr of the paper, in %."""
        return 100.0 * (self.greedy - self.least) / (self.most - self.least)


def place(graph: Graph, speeds: Floats) -> Place:
    """Compare the greedy with all P! arrangements."""
    greedy = arrange(graph, speeds, method="paper").p
    least, most, below, above = np.inf, 0.0, 0, 0
    for _, values in all_costs(UniformAim(graph), speeds):
        least, most = min(least, float(values.min())), max(most, float(values.max()))
        below += int((values < greedy * (1.0 - TIE)).sum())
        above += int((values > greedy * (1.0 + TIE)).sum())
    return Place(greedy, least, most, below, above)


def first() -> None:
    """Print experiment 1."""
    print("Experiment 1: speeds 1..9 (printed values in brackets)")
    print(f"{'':4}{'greedy':>15}{'minimum':>15}{'maximum':>16}{'Pr %':>15}{'below':>14}{'above':>20}  differs")
    for name, text in GRAPHS.items():
        found = place(graph_from(text), np.arange(1.0, 10.0))
        printed = PRINTED[name]
        ours = (found.greedy, found.least, found.most)
        differs = [
            word
            for word, mine, theirs in zip(("greedy", "minimum", "maximum"), ours, printed[:3], strict=True)
            if abs(mine - theirs) > 0.1
        ]
        values = "".join(f"{mine:8.2f} ({theirs:5.1f})" for mine, theirs in zip((*ours, found.part), printed, strict=False))
        counts = f"{found.below:6} ({printed[4]:4}){found.above:9} ({printed[5]:6})"
        print(f"{name:4}{values}{counts}  {', '.join(differs) or 'nothing'}")


def second() -> None:
    """Print experiment 2."""
    print("\nExperiment 2: Pr % / Pct % of the greedy (printed values in brackets)")
    for name, printed in PRINTED_SETS.items():
        for speeds, (part, share) in zip(SETS, printed, strict=True):
            found = place(graph_from(GRAPHS[name]), np.array(speeds))
            total = 100.0 * found.below / 362_880
            print(f"{name:4} fastest {speeds[0]:4}: {found.part:6.2f} ({part:4}) / {total:8.4f} ({share:6})")


def third(samples: int, out: Path, plots: bool) -> None:
    """Print experiment 3, and draw it."""
    graph = parse("mesh:8x8")
    rng = np.random.default_rng(0)
    speeds = rng.uniform(1.0, 10.0, graph.n)
    aim = UniformAim(graph)
    drawn = np.concatenate(
        [
            costs(aim, np.array([rng.permutation(speeds) for _ in range(min(500, samples - begin))]))
            for begin in range(0, samples, 500)
        ]
    )
    print(f"\nExperiment 3: 8x8 mesh, speeds uniform in [1, 10], {samples:,} random arrangements")
    print("printed: greedy 93.9, minimum 63.8, maximum 225.2, 23 of 100,000 below the greedy (other speeds)")
    print(f"random   p {drawn.min():.1f} to {drawn.max():.1f}, mean {drawn.mean():.1f}")
    found = {}
    for method in METHODS:
        begin = time.perf_counter()
        found[method] = arrange(graph, speeds, method=method)
        seconds = time.perf_counter() - begin
        below = int((drawn < found[method].p).sum())
        print(
            f"{method:8} p {found[method].p:6.2f}, {found[method].p / found['paper'].p:.3f} of the greedy, "
            f"{below:,} random ones are better; {seconds:.2f} s"
        )
    print("\nSteps of fos to 1e-6: predicted, measured (median of 11 draws of times)")
    layouts = {"as given": speeds, **{method: speeds[one.positions] for method, one in found.items()}}
    for name, layout in layouts.items():
        steps = []
        for seed in range(1, 12):
            loads = layout * np.random.default_rng(seed).uniform(5.0, 15.0, graph.n)
            steps.append(balance(graph, loads, layout, "fos", "uniform", tolerance=1e-6).steps)
        print(f"{name:8} {predict_steps(graph, layout):6} {int(np.median(steps)):6}")
    if plots:
        draw(drawn, {method: one.p for method, one in found.items()}, out)


def draw(drawn: Floats, found: dict[str, float], out: Path) -> None:
    """Draw the histogram, with each method's place."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8.0, 4.5), layout="constrained")
    axes.hist(drawn, bins=80, color="0.75", label=f"{len(drawn):,} random arrangements")
    for k, (method, p) in enumerate(found.items()):
        axes.axvline(p, color=f"C{k}", label=f"{method}: {p:.1f}")
    axes.set(xlabel="p = largest / smallest eigenvalue", ylabel="arrangements", title="64 unequal nodes on an 8x8 mesh")
    axes.legend()
    out.mkdir(parents=True, exist_ok=True)
    path = out / "arrangement_8x8.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"drawn: {path}")


def main() -> None:
    """Run all three."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.arrangement",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for pictures (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=20_000, help="of experiment 3 (default: %(default)s)")
    parser.add_argument("--no-plots", action="store_true", help="print only")
    options = parser.parse_args()
    if options.samples < 1:
        parser.error("expected --samples >= 1")
    first()
    second()
    third(options.samples, options.out, not options.no_plots)


if __name__ == "__main__":
    main()
