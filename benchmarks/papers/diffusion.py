"""Jin & Wang, diffusion for heterogeneous systems: figures 2 and 3, and the equations that are misprinted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx
import numpy as np

from benchmarks.convergence import Case, draw, steps_to
from benchmarks.papers.page import Evidence, Item, Run, Section, claim, compare, left_out, table
from lb_mpi.diffusion.diffusion import Diffusion, outflow
from lb_mpi.diffusion.setup import laplacian, paper_tau, prepare
from lb_mpi.graph import Floats

SOURCE = (
    'Jin, Wang, "Diffusion Algorithm of Dynamic Load Balancing for Heterogeneous System", Chinese Journal of Computers. '
    "Here: `lb_mpi.balance`, `lb_mpi.Balancer`, `python -m lb_mpi balance`, `python -m benchmarks.convergence`, and "
    "on real ranks `python -m apps.diffusion`."
)
SEEDS = 20
SIDES = (4, 8, 12, 16, 32)
PERCENT = (10, 5, 1)
OTHERS = (("fos", "scaled"), ("sos", "paper"), ("chebyshev", "paper"), ("cg", "uniform"), ("direct", "uniform"))


def section(run: Run) -> Section:
    """The part of the page about this paper."""
    conclusion = (
        "The method is right, and fast: 14 steps are usual for the 5x5 mesh, and 5 to 10 % are cheap at all sizes "
        "that the paper has. Its tau always converges. Schemes of second order, which it doesn't have, need half of "
        "the steps."
    )
    result = Section("Diffusion: neighbours level their times", SOURCE, conclusion)
    run.say("diffusion: the 5x5 mesh")
    result.show(
        "Figure 2: the 5x5 mesh",
        figure_2(),
        f"Speeds uniform in 4 to 16 and times in 5 to 15, drawn {SEEDS} times: medians, and in brackets "
        "from the least to the "
        "greatest. The paper's draw isn't printed.",
    )
    result.lines += others()
    if run.plt is not None:
        plot_mesh(run.plt, run.folder / "diffusion_5x5.png", SEEDS)
        result.lines += ["", "![the 5x5 mesh before and after](diffusion_5x5.png)", ""]
    curves = {}
    for side in SIDES:
        run.say(f"diffusion: the {side}x{side} mesh")
        curves[side] = [_case(side, seed).balance("fos", "paper", PERCENT[-1] / 100).imbalance for seed in range(SEEDS)]
    steps = {side: [_steps(some, percent / 100) for percent in PERCENT] for side, some in curves.items()}
    result.show("Figure 3: imbalance over steps, and the text on it", _claims(steps))
    heads = ["nodes", *(f"steps to {percent} %" for percent in PERCENT)]
    result.lines += table(heads, ([side * side, *(f"{one:g}" for one in of)] for side, of in steps.items()))
    result.lines += run.draw("diffusion_curves.png", "imbalance over steps", lambda plt: plot_curves(plt, curves))
    result.show("Equations", equations())
    result.show("Theorems 1 to 3", theorems_1_to_3())
    result.lines += left_out("diffusion")
    result.lines += theorem_4()
    return result


def _case(side: int, seed: int) -> Case:
    return draw(f"mesh:{side}x{side}", seed)


def _steps(curves: list[list[float]], tolerance: float) -> float:
    """The median of the steps until the imbalance is within the tolerance."""
    return float(np.median([steps_to(curve, tolerance) for curve in curves]))


def figure_2() -> list[Item]:
    """The items of figure 2."""
    cases = [_case(5, seed) for seed in range(SEEDS)]
    curves = [case.balance("fos", "paper", 0.05).imbalance for case in cases]
    start = [100.0 * curve[0] for curve in curves]
    steps = [steps_to(curve, 0.05) for curve in curves]
    shown = f"{np.median(steps):g} [{min(steps):g}..{max(steps):g}]"
    return [
        compare("imbalance at the start, % (about)", "50", float(np.median(start)), drawn=start),
        compare("steps to 5 %", "14", float(np.median(steps)), shown=shown),
    ]


def others() -> list[str]:
    """The table of what other schemes need for the same; the paper has none of them."""
    cases = [_case(5, seed) for seed in range(SEEDS)]
    rows = [
        [scheme, tau, f"{_steps([case.balance(scheme, tau, 0.05).imbalance for case in cases], 0.05):g}"]
        for scheme, tau in OTHERS
    ]
    return ["", "Other schemes, which the paper doesn't have:", *table(["scheme", "tau", "steps to 5 %, median"], rows)]


def _claims(steps: dict[int, list[float]]) -> list[Item]:
    tens = ", ".join(f"{of[0]:g} and {of[2] - of[0]:g}" for of in steps.values())
    nodes = ", ".join(str(side * side) for side in steps)
    largest = steps[max(steps)]
    return [
        claim(
            "steps to 10 %, and from there to 1 %",
            "falls fast to 10 %, then slowly",
            f"{tens} on {nodes} nodes",
            all(of[2] - of[0] > of[0] for of in steps.values()),
        ),
        claim(
            "steps to 5 % and to 1 % on 1024 nodes",
            "5 to 10 % is cheap up to 1024 nodes, more takes many steps",
            f"{largest[1]:g} and {largest[2]:g}",
            all(of[2] > 2.0 * of[1] for of in steps.values()),
        ),
    ]


def plot_curves(plt: Any, curves: dict[int, list[list[float]]]) -> Any:
    """Imbalance against steps for each mesh: medians, until the first draw is through."""
    figure, axis = plt.subplots(figsize=(8, 4.6), layout="constrained")
    most = 100
    for side, some in curves.items():
        padded = [np.pad(curve, (0, max(0, most + 1 - len(curve))), constant_values=np.nan)[: most + 1] for curve in some]
        axis.plot(100.0 * np.median(padded, axis=0), label=f"{side * side} nodes")
    for percent in PERCENT[:2]:
        axis.axhline(percent, color="0.6", lw=0.8, ls="--")
    title = f"fos, the paper's tau, meshes: medians of {SEEDS} draws"
    axis.set(title=title, xlabel="steps", ylabel="imbalance, %", xlim=(0, most), ylim=(0, None))
    axis.legend()
    return figure


def equations() -> list[Item]:
    """The misprinted equations, with what they lead to on the 5x5 mesh."""
    case = _case(5, 0)
    graph, speeds, tau = case.graph, case.speeds, paper_tau(case.graph, case.speeds)
    diffusion = Diffusion(prepare(graph, speeds, "fos", "paper"), speeds * case.times)
    times = [diffusion.times]
    while not diffusion.converged(0.05):
        diffusion.step()
        times.append(diffusion.times)
    wanted = speeds * times[-1]
    tails, heads = graph.edges()
    mean = float((speeds * case.times).sum() / speeds.sum())

    def missed(d: Floats) -> float:
        """How far the net flow of d leads from the balanced loads, relative to the mean load."""
        after = speeds * case.times - outflow(graph, tau * (d[tails] - d[heads]))
        return float(np.abs(after - wanted).max() / wanted.mean())

    right, wrong = missed(np.sum(times[:-1], axis=0)), missed(np.sum(times[1:-1], axis=0))
    text = (
        f"summed from 0 the flow leads to the balanced loads to {right:.0e} of the mean load; from 1 it "
        f"misses them by {wrong:.0%}"
    )
    sums = claim("eq. 8: d sums the times from step", "1", "0", False, error=Evidence(text, right < 1e-9 < wrong))
    flows = laplacian(graph, tau) @ case.times
    work = speeds @ case.times
    by_speed, without = (abs(speeds @ (case.times - change) / work - 1.0) for change in (flows / speeds, flows))
    text = f"with it the work changes by {by_speed:.0e} of itself in one step, without it by {without:.0%}"
    matrix = claim(
        "section 5: M", "without 1/s_i", "with it, as in eq. 6", False, error=Evidence(text, by_speed < 1e-9 < without)
    )
    sent, d = tau * (times[0][tails] - times[0][heads]), np.sum(times[:-1], axis=0)
    first = speeds * times[0] - outflow(graph, sent)
    against = speeds * case.times - outflow(graph, -tau * (d[tails] - d[heads]))
    level, apart = (float((after / speeds).max() / mean - 1.0) for after in (first, against))
    text = (
        f"positive from i to j in both, the imbalance falls from {float(times[0].max() / mean - 1.0):.0%} to "
        f"{level:.0%} in one step, and the net flow leads to the balanced loads; with the sign of eq. 8 turned round "
        f"it leads to {apart:.0%}"
    )
    signs = claim(
        "eq. 3 and eq. 8: the sign of the flow over ij", "opposite", "the same", False,
        error=Evidence(text, level < float(times[0].max() / mean - 1.0) < apart),
    )  # fmt: skip
    return [sums, signs, matrix, theorem_5(case)]


def theorems_1_to_3() -> list[Item]:
    """Check what theorems 1 to 3 say of the eigenvalues of M, which is not symmetric where speeds differ."""
    values = []
    for case in (_case(side, seed) for side in SIDES[:2] for seed in range(SEEDS)):
        change = laplacian(case.graph, paper_tau(case.graph, case.speeds)).toarray() / case.speeds[:, None]
        values.append(np.linalg.eigvals(np.eye(case.graph.n) - change))
    imaginary = max(float(np.abs(one.imag).max()) for one in values)
    orders = [np.sort(one.real) for one in values]
    low, high, second = (fold(one[k] for one in orders) for fold, k in ((min, 0), (max, -1), (max, -2)))
    on = f"{len(values)} meshes of {SIDES[0] ** 2} and {SIDES[1] ** 2} nodes"
    return [
        claim("theorems 1 to 3: eigenvalues of M", "real", f"imaginary parts of {imaginary:.0e} on {on}", imaginary < 1e-9),
        claim(
            "theorems 1 to 3: eigenvalues of M", "in [-1, 1]", f"{low:.3f} to {high:.3f}", low > -1.0 and high < 1.0 + 1e-9
        ),
        claim("theorems 1 to 3: the eigenvalue 1", "simple", f"the next one is {second:.4f} at most", second < 1.0 - 1e-6),
    ]


def theorem_5(case: Case) -> Item:
    """The vector that all eigenvectors of M but one are orthogonal to: s; the proof has 1, which needs equal speeds."""
    root = np.sqrt(case.speeds)
    matrix = laplacian(case.graph, paper_tau(case.graph, case.speeds)).toarray() / np.outer(root, root)
    vectors = np.linalg.eigh(matrix)[1][:, 1:] / root[:, None]
    vectors /= np.linalg.norm(vectors, axis=0)
    to_s, to_1 = (float(np.abs(one @ vectors).max() / np.linalg.norm(one)) for one in (case.speeds, np.ones(len(root))))
    text = f"the cosine of their angle with s is {to_s:.0e} at most, with 1 up to {to_1:.2f}"
    return claim(
        "theorem 5, proof: eigenvectors are orthogonal to", "1", "s", False, error=Evidence(text, to_s < 1e-9 < to_1)
    )


def theorem_4() -> list[str]:
    """The least eigenvalue of M where only one of the theorem's conditions holds, and where none does."""
    rows = []
    for name, tau_of in (("mesh:5x5", "paper"), ("ring:9", "zero diagonal"), ("ring:8", "zero diagonal")):
        case = draw(name, 0)
        speeds = case.speeds if tau_of == "paper" else np.ones(case.graph.n)
        tau = paper_tau(case.graph, speeds) if tau_of == "paper" else np.full(case.graph.n_edges, 0.5)
        root = np.sqrt(speeds)
        matrix = np.eye(case.graph.n) - laplacian(case.graph, tau).toarray() / np.outer(root, root)
        bipartite = "yes" if networkx.is_bipartite(case.graph.to_networkx()) else "no"
        diagonal = "yes" if np.abs(np.diag(matrix)).max() < 1e-12 else "no"
        rows.append([name, bipartite, diagonal, f"{np.linalg.eigvalsh(matrix)[0]:.4f}"])
    return ["", "Of theorem 4:", *table(["graph", "bipartite", "diagonal of M is zero", "least eigenvalue of M"], rows)]


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
                axis.text(*(middle + aside), f"{abs(amount):.1f}", color="tab:blue", ha="center", va="center", fontsize=8)
        axis.set(xlim=(-0.5, 4.5), ylim=(4.5, -0.5), aspect="equal")
        axis.axis("off")
    mappable = plt.cm.ScalarMappable(scale, "YlOrRd")
    figure.colorbar(mappable, ax=axes, shrink=0.8, label="time l, seconds (upper number; s: speed, area of the circle)")
    figure.savefig(path, dpi=110)
    plt.close(figure)
