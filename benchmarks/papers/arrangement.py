"""Jin & Wang 2003, experiments 1 and 2: all 362,880 arrangements of nine speeds on graphs of nine nodes."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import permutations, product
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from networkx.algorithms.isomorphism import GraphMatcher
from scipy import stats

from benchmarks.papers import second, stopping
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
from benchmarks.papers.ratio import ratios
from lb_mpi.arranging.arrange import arrange
from lb_mpi.arranging.objectives import TIE
from lb_mpi.graph import Floats, Graph, Ints, parse

# --- Graphs of nine nodes, and all 362,880 arrangements of nine speeds on them, up to the symmetries of the graph -----

N = 9
ALL = 362_880  # 9!
ONE_TO_NINE = np.arange(1.0, 10.0)
CANDIDATE = "6,8/6,9/7,8/7,9/8,9/1,2/3,4/1,3,5/2,4,5"


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

    def ranking(self, speeds: Floats) -> Ranking:
        """All arrangements of the (9,) speeds; kept, since several lines need those of the same speeds."""
        key = (*(ends.tobytes() for ends in self.graph.edges()), speeds.tobytes())
        if key not in RANKINGS:
            RANKINGS[key] = Ranking(np.sort(self.values(speeds)), len(self.symmetries))
        return RANKINGS[key]

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


class Ranking(NamedTuple):
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


RANKINGS: dict[tuple[bytes, ...], Ranking] = {}


def confirmed(case: Case, speeds: Floats) -> bool:
    """Tell if p of some arrangements, and lb_mpi's greedy, are those of the second implementation.

    Only then is a difference from print the print's: no reason counts without it.
    """
    layouts = np.random.default_rng(0).permuted(np.tile(speeds, (5, 1)), axis=1)
    edges = second.edges_of(case.graph)
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
    return {row["graph"]: case(row["graph"], parse(row["neighbours"])) for row in rows("arrangement_lists.csv")}


def case(name: str, graph: Graph) -> Case:
    """A graph of nine nodes with its symmetries."""
    picture = graph.to_networkx()
    maps = [[one[k] for k in range(N)] for one in GraphMatcher(picture, picture).isomorphisms_iter()]
    return Case(name, graph, np.array(sorted(maps), dtype=np.int64))


@cache
def candidate() -> Case:
    """Return the graph that may have been that of column 8, whose list is lost.

    Its p of the greedy and its greatest p are the printed ones.  Of the 7,654 connected graphs of nine nodes with 8 to 12
    edges, no other one fits both.
    """
    return case("C8", parse(CANDIDATE))


@cache
def sets_of_speeds() -> dict[str, Floats]:
    """The nine printed sets of speeds, and 1 to 9 as set 0."""
    drawn = {
        row["set"]: np.array([float(row[f"speed{k}"]) for k in range(1, N + 1)]) for row in rows("arrangement_table2.csv")
    }
    return {"0": ONE_TO_NINE, **drawn}


def predict(one: Case, number: str, tolerance: float = stopping.TOLERANCE) -> stopping.Prediction:
    """Return the prediction of the model of the program for a set of speeds on a graph."""
    speeds, orders = sets_of_speeds()[number], one.orders
    if len(orders) > stopping.MOST_DRAWS:
        orders = np.random.default_rng(0).choice(orders, stopping.MOST_DRAWS, replace=False)
    stands_for = ALL / len(orders)
    options: dict[str, Any] = {"stands_for": stands_for, "seed": int(number), "tolerance": tolerance}
    return stopping.predict(one.graph, speeds[orders], one.greedy(speeds), **options)


def write_predictions(run: Run) -> None:
    """Write what the model says of all sets of speeds on all graphs to `stopping.FILE`."""
    jobs = [(one, number) for number in sets_of_speeds() for one in (*cases().values(), candidate())]
    with ThreadPoolExecutor(2) as threads, open(stopping.FILE, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(stopping.HEADS)
        for (one, number), found in zip(jobs, threads.map(lambda job: predict(*job), jobs), strict=True):
            run.say(f"{one.name}, set {number}: least p {found.least.text()}, Pr {found.relative.text()}")
            writer.writerow([one.name, number, *stopping.numbers(found)])
            file.flush()


# --- Jin & Wang 2003, experiment 3: 64 speeds on the 8x8 mesh, the greedy among 100,000 random arrangements -----------

DRAWS = 100_000  # of the paper
QUICK_DRAWS = 2_000  # of all seeds but the first, without --full
SEEDS = 12  # sets of speeds
BY = ("paper", "fill", "swap")  # of large graphs
AT_ONCE = 20_000
MODELLED = 1_000  # random arrangements for which the model is computed
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
    predicted: stopping.Prediction  # what the model of the paper's program says

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
    p = {method: arrange(graph, speeds, method=method).p for method in BY}
    some = rng.permuted(np.tile(speeds, (MODELLED, 1)), axis=1)
    greedy = np.array([p["paper"]])
    predicted = stopping.predict(graph, some, greedy, stands_for=DRAWS / MODELLED, seed=seed)
    return Draw(np.concatenate(values), p, predicted)


def experiment_3(run: Run, section: Section) -> None:
    """Add experiment 3 to the section."""
    found = []
    for seed in range(SEEDS):
        draws = DRAWS if run.full or seed == 0 else QUICK_DRAWS
        run.say(f"arrangement: {draws:,} random arrangements on the 8x8 mesh, speeds {seed + 1} of {SEEDS}")
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
    said = [one.predicted for one in found]
    below = [stopping.Span(*(DRAWS / 100.0 * share for share in one.percentile)) for one in said]
    models = {
        "least": [one.least for one in said],
        "pr": [one.relative for one in said],
        "pct": [one.percentile for one in said],
        "below": below,
    }
    sound = _confirmed_draw(first)
    items = [_item(key, name, columns[key], models.get(key, []), sound) for key, name in NAMES.items()]
    p1, least, greatest = (Printed(PRINTED[key]) for key in ("greedy", "least", "greatest"))
    span = [100.0 * (one - low) / (high - low) for one, low, high in product(p1.ends, least.ends, greatest.ends)]
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
    edges = second.edges_of(graph)
    speeds = rng.uniform(1.0, 10.0, graph.n)
    layouts = rng.permuted(np.tile(speeds, (min(len(first.values), AT_ONCE), 1)), axis=1)[:5]
    wanted = [second.greedy(edges, speeds), *(second.ratio(edges, layout) for layout in layouts)]
    return bool(np.allclose([first.p["paper"], *first.values[:5]], wanted, rtol=second.NEAR))


def _item(key: str, name: str, values: Sequence[float], spans: Sequence[stopping.Span], sound: bool) -> Item:
    low, high, printed = min(values), max(values), Printed(PRINTED[key])
    text = f"the paper's 64 speeds aren't printed; as a second implementation confirms, {len(values)} drawn likewise give "
    text += f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    model = None
    if spans:  # the quantiles of the sets of speeds, together
        together = stopping.Span(*(float(np.median([one[k] for one in spans])) for k in range(3)))
        least, most = min(one.low for one in spans), max(one.high for one in spans)
        words = f"the model predicts {together.text()} for the median set, {least:.3g} to {most:.3g} for all"
        text += f"; {words}"
        model = Evidence(words, sound and printed.least <= most and least <= printed.most)
    lost = Evidence(text, sound and (printed.least > high or printed.most < low))
    return compare(name, printed.text, float(np.median(values)), drawn=values, model=model, lost=lost)


def _normal(values: Floats) -> Item:
    bent = float(stats.skew(values)), float(stats.kurtosis(values))
    text = f"skewness {bent[0]:.2f}, excess kurtosis {bent[1]:.2f}"
    return claim("distribution of the random ones", "roughly normal", text, max(map(abs, bent)) < NEARLY)


def plot(plt: Any, drawn: Draw) -> Any:
    """The histogram of the first set of speeds, with p of each method."""
    figure, axis = plt.subplots(figsize=(9, 4.6), layout="constrained")
    counts, *_ = axis.hist(drawn.values, bins=120, color="0.75")
    for colour, method in zip(("tab:red", "tab:orange", "tab:green"), BY, strict=True):
        name = "the paper's greedy" if method == "paper" else method
        axis.axvline(drawn.p[method], color=colour, label=f"{name} {drawn.p[method]:.1f}")
    axis.axvline(
        float(PRINTED["greedy"]), color="tab:red", ls="--", label=f"greedy as printed, of other speeds {PRINTED['greedy']}"
    )
    axis.set(
        title=f"{len(drawn.values):,} random arrangements of 64 speeds, uniform in [1, 10], on the 8x8 mesh",
        xlabel="p = lambda_P / lambda_2: steps of diffusion are proportional to it",
        ylabel="arrangements",
        ylim=(0.0, 1.4 * counts.max()),
    )
    axis.legend(loc="upper right")
    return figure


SOURCE = (
    'Jin, Wang, "Improving the convergence rate of the diffusion algorithm by arranging processors", '
    "Journal of Software, 2003. "
    "Here: `lb_mpi.arrange`, `lb_mpi.reorder_ranks`, `python -m lb_mpi arrange`."
)
LOST_COLUMN = 8
METHODS = ("fill", "swap")


def of_column(column: int) -> Case:
    """The graph whose values stand in a printed column; that of column 8 is a candidate."""
    return cases().get(rows("arrangement_table1.csv")[column - 1]["graph"].split()[0], candidate())


def experiment_1(run: Run, section: Section, known: Known) -> None:
    """Add speeds 1 to 9 to the section."""
    printed = rows("arrangement_table1.csv")
    items, own, lists = [], [], []
    for row in printed:
        case = of_column(int(row["column"]))
        p = float(case.greedy(ONE_TO_NINE)[0])
        items += _column(row, case, case.ranking(ONE_TO_NINE), p, known)
        own += _within_the_row(row)
        agreeing = ", ".join(one["column"] for one in printed if Printed(one["p1"]).agrees(p)) or "none"
        lists.append([case.name, f"{p:.2f}", *_by_methods(case), agreeing])
    section.lines += [
        "",
        "Two printed columns have the same list of neighbours, and lists stand in other columns than their "
        "values. The greedy says which list belongs to which column; those of T1 and T9 agree with none, and are "
        "distinguished by their greatest p. C8 is a candidate for column 8, whose list is lost: of all graphs with 8 to 12 "
        "edges, it alone fits two numbers of the column.",
        *table(
            ["list", "p of the greedy", *(f"`{method}`" for method in METHODS), "columns that print the greedy's"], lists
        ),
    ]
    section.show("Experiment 1: speeds 1 to 9", items)
    section.show("Experiment 1: the printed rows by themselves", own, folded=True, kind=ARITHMETIC)


def _by_methods(case: Case) -> list[str]:
    return [f"{arrange(case.graph, ONE_TO_NINE, method=method).p:.2f}" for method in METHODS]


def _column(row: dict[str, str], case: Case, ranking: Ranking, p: float, known: Known) -> list[Item]:
    """The items of one printed column against all arrangements; p is that of our greedy."""
    name, sound = case.name, known.sound and confirmed(case, ONE_TO_NINE)
    if case is candidate():
        return _column_of_candidate(row, ranking, p, sound, known)
    printed = {key: Printed(row[key]) for key in ("p1", "pmin", "pmax")}
    items = [
        compare(f"{name}: {what}", row[key], value, error=_impossible(printed[key], ranking, sound))
        for what, key, value in (
            ("p of the greedy", "p1", p),
            ("least p", "pmin", ranking.least),
            ("greatest p", "pmax", ranking.greatest),
        )
    ]
    # Whatever p is printed as p1: these are the least and the greatest numbers that it can have.
    p1 = printed["p1"]
    model = known.of(name, "0")
    for what, key, function in (
        ("Pr, %", "Pr_percent", ranking.relative),
        ("arrangements below", "N_below", ranking.below),
        ("arrangements above", "N_above", ranking.above),
        ("Pct, %", "Pct_percent", ranking.percentile),
    ):
        low, high = sorted((float(function(p1.least)), float(function(p1.most))))
        span = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
        number = Printed(row[key])
        error = Evidence(
            f"with any p that is printed as {p1.text} it is {span}", sound and (number.most < low or number.least > high)
        )
        said = model.evidence(key, number)
        error = error._replace(text=f"{error.text}; {said.text}")
        items.append(compare(f"{name}: {what}", row[key], float(function(p)), error=error, **_reasons(said, sound)))
    best = f"{name}: p of the best arrangement, against the greedy's"
    return [*items, compare(best, row["p1"], ranking.least, better="less", error=_impossible(p1, ranking, sound))]


def _column_of_candidate(row: dict[str, str], ranking: Ranking, p: float, sound: bool, known: Known) -> list[Item]:
    """The items of column 8: nothing of a candidate is called the same, and what it was chosen by explains nothing."""
    model, chosen = known.of("C8", "0"), Evidence("C8 was chosen by this number, so it says nothing of it", sound)
    ours = {
        "p1": p,
        "pmin": ranking.least,
        "pmax": ranking.greatest,
        "Pr_percent": ranking.relative(p),
        "N_below": ranking.below(p),
        "N_above": ranking.above(p),
        "Pct_percent": ranking.percentile(p),
    }
    items = []
    for key, value in ours.items():
        said = _reasons(model.evidence(key, Printed(row[key])), sound) if key not in ("p1", "pmax") else {"lost": chosen}
        items.append(claim(f"column 8, C8: {key}", row[key], f"{value:.6g}", False, **said))
    return items


def _reasons(said: Evidence, sound: bool) -> dict[str, Any]:
    """The model's evidence, and what remains when the printed number isn't what it predicts."""
    outside = Evidence(f"{said.text}, and the printed number isn't", sound and not said.holds)
    return {"model": Evidence(said.text, sound and said.holds), "lost": outside}


def _impossible(printed: Printed, ranking: Ranking, sound: bool) -> Evidence:
    """Whether no arrangement has the printed p."""
    if printed.least > ranking.greatest:
        return Evidence(f"no arrangement of all {ALL:,} is above {ranking.greatest:.2f}", sound)
    return Evidence(f"no arrangement of all {ALL:,} is below {ranking.least:.2f}", sound and printed.most < ranking.least)


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


class Said(NamedTuple):
    """Prediction of the model for one set of speeds on one graph."""

    prediction: stopping.Prediction
    sound: bool

    def span(self, key: str) -> stopping.Span:
        """The interval of a column of print."""
        share = stopping.Span(*(ALL / 100.0 * one for one in self.prediction.percentile))
        return {
            "pmin": self.prediction.least,
            "Pr_percent": self.prediction.relative,
            "Pct_percent": self.prediction.percentile,
            "N_below": share,
            "N_above": stopping.Span(*(ALL - 1 - one for one in reversed(share))),
        }[key]

    def evidence(self, key: str, printed: Printed) -> Evidence:
        """Whether the printed number is what is predicted."""
        span = self.span(key)
        text = f"the model predicts {span.text()} ({inside(key):.0f} of 100 printed numbers like this lie in its interval)"
        return Evidence(text, self.sound and span.holds(printed.least, printed.most))


@cache
def inside(key: str) -> float:
    """In how many of 100 the printed number of a column lies in the interval that the model predicts."""
    predictions = stopping.read()
    if key in ("Pr_percent", "Pct_percent"):
        printed = [(row, row["set"], int(row["column"])) for row in rows("arrangement_table3.csv")]
    else:
        printed = [(row, "0", int(row["column"])) for row in rows("arrangement_table1.csv")]
    hits = [
        Said(predictions[of_column(column).name, number], True).span(key).holds(*Printed(row[key]).ends)
        for row, number, column in printed
    ]
    return 100.0 * sum(hits) / len(hits)


class Known(NamedTuple):
    """The predictions of the file, and whether one of them, computed anew, is the same."""

    predictions: dict[tuple[str, str], stopping.Prediction]
    sound: bool

    def of(self, name: str, number: str) -> Said:
        """Return the prediction for a set of speeds on a graph."""
        return Said(self.predictions[name, number], self.sound)


def known_predictions() -> Known:
    """Read the file, and compute one of its rows anew."""
    found = stopping.read()
    again = [float(one) for one in stopping.numbers(predict(cases()["T7"], "1"))]
    stored = [float(one) for one in stopping.numbers(found["T7", "1"])]
    return Known(found, bool(np.allclose(again, stored, rtol=1e-4)))


class Cell(NamedTuple):
    """One set of speeds on one graph: the greedy among all arrangements, the outcome that is nearest to the printed "
    "one."""

    name: str  # of the graph
    number: str  # of the set
    relative: float  # Pr
    percentile: float  # Pct
    best: bool  # `swap` reaches the least p of all
    sound: bool  # p and lb_mpi's greedy are confirmed

    def items(self, column: int, row: dict[str, str], said: Said) -> list[Item]:
        """Pr and Pct beside print."""
        items = []
        for what, key, value in (("Pr", "Pr_percent", self.relative), ("Pct", "Pct_percent", self.percentile)):
            title, reasons = f"set {self.number}, {self.name}: {what}, %", self.reasons(key, row, said)
            if column == LOST_COLUMN:
                items.append(claim(title, row[key], f"{value:.3g}", False, **reasons))
            else:
                items.append(compare(title, row[key], value, **reasons))
        return items

    def reasons(self, key: str, row: dict[str, str], said: Said) -> dict[str, Any]:
        """Return the possible explanations of the printed number."""
        return _reasons(said.evidence(key, Printed(row[key])), self.sound and said.sound)


