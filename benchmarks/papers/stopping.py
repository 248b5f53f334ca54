"""A model of how the arrangement paper computed p: power iteration that stops when its estimate hardly changes.

The model was fixed before its predictions were computed, and nothing in it is fitted to print:

1. lambda_P by power iteration on S^-1/2 A A^T S^-1/2, from a start with normal random entries, until the Rayleigh quotient
   changes by less than TOLERANCE of itself in one step.
2. lambda_2 in the same way, on lambda_P I - S^-1/2 A A^T S^-1/2 without the known vector of lambda_1 = 0.
3. All 362,880 arrangements, each with starts of its own; p of the greedy is one of these estimates.

The second iteration stops at lambda_3 where its start has next to nothing of lambda_2, perhaps once in a thousand times.
Then p is too low, by lambda_3 / lambda_2.  So of all arrangements the least p comes out too low, the greatest about right,
and more arrangements than there are seem to be better than the greedy.

    python -m benchmarks.papers --predict       writes the predictions to tests/data/papers/stopping.csv: minutes

Power iteration needs no matrix here: in the basis of the eigenvectors the start is normal, too, and a step multiplies each
entry by its eigenvalue.  Failures are rare, so half of the starts are drawn with SMALL times the usual entry at lambda_2,
and all are weighted by their likelihood.
"""

from __future__ import annotations

import csv
import math
from typing import NamedTuple

import numpy as np
from numba import njit

from benchmarks.papers.page import DATA
from lb_mpi.graph import Floats, Graph

TOLERANCE = 1e-6
SMALL = 0.01
MOST_DRAWS = 90_720  # arrangements of a graph with few symmetries: a quarter of them, each for four
FILE = DATA / "papers" / "stopping.csv"
QUANTILES = (0.025, 0.5, 0.975)
HEADS = (
    "graph", "set", "least_low", "least", "least_high", "greatest", "pr_low", "pr", "pr_high", "pct_low", "pct", "pct_high"
)  # fmt: skip


class Span(NamedTuple):
    """Quantiles of what one run of the paper's program would print."""

    low: float
    middle: float
    high: float

    def text(self) -> str:
        """Middle and interval."""
        low, middle, high = (f"{one:.0f}" if abs(one) >= 1000.0 else f"{one:.3g}" for one in self)
        return f"{middle} [{low}..{high}]"

    def holds(self, least: float, most: float) -> bool:
        """Tell if a number between the two is within the interval."""
        return least <= self.high and self.low <= most


class Prediction(NamedTuple):
    """Prediction of the model for one set of speeds on one graph."""

    least: Span
    greatest: float
    relative: Span  # Pr, %
    percentile: Span  # Pct, %


def spectra(graph: Graph, layouts: Floats) -> Floats:
    """(B, n) eigenvalues of S^-1/2 A A^T S^-1/2 of the (B, n) layouts, ascending."""
    matrix = np.zeros((len(layouts), graph.n, graph.n))
    for i, j in zip(*(ends.tolist() for ends in graph.edges()), strict=True):
        matrix[:, i, i] += 1.0 / layouts[:, i]
        matrix[:, j, j] += 1.0 / layouts[:, j]
        matrix[:, i, j] = matrix[:, j, i] = -1.0 / np.sqrt(layouts[:, i] * layouts[:, j])
    return np.asarray(np.linalg.eigvalsh(matrix))


@njit(cache=True, nogil=True)
def _iterate(values: Floats, squares: Floats, tolerance: float) -> float:
    """The Rayleigh quotient at which power iteration stops; squares of the start's entries are lost."""
    before = -1.0
    while True:
        total = along = 0.0
        for i in range(len(values)):
            total += squares[i]
            along += squares[i] * values[i]
        now = along / total
        if abs(now - before) <= tolerance * now:
            return float(now)
        before = now
        for i in range(len(values)):
            squares[i] *= (values[i] / now) ** 2


