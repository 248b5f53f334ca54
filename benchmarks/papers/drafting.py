"""Xu, Zhang & Sun 1991: the maze, its table, its path, and larger mazes, in the idealised search in lock step."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise, permutations, product
from typing import Any, NamedTuple

import networkx
import numpy as np

from apps.lockstep import Comparison, LockstepResult, compare_on, lockstep, median_of_mazes
from apps.maze_kernel import BLOCKED, FREE, Cells
from apps.maze_search import SPLIT_RULES, MazeSearch, check_path, random_maze, read_maze, trace_path
from benchmarks.papers.page import DATA, Evidence, Item, Printed, Run, Section, claim, compare, left_out, table
from benchmarks.papers.second import in_lock_step
from lb_mpi.cli.simulate import search as simulate
from lb_mpi.graph import Ints
from lb_mpi.searching.drafting import NOBODY, Kind, Message, Send, State
from lb_mpi.searching.guard import Options
from lb_mpi.searching.searcher import Searcher
from lb_mpi.virtual import Network

# --- Xu, Zhang & Sun 1991: what a draft costs, by the paper's formula and in the simulator, draft by draft ------------
#
# N/2 t + N/2 w + d/2 t: from the moment when the victim has the draft, hops of t seconds and valuations of w seconds on its
# way home over the ring of N ranks, and the answer over the hypercube of dimension d.  The simulator drives the protocol
# of `lb_mpi.search`; who listens to its messages can count.

SIZES = (4, 8, 16, 32, 64)
DIM = 150  # of a maze without a way out: some 15,000 cells to be searched
LATENCY_S, UNIT_S = 1e-3, 1e-4  # a cell takes a tenth of a hop, so that ranks listen often
NETWORK = Network((LATENCY_S, LATENCY_S))


class Draft(NamedTuple):
    """One draft that brought work home."""

    hops: int  # until it was home
    hops_to_victim: int  # until the last volunteer wrote itself in
    busy: int  # ranks on the way that valued their load
    busy_to_victim: int  # of these as far as the victim, it included
    answer_hops: int  # from drafter to victim over the hypercube
    seconds: float  # from drafting to work


def drafts(size: int, seed: int = 0) -> list[Draft]:
    """All drafts of one simulated search on `size` ranks that brought work home."""
    hops: dict[tuple[int, int], list[bool]] = {}  # (source, seq): for each rank on the way, if it was busy
    last: dict[tuple[int, int], int] = {}  # the hop at which the last volunteer had it
    sent: dict[tuple[int, int], float] = {}
    found: list[Draft] = []

    class Listener(Searcher):
        """A searcher whose messages are counted."""

        def turn(self, now: float, arrived: Iterable[tuple[int, Message]]) -> list[Send]:
            arrived = list(arrived)
            for _, message in arrived:
                draft = message.source, message.seq
                if message.kind is Kind.DRAFTING and message.source != self.rank:
                    busy = self.drafting.state in (State.BUSY, State.WAIT_FOR_ADMISSION)
                    hops[draft].append(busy)
                elif message.kind is Kind.WORK:
                    way, victim = hops[draft], owner[draft]
                    bits = (victim ^ self.rank).bit_count()
                    to_victim = sum(way[: last[draft]])
                    found.append(Draft(len(way) + 1, last[draft], sum(way), to_victim, bits, now - sent[draft]))
            sends = super().turn(now, arrived)
            for _, message in sends:
                if message.kind is Kind.DRAFTING:
                    draft = message.source, message.seq
                    if message.source == self.rank:
                        hops[draft], sent[draft] = [], now
                    elif message.pid == self.rank != NOBODY:
                        last[draft], owner[draft] = len(hops[draft]), self.rank
            return sends

    owner: dict[tuple[int, int], int] = {}
    cells = random_maze(DIM, 0.7, seed, walled=True)
    problems = [MazeSearch(cells, rank) for rank in range(size)]
    options = Options(pause_s=simulate.pause_for(size, LATENCY_S), seed=seed, route="ring")
    simulate.search(
        problems, network=NETWORK, unit_s=UNIT_S, quantum_s=UNIT_S, options=options, seed=seed, searcher_class=Listener
    )
    return found


def cost_of_a_draft(run: Run, section: Section) -> None:
    """Add the formula, beside the simulator, to the section."""
    seeds = 20 if run.full else 3
    found: dict[int, list[Draft]] = {}
    for size in SIZES:
        run.say(f"drafting: what drafts cost on {size} virtual ranks")
        found[size] = [draft for seed in range(seeds) for draft in drafts(size, seed)]
    columns = {size: np.array(some, dtype=float) for size, some in found.items()}
    means = {size: column.mean(axis=0) for size, column in columns.items()}
    errors = {size: column.std(axis=0) / math.sqrt(len(column)) for size, column in columns.items()}
    sizes = " ".join(map(str, SIZES))

    def listed(values: Sequence[float]) -> str:
        return " ".join(f"{value:.3g}" for value in values) + f" for N = {sizes}"

    home = {size: column[:, 0] - column[:, 1] for size, column in columns.items()}
    valued_home = {size: column[:, 2] - column[:, 3] for size, column in columns.items()}
    count = sum(len(column) for column in columns.values())
    whole = all((column[:, 0] == size).all() for size, column in columns.items())
    way_home = [float(home[size].mean()) for size in SIZES]
    half = {
        key: all(abs(some[size].mean() - size / 2) <= 3.0 * some[size].std() / math.sqrt(len(some[size])) for size in SIZES)
        for key, some in (("hops", home), ("valuations", valued_home))
    }
    # The formula has every rank on the way value its load: so it is where all of these are busy.
    busy = [float(valued_home[size].mean()) for size in SIZES]
    valued = [value / hops for value, hops in zip(busy, way_home, strict=True)]
    apart = [float(np.mean([(one ^ other).bit_count() for one in range(size) for other in range(size)])) for size in SIZES]
    exact = all(abs(one - math.log2(size) / 2) < 1e-9 for one, size in zip(apart, SIZES, strict=True))
    different = [one * size / (size - 1) for one, size in zip(apart, SIZES, strict=True)]
    answers = [float(means[size][4]) for size in SIZES]
    items = [
        claim("hops of the draft from the victim home", "N/2", listed(way_home), half["hops"] and whole),
        claim(
            "valuations from the victim home",
            "N/2",
            listed(busy),
            half["valuations"],
            lost=Evidence(
                f"only busy ranks value their load: {min(valued):.0%} to {max(valued):.0%} of those between the victim "
                "and the drafter in these searches, and it is half of N where all are busy",
                half["hops"] and min(valued) < 1.0,
            ),
        ),
        claim("hops of the answer, mean over all pairs of ranks", "d/2", listed(apart), exact),
        claim(
            "hops of the answer in these searches",
            "d/2",
            listed(answers),
            all(abs(means[size][4] - math.log2(size) / 2) <= 3.0 * errors[size][4] for size in SIZES),
            lost=Evidence(
                "d/2 counts a rank as its own victim, too: it is d/2 N/(N - 1) for different ones, "
                f"{listed(different)}; and where few ranks are busy, these are the near ones",
                exact and min(valued) < 1.0 and answers[0] > math.log2(SIZES[0]) / 2,
            ),
        ),
    ]
    section.show(
        "The overhead of a draft: N/2 t + N/2 w + d/2 t",
        items,
        "N ranks, d = log2 N, t a hop, w a valuation; the time is counted from the victim's receipt of the draft until the "
        f"two are in contact (the whole round is N hops). Ours: {count} drafts that brought work, in {seeds} searches of "
        "mazes of "
        f"{DIM} x {DIM} cells, simulated for each N with the protocol that runs on MPI. (A message takes "
        "one hop there, however far "
        "it goes, and a valuation no time: so N + 2 hops from draft to work, and what a busy rank makes it "
        "wait.)",
    )
    rows = [
        [
            size,
            len(columns[size]),
            f"{size / 2 + math.log2(size) / 2:g}",
            size + 2,
            f"{np.median(columns[size][:, 5]) / LATENCY_S:.1f}",
            f"{means[size][1]:.1f}",
            f"{means[size][3]:.1f}",
            f"{means[size][2]:.1f}",
            f"{means[size][4]:.1f}",
        ]
        for size in SIZES
    ]
    heads = [
        "N",
        "drafts",
        "N/2 + d/2, from the victim's receipt on",
        "N + 2",
        "hops' time from draft to work, median",
        "hops to the victim",
        "valuations to the victim",
        "valuations in all",
        "answer, on a hypercube",
    ]
    section.lines += table(heads, rows)


SOURCE = (
    'Xu, Zhang, Sun, "A dynamic and distributed algorithm for load balancing on multiprocessors", Nanjing University, 1991. '
    "Here: `lb_mpi.search`, `apps/maze.py`, and the idealised search of `apps/lockstep.py`."
)
OPENED, AS_PRINTED = "maze16.txt", "maze16_as_printed.txt"
PRINTED = {  # ranks: L, balances, S, E
    1: ("67", "", "", ""),
    2: ("47", "10", "1.43", "0.715"),
    4: ("33", "13", "2", "0.5"),
}
J = 0.125
THRESHOLDS = (0.0, J, 0.25, 0.5, 1.0)
RANKS, DIMS = 8, (16, 32, 64, 128)


def section(run: Run) -> Section:
    """The part of the page about this paper."""
    conclusion = (
        "The protocol is right as described, and the printed steps and balances of one and two processors come out "
        "exactly. Those of four can't be had from the model: it finds the exit in fewer steps. The hops of a draft are "
        "as printed. That larger mazes and longer steps are more efficient is so."
    )
    result = Section("Drafting: the maze", SOURCE, conclusion)
    run.say("drafting: the maze of the paper, with and without the cell that its path crosses")
    mazes = {name: read_maze(DATA / name) for name in (OPENED, AS_PRINTED)}
    found = {name: {ranks: compare_on(cells, ranks) for ranks in PRINTED} for name, cells in mazes.items()}
    tried = {name: variants(cells) for name, cells in mazes.items()}
    items = [item for ranks in PRINTED for item in _rank(mazes[OPENED], ranks, found[OPENED][ranks], tried[OPENED])]
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
    grains(run, result)
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


def _rank(cells: Cells, ranks: int, ours: Comparison, tried: Sequence[Variant]) -> list[Item]:
    """The items of the table's line for so many ranks."""
    steps, balances, gain, share = PRINTED[ranks]
    if ranks == 1:
        return [compare("L1, steps", steps, ours.together.steps)]
    both, others = (int(steps), int(balances)), [one.result for one in tried if one.ranks == ranks]
    text = (
        f"none of {len(others)} variants of the model (split rule, J, order of the ring) has {both[0]} "
        f"steps and {both[1]} balances"
    )
    again = in_lock_step(cells, ranks, J)
    text += f"; a second implementation has {again[0]} and {again[1]}, as here"
    agreed = again == (ours.together.steps, ours.together.balances)
    lost = Evidence(text, agreed and both not in {(one.steps, one.balances) for one in others})
    # S and E are of the printed L: "2" is 67 / 33 = 2.03, and not every number that rounds to 2.
    reached = ours.together.steps == int(steps) and ours.alone.steps == int(PRINTED[1][0])
    shown = f"{ours.speedup:.3f}"
    items = [
        compare(f"L{ranks}, steps", steps, ours.together.steps, lost=lost),
        compare(f"balances on {ranks}", balances, ours.together.balances, lost=lost),
        claim(f"S{ranks}", gain, shown, reached and Printed(gain).agrees(ours.speedup), lost=lost),
    ]
    exact = int(PRINTED[1][0]) / int(steps) / ranks
    error = Evidence(
        f"{PRINTED[1][0]} / {steps} / {ranks} is {exact:.4f}; the print is half of the rounded {gain}",
        not Printed(share).agrees(exact) and Printed(share).value == Printed(gain).value / ranks,
    )
    return [*items, compare(f"E{ranks}", share, ours.efficiency, error=error, lost=lost)]


