"""Xu, Zhang & Sun 1991: what a draft costs, by the paper's formula and in the simulator, draft by draft.

N/2 t + N/2 w + d/2 t: hops of t seconds and valuations of w seconds round the ring of N ranks, and the answer over the
hypercube of dimension d.  The simulator drives the protocol of `lb_mpi.search`; who listens to its messages can count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.papers.page import Run, Section, table
from benchmarks.papers.verdicts import Evidence, claim
from lb_mpi.problems.maze import MazeSearch, random_maze
from lb_mpi.searching import simulate
from lb_mpi.searching.drafting import NOBODY, Kind, Message, Send, State
from lb_mpi.searching.options import Options
from lb_mpi.searching.searcher import Searcher

SIZES = (4, 8, 16, 32, 64)
DIM = 150  # of a maze without a way out: some 15,000 cells to be searched
LATENCY_S, UNIT_S = 1e-3, 1e-4  # a cell takes a tenth of a hop, so that ranks listen often


class Draft(NamedTuple):
    """One draft that brought work home."""

    hops: int  # until it was home
    hops_to_victim: int  # until the last volunteer wrote itself in
    busy: int  # ranks on the way that valued their load
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
                    found.append(Draft(len(way) + 1, last[draft], sum(way), bits, now - sent[draft]))
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
        problems,
        latency=LATENCY_S,
        unit_s=UNIT_S,
        quantum_s=UNIT_S,
        options=options,
        seed=seed,
        searcher_class=Listener,
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

    to_victim = [float(means[size][1]) for size in SIZES]
    near = all(abs(means[size][1] - size / 2) <= 3.0 * errors[size][1] for size in SIZES)
    home = all((column[:, 0] == size).all() for size, column in columns.items())
    count = sum(len(column) for column in columns.values())
    busy = [float(means[size][2]) for size in SIZES]
    shares = [value / size for value, size in zip(busy, SIZES, strict=True)]
    half_busy = all(abs(means[size][2] - size / 2) <= 3.0 * errors[size][2] for size in SIZES)
    apart = [
        float(np.mean([(one ^ other).bit_count() for one in range(size) for other in range(size)])) for size in SIZES
    ]
    items = [
        claim("hops to the victim", "N/2", listed(to_victim), near),
        claim(
            "hops of a draft",
            "N/2",
            f"N in each of {count} drafts" if home else "other than N in some drafts",
            False,
            error=Evidence(
                "rule 3 answers a draft that has come home: N hops; N/2 is the mean way to the victim", home
            ),
        ),
        claim(
            "valuations",
            "N/2",
            listed(busy),
            half_busy,
            lost=Evidence(
                f"only busy ranks value their load: {min(shares):.0%} to {max(shares):.0%} of the ranks in these searches",
                min(shares) < 0.5,
            ),
        ),
        claim(
            "hops of the answer",
            "d/2",
            listed(apart),
            all(abs(one - math.log2(size) / 2) < 1e-9 for one, size in zip(apart, SIZES, strict=True)),
        ),
    ]
    section.show(
        "The overhead of a draft: N/2 t + N/2 w + d/2 t",
        items,
        f"N ranks, d = log2 N, t a hop, w a valuation. Ours: drafts that brought work, in {seeds} searches of mazes of "
        f"{DIM} x {DIM} cells, simulated for each N with the protocol that runs on MPI. (A message takes "
        "one hop there, however far "
        "it goes, and a valuation no time: so N + 2 hops from draft to work, and what a busy rank makes it "
        "wait. The hops of the answer "
        "are the mean over all pairs of ranks.)",
    )
    rows = [
        [
            size,
            len(columns[size]),
            f"{size / 2 + math.log2(size) / 2:g}",
            size + 2,
            f"{np.median(columns[size][:, 4]) / LATENCY_S:.1f}",
            f"{means[size][1]:.1f}",
            f"{means[size][3]:.1f}",
        ]
        for size in SIZES
    ]
    heads = [
        "N",
        "drafts",
        "N/2 + d/2",
        "N + 2",
        "hops' time from draft to work, median",
        "hops to the victim",
        "answer, on a hypercube",
    ]
    section.lines += table(heads, rows)
    section.lines += run.draw("draft_cost.png", "what a draft costs", lambda plt: _plot(plt, columns))


def _plot(plt: Any, columns: dict[int, Any]) -> Any:
    figure, axis = plt.subplots(figsize=(6.5, 4), layout="constrained")
    for size, column in columns.items():
        axis.plot(np.full(len(column), size), column[:, 4] / LATENCY_S, ".", color="0.6", alpha=0.5)
    times = [float(np.median(column[:, 4])) / LATENCY_S for column in columns.values()]
    axis.plot(SIZES, times, "o", color="tab:blue", label="simulated: median, and each draft")
    axis.plot(SIZES, [size + 2 for size in SIZES], color="tab:blue", label="N + 2")
    axis.plot(
        SIZES,
        [size / 2 + math.log2(size) / 2 for size in SIZES],
        "--",
        color="tab:red",
        label="printed: N/2 + d/2, w = 0",
    )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set(title="from draft to work", xlabel="ranks N", ylabel="hops", xticks=SIZES, yticks=SIZES)
    axis.set_xticklabels(SIZES)
    axis.set_yticklabels(SIZES)
    axis.legend()
    return figure
