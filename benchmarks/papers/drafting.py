"""Xu, Zhang & Sun 1991: the maze, its table, its path, and larger mazes, in the idealised search in lock step."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import pairwise, permutations, product
from typing import Any, NamedTuple

import networkx
import numpy as np

from benchmarks.papers.drafting_cost import cost_of_a_draft
from benchmarks.papers.lockstep import Comparison, LockstepResult, compare_on, lockstep, median_of_mazes
from benchmarks.papers.page import DATA, Run, Section, left_out, table
from benchmarks.papers.verdicts import Evidence, Item, Printed, claim, compare
from lb_mpi.graph import Ints
from lb_mpi.problems.maze import SPLIT_RULES, MazeSearch, check_path, read_maze, trace_path
from lb_mpi.problems.maze_kernel import BLOCKED, FREE, Cells

SOURCE = (
    'Xu, Zhang, Sun, "A dynamic and distributed algorithm for load balancing on multiprocessors", Nanjing University, 1991. '
    "Here: `lb_mpi.search`, `apps/maze.py`, and the idealised search of `benchmarks/papers/lockstep.py`."
)
OPENED, AS_PRINTED = "maze16.txt", "maze16_as_printed.txt"
PRINTED = {  # ranks: L, balances, S, E
    1: ("67", "", "", ""),
    2: ("47", "10", "1.43", "0.715"),
    4: ("33", "13", "2", "0.5"),
}
THRESHOLDS = (0.0, 0.125, 0.25, 0.5, 1.0)
RANKS, DIMS = 8, (16, 32, 64, 128)


def section(run: Run) -> Section:
    """The part of the page about this paper."""
    result = Section("Drafting: the maze", SOURCE)
    run.say("drafting: the maze of the paper, with and without the cell that its path crosses")
    mazes = {name: read_maze(DATA / name) for name in (OPENED, AS_PRINTED)}
    found = {name: {ranks: compare_on(cells, ranks) for ranks in PRINTED} for name, cells in mazes.items()}
    tried = {name: variants(cells) for name, cells in mazes.items()}
    items = [item for ranks in PRINTED for item in _rank(ranks, found[OPENED][ranks], tried[OPENED])]
    result.show(
        "The table of the example",
        items,
        "L: steps until the exit is marked, when communication is free; S = L1 / L, E = S / ranks. The maze "
        "is the paper's with "
        "one cell opened, (12, 12), which the printed path crosses (see below).",
    )
    heads = ["maze", *(f"L{ranks} / balances" for ranks in PRINTED), "S2", "S4"]
    rows = [
        [name]
        + [f"{one.together.steps} / {one.together.balances}" for one in of.values()]
        + [f"{of[ranks].speedup:.2f}" for ranks in (2, 4)]
        for name, of in found.items()
    ]
    result.lines += ["", "The same search in both mazes:", *table(heads, rows)]
    result.show("The printed path", _paths(mazes, tried))
    result.lines += run.draw("maze_paths.png", "the maze and both paths", lambda plt: plot_paths(plt, mazes, tried))
    _larger(run, result)
    cost_of_a_draft(run, result)
    result.lines += left_out("drafting")
    return result


class Variant(NamedTuple):
    """One variant of the model on one maze."""

    ranks: int
    result: LockstepResult
    path: Ints


def variants(cells: Cells) -> list[Variant]:
    """The search on one, two and four ranks with each split rule, several thresholds J, and each order of the ring."""
    found = []
    for ranks, rule, threshold in product(PRINTED, SPLIT_RULES, THRESHOLDS):
        for ring in permutations(range(1, ranks)):
            shared = cells.copy()
            problems = [MazeSearch(shared, rank, rule) for rank in range(ranks)]
            result = lockstep(problems, [0, *ring], threshold)
            found.append(Variant(ranks, result, trace_path(problems, problems[0].exit)))
    return found


def _rank(ranks: int, ours: Comparison, tried: Sequence[Variant]) -> list[Item]:
    """The items of the table's line for so many ranks."""
    steps, balances, gain, share = PRINTED[ranks]
    items = [compare(f"L{ranks}, steps", steps, ours.together.steps, better="less")]
    if ranks == 1:
        return items
    both, others = (int(steps), int(balances)), [one.result for one in tried if one.ranks == ranks]
    text = (
        f"none of {len(others)} variants of the model (split rule, J, order of the ring) has {both[0]} "
        f"steps and {both[1]} balances"
    )
    lost = Evidence(text, both not in {(one.steps, one.balances) for one in others})
    items.append(compare(f"balances on {ranks}", balances, ours.together.balances, lost=lost))
    items.append(compare(f"S{ranks}", gain, ours.speedup, better="more"))
    exact = int(PRINTED[1][0]) / int(steps) / ranks
    error = Evidence(
        f"{PRINTED[1][0]} / {steps} / {ranks} is {exact:.4f}; the print is half of the rounded {gain}",
        not Printed(share).agrees(exact) and Printed(share).value == Printed(gain).value / ranks,
    )
    return [*items, compare(f"E{ranks}", share, ours.efficiency, better="more", error=error)]