def solve(case: Case, number: str, printed: Printed) -> Cell:
    """The cell of a set of speeds; of several outcomes of the greedy that whose Pr is nearest to the printed one."""
    speeds = sets_of_speeds()[number]
    ranking, found = case.ranking(speeds), case.greedy(speeds)
    p = float(min(found, key=lambda one: abs(ranking.relative(one) - printed.value)))
    best = arrange(case.graph, speeds).p <= ranking.least * (1.0 + TIE)
    return Cell(case.name, number, ranking.relative(p), ranking.percentile(p), best, confirmed(case, speeds))


def experiment_2(run: Run, section: Section, known: Known) -> None:
    """Add the nine sets of speeds on all graphs to the section."""
    matrix: dict[str, list[str]] = {}
    items, cells = [], []
    printed = rows("arrangement_table3.csv")
    for row in printed:
        number, column = row["set"], int(row["column"])
        if column == 1:
            run.say(f"arrangement: all arrangements of speeds {number} of 9 on {len(cases()) + 1} graphs")
        case = of_column(column)
        cells.append(solve(case, number, Printed(row["Pr_percent"])))
        both = cells[-1].items(column, row, known.of(case.name, number))
        items += both
        matrix.setdefault(number, []).append("; ".join(one.cell for one in both))
    heads = ["set", *(of_column(column).name for column in range(1, 10))]
    section.lines += [
        "",
        "### Experiment 2: nine sets of speeds",
        "",
        "Pr; Pct in %, ours and (printed). The speeds were drawn by the paper, not measured, and are "
        "printed in its table 2. "
        f"`swap` reaches the least p of all arrangements in {sum(cell.best for cell in cells)} of these {len(cells)} "
        "cells.",
        *table(heads, ([number, *some] for number, some in matrix.items())),
    ]
    section.show("Experiment 2, cell by cell, with reasons", items, folded=True)
    section.lines += run.draw("arrangement_sets.png", "Pr printed and ours", lambda plt: plot_points(plt, cells, known))
    section.lines += confidence(cells, known)
    section.show("Conclusions", conclusions(cells))
    section.show("Conclusions: the printed numbers by themselves", conclusions_of_print(), kind=ARITHMETIC)