@njit(cache=True, nogil=True)
def _estimate(
    values: Floats, copies: int, small: float, tolerance: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    n = values.shape[1]
    p, weight = np.empty(len(values) * copies), np.empty(len(values) * copies)
    for k in range(len(p)):
        own = values[k // copies]
        top = _iterate(own, rng.standard_normal((n,)) ** 2, tolerance)
        start = rng.standard_normal(n - 1)
        start[0] *= small if rng.random() < 0.5 else 1.0
        x = 0.5 * start[0] ** 2
        weight[k] = 2.0 / (1.0 + np.exp(x - x / small**2) / small)
        p[k] = top / (top - _iterate(top - own[1:], start**2, tolerance))
    return p, weight


def estimates(values: Floats, copies: int = 1, *, seed: int, tolerance: float = TOLERANCE) -> tuple[Floats, Floats]:
    """(B * copies,) estimates of p from the (B, n) spectra, ascending, and their weights, which add up to about B."""
    values = values.copy()
    values[:, 0] = 0.0
    p, weight = _estimate(values, copies, SMALL, tolerance, np.random.default_rng(seed))
    order = np.argsort(p)
    return p[order], weight[order] / copies


def least_of(p: Floats, weight: Floats) -> Span:
    """The least of all estimates: so many are expected below its quantiles."""
    expected = np.cumsum(weight)
    found = [float(p[np.searchsorted(expected, -math.log1p(-q))]) for q in QUANTILES]
    return Span(*found)


def predict(
    graph: Graph, layouts: Floats, greedy: Floats, *, stands_for: float, seed: int, tolerance: float = TOLERANCE
) -> Prediction:
    """What one run of the paper's program would print.

    layouts     (B, n) arrangements, each of which stands for several
    greedy      true p of the greedy, of each outcome that ties allow
    stands_for  arrangements that a layout stands for
    """
    copies = max(1, math.ceil(stands_for / 8.0))
    values = spectra(graph, layouts)
    p, weight = estimates(values, copies, seed=seed, tolerance=tolerance)
    weight *= stands_for
    least, greatest = least_of(p, weight), float(p[-1])
    total = stands_for * len(layouts)
    exact = values[:, -1] / values[:, 1]
    relative, shares = [], []
    for one in greedy.tolist():
        relative.append([100.0 * (one - low) / (greatest - low) for low in least])
        below = float(weight[p < one * (1.0 - 1e-5)].sum())
        certain = min(below, stands_for * float((exact < one * (1.0 - 1e-5)).sum()))
        ties = stands_for * float((np.abs(exact / one - 1.0) <= 1e-5).sum())  # each is below or above by chance
        variance = below - certain + 0.25 * ties + float((weight[p < one] ** 2).sum()) * (below > certain)
        middle, spread = below + 0.5 * ties, 2.0 * math.sqrt(variance)
        shares.append([100.0 * max(0.0, middle + sign * spread) / total for sign in (-1.0, 0.0, 1.0)])
    half = len(relative) // 2
    return Prediction(
        least,
        greatest,
        Span(min(one[2] for one in relative), sorted(one[1] for one in relative)[half], max(one[0] for one in relative)),
        Span(min(one[0] for one in shares), sorted(one[1] for one in shares)[half], max(one[2] for one in shares)),
    )


def numbers(one: Prediction) -> list[str]:
    """The numbers of a row of the file."""
    return [f"{number:.6g}" for number in (*one.least, one.greatest, *one.relative, *one.percentile)]


def read() -> dict[tuple[str, str], Prediction]:
    """The predictions, by graph and set of speeds; set 0 is 1 to 9."""
    found = {}
    with open(FILE, newline="") as file:
        for row in csv.DictReader(file):
            numbers = [float(row[key]) for key in list(row)[2:]]
            found[row["graph"], row["set"]] = Prediction(
                Span(*numbers[:3]), numbers[3], Span(*numbers[4:7]), Span(*numbers[7:])
            )
    return found
