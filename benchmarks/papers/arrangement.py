"""Jin & Wang 2003, experiments 1 and 2: all 362,880 arrangements of nine speeds on graphs of nine nodes."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import permutations, product
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from networkx.algorithms.isomorphism import GraphMatcher
from numba import njit
from scipy import stats

from benchmarks.papers import second
from benchmarks.papers.page import (
    ARITHMETIC,
    DATA,
    Evidence,
    Item,
    Printed,
    Run,
    Section,
    claim,
    compare,
    left_out,
    table,
)
from lb_mpi.arranging.arrange import arrange
from lb_mpi.arranging.objectives import TIE
from lb_mpi.graph import Floats, Graph, Ints, parse

# --- p = lambda_P / lambda_2 of S^-1 A A^T for hundreds of thousands of arrangements, compiled: ten times LAPACK's pace
#
# `lb_mpi.arranging.objectives.costs` says the same in numpy, and the tests hold one against the other.  Small matrices are
# reduced to tridiagonal form (Householder), and the two eigenvalues found by bisection on Sturm's count.

PRECISION = 2e-12  # of an eigenvalue, relative to the largest
SHARE = 512  # arrangements that a thread takes at a time


def ratios(graph: Graph, layouts: Floats) -> Floats:
    """(B,) p of the (B, P) layouts, speeds in the order of the vertices."""
    tails, heads = graph.edges()
    result = np.empty(len(layouts))
    parts = [slice(first, first + SHARE) for first in range(0, len(layouts), SHARE)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for _ in threads.map(lambda part: _ratios(tails, heads, layouts[part], result[part]), parts):
            pass
    return result


@njit(cache=True, nogil=True)
def _ratios(tails: Ints, heads: Ints, layouts: Floats, result: Floats) -> None:
    n = layouts.shape[1]
    matrix = np.empty((n, n))
    diagonal, beside, mirror, work = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for k in range(len(layouts)):
        speeds = layouts[k]
        matrix[:] = 0.0
        for edge in range(len(tails)):
            i, j = tails[edge], heads[edge]
            matrix[i, i] += 1.0 / speeds[i]
            matrix[j, j] += 1.0 / speeds[j]
            matrix[i, j] = matrix[j, i] = -1.0 / np.sqrt(speeds[i] * speeds[j])
        _tridiagonal(matrix, diagonal, beside, mirror, work)
        top = 0.0  # Gershgorin
        for i in range(n):
            top = max(top, diagonal[i] + beside[i] + (beside[i + 1] if i + 1 < n else 0.0))
        for i in range(n):
            beside[i] *= beside[i]
        result[k] = _eigenvalue(diagonal, beside, n - 1, top) / _eigenvalue(diagonal, beside, 1, top)


@njit(cache=True, nogil=True, fastmath=True)
def _tridiagonal(matrix: Floats, diagonal: Floats, beside: Floats, mirror: Floats, work: Floats) -> None:
    """Reduce the symmetric matrix, which is lost; beside[i] >= 0 stands between rows i - 1 and i, beside[0] = 0."""
    n = len(matrix)
    beside[0] = 0.0
    for k in range(n - 2):
        rest, u, w = matrix[k + 1 :, k + 1 :], mirror[k + 1 :], work[k + 1 :]
        u[:] = matrix[k, k + 1 :]
        norm = np.sqrt((u * u).sum())
        beside[k + 1] = norm
        if norm == 0.0:
            continue
        # The reflection I - u u^T / half turns row k into norm times a unit vector.
        if u[0] > 0.0:
            norm = -norm
        u[0] -= norm
        half = -norm * u[0]
        along = 0.0
        for i in range(len(u)):
            row = rest[i]
            total = 0.0
            for j in range(len(u)):
                total += row[j] * u[j]
            w[i] = total / half
            along += u[i] * w[i]
        along /= 2.0 * half
        for i in range(len(u)):
            w[i] -= along * u[i]
        for i in range(len(u)):  # whole rows: twice the work, at four numbers a time
            row, one, other = rest[i], u[i], w[i]
            for j in range(len(u)):
                row[j] -= one * w[j] + other * u[j]
    if n > 1:
        beside[n - 1] = abs(matrix[n - 1, n - 2])
    for i in range(n):
        diagonal[i] = matrix[i, i]


@njit(cache=True, nogil=True)
def _eigenvalue(diagonal: Floats, squares: Floats, index: int, top: float) -> float:
    """The eigenvalue of that index, from 0, in [0, top]."""
    low, high = 0.0, top
    while high - low > PRECISION * top:
        middle = 0.5 * (low + high)
        below = 0
        pivot = 1.0
        for i in range(len(diagonal)):
            pivot = diagonal[i] - middle - squares[i] / pivot
            if pivot == 0.0:
                pivot = 1e-300
            below += pivot < 0.0
        if below > index:
            high = middle
        else:
            low = middle
    return 0.5 * (low + high)


# --- Graphs of nine nodes, and all 362,880 arrangements of nine speeds on them, up to the symmetries of the graph -----

N = 9
ALL = 362_880  # 9!


def rows(name: str) -> list[dict[str, str]]:
    """The rows of a file of printed data."""
    with open(DATA / "papers" / name, newline="") as file:
        return list(csv.DictReader(file))


class Case(NamedTuple):
    """A graph of nine nodes and its symmetries."""

    name: str
    graph: Graph
    symmetries: Ints  # (A, 9) all maps of the graph onto itself: vertex k goes to symmetries[a, k]

    @property
    def orders(self) -> Ints:
        """(9! / A, 9) one of each A arrangements that are the same up to symmetry."""
        return _orders(self.symmetries.tobytes())

    def values(self, speeds: Floats) -> Floats:
        """(9! / A,) p of all arrangements, each for A of them."""
        return ratios(self.graph, speeds[self.orders])

    def place(self, speeds: Floats) -> Place:
        """All arrangements of the (9,) speeds."""
        return Place(np.sort(self.values(speeds)), len(self.symmetries))

    def greedy(self, speeds: Floats) -> Floats:
        """p of the paper's greedy, of each outcome that there is when several positions are equally good: ascending."""
        fastest_first = np.argsort(-speeds, kind="stable")
        some = {(-1,) * N}
        for node in fastest_first.tolist():
            some = {self._first(placed) for one in some for placed in self._best(one, node, speeds)}
        found = np.sort(ratios(self.graph, speeds[np.array(sorted(some))]))
        return found[np.diff(found, prepend=0.0) > TIE * found]

    def _best(self, placed: tuple[int, ...], node: int, speeds: Floats) -> Iterator[tuple[int, ...]]:
        now = np.array(placed)
        free = np.flatnonzero(now < 0)
        layouts = np.tile(np.where(now < 0, speeds.min(), speeds[now]), (len(free), 1))
        layouts[np.arange(len(free)), free] = speeds[node]
        values = ratios(self.graph, layouts)
        for position in free[values <= values.min() * (1.0 + TIE)].tolist():
            yield (*placed[:position], node, *placed[position + 1 :])

    def _first(self, placed: tuple[int, ...]) -> tuple[int, ...]:
        """Of arrangements that are the same up to symmetry, always the same one."""
        return min(map(tuple, np.array(placed)[self.symmetries].tolist()))