def printed_path(width: int) -> Ints:
    """The printed path as flat indices of cells."""
    with open(DATA / "papers" / "maze16_path.csv", newline="") as file:
        return np.array([(int(row["x"]) + 1) * width + int(row["y"]) + 1 for row in csv.DictReader(file)])


def shortest_path(cells: Cells) -> int:
    """The number of cells on a shortest way out."""
    free = {(int(x), int(y)) for x, y in np.argwhere(cells == FREE)}
    ways = networkx.Graph()
    for x, y in free:
        ways.add_edges_from(((x, y), (x + i, y + j)) for i, j in product((-1, 0, 1), repeat=2) if (x + i, y + j) in free)
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
        items.append(claim(f"the path {what}", "a path", fault or "a path", not fault, error=Evidence(text, bool(blocked))))
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
    section.lines += ["", f"Medians over drawn mazes with a way out, 70 % of the cells free, seeds 0 to {seeds - 1}."]
    if max(values) > 1.0:
        section.lines += [
            f"E is above 1 in the largest ({max(values):.2f}): the search ends when one rank marks the exit. One "
            "rank alone goes down the ways in a fixed order; several begin in different parts of the maze, and one "
            "of them may be on a way out before all that lies before it has been searched. So they mark fewer cells "
            "together than one rank does alone. In mazes without a way out E is at most 1."
        ]
    section.lines += table(heads, rows)


