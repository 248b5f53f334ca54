"""The pictures of README and the tutorial, from records of runs on a virtual clock, the same on any machine, and the bars of
docs/programs.md, from the table of that page.  Those of docs/papers.md were drawn once, and are their own source.

python -m tools.pictures [NAME ...]
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.cli.report.page import COLOURS
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
PROGRAMS = ROOT / "docs" / "programs.md"
COLUMNS = 300  # of a strip
WIDTH, LEFT, BAND, FONT = 560, 62, 30, 17  # pixels: readable at the width of a phone
UNIT_S = 2e-5  # of a search's work, on a rank of speed 1
ROWS, ROW_S, CALLS = 100, 1e-3, 6  # rows of a rank, seconds of a row at speed 1, calls of map_rows


class Picture(NamedTuple):
    """A picture: the strips of one or two runs below each other, on one axis of time."""

    what: str  # for readers who can't see it
    names: dict[Phase, str]  # of the phases shown; all others count as waiting
    runs: Callable[[], dict[str, Run]]  # by title


def queens() -> dict[str, Run]:
    """Run the search of the tutorial's program, without its last lines, which need MPI, without and with balancing."""
    text = next(block.text for page in PAGES for block in blocks(page) if block.name == "queens.py" and "sys" in block.text)
    code = text.partition("\nanswer = ")[0].replace("from mpi4py import MPI\n", "")

    def problem() -> Any:
        names: dict[str, Any] = {}
        exec(code, names)
        return names["tree"]

    def searched(balance: bool) -> Run:
        records, problems = [Record(0.0) for _ in SPEEDS], [problem() for _ in SPEEDS]
        options = Options(threshold=1.0, balance=balance)
        result = search.search(problems, speeds=SPEEDS, unit_s=UNIT_S, options=options, records=records)
        return virtual(records, result.virtual_seconds)

    return {"one share each": searched(False), "with balancing": searched(True)}


def rows() -> Run:
    """Call map_rows on rows that all take as long, the same number on each rank."""
    recorded = SimulatedRows(len(SPEEDS))
    network = Network(bytes_per_s=1e9)
    cluster = Cluster(as_graph("mesh:2x2"), np.array(SPEEDS) / ROW_S, network=network, row_bytes=8000, recorded=recorded)
    costs = [np.ones(ROWS) for _ in SPEEDS]
    simulate(cluster, lambda call: costs, CALLS)
    return virtual(recorded.records, recorded.now)


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


OF_ROWS = {Phase.OWN: "own rows", Phase.FOREIGN: "rows of slower ranks", Phase.WAITING: "waits"}
PICTURES = {
    "hero": Picture(
        "Above, each rank computes its own rows, and the fast ones wait. Below, they compute rows of slower ranks.",
        OF_ROWS, lambda: {"each rank computes its own rows": own_rows(), "with lb_mpi": rows()},
    ),
    "queens": Picture(
        "Above, ranks wait for the last one. Below, all work up to the end, which comes earlier.",
        {Phase.OWN: "work", Phase.WAITING: "waits"}, queens,
    ),
    "balanced": Picture("Fast ranks compute rows of slower ones.", OF_ROWS, lambda: {"six calls of map_rows": rows()}),
}  # fmt: skip


