"""The pictures of README and the tutorial: runs of the programs that the pages show, drawn from their records.

python -m tools.pictures [NAME ...]          # in .venv, with matplotlib (extra plot); when nothing else computes
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from lb_mpi.recording.events import Phase
from lb_mpi.recording.pictures import COLOURS, strip_pixels
from lb_mpi.recording.run import Run, assemble, timeline
from tools.documents import PAGES, ROOT, blocks
from tools.environment import here

SPEEDS = "0.8,0.4,0.2,0.2"
LIMIT_S = 300.0
COLUMNS = 600
SLOW = ("-m", "lb_mpi", "throttle", "--speeds", SPEEDS)
NAMES = {
    Phase.OWN: "work",
    Phase.FOREIGN: "work on rows of others",
    Phase.PROTOCOL: "balancing",
    Phase.PACKING: "packing",
    Phase.WAITING: "waiting",
    Phase.RESTING: "resting (emulated slow rank)",
    Phase.OUTSIDE: "outside of lb_mpi",
}


class Picture(NamedTuple):
    """A picture: one strip for each run."""

    titles: tuple[str, ...]
    runs: tuple[tuple[str, ...], ...]  # of each: the arguments of python
    program: str = ""  # of the tutorial; "": an app


UTS = ("-m", "apps.uts", "--tree", "T1L", "--speeds", SPEEDS)
PICTURES = {
    "strips": Picture(("equal shares", "with lb_mpi"), ((*UTS, "--no-balance"), UTS)),
    "pooled": Picture(("",), ((*SLOW, "python", "pooled.py"),), "pooled.py"),
    "balanced": Picture(("",), ((*SLOW, "python", "balanced.py"),), "balanced.py"),
    "queens": Picture(
        ("one share each", "with balancing"),
        ((*SLOW, "python", "queens.py", "--no-balance"), (*SLOW, "python", "queens.py")),
        "queens.py",
    ),
    "heat": Picture(
        ("equal parts", "parts by speed"),
        ((*SLOW, "python", "heat.py", "--block"), (*SLOW, "python", "heat.py")),
        "heat.py",
    ),
}


def program(name: str) -> str:
    """Return the text of the tutorial's program."""
    return next(
        block.text for page in PAGES if "tutorial" in page.parts for block in blocks(page) if block.name == name
    )


def record(arguments: tuple[str, ...], name: str) -> Run:
    """Run on four ranks, and read the record."""
    environment = here()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        if name:
            (folder / name).write_text(program(name))
        argv = [str(folder / one) if one == name else one for one in arguments]
        argv = [str(environment.python) if one == "python" else one for one in argv]
        code = environment.mpiexec(
            4, [str(environment.python), *argv], LIMIT_S, env={"LB_MPI_RECORD": str(folder / "r")}
        )
        if code:
            raise RuntimeError(f"{' '.join(argv)}: exit code {code}")
        return assemble((path.name, path.read_bytes()) for path in sorted((folder / "r").glob("*.lbrec")))


def draw(picture: Picture, runs: list[Run], path: Path) -> None:
    """Draw the strips below each other, on one axis of time that begins where lb_mpi begins to work."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    spans = [_span(run) for run in runs]
    longest = max(end - begin for begin, end in spans)
    figure = Figure(figsize=(7.0, 0.7 + 1.3 * len(runs)), layout="constrained", facecolor="white")
    many: Any = figure.subplots(len(runs), 1, sharex=True, squeeze=False)
    for axes, run, (begin, end), title in zip(many[:, 0], runs, spans, picture.titles, strict=True):
        parts = timeline(run, COLUMNS)[:, round(COLUMNS * begin / run.seconds) : round(COLUMNS * end / run.seconds)]
        colours = ListedColormap([*COLOURS.values(), "#ffffff"])
        extent = (0.0, end - begin, len(run.ranks), 0.0)
        pixels = strip_pixels(parts)[0]
        axes.imshow(
            pixels, cmap=colours, vmin=0, vmax=len(COLOURS), aspect="auto", interpolation="nearest", extent=extent
        )
        axes.set_xlim(0.0, longest)
        axes.set_yticks([k + 0.5 for k in range(len(run.ranks))], [f"rank {one.about.rank}" for one in run.ranks])
        axes.set_title(title, loc="left", fontsize="medium")
    many[-1, 0].set_xlabel("seconds")
    totals = sum(run.totals.sum(axis=0) for run in runs)
    shown = [phase for phase in Phase if totals[phase] > 0.02 * totals.sum()]
    handles = [Patch(color=COLOURS[phase], label=NAMES[phase]) for phase in shown]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize="small", frameon=False)
    figure.savefig(path, dpi=110, pil_kwargs={"optimize": True})


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
        path = ROOT / "docs" / "pictures" / f"{name}.png"
        draw(picture, [record(run, picture.program) for run in picture.runs], path)
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