class Place(NamedTuple):
    """The values of all arrangements, where each stands for several."""

    values: Floats  # ascending
    weight: int

    @property
    def least(self) -> float:
        """The smallest p."""
        return float(self.values[0])

    @property
    def greatest(self) -> float:
        """The largest p."""
        return float(self.values[-1])

    def below(self, p: float) -> int:
        """The number of arrangements with a smaller p."""
        return self.weight * int(np.searchsorted(self.values, p * (1.0 - TIE), "left"))

    def above(self, p: float) -> int:
        """The number of arrangements with a larger p."""
        return self.weight * (len(self.values) - int(np.searchsorted(self.values, p * (1.0 + TIE), "right")))

    def relative(self, p: float) -> float:
        """The paper's Pr in %: where p is between the least and the greatest."""
        return 100.0 * (p - self.least) / (self.greatest - self.least)

    def percentile(self, p: float) -> float:
        """The paper's Pct in %: the share of arrangements with a smaller p."""
        return 100.0 * self.below(p) / ALL


def confirmed(case: Case, speeds: Floats) -> bool:
    """Tell if p of some arrangements, and lb_mpi's greedy, are those of the second implementation.

    Only then is a difference from print the print's: no reason counts without it.
    """
    layouts = np.random.default_rng(0).permuted(np.tile(speeds, (5, 1)), axis=1)
    edges = list(zip(*(ends.tolist() for ends in case.graph.edges()), strict=True))
    wanted = [second.ratio(edges, layout) for layout in layouts]
    ours = arrange(case.graph, speeds, method="paper").p
    greedy = np.array([*case.greedy(speeds), second.greedy(edges, speeds)])
    same = np.abs(greedy[:-1] - ours).min() <= second.NEAR * ours and abs(greedy[-1] - ours) <= second.NEAR * ours
    return bool(same and np.allclose(ratios(case.graph, layouts), wanted, rtol=second.NEAR))


