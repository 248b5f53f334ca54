"""Jin & Wang 2003, experiment 3: 64 speeds on the 8x8 mesh, the greedy among 100,000 random arrangements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from benchmarks.papers.page import Run, Section, table
from benchmarks.papers.ratios import ratios
from benchmarks.papers.verdicts import Evidence, Item, Printed, claim, compare
from lb_mpi.arranging.arrange import arrange
from lb_mpi.graph import Floats, parse

DRAWS = 100_000  # of the paper
QUICK_DRAWS = 2_000  # of all seeds but the first, without --full
SEEDS = 12  # sets of speeds
METHODS = ("paper", "fill", "swap")
AT_ONCE = 20_000
NEARLY = 0.5  # skewness and excess kurtosis of what is called roughly normal
NAMES = {
    "greedy": "p of the greedy",
    "least": "least p of the random ones",
    "greatest": "greatest p of the random ones",
    "pr": "Pr, %",
    "pct": "Pct, %",
    "below": f"random ones below the greedy, of {DRAWS:,}",
}
PRINTED = {"greedy": "93.9", "least": "63.8", "greatest": "225.2", "below": "23", "pr": "18.6", "pct": "0.023"}


class Draw(NamedTuple):
    """One drawn set of speeds."""

    values: Floats  # (draws,) p of random arrangements
    p: dict[str, float]  # of each method

    @property
    def below(self) -> float:
        """The share of random arrangements with a smaller p than the greedy, in %."""
        return 100.0 * float((self.values < self.p["paper"]).mean())

    @property
    def relative(self) -> float:
        """The paper's Pr, in %: below 0 when the greedy beats all."""
        least, greatest = float(self.values.min()), float(self.values.max())
        return 100.0 * (self.p["paper"] - least) / (greatest - least)


def draw(seed: int, draws: int) -> Draw:
    """Speeds uniform in [1, 10], and random arrangements of them."""
    graph, rng = parse("mesh:8x8"), np.random.default_rng(seed)
    speeds = rng.uniform(1.0, 10.0, graph.n)
    sizes = np.diff([*range(0, draws, AT_ONCE), draws]).tolist()
    values = [ratios(graph, rng.permuted(np.tile(speeds, (size, 1)), axis=1)) for size in sizes]
    return Draw(np.concatenate(values), {method: arrange(graph, speeds, method=method).p for method in METHODS})


def experiment_3(run: Run, section: Section, quick: int = QUICK_DRAWS, seeds: int = SEEDS) -> None:
    """Add experiment 3 to the section."""
    found = []
    for seed in range(seeds):
        draws = DRAWS if run.full else DRAWS if seed == 0 and quick == QUICK_DRAWS else quick
        run.say(f"arrangement: {draws:,} random arrangements on the 8x8 mesh, speeds {seed + 1} of {seeds}")
        found.append(draw(seed, draws))
    first = found[0]
    columns = {
        "greedy": [one.p["paper"] for one in found],
        "least": [float(one.values.min()) for one in found],
        "greatest": [float(one.values.max()) for one in found],
        "pr": [one.relative for one in found],
        "pct": [one.below for one in found],
    }
    columns["below"] = [float((one.values < one.p["paper"]).sum()) for one in found[:1]]
    items = [_item(key, name, columns[key], seeds) for key, name in NAMES.items()]
    p1, least, greatest = (Printed(PRINTED[key]) for key in ("greedy", "least", "greatest"))
    span = [
        100.0 * (one - low) / (high - low) for one, low, high in product(*(_ends(p) for p in (p1, least, greatest)))
    ]
    items += [
        compare("Pr, %, from the printed p", PRINTED["pr"], float(np.median(span)), drawn=span),
        compare("Pct, %, from the printed number", PRINTED["pct"], 100.0 * float(PRINTED["below"]) / DRAWS),
        _normal(first.values),
    ]
    heads = ["speeds", "random ones", "least p", "mean", "greatest", *METHODS, "below the greedy"]
    rows = [
        [seed, f"{len(one.values):,}", f"{one.values.min():.1f}", f"{one.values.mean():.1f}", f"{one.values.max():.1f}"]
        + [f"{one.p[method]:.1f}" for method in METHODS]
        + [int((one.values < one.p["paper"]).sum())]
        for seed, one in enumerate(found)
    ]
    section.show("Experiment 3: 64 speeds uniform in [1, 10] on the 8x8 mesh", items)
    section.lines += table(heads, rows)
    section.lines += run.draw("arrangement_8x8.png", "random arrangements", lambda plt: plot(plt, first))


def _item(key: str, name: str, values: Sequence[float], seeds: int) -> Item:
    low, high, printed = min(values), max(values), Printed(PRINTED[key])
    span = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    sets = f"{seeds} sets that were drawn likewise give" if len(values) > 1 else "one that was drawn likewise gives"
    lost = Evidence(f"the paper's 64 speeds aren't printed; {sets} {span}", printed.least > high or printed.most < low)
    return compare(name, printed.text, float(np.median(values)), drawn=values, lost=lost)


def _normal(values: Floats) -> Item:
    bent = float(stats.skew(values)), float(stats.kurtosis(values))
    text = f"skewness {bent[0]:.2f}, excess kurtosis {bent[1]:.2f}"
    return claim("distribution of the random ones", "roughly normal", text, max(map(abs, bent)) < NEARLY)


def _ends(number: Printed) -> tuple[float, float]:
    return number.least, number.most


def plot(plt: Any, drawn: Draw) -> Any:
    """The histogram of the first set of speeds, with the place of each method."""
    figure, axis = plt.subplots(figsize=(9, 4.6), layout="constrained")
    axis.hist(drawn.values, bins=120, color="0.75")
    for colour, method in zip(("tab:red", "tab:orange", "tab:green"), METHODS, strict=True):
        name = "the paper's greedy" if method == "paper" else method
        axis.axvline(drawn.p[method], color=colour, label=f"{name} {drawn.p[method]:.1f}")
    axis.axvline(
        float(PRINTED["greedy"]),
        color="tab:red",
        ls="--",
        label=f"greedy as printed, of other speeds {PRINTED['greedy']}",
    )
    axis.set(
        title=f"{len(drawn.values):,} random arrangements of 64 speeds, uniform in [1, 10], on the 8x8 mesh",
        xlabel="p = lambda_P / lambda_2: steps of diffusion are proportional to it",
        ylabel="arrangements",
    )
    axis.legend()
    return figure