def printed_path(width: int) -> Ints:
    """The printed path as flat indices of cells."""
    with open(DATA / "papers" / "maze16_path.csv", newline="") as file:
        return np.array([(int(row["x"]) + 1) * width + int(row["y"]) + 1 for row in csv.DictReader(file)])


def shortest_path(cells: Cells) -> int:
    """The number of cells on a shortest way out."""
    free = {(int(x), int(y)) for x, y in np.argwhere(cells == FREE)}
    ways = networkx.Graph()
    for x, y in free:
        ways.add_edges_from(
            ((x, y), (x + i, y + j)) for i, j in product((-1, 0, 1), repeat=2) if (x + i, y + j) in free
        )
    return 1 + int(networkx.shortest_path_length(ways, min(free), max(free)))


def _paths(mazes: dict[str, Cells], tried: dict[str, list[Variant]]) -> list[Item]:
    items = []
    width = len(mazes[OPENED])
    path = printed_path(width)
    blocked = [f"({cell // width - 1}, {cell % width - 1})" for cell in path if mazes[AS_PRINTED].flat[cell] == BLOCKED]
    text = f"the printed maze blocks {', '.join(blocked)}, and the printed path crosses it"
    for name, cells in mazes.items():
        try:
            check_path(cells, path)
            fault = ""
        except ValueError as error:
            fault = str(error)
        what = "in the printed maze" if name == AS_PRINTED else "with that cell open"
        items.append(
            claim(f"the path {what}", "a path", fault or "a path", not fault, error=Evidence(text, bool(blocked)))
        )
        for one in tried[name]:
            check_path(cells, one.path)
        lengths = [len(one.path) for one in tried[name]]
        alone = next(one.path for one in tried[name] if one.ranks == 1)
        ours = (
            f"{len(alone)} on one rank, {len(np.intersect1d(alone, path))} of them on the printed path; "
            f"shortest {shortest_path(cells)}"
        )
        found = any(np.array_equal(one.path, path) for one in tried[name])
        lost = Evidence(
            f"none of {len(lengths)} variants of the model finds this path; theirs have {min(lengths)} to "
            f"{max(lengths)} cells",
            not found,
        )
        items.append(claim(f"cells of the path {what}", str(len(path)), ours, found, lost=lost))
    return items


def plot_paths(plt: Any, mazes: dict[str, Cells], tried: dict[str, list[Variant]]) -> Any:
    """Both mazes with the printed path and that of one rank."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 5.4), layout="constrained")
    for axis, (name, cells) in zip(axes, mazes.items(), strict=True):
        axis.imshow(cells[1:-1, 1:-1] != FREE, cmap="Greys", vmax=1.6)
        alone = next(one.path for one in tried[name] if one.ranks == 1)
        for path, style, label in (
            (printed_path(len(cells)), {"color": "tab:red", "lw": 5, "alpha": 0.5}, "printed"),
            (alone, {"color": "tab:blue", "lw": 1.5, "ls": "--"}, "one rank"),
        ):
            rows, columns = np.divmod(path, len(cells))
            axis.plot(columns - 1, rows - 1, label=f"{label}: {len(path)} cells", **style)
        axis.plot(12, 12, "x", color="black", ms=12, label="(12, 12)")
        axis.set(title="as printed" if name == AS_PRINTED else "(12, 12) opened", xlabel="y", ylabel="x")
        axis.legend(loc="lower left", fontsize=8)
    return figure


def _larger(run: Run, section: Section) -> None:
    """Larger mazes: the paper's claim, as a table and a plot."""
    seeds = 100 if run.full else 10
    some = []
    for dim in DIMS:
        run.say(f"drafting: mazes of {dim} x {dim} on {RANKS} ranks")
        some.append(median_of_mazes(dim, RANKS, 0.7, seeds))
    values = [one.efficiency for one in some]
    ours = ", ".join(f"{value:.2f}" for value in values)
    rising = all(one < other for one, other in pairwise(values))
    heads = ["cells", "mazes", "L1", f"L{RANKS}", "balances", "S", "E"]
    rows = [
        (f"{dim}x{dim}", *one[:4], f"{one.speedup:.2f}", f"{one.efficiency:.2f}")
        for dim, one in zip(DIMS, some, strict=True)
    ]
    name = f"E on {RANKS} ranks, {' to '.join(str(dim) for dim in (DIMS[0], DIMS[-1]))} cells a side"
    section.show("Larger mazes", [claim(name, "larger mazes are more efficient", ours, rising)])
    section.lines += ["", f"Medians over drawn mazes with a way out, 70 % of the cells free, seeds 0 to {seeds - 1}:"]
    section.lines += table(heads, rows)
    section.lines += run.draw("maze_efficiency.png", "efficiency and size", lambda plt: _plot_larger(plt, values))


def _plot_larger(plt: Any, values: list[float]) -> Any:
    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    axis.semilogx(DIMS, values, "o-", base=2)
    axis.axhline(1.0, color="0.6", lw=0.8, ls="--")
    axis.set(
        title=f"{RANKS} ranks in lock step", xlabel="cells a side", ylabel="efficiency", ylim=(0.0, None), xticks=DIMS
    )
    axis.set_xticklabels(DIMS)
    return figure