@cache
def _orders(symmetries: bytes) -> Ints:
    everything = _everything()
    digits = N ** np.arange(N, dtype=np.int32)[::-1]
    code = everything @ digits
    least = code
    for one in np.frombuffer(symmetries, np.int64).reshape(-1, N):
        least = np.minimum(least, everything @ digits[np.argsort(one)])  # the code of everything[:, one]
    orders: Ints = everything[code == least].astype(np.int64)
    return orders


@cache
def _everything() -> Any:
    return np.array(list(permutations(range(N))), dtype=np.int32)


@cache
def cases() -> dict[str, Case]:
    """The eight graphs whose lists are whole, by name."""
    found = {}
    for row in rows("arrangement_lists.csv"):
        graph = parse(row["neighbours"])
        picture = graph.to_networkx()
        maps = [[one[k] for k in range(N)] for one in GraphMatcher(picture, picture).isomorphisms_iter()]
        found[row["graph"]] = Case(row["graph"], graph, np.array(sorted(maps), dtype=np.int64))
    return found


# --- Jin & Wang 2003, experiment 3: 64 speeds on the 8x8 mesh, the greedy among 100,000 random arrangements -----------

DRAWS = 100_000  # of the paper
QUICK_DRAWS = 2_000  # of all seeds but the first, without --full
SEEDS = 12  # sets of speeds
BY = ("paper", "fill", "swap")  # of large graphs
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
    return Draw(np.concatenate(values), {method: arrange(graph, speeds, method=method).p for method in BY})


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
    sound = _confirmed_draw(first)
    items = [_item(key, name, columns[key], seeds, sound) for key, name in NAMES.items()]
    p1, least, greatest = (Printed(PRINTED[key]) for key in ("greedy", "least", "greatest"))
    span = [
        100.0 * (one - low) / (high - low) for one, low, high in product(*(_ends(p) for p in (p1, least, greatest)))
    ]
    items.append(_normal(first.values))
    own = [
        compare("Pr, %, from the printed p", PRINTED["pr"], float(np.median(span)), drawn=span),
        compare("Pct, %, from the printed number", PRINTED["pct"], 100.0 * float(PRINTED["below"]) / DRAWS),
    ]
    heads = ["speeds", "random ones", "least p", "mean", "greatest", *BY, "below the greedy"]
    rows = [
        [seed, f"{len(one.values):,}", f"{one.values.min():.1f}", f"{one.values.mean():.1f}", f"{one.values.max():.1f}"]
        + [f"{one.p[method]:.1f}" for method in BY]
        + [int((one.values < one.p["paper"]).sum())]
        for seed, one in enumerate(found)
    ]
    section.show("Experiment 3: 64 speeds uniform in [1, 10] on the 8x8 mesh", items)
    section.show("Experiment 3: the printed numbers by themselves", own, kind=ARITHMETIC)
    section.lines += table(heads, rows)
    section.lines += run.draw("arrangement_8x8.png", "random arrangements", lambda plt: plot(plt, first))


def _confirmed_draw(first: Draw) -> bool:
    """Tell if the greedy and p of some random arrangements of the first set of speeds are the second implementation's."""
    graph, rng = parse("mesh:8x8"), np.random.default_rng(0)
    edges = list(zip(*(ends.tolist() for ends in graph.edges()), strict=True))
    speeds = rng.uniform(1.0, 10.0, graph.n)
    layouts = rng.permuted(np.tile(speeds, (min(len(first.values), AT_ONCE), 1)), axis=1)[:5]
    wanted = [second.greedy(edges, speeds), *(second.ratio(edges, layout) for layout in layouts)]
    return bool(np.allclose([first.p["paper"], *first.values[:5]], wanted, rtol=second.NEAR))