RESAMPLES = 2000


def confidence(cells: Sequence[Cell], known: Known) -> list[str]:
    """How far the model's predictions for experiment 2 can be trusted: hits, ranks and means beside what chance gives."""
    printed = rows("arrangement_table3.csv")
    rng = np.random.default_rng(0)
    lines = []
    for what, key in (("Pr", "Pr_percent"), ("Pct", "Pct_percent")):
        numbers = [Printed(row[key]) for row in printed]
        spans = [known.of(cell.name, cell.number).span(key) for cell in cells]
        # hits[i, j]: the number of cell i is within the interval of cell j
        hits = np.array([[span.holds(number.least, number.most) for span in spans] for number in numbers])
        column = np.arange(len(cells)) % N
        same = column[:, None] == column
        own = int(np.diag(hits).sum())
        orders = [_within_columns(rng, column) for _ in range(RESAMPLES)]
        reached = float(np.mean([hits[np.arange(len(hits)), order].sum() >= own for order in orders]))
        values = np.array([number.value for number in numbers])
        for title, ours in (
            ("exact", np.array([cell.relative if what == "Pr" else cell.percentile for cell in cells])),
            ("model", np.array([span.middle for span in spans])),
        ):
            draws = rng.integers(0, len(cells), (RESAMPLES, len(cells)))
            rank = np.percentile(_rank_correlations(values[draws], ours[draws]), (2.5, 97.5))
            gap = np.percentile((values - ours)[draws].mean(1), (2.5, 97.5))
            shown = [f"{own} of {len(cells)}", f"{hits[same & ~np.eye(len(hits), dtype=bool)].mean():.0%}"]
            shown += [f"{hits[~same].mean():.0%}", f"{max(reached, 1 / RESAMPLES):.4f}"]
            given = shown if title == "model" else [""] * 4
            given += [f"{_rank_correlations(values[None], ours[None])[0]:.2f}", f"{rank[0]:.2f} to {rank[1]:.2f}"]
            given += [f"{(values - ours).mean():.3f}", f"{gap[0]:.3f} to {gap[1]:.3f}"]
            lines.append([what, title, *given])
    heads = ["", "by", "printed number inside its interval", "that of another set inside", "that of another graph inside"]
    heads += ["chance of as many hits", "rank correlation with print", "95 %", "print minus ours, mean", "95 %"]
    return [
        "",
        "### Experiment 2: how far the model explains it",
        "",
        f"The model (`benchmarks/papers/stopping.py`) stops power iteration at a relative change of "
        f"{stopping.TOLERANCE:g}; no number of it is fitted, and its predictions are in "
        "`tests/data/papers/stopping.csv`. The least p of T9 and T2 had been looked at when it was proposed. Its "
        "intervals are to hold 95 % of what one run would print. The chance is that of numbers "
        "exchanged between the sets of a column. Where fewer than 95 % are inside, the model has the kind of error "
        "right, but not all of the program: a line that it explains is one whose number it predicts, no more.",
        *table(heads, lines),
    ]


