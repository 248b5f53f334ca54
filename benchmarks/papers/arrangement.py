"""Jin & Wang 2003, experiments 1 and 2: all 362,880 arrangements of nine speeds on graphs of nine nodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import networkx as nx
import numpy as np

from benchmarks.papers.arrangement_cases import ALL, Case, N, Place, cases, rows
from benchmarks.papers.arrangement_mesh import experiment_3
from benchmarks.papers.page import Run, Section, left_out, table
from benchmarks.papers.verdicts import Evidence, Item, Printed, claim, compare
from lb_mpi.arranging.arrange import arrange
from lb_mpi.arranging.objectives import TIE
from lb_mpi.graph import Floats

SOURCE = (
    'Jin, Wang, "Improving the convergence rate of the diffusion algorithm by arranging processors", '
    "Journal of Software, 2003. "
    "Here: `lb_mpi.arrange`, `lb_mpi.arranged`, `python -m lb_mpi arrange`, and beyond the paper `python -m "
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
            items += _column(row, cases()[name].place(ONE_TO_NINE), greedy[name])
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
    section.show("Experiment 1: the printed rows by themselves", own, folded=True)
    return greedy


def _by_methods(name: str) -> list[str]:
    return [f"{arrange(cases()[name].graph, ONE_TO_NINE, method=method).p:.2f}" for method in METHODS]


def _column(row: dict[str, str], place: Place, p: float) -> list[Item]:
    """The items of one printed column against all arrangements; p is that of our greedy."""
    name = row["graph"].split()[0]
    printed = {key: Printed(row[key]) for key in ("p1", "pmin", "pmax")}
    items = [
        compare(f"{name}: {what}", row[key], value, error=_impossible(printed[key], place))
        for what, key, value in (
            ("p of the greedy", "p1", p),
            ("least p", "pmin", place.least),
            ("greatest p", "pmax", place.greatest),
        )
    ]
    # Whatever p is printed as p1: these are the least and the greatest numbers that it can have.
    p1 = printed["p1"]
    missed = Evidence(
        f"the paper's p are off: its least, {row['pmin']}, is below all there are", printed["pmin"].most < place.least
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
            f"with any p that is printed as {p1.text} it is {span}", number.most < low or number.least > high
        )
        items.append(compare(f"{name}: {what}", row[key], float(function(p)), error=error, lost=missed))
    best = f"{name}: p of the best arrangement, against the greedy's"
    return [*items, compare(best, row["p1"], place.least, better="less", error=_impossible(p1, place))]


def _impossible(printed: Printed, place: Place) -> Evidence:
    """Whether no arrangement has the printed p."""
    if printed.least > place.greatest:
        return Evidence(f"no arrangement of all {ALL:,} is above {place.greatest:.2f}", True)
    return Evidence(f"no arrangement of all {ALL:,} is below {place.least:.2f}", printed.most < place.least)


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


def solve(case: Case, speeds: Floats, printed: Printed) -> Cell:
    """The cell of a set of speeds; of several outcomes of the greedy that whose Pr is nearest to the printed one."""
    place, found = case.place(speeds), case.greedy(speeds)
    p = float(min(found, key=lambda one: abs(place.relative(one) - printed.value)))
    swapped = arrange(case.graph, speeds).p
    return Cell(place.least, place.greatest, place.relative(p), place.percentile(p), len(found), swapped)


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
    lost = Evidence(text, wanted < cell.least * (1.0 - TIE))
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
