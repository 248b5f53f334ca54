"""The pictures of README and the tutorial, each drawn from records of runs.

"strips" is of two real runs with the project's own MPI; the others are of runs on a virtual clock, the same on any machine.

python -m tools.pictures [NAME ...]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lb_mpi.balancing.simulate import Cluster, SimulatedRows, simulate
from lb_mpi.cli.report.page import COLOURS, LEFT, RIGHT, WIDTH, ceiling, drawing, label, strip
from lb_mpi.cli.report.page import COLUMNS as PAGE_COLUMNS
from lb_mpi.cli.report.run import Run, assemble, gather, timeline
from lb_mpi.graph_files import as_graph
from lb_mpi.record.events import Phase
from lb_mpi.record.record import Record, virtual_files
from lb_mpi.searching import simulate as search
from lb_mpi.searching.guard import Options
from lb_mpi.virtual import Network
from tools.documents import PAGES, ROOT, blocks
from tools.environment import wanted
from tools.jobs import JOBS, LIMIT_S

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


def tree() -> list[Run]:
    """Search the tree T1L, of 102 million nodes, for real; resting, which emulates the speeds, counts as work."""
    runs, environment, job = [], wanted(), JOBS[0]
    for more in (list(job.unbalanced), []):
        with tempfile.TemporaryDirectory(prefix="lb_mpi-") as folder:
            argv = ["-m", *job.argv, "--json", "--speeds", ",".join(map(str, SPEEDS)), *more]
            environment.answer(len(SPEEDS), argv, LIMIT_S, env={"LB_MPI_RECORD": folder})
            run = gather(Path(folder))
        for one in run.ranks:
            one.seconds[:, Phase.OWN] += one.seconds[:, [Phase.FOREIGN, Phase.RESTING]].sum(axis=1)
            one.seconds[:, [Phase.FOREIGN, Phase.RESTING]] = 0.0
        runs.append(run)
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


def rows() -> list[Run]:
    """Call map_rows on rows that all take as long, 100 on each rank, six times."""
    recorded = SimulatedRows(len(SPEEDS))
    graph = as_graph("mesh:2x2")
    speeds = np.array(SPEEDS) / 1e-3
    cluster = Cluster(
        graph, speeds, scheme="direct", network=Network(bytes_per_s=1e9), row_bytes=8000, recorded=recorded
    )
    costs = [np.ones(100) for _ in SPEEDS]
    simulate(cluster, lambda call: costs, 6)
    return [virtual(recorded.records, recorded.now)]


def virtual(records: Sequence[Record], seconds: float) -> Run:
    """Read the records of virtual ranks, as a report does."""
    return assemble(virtual_files(records, seconds, ["virtual"] * len(records), "pictures"))


PICTURES = {
    "strips": Picture(("one share each", "with lb_mpi"), tree),
    "queens": Picture(("one share each", "with balancing"), queens),
    "balanced": Picture(("six calls of map_rows",), rows),
}


def draw(picture: Picture, runs: list[Run], path: Path) -> None:
    """Draw the strips below each other, on one axis of time that begins where lb_mpi begins to work."""
    shown = [(title, run, *_span(run)) for title, run in zip(picture.titles, runs, strict=True)]
    path.write_text(standalone(strips(shown)))


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
    css = "".join([lines[0], *(line for line in lines if line.startswith("svg"))])
    head, _, drawn = svg.removeprefix("<svg").partition(">")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"{head}><style>{css}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{drawn}\n'
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
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    names = parser.parse_args().names or list(PICTURES)
    for name in names:
        picture = PICTURES[name]
        path = ROOT / "docs" / "pictures" / f"{name}.svg"
        draw(picture, picture.runs(), path)
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
