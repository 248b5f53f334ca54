"""Steps to convergence of the diffusion schemes: the experiments of Jin & Wang, and what came after them.

    python -m benchmarks.convergence [--out out] [--seeds 20] [--no-plots]

prints the table of steps (medians over seeds, beside those of reference where there are any) and where schemes that only
know their neighbours overtake the one that gathers all loads; and draws, with the extra `plot` installed:

    diffusion_5x5.png        as the paper's figure 2: times, speeds and net flow on a 5x5 mesh, before and after
    diffusion_curves.png     as the paper's figure 3: imbalance against steps, meshes of 16 to 1024 nodes
    diffusion_schemes.png    imbalance against steps for every scheme on the 16x16 mesh

    mpiexec -n 25 python -m benchmarks.convergence --real [--seeds 3] [--exchange paper]

compares the steps on real ranks, more of them than cores if need be, with those in simulation, and measures which scheme is
balanced first, with the exchange of the paper beside the MPI's collective.

Speeds are uniform in 4..16 and drawn before the times, which are uniform in 5..15.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.convergence_cases import REFERENCE, TOLERANCES, draw, steps_to
from lb_mpi.diffusion.diffusion import Diffusion, prepare

EXCHANGES = ("neighbourhood", "paper")  # as in lb_mpi.mpi.exchange, which takes MPI to import
MESHES = ("mesh:5x5", "mesh:8x8", "mesh:16x16", "mesh:32x32")


# --- tables ----------------------------------------------------------------------------------------------------------


def median_steps(name: str, scheme: str, tau: str, seeds: int) -> list[float]:
    """Medians over the seeds, for each of TOLERANCES."""
    curves = [draw(name, seed).balance(scheme, tau, TOLERANCES[-1]).imbalance for seed in range(seeds)]
    steps = [[steps_to(curve, tolerance) for tolerance in TOLERANCES] for curve in curves]
    return [float(median) for median in np.median(steps, axis=0)]


def table_of_steps(seeds: int) -> tuple[list[str], dict[tuple[str, str, str], list[float]]]:
    """Lines of Markdown; and the medians by scheme, tau and mesh."""
    lines = [
        f"Neighbour-exchange steps to an imbalance of 5 % / 1 % / 1e-6, medians of {seeds} seeds (reference in brackets)",
        "",
        "| scheme, tau | " + " | ".join(MESHES) + " |",
        "|---" * (len(MESHES) + 1) + "|",
    ]
    medians: dict[tuple[str, str, str], list[float]] = {}
    for (scheme, tau), reference in REFERENCE.items():
        cells = []
        for name in MESHES:
            medians[scheme, tau, name] = median_steps(name, scheme, tau, seeds)
            cell = "/".join(f"{median:g}" for median in medians[scheme, tau, name])
            cells.append(cell + (f" ({'/'.join(map(str, reference[name]))})" if name in reference else ""))
        title = scheme if scheme == "dimension_exchange" else f"{scheme}, {tau}"
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return lines, medians


def table_of_cost(medians: dict[tuple[str, str, str], list[float]], latency_s: float, bandwidth: float) -> list[str]:
    """Where schemes that know only their neighbours win: microseconds to 5 % in a simple model of a network.

    A step costs one latency and the stopping test is overlapped (cg: its sums can't be); direct costs an allgather
    and a scatter (each latency times log2 P, and 8 bytes for each load or flow), and solving, which is measured here.
    """
    lines = [
        f"Microseconds to 5 % at {latency_s * 1e6:g} us latency and {bandwidth / 1e9:g} GB/s",
        "",
        "| mesh | fos, paper | sos, paper | cg, uniform | direct |",
        "|---" * 5 + "|",
    ]
    for name in MESHES:
        case = draw(name, 0)
        setup, loads = prepare(case.graph, case.speeds, "direct"), case.speeds * case.times
        begin = time.perf_counter()
        for _ in range(20):
            Diffusion(setup, loads).step()
        solving_s = (time.perf_counter() - begin) / 20
        rounds = math.ceil(math.log2(case.graph.n))
        fos, sos = (latency_s * medians[scheme, "paper", name][0] for scheme in ("fos", "sos"))
        cg = latency_s * (1 + rounds) * medians["cg", "uniform", name][0]
        direct = 2 * latency_s * rounds + 8 * (case.graph.n + 2 * case.graph.n_edges) / bandwidth + solving_s
        cells = " | ".join(f"{seconds * 1e6:.0f}" for seconds in (fos, sos, cg, direct))
        lines.append(f"| {name} | {cells} |")
    return lines


# --- plots -----------------------------------------------------------------------------------------------------------


def plot_mesh(plt: Any, path: Path, seeds: int) -> None:
    """Times, speeds, and net flow on a 5x5 mesh, before and after (the paper's figure 2), for a seed of median steps."""
    results = [draw("mesh:5x5", seed).balance("fos", "paper", 0.05) for seed in range(seeds)]
    seed = int(np.argsort([result.steps for result in results], kind="stable")[seeds // 2])
    case, result = draw("mesh:5x5", seed), results[seed]
    after = result.loads / case.speeds
    scale = plt.matplotlib.colors.Normalize(case.times.min(), case.times.max())
    figure, axes = plt.subplots(1, 2, figsize=(15, 7.6), layout="constrained")
    titles = (
        f"before (seed {seed}): imbalance {result.imbalance[0]:.1%}; arrows: work to be moved",
        f"after {result.steps} steps: imbalance {result.imbalance[-1]:.1%}",
    )
    rows, columns = np.divmod(np.arange(case.graph.n), 5)
    for axis, times, title in zip(axes, (case.times, after), titles, strict=True):
        axis.set_title(title)
        axis.scatter(
            columns, rows, s=100 + 130 * case.speeds, c=times, cmap="YlOrRd", norm=scale, edgecolors="black", zorder=3
        )
        for k in range(case.graph.n):
            text = f"{times[k]:.1f}\ns {case.speeds[k]:.1f}"
            colour = "white" if scale(times[k]) > 0.7 else "black"
            axis.text(columns[k], rows[k], text, color=colour, ha="center", va="center", fontsize=8, zorder=4)
        for tail, head, amount in zip(*case.graph.edges(), result.flow, strict=True):
            axis.plot(columns[[tail, head]], rows[[tail, head]], color="0.85", lw=1, zorder=1)
            if axis is axes[0]:
                source, target = (tail, head) if amount > 0 else (head, tail)
                middle = np.array([columns[[tail, head]].mean(), rows[[tail, head]].mean()])
                towards = np.array([columns[target] - columns[source], rows[target] - rows[source]])
                style = {"arrowstyle": "-|>", "color": "tab:blue", "lw": 0.6 + abs(amount) / 15, "mutation_scale": 12}
                axis.annotate("", xy=middle + 0.2 * towards, xytext=middle - 0.2 * towards, arrowprops=style, zorder=2)
                aside = 0.1 * np.array([abs(towards[1]) * 1.6, -abs(towards[0])])
                axis.text(
                    *(middle + aside), f"{abs(amount):.1f}", color="tab:blue", ha="center", va="center", fontsize=8
                )
        axis.set(xlim=(-0.5, 4.5), ylim=(4.5, -0.5), aspect="equal")
        axis.axis("off")
    mappable = plt.cm.ScalarMappable(scale, "YlOrRd")
    figure.colorbar(mappable, ax=axes, shrink=0.8, label="time l, seconds (upper number; s: speed, area of the circle)")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_curves(plt: Any, path: Path, seeds: int) -> None:
    """Imbalance against steps for meshes of 16 to 1024 nodes (the paper's figure 3)."""
    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    steps = 100
    for side in (4, 6, 8, 12, 16, 32):
        curves = np.empty((seeds, steps + 1))
        for seed in range(seeds):
            imbalance = draw(f"mesh:{side}x{side}", seed).balance("fos", "paper", 1e-3).imbalance[: steps + 1]
            curves[seed] = np.pad(imbalance, (0, steps + 1 - len(imbalance)), mode="edge")
        axis.plot(100 * np.median(curves, axis=0), label=f"{side * side} nodes")
    for percent in (5, 10):
        axis.axhline(percent, color="0.6", lw=0.8, ls="--")
    axis.set(
        title=f"fos, the paper's tau, meshes: median of {seeds} seeds",
        xlabel="steps",
        ylabel="imbalance, %",
        xlim=(0, steps),
        ylim=(0, None),
    )
    axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_schemes(plt: Any, path: Path, seed: int) -> None:
    """Imbalance against steps for every scheme, on a logarithmic scale."""
    name = "mesh:16x16"
    case = draw(name, seed)
    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    for scheme, tau in REFERENCE:
        imbalance = np.array(case.balance(scheme, tau, 1e-7).imbalance)
        label = scheme if scheme == "dimension_exchange" else f"{scheme}, {tau}"
        axis.semilogy(np.maximum(imbalance, 1e-8), label=label, ls=":" if scheme == "fos" else "-")
    axis.set(title=f"{name}, seed {seed}", xlabel="steps", ylabel="imbalance", xlim=(0, 250), ylim=(1e-7, 10))
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convergence", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the pictures (%(default)s)")
    parser.add_argument("--seeds", type=int, default=20, help="(%(default)s)")
    parser.add_argument("--real", action="store_true", help="under mpiexec: steps and time on real ranks")
    parser.add_argument("--exchange", choices=EXCHANGES, default=EXCHANGES[0], help="of --real (%(default)s)")
    parser.add_argument("--no-plots", action="store_true", help="tables only; needs no matplotlib")
    parser.add_argument("--latency", type=float, default=5e-6, help="seconds, of the model (%(default)s)")
    parser.add_argument("--bandwidth", type=float, default=1e10, help="bytes per second, of the model (%(default)s)")
    args = parser.parse_args()
    if args.seeds < 1 or not args.latency > 0 or not args.bandwidth > 0:
        parser.error("expected --seeds >= 1, --latency > 0, --bandwidth > 0")
    if args.real:
        from benchmarks import convergence_ranks

        convergence_ranks.main(args.seeds, args.exchange)
        return
    lines, medians = table_of_steps(args.seeds)
    print("\n".join([*lines, "", *table_of_cost(medians, args.latency, args.bandwidth)]), flush=True)
    if args.no_plots:
        return
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        parser.error('pictures need matplotlib: pip install "lb_mpi[plot]", or give --no-plots')
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    args.out.mkdir(parents=True, exist_ok=True)
    plot_mesh(plt, args.out / "diffusion_5x5.png", args.seeds)
    plot_curves(plt, args.out / "diffusion_curves.png", args.seeds)
    plot_schemes(plt, args.out / "diffusion_schemes.png", seed=0)
    print(f"pictures: {args.out}/diffusion_5x5.png, diffusion_curves.png, diffusion_schemes.png")


if __name__ == "__main__":
    main()