GRAINS = (0.1, 0.3, 1.0, 3.0, 10.0)  # seconds of a step, in hops
GRAIN_DIM = 64


class Grain(NamedTuple):
    """Medians over mazes at one duration of a step."""

    efficiency: float
    balances: float
    per_hop: float  # balances while a message makes one hop


def grain(ratio: float, seeds: int) -> Grain:
    """Search mazes without a way out on RANKS virtual ranks, with steps that last `ratio` hops."""
    found = []
    for seed in range(seeds):
        cells = random_maze(GRAIN_DIM, 0.7, seed, walled=True)
        problems = [MazeSearch(cells, rank) for rank in range(RANKS)]
        options = Options(pause_s=simulate.pause_for(RANKS, LATENCY_S), seed=seed, route="ring")
        unit_s = ratio * LATENCY_S
        one = simulate.search(problems, network=NETWORK, unit_s=unit_s, quantum_s=unit_s, options=options, seed=seed)
        found.append((one.efficiency, one.balances, one.balances * LATENCY_S / one.virtual_seconds))
    return Grain(*np.median(found, axis=0).tolist())


def grains(run: Run, section: Section) -> None:
    """Add what a longer step does to the section."""
    seeds = 30 if run.full else 5
    run.say("drafting: grain")
    some = [grain(ratio, seeds) for ratio in GRAINS]
    steps = f"steps of {GRAINS[0]:g} to {GRAINS[-1]:g} hops"
    section.show(
        "Grain: more work in a step",
        [
            claim(
                f"balances a hop, {steps}",
                "fewer balances",
                ", ".join(f"{one.per_hop:.3f}" for one in some),
                all(one.per_hop > other.per_hop for one, other in pairwise(some)),
            ),
            claim(
                f"efficiency, {steps}",
                "more efficient",
                ", ".join(f"{one.efficiency:.2f}" for one in some),
                all(one.efficiency < other.efficiency for one, other in pairwise(some)),
            ),
        ],
        f"{RANKS} ranks, mazes of {GRAIN_DIM} x {GRAIN_DIM} cells without a way out, simulated with the protocol "
        f"that runs on MPI: medians of {seeds}. Balances are fewer in a time, but more in all: ranks have the time "
        "to ask.",
    )
    rows = [
        (f"{ratio:g}", f"{one.balances:g}", f"{one.per_hop:.3f}", f"{one.efficiency:.2f}")
        for ratio, one in zip(GRAINS, some, strict=True)
    ]
    section.lines += table(["a step, in hops", "balances in all", "balances a hop", "efficiency"], rows)