def draw(picture: Picture) -> str:
    """Run, and draw each rank as a row of rectangles, one for each phase."""
    runs = picture.runs()
    seconds = [run.seconds for run in runs.values()]
    scale = (WIDTH - LEFT - 10) / max(seconds)
    y, parts = 0.0, [f'<text x="{LEFT - 8}" y="18" text-anchor="end">speed</text>']
    for title, run in runs.items():
        y += 34
        parts.append(f'<text class="title" x="{LEFT}" y="{y - 10:g}">{title}: {run.seconds:.1f} s</text>')
        width = scale * run.seconds / COLUMNS
        for speed, spent in zip(SPEEDS, timeline(run, COLUMNS), strict=True):
            parts.append(f'<text x="{LEFT - 8}" y="{y + 0.5 * BAND + 6:g}" text-anchor="end">{speed:g}</text>')
            at = 0
            for phase, columns in groupby(Phase(int(column.argmax())) for column in spent):
                n = len([*columns])
                parts.append(
                    f'<rect x="{LEFT + width * at:.1f}" y="{y:g}" width="{width * n:.1f}" '
                    f'height="{BAND - 3}" fill="{COLOURS[phase if phase in picture.names else Phase.WAITING]}"/>'
                )
                at += n
            y += BAND
    for k, words in enumerate((f"{seconds[0] / seconds[1]:.1f} times", "as fast") if len(seconds) > 1 else ()):
        parts.append(f'<text class="title" x="{WIDTH - 12}" y="{y - 66 + 22 * k:g}" text-anchor="end">{words}</text>')
    parts += legend(y + 26, {name: COLOURS[phase] for phase, name in picture.names.items()})
    return framed(y + 38, picture.what, parts)


def bars() -> str:
    """Draw the time of each program of the table, before and after, as bars; a line where they would be at best."""
    table = re.findall(r"^\| `(\w+)` \|.*\| ([\d.]+) \| ([\d.]+) \|$", PROGRAMS.read_text(), re.MULTILINE)
    left, step, colours = LEFT + 20, 40.0, {"before": "#d55e00", "with lb_mpi": "#0b5cad"}
    scale, end = (WIDTH - left - 60) / 6.0, 12.0 + step * len(table)
    at_best = left + scale
    parts = []
    for k, (name, *ratios) in enumerate(table):
        y = 12 + step * k
        parts.append(f'<text x="{left - 8}" y="{y + 21:g}" text-anchor="end">{name}</text>')
        for row, (colour, ratio) in enumerate(zip(colours.values(), ratios, strict=True)):
            width = scale * float(ratio)
            parts.append(f'<rect x="{left}" y="{y + 16 * row:g}" width="{width:.1f}" height="14" fill="{colour}"/>')
            parts.append(f'<text x="{left + width + 6:.1f}" y="{y + 13 + 16 * row:g}">{ratio}</text>')
    parts.append(f'<path d="M{at_best:.1f} 6V{end:g}" stroke="#5b6675"/>')
    parts.append(f'<text x="{at_best:.1f}" y="{end + 16:g}" text-anchor="middle">1: achievable</text>')
    parts += legend(end + 42, colours)
    return framed(end + 54, "Time / achievable time of each program, before and with lb_mpi", parts)


def legend(y: float, colours: dict[str, str]) -> list[str]:
    """Explain colours, side by side."""
    x, parts = float(LEFT), []
    for name, colour in colours.items():
        parts.append(f'<rect x="{x:.0f}" y="{y - 13:g}" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{x + 20:.0f}" y="{y:g}">{name}</text>')
        x += 42 + 8.6 * len(name)
    return parts


def framed(height: float, what: str, parts: Sequence[str]) -> str:
    """Return a picture of these parts."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{what}">'
        f"<style>text{{font:{FONT}px system-ui,sans-serif;fill:#1c2430}}.title{{font-weight:600}}.page{{fill:#fff}}"
        "@media (prefers-color-scheme:dark){text{fill:#e6eaef}.page{fill:none}}</style>"
        f'<rect class="page" width="100%" height="100%"/>{"".join(parts)}</svg>\n'
    )


def main() -> None:
    """Run and draw."""
    parser = argparse.ArgumentParser(prog="python -m tools.pictures", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join((*PICTURES, "programs")))
    for name in parser.parse_args().names or (*PICTURES, "programs"):
        path = ROOT / "docs" / "pictures" / f"{name}.svg"
        path.write_text(bars() if name == "programs" else draw(PICTURES[name]))
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