def _item(key: str, name: str, values: Sequence[float], seeds: int, sound: bool) -> Item:
    low, high, printed = min(values), max(values), Printed(PRINTED[key])
    span = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    sets = f"{seeds} sets that were drawn likewise give" if len(values) > 1 else "one that was drawn likewise gives"
    sets = "as a second implementation confirms, " + sets
    lost = Evidence(
        f"the paper's 64 speeds aren't printed; {sets} {span}", sound and (printed.least > high or printed.most < low)
    )
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
    for colour, method in zip(("tab:red", "tab:orange", "tab:green"), BY, strict=True):
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


SOURCE = (
    'Jin, Wang, "Improving the convergence rate of the diffusion algorithm by arranging processors", '
    "Journal of Software, 2003. "
    "Here: `lb_mpi.arrange`, `lb_mpi.reorder_ranks`, `python -m lb_mpi arrange`, and beyond the paper `python -m "
    "benchmarks.arrangement`."
)
ONE_TO_NINE = np.arange(1.0, 10.0)
LOST_COLUMN = 8
METHODS = ("fill", "swap", "anneal")


def of_column(column: int) -> str:
    """The name of the graph whose values stand in a printed column; "" for the one that is lost."""
    name = rows("arrangement_table1.csv")[column - 1]["graph"].split()[0]
    return name if name in cases() else ""


def lost(greedy: dict[str, float]) -> Evidence:
    """Why nothing of column 8 can be computed."""
    printed = Printed(rows("arrangement_table1.csv")[LOST_COLUMN - 1]["p1"])
    text = f"its list of neighbours is lost: on none of the eight that are whole has the greedy p = {printed.text}"
    return Evidence(text, not any(printed.agrees(p) for p in greedy.values()))


def experiment_1(section: Section) -> dict[str, float]:
    """Add speeds 1 to 9 to the section; returns p of the greedy on each graph."""
    printed = rows("arrangement_table1.csv")
    greedy = {name: float(case.greedy(ONE_TO_NINE)[0]) for name, case in cases().items()}
    items, own = [], []
    for row in printed:
        name = of_column(int(row["column"]))
        if name:
            case = cases()[name]
            items += _column(row, case.place(ONE_TO_NINE), greedy[name], confirmed(case, ONE_TO_NINE))
        else:
            items += [claim(f"column 8: {key}", row[key], "none", False, lost=lost(greedy)) for key in list(row)[2:]]
        own += _within_the_row(row)
    lists = [
        [
            name,
            f"{p:.2f}",
            *_by_methods(name),
            ", ".join(row["column"] for row in printed if Printed(row["p1"]).agrees(p)) or "none",
        ]
        for name, p in greedy.items()
    ]
    section.lines += [
        "",
        "Two printed columns have the same list of neighbours, and lists stand in other columns than their "
        "values. The greedy "
        "says which list belongs to which column; those of T1 and T9 agree with none, and are told by their greatest p.",
        *table(
            ["list", "p of the greedy", *(f"`{method}`" for method in METHODS), "columns that print the greedy's"],
            lists,
        ),
    ]
    section.show("Experiment 1: speeds 1 to 9", items)
    section.show("Experiment 1: the printed rows by themselves", own, folded=True, kind=ARITHMETIC)
    return greedy


def _by_methods(name: str) -> list[str]:
    return [f"{arrange(cases()[name].graph, ONE_TO_NINE, method=method).p:.2f}" for method in METHODS]


def _column(row: dict[str, str], place: Place, p: float, sound: bool) -> list[Item]:
    """The items of one printed column against all arrangements; p is that of our greedy, `sound` if it is confirmed."""
    name = row["graph"].split()[0]
    printed = {key: Printed(row[key]) for key in ("p1", "pmin", "pmax")}
    items = [
        compare(f"{name}: {what}", row[key], value, error=_impossible(printed[key], place, sound))
        for what, key, value in (
            ("p of the greedy", "p1", p),
            ("least p", "pmin", place.least),
            ("greatest p", "pmax", place.greatest),
        )
    ]
    # Whatever p is printed as p1: these are the least and the greatest numbers that it can have.
    p1 = printed["p1"]
    missed = Evidence(
        f"the paper's p are off: its least, {row['pmin']}, is below all there are",
        sound and printed["pmin"].most < place.least,
    )
    for what, key, function in (
        ("Pr, %", "Pr_percent", place.relative),
        ("arrangements below", "N_below", place.below),
        ("arrangements above", "N_above", place.above),
        ("Pct, %", "Pct_percent", place.percentile),
    ):
        low, high = sorted((float(function(p1.least)), float(function(p1.most))))
        span = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
        number = Printed(row[key])
        error = Evidence(
            f"with any p that is printed as {p1.text} it is {span}",
            sound and (number.most < low or number.least > high),
        )
        items.append(compare(f"{name}: {what}", row[key], float(function(p)), error=error, lost=missed))
    best = f"{name}: p of the best arrangement, against the greedy's"
    return [*items, compare(best, row["p1"], place.least, better="less", error=_impossible(p1, place, sound))]


