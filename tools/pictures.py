"""The pictures of README and the tutorial, each drawn from records of runs.

All are of runs on a virtual clock, the same on any machine.

python -m tools.pictures [NAME ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.cli.report.page import COLOURS, LEFT, RIGHT, WIDTH, ceiling, drawing, label, strip
from lb_mpi.cli.report.page import COLUMNS as PAGE_COLUMNS
from lb_mpi.cli.report.run import Run, assemble, timeline
from lb_mpi.cli.simulate import search
from lb_mpi.cli.simulate.rows import Cluster, SimulatedRows, simulate
from lb_mpi.graph_files import as_graph
from lb_mpi.record.events import Phase
from lb_mpi.record.record import Record, virtual_files
from lb_mpi.searching.guard import Options
from lb_mpi.virtual import Network
from tools.documents import PAGES, ROOT, blocks

SPEEDS = (0.8, 0.4, 0.2, 0.2)
COLUMNS = 600
NAMES = {
    Phase.OWN: "work",
    Phase.FOREIGN: "work on rows of others",
    Phase.PROTOCOL: "balancing",
    Phase.PACKING: "packing",
    Phase.WAITING: "waiting",
    Phase.RESTING: "resting",
    Phase.OUTSIDE: "outside of lb_mpi",
}


class Picture(NamedTuple):
    """A picture: one strip for each run."""

    titles: tuple[str, ...]
    runs: Callable[[], list[Run]]


def searches(problem: Callable[[], Any], unit_s: float) -> list[Run]:
    """Search on virtual ranks, without and with balancing; a unit of work takes `unit_s` seconds on a rank of speed 1."""
    runs = []
    for balance in (False, True):
        records = [Record(0.0) for _ in SPEEDS]
        options = Options(threshold=1.0, balance=balance)
        problems = [problem() for _ in SPEEDS]
        result = search.search(problems, speeds=SPEEDS, unit_s=unit_s, options=options, records=records)
        runs.append(virtual(records, result.virtual_seconds))
    return runs


def queens() -> list[Run]:
    """Run the search of the tutorial's program, without its last lines, which need MPI."""
    text = next(
        block.text for page in PAGES for block in blocks(page) if block.name == "queens.py" and "sys" in block.text
    )
    code = text.partition("\nanswer = ")[0].replace("from mpi4py import MPI\n", "")

    def problem() -> Any:
        names: dict[str, Any] = {}
        exec(code, names)
        return names["tree"]

    return searches(problem, 2e-5)


ROWS, ROW_S, CALLS = 100, 1e-3, 6  # rows of a rank, seconds of a row at speed 1, calls of map_rows


def rows() -> list[Run]:
    """Call map_rows on rows that all take as long, the same number on each rank."""
    recorded = SimulatedRows(len(SPEEDS))
    graph = as_graph("mesh:2x2")
    speeds = np.array(SPEEDS) / ROW_S
    cluster = Cluster(
        graph, speeds, scheme="direct", network=Network(bytes_per_s=1e9), row_bytes=8000, recorded=recorded
    )
    costs = [np.ones(ROWS) for _ in SPEEDS]
    simulate(cluster, lambda call: costs, CALLS)
    return [virtual(recorded.records, recorded.now)]


def own_rows() -> Run:
    """Compute the same rows, each rank its own: all wait for the slowest in each step."""
    step_s = ROWS * ROW_S / min(SPEEDS)
    records = [Record(0.0) for _ in SPEEDS]
    for record, speed in zip(records, SPEEDS, strict=True):
        for step in range(CALLS):
            record.enter(Phase.OWN, step * step_s)
            record.enter(Phase.WAITING, step * step_s + ROWS * ROW_S / speed)
    return virtual(records, CALLS * step_s)


def virtual(records: Sequence[Record], seconds: float) -> Run:
    """Read the records of virtual ranks, as a report does."""
    return assemble(virtual_files(records, seconds, ["virtual"] * len(records), "pictures"))


HERO_COLUMNS = 300
HERO_NAMES = {Phase.OWN: "own rows", Phase.FOREIGN: "rows of slower ranks", Phase.WAITING: "waits"}
HERO_TEXT = "Above, each rank computes its own rows, and the fast ones wait. Below, they compute rows of slower ranks."
PICTURES = {
    "queens": Picture(("one share each", "with balancing"), queens),
    "balanced": Picture(("six calls of map_rows",), rows),
}


def draw(picture: Picture, runs: list[Run], path: Path) -> None:
    """Draw the strips below each other, on one axis of time that begins where lb_mpi begins to work."""
    shown = [(title, run, *_span(run)) for title, run in zip(picture.titles, runs, strict=True)]
    path.write_text(standalone(strips(shown)))


HERO_WIDTH, BAND, FONT = 560, 30, 17  # pixels: readable at the width of a phone