def _rank_correlations(some: Floats, others: Floats) -> Floats:
    """(B,) Spearman's rank correlations of the (B, n) numbers, row by row."""
    ranks, beside = (stats.rankdata(one, axis=1) - 0.5 * (one.shape[1] + 1) for one in (some, others))
    return np.asarray((ranks * beside).sum(1) / np.sqrt((ranks**2).sum(1) * (beside**2).sum(1)))


def _within_columns(rng: np.random.Generator, column: Ints) -> Ints:
    order = np.arange(len(column))
    for one in range(N):
        order[column == one] = rng.permutation(order[column == one])
    return order


def conclusions(cells: Sequence[Cell]) -> list[Item]:
    """Compare the conclusions of the paper from its experiments, and the numbers of its example in section 3."""
    pr = np.array([cell.relative for cell in cells]).reshape(-1, N)
    pct = max(cell.percentile for cell in cells)
    spans = {name: case.ranking(ONE_TO_NINE) for name, case in cases().items()}
    none = not any(Printed(text).agrees(getattr(one, end)) for one in spans.values() for text, end in EXAMPLE)
    reason = Evidence("its graph and speeds aren't among the printed data, and no graph of table 1 gives it", none)
    some = f"greatest Pr {pr.max():.1f} %, {(pr < 10.0).mean():.0%} of {pr.size} below 10 %"
    return [
        claim("Pr", "below 30 %, mostly below 10 %", some, bool(pr.max() < 30.0 and (pr < 10.0).mean() > 0.5)),
        claim("Pct", "below 1 %", f"{pct:.2f} % at most", pct < 1.0),
        _graph_matters(pr, "graphs"),
        claim("section 3, the example: least p", EXAMPLE[0][0], "none", False, lost=reason),
        claim("section 3, the example: greatest p", EXAMPLE[1][0], "none", False, lost=reason),
        claim("section 3, the example: p of the greedy", "15.55", "none", False, lost=reason),
    ]