def _impossible(printed: Printed, place: Place, sound: bool) -> Evidence:
    """Whether no arrangement has the printed p."""
    if printed.least > place.greatest:
        return Evidence(f"no arrangement of all {ALL:,} is above {place.greatest:.2f}", sound)
    return Evidence(f"no arrangement of all {ALL:,} is below {place.least:.2f}", sound and printed.most < place.least)


def _within_the_row(row: dict[str, str]) -> list[Item]:
    """Pr, Pct and the sum of a printed column, from its other numbers as they are rounded."""
    p1, least, most = (Printed(row[key]) for key in ("p1", "pmin", "pmax"))
    low = 100.0 * (p1.least - least.most) / (most.most - least.most)
    high = 100.0 * (p1.most - least.least) / (most.least - least.least)
    pr, middle = Printed(row["Pr_percent"]), 100.0 * (p1.value - least.value) / (most.value - least.value)
    error = Evidence(f"its own p give {low:.1f} to {high:.1f}", pr.most < low or pr.least > high)
    name = f"column {row['column']}"
    items = [compare(f"{name}: Pr from the printed p", pr.text, middle, drawn=(low, high), error=error)]
    share = 100.0 * int(row["N_below"]) / ALL
    pct = Printed(row["Pct_percent"])
    error = Evidence(f"{row['N_below']} of {ALL:,} are {share:.4f} %", not pct.agrees(share))
    return [*items, compare(f"{name}: Pct from the printed number", pct.text, share, error=error)]


class Cell(NamedTuple):
    """One set of speeds on one graph: the greedy among all arrangements, the outcome that is nearest to the printed one."""

    least: float
    greatest: float
    relative: float  # Pr
    percentile: float  # Pct
    outcomes: int  # of the greedy
    swapped: float  # p of `swap`
    sound: bool  # p and lb_mpi's greedy are confirmed


def solve(case: Case, speeds: Floats, printed: Printed) -> Cell:
    """The cell of a set of speeds; of several outcomes of the greedy that whose Pr is nearest to the printed one."""
    place, found = case.place(speeds), case.greedy(speeds)
    p = float(min(found, key=lambda one: abs(place.relative(one) - printed.value)))
    swapped = arrange(case.graph, speeds).p
    return Cell(
        place.least,
        place.greatest,
        place.relative(p),
        place.percentile(p),
        len(found),
        swapped,
        confirmed(case, speeds),
    )


def experiment_2(run: Run, section: Section, greedy: dict[str, float]) -> None:
    """Add the nine sets of speeds on all graphs to the section."""
    sets = {
        row["set"]: np.array([float(row[f"speed{k}"]) for k in range(1, N + 1)])
        for row in rows("arrangement_table2.csv")
    }
    matrix: dict[str, list[str]] = {number: [] for number in sets}
    items, points = [], []
    reached = 0
    for row in rows("arrangement_table3.csv"):
        number, column = row["set"], int(row["column"])
        name = of_column(column)
        if column == 1:
            run.say(f"arrangement: all arrangements of speeds {number} of {len(sets)} on {len(cases())} graphs")
        titles = [f"set {number}, {name or 'column 8'}: {what}, %" for what in ("Pr", "Pct")]
        keys = ("Pr_percent", "Pct_percent")
        if not name:
            both = [
                claim(title, row[key], "none", False, lost=lost(greedy))
                for title, key in zip(titles, keys, strict=True)
            ]
        else:
            cell = solve(cases()[name], sets[number], Printed(row[keys[0]]))
            both = _cell(titles, row, cell)
            points.append((name, Printed(row[keys[0]]).value, cell.relative))
            reached += cell.swapped <= cell.least * (1.0 + TIE)
        items += both
        matrix[number].append("; ".join(one.cell for one in both))
    heads = ["set", *(of_column(column) or "column 8" for column in range(1, 10))]
    section.lines += [
        "",
        "### Experiment 2: nine sets of speeds",
        "",
        "Pr; Pct in %, ours and (printed). The speeds were drawn by the paper, not measured, and are "
        "printed in its table 2. "
        f"`swap` reaches the least p of all arrangements in {reached} of these {len(points)} cells.",
        *table(heads, ([number, *cells] for number, cells in matrix.items())),
    ]
    section.show("Experiment 2, cell by cell, with reasons", items, folded=True)
    section.lines += run.draw("arrangement_sets.png", "Pr printed and ours", lambda plt: plot_points(plt, points))