def hero(path: Path) -> None:
    """Draw README's picture: the same steps without and with balancing, on one axis of time, as rectangles of one phase."""
    shown = [("each rank computes its own rows", own_rows()), ("with lb_mpi", rows()[0])]
    longest = shown[0][1].seconds
    left, scale = 62, (HERO_WIDTH - 62 - 10) / longest
    y, parts = 0.0, []
    for title, run in shown:
        y += 34
        parts.append(f'<text class="title" x="{left}" y="{y - 10:g}">{title}: {run.seconds:.1f} s</text>')
        for k, rank in enumerate(timeline(run, HERO_COLUMNS)):
            parts.append(f'<text x="{left - 8}" y="{y + BAND * (k + 0.5) + 6:g}" text-anchor="end">{SPEEDS[k]:g}</text>')
            width = scale * run.seconds / HERO_COLUMNS
            for phase, columns in groupby(range(HERO_COLUMNS), key=lambda k: Phase(int(rank[k].argmax()))):
                some = [*columns]
                parts.append(
                    f'<rect x="{left + width * some[0]:.1f}" y="{y + BAND * k:g}" width="{width * len(some):.1f}" '
                    f'height="{BAND - 3}" fill="{COLOURS[phase if phase in HERO_NAMES else Phase.WAITING]}"/>'
                )
        y += BAND * len(SPEEDS)
    gained = f"{shown[0][1].seconds / shown[1][1].seconds:.1f} times"
    parts.append(f'<text class="title" x="{HERO_WIDTH - 12}" y="{y - 66:g}" text-anchor="end">{gained}</text>')
    parts.append(f'<text class="title" x="{HERO_WIDTH - 12}" y="{y - 44:g}" text-anchor="end">as fast</text>')
    x, y = float(left), y + 26
    for phase, name in HERO_NAMES.items():
        parts.append(f'<rect x="{x:.0f}" y="{y - 13:g}" width="14" height="14" fill="{COLOURS[phase]}"/>')
        parts.append(f'<text x="{x + 20:.0f}" y="{y:g}">{name}</text>')
        x += 42 + 8.6 * len(name)
    parts.append(f'<text x="{left - 8}" y="18" text-anchor="end">speed</text>')
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {HERO_WIDTH} {y + 12:g}" role="img" aria-label="{HERO_TEXT}">'
        f"<style>text{{font:{FONT}px system-ui,sans-serif;fill:#1c2430}}.title{{font-weight:600}}.page{{fill:#fff}}"
        "@media (prefers-color-scheme:dark){text{fill:#e6eaef}.page{fill:none}}</style>"
        f'<rect class="page" width="100%" height="100%"/>{"".join(parts)}</svg>\n'
    )


def strips(shown: Sequence[tuple[str, Run, float, float]]) -> str:
    """Draw strips below each other on one time axis: (title, run, its first second, its last second)."""
    longest = max(end - begin for _, _, begin, end in shown) or 1.0
    totals = np.sum([run.totals.sum(axis=0) for _, run, _, _ in shown], axis=0)
    parts, at = [], float(LEFT)
    for phase in Phase:
        if totals[phase] > 0.005 * totals.sum():
            parts.append(f'<rect x="{at:.0f}" y="4" width="12" height="12" style="fill:{COLOURS[phase]}"/>')
            parts.append(label(at + 17, 14, NAMES[phase], "start"))
            at += 34 + 6.4 * len(NAMES[phase])
    y, scale = 24.0, (WIDTH - LEFT - RIGHT) / longest
    for title, run, begin, end in shown:
        y += 22 if title else 6
        parts.append(label(LEFT, y - 6, title, "start", "rank"))
        height = min(24 * len(run.ranks), 480)
        picture = strip(timeline(run, PAGE_COLUMNS, begin, end))
        parts.append(
            f'<image x="{LEFT}" y="{y:g}" width="{scale * (end - begin):.1f}" height="{height}" '
            f'preserveAspectRatio="none" style="image-rendering:pixelated" href="{picture.url}"/>'
        )
        for k, one in enumerate(run.ranks if len(run.ranks) <= 40 else []):
            parts.append(label(LEFT - 6, y + height * (k + 0.5) / len(run.ranks) + 4, f"rank {one.about.rank}", "end"))
        y += height
    step = ceiling(longest / 8)
    for k in range(int(longest / step * 1.0001) + 1):
        x = LEFT + scale * step * k
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{y + 5:.1f}"/>')
        parts.append(label(x, y + 18, f"{k * step:.6g}"))
    parts.append(label((WIDTH + LEFT) / 2, y + 34, "seconds"))
    return drawing(WIDTH, y + 40, parts, "what each rank did when")


def standalone(svg: str) -> str:
    """Make a drawing a separate file, with the styles it needs."""
    width, height = svg.split('viewBox="0 0 ', 1)[1].split('"', 1)[0].split()
    lines = resources.files("lb_mpi.cli.report").joinpath("page.css").read_text().splitlines()
    css = "".join([*lines[:2], *(line for line in lines if line.startswith("svg"))])  # light; dark, on a transparent ground
    css = ".page{fill:var(--bg)}" + css.replace("--bg:#14181e", "--bg:none")
    head, _, drawn = svg.removeprefix("<svg").partition(">")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"{head}><style>{css}</style>'
        f'<rect class="page" width="100%" height="100%"/>{drawn}\n'
    )


def _span(run: Run) -> tuple[float, float]:
    """From the first to the last moment in which a rank works in lb_mpi; at most 3 % of the span before."""
    parts = timeline(run, COLUMNS)
    works = (parts[:, :, [Phase.OWN, Phase.FOREIGN, Phase.RESTING]].sum(axis=2) > 0.05).any(axis=0).nonzero()[0]
    if not len(works):
        return 0.0, run.seconds
    return float(works[0]) / COLUMNS * run.seconds, float(works[-1] + 1) / COLUMNS * run.seconds


def main() -> None:
    """Run and draw."""
    parser = argparse.ArgumentParser(prog="python -m tools.pictures", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(["hero", *PICTURES]))
    names = parser.parse_args().names or ["hero", *PICTURES]
    for name in names:
        path = ROOT / "docs" / "pictures" / f"{name}.svg"
        if name == "hero":
            hero(path)
        else:
            draw(PICTURES[name], PICTURES[name].runs(), path)
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