def _graph_matters(pr: Floats, graphs: str) -> Item:
    """Whether the means of the columns of Pr, one a graph, vary by more than those of its rows, one a set of speeds."""
    columns, rows = float(pr.mean(0).std()), float(pr.mean(1).std())
    text = f"means of {graphs} vary by {columns:.2f}, means of sets by {rows:.2f}"
    return claim("Pr: the graph matters more than speeds", "it does", text, columns > rows)


EXAMPLE = (("4.2", "least"), ("146.1", "greatest"))


def conclusions_of_print() -> list[Item]:
    """The same conclusions, from the printed tables, and Pr of the example."""
    printed = rows("arrangement_table3.csv")
    pr = np.array([float(row["Pr_percent"]) for row in printed]).reshape(-1, N)
    pct = np.array([float(row["Pct_percent"]) for row in printed])
    greatest, below_10 = float(pct.max()), float((pr < 10.0).mean())
    above = Evidence(f"table 3 prints {greatest:g}, and {int((pct >= 1.0).sum())} numbers of 1 or more", greatest >= 1.0)
    below = Evidence(f"table 3 prints {int((pr >= 10.0).sum())} of {pr.size} of 10 or more", below_10 <= 0.5)
    low, most, p1 = (float(text) for text in ("4.2", "146.1", "15.55"))
    share = 100.0 * (p1 - low) / (most - low)
    return [
        claim("Pr", "below 30 %", f"{pr.max():g} % at most", bool(pr.max() < 30.0)),
        claim("Pr", "mostly below 10 %", f"{below_10:.0%} are", below_10 > 0.5, error=below),
        claim("Pct", "below 1 %", f"{greatest:g} % at most", greatest < 1.0, error=above),
        _graph_matters(pr, "columns"),
        claim("section 3, the example: Pr", "below 10 %", f"{share:.1f} %", share < 10.0),
    ]