def _cell(titles: list[str], row: dict[str, str], cell: Cell) -> list[Item]:
    pr = Printed(row["Pr_percent"])
    ways = (
        "the greedy's only outcome has"
        if cell.outcomes == 1
        else f"of {cell.outcomes} outcomes of the greedy the nearest has"
    )
    text = f"{ways} Pr {cell.relative:.2f} and Pct {cell.percentile:.4f}"
    share = pr.value / 100.0
    p = cell.least + cell.relative / 100.0 * (cell.greatest - cell.least)
    wanted = (p - share * cell.greatest) / (1.0 - share)
    text += (
        f"; its p of {p:.2f} would be at the printed Pr if the least p were {wanted:.2f}, but that is {cell.least:.2f}"
    )
    lost = Evidence(text, cell.sound and wanted < cell.least * (1.0 - TIE))
    return [
        compare(titles[0], pr.text, cell.relative, lost=lost),
        compare(titles[1], row["Pct_percent"], cell.percentile, lost=lost),
    ]


def plot_points(plt: Any, points: list[tuple[str, float, float]]) -> Any:
    """Printed Pr and ours of each cell."""
    figure, axis = plt.subplots(figsize=(6.5, 6), layout="constrained")
    for name in cases():
        printed, ours = np.array([(one, other) for graph, one, other in points if graph == name]).T
        axis.plot(printed, ours, "o", label=name, alpha=0.8)
    axis.plot([0, 26], [0, 26], color="0.6", lw=0.8, ls="--")
    axis.set(
        title="72 cells of table 3: the greedy between best (0) and worst (100)",
        xlabel="Pr printed, %",
        ylabel="Pr among all arrangements, %",
    )
    axis.legend()
    return figure


def plot_graphs(plt: Any) -> Any:
    """The eight graphs: their best arrangements of speeds 1 to 9, and p of all arrangements."""
    figure, axes = plt.subplots(4, 4, figsize=(15, 14), layout="constrained")
    for k, (name, case) in enumerate(cases().items()):
        above, below = axes[2 * (k // 4)][k % 4], axes[2 * (k // 4) + 1][k % 4]
        values = case.values(ONE_TO_NINE)
        best, p = case.orders[values.argmin()], case.greedy(ONE_TO_NINE)[0]
        picture = case.graph.to_networkx()
        spots = nx.spectral_layout(picture) if name == "T9" else nx.kamada_kawai_layout(picture)
        nx.draw_networkx(
            picture,
            spots,
            ax=above,
            labels={vertex: f"{ONE_TO_NINE[best[vertex]]:g}" for vertex in range(N)},
            node_color=ONE_TO_NINE[best],
            cmap="YlOrRd",
            edge_color="0.6",
            edgecolors="black",
            node_size=420,
        )
        above.set_title(f"{name}: best arrangement, p = {values.min():.2f}")
        above.axis("off")
        below.hist(values, bins=80, color="0.75", weights=np.full(len(values), float(len(case.symmetries))))
        below.axvline(p, color="tab:red", label=f"greedy {p:.2f}")
        row = next(row for row in rows("arrangement_table1.csv") if row["graph"].split()[0] == name)
        for key, colour, what in (("p1", "tab:orange", "printed greedy"), ("pmin", "tab:blue", "printed least")):
            below.axvline(float(row[key]), color=colour, ls="--", label=f"{what} {row[key]}")
        below.set(xlabel="p", yticks=[], xlim=(0.0, None))
        below.legend(fontsize=8)
    return figure


def section(run: Run) -> Section:
    """The part of the page about this paper."""
    result = Section("Arrangement: which node sits where", SOURCE)
    run.say("arrangement: all arrangements of speeds 1 to 9")
    greedy = experiment_1(result)
    result.lines += run.draw("arrangement_graphs.png", "the graphs, their best arrangements, and p of all", plot_graphs)
    experiment_2(run, result, greedy)
    experiment_3(run, result)
    result.lines += left_out("arrangement")
    return result