def plot_points(plt: Any, cells: Sequence[Cell], known: Known) -> Any:
    """Printed Pr of each cell beside ours, and beside what the model predicts."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.6), layout="constrained", sharex=True, sharey=True)
    printed = [float(row["Pr_percent"]) for row in rows("arrangement_table3.csv")]
    for column in range(N):
        name, some = cells[column].name, printed[column::N]
        left.plot(some, [cell.relative for cell in cells[column::N]], "o", label=name, alpha=0.8)
        spans = [known.of(name, cell.number).span("Pr_percent") for cell in cells[column::N]]
        errors = np.array([(one.middle - one.low, one.high - one.middle) for one in spans]).T
        right.errorbar(some, [one.middle for one in spans], errors, fmt="o", lw=0.7, alpha=0.8)
    for axis, title in ((left, "exact"), (right, "predicted by the model, with 95 % intervals")):
        axis.plot([0, 26], [0, 26], color="0.6", lw=0.8, ls="--")
        axis.set(title=title, xlabel="Pr printed, %", ylabel="Pr, %")
    figure.suptitle("Pr: where the greedy is between best (0) and worst (100)")
    left.legend()
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
            vmax=1.4 * N,  # not so dark that its label can't be read
            edge_color="0.6",
            edgecolors="black",
            node_size=420,
        )
        above.set_title(f"{name}: best arrangement, p = {values.min():.2f}")
        above.axis("off")
        counts, *_ = below.hist(values, bins=80, color="0.75")
        below.axvline(p, color="tab:red", label=f"greedy {p:.2f}")
        row = next(row for row in rows("arrangement_table1.csv") if row["graph"].split()[0] == name)
        for key, colour, what in (("p1", "tab:orange", "printed greedy"), ("pmin", "tab:blue", "printed least")):
            below.axvline(float(row[key]), color=colour, ls="--", label=f"{what} {row[key]}")
        below.set(xlabel="p", yticks=[], xlim=(0.0, None), ylim=(0.0, 1.35 * counts.max()))
        below.legend(loc="upper right", fontsize=8)
    return figure


def section(run: Run) -> Section:
    """The part of the page about this paper."""
    conclusion = (
        "The greedy is good: in all of the paper's cases with printed speeds it is better than 99 % of all arrangements. "
        "The printed minima are lower than any arrangement reaches, as from an eigensolver that stops early; so the paper "
        "calls its method worse than it is. Swaps of two nodes after it are better still."
    )
    result = Section("Arrangement: which node sits where", SOURCE, conclusion)
    run.say("arrangement: all arrangements of speeds 1 to 9")
    known = known_predictions()
    experiment_1(run, result, known)
    result.lines += run.draw("arrangement_graphs.png", "the graphs, their best arrangements, and p of all", plot_graphs)
    experiment_2(run, result, known)
    experiment_3(run, result)
    result.lines += left_out("arrangement")
    return result
