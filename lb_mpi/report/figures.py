"""The pictures of a report as files of their own, for papers and slides; needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lb_mpi.record.events import Driver, Phase, Way
from lb_mpi.report.maps import owners
from lb_mpi.report.numbers import NAMES, WAYS, matrix
from lb_mpi.report.pictures import COLOURS, RANK_COLOURS, strip_pixels
from lb_mpi.report.run import Run, steps, timeline

INCHES, DOTS = 9.0, 160  # width of a picture, and dots an inch
COLUMNS = 1000


def write(run: Run, folder: Path) -> list[Path]:
    """Write strip.png, and where there is something to show imbalance.png, map.png, and NAME.png for each way to move work.

    Returns the paths.  ValueError without matplotlib, OSError.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(f"--png needs matplotlib (pip install 'lb_mpi[plot]'): {error}") from None
    folder.mkdir(parents=True, exist_ok=True)
    made = {"strip": _strip(Figure, run), "imbalance": _imbalance(Figure, run)}
    made["map"] = _map(Figure, run)
    made |= {way.name.lower() + "s": _matrix(Figure, run, way) for way in Way}
    paths = []
    for name, figure in made.items():
        if figure is not None:
            paths.append(folder / f"{name}.png")
            figure.savefig(paths[-1], dpi=DOTS)
    return paths


def _strip(make: Any, run: Run) -> Any:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    pixels, _ = strip_pixels(timeline(run, COLUMNS))
    figure = make(figsize=(INCHES, min(6.0, 1.6 + 0.3 * len(run.ranks))), layout="constrained")
    axes = figure.subplots()
    extent = (0.0, run.seconds, len(run.ranks), 0.0)
    colours = ListedColormap([*COLOURS.values(), "#ffffff"])
    axes.imshow(pixels, cmap=colours, vmin=0, vmax=len(COLOURS), aspect="auto", interpolation="nearest", extent=extent)
    axes.set_xlabel("seconds")
    if len(run.ranks) <= 32:
        axes.set_yticks(np.arange(len(run.ranks)) + 0.5, [f"rank {one.about.rank}" for one in run.ranks])
    else:
        axes.set_ylabel("ranks, by host")
    totals = run.totals
    handles = [Patch(color=COLOURS[phase], label=NAMES[phase]) for phase in Phase if totals[:, phase].any()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize="small", frameon=False)
    return figure


def _imbalance(make: Any, run: Run) -> Any:
    table = steps(run)[0]
    table = table[table["driver"] == Driver.ROWS]
    if not len(table):
        return None
    figure = make(figsize=(INCHES, 3.2), layout="constrained")
    axes = figure.subplots()
    calls = np.cumsum(table["n"]) - table["n"] + 1
    acted = table["acted"] > 0
    axes.plot(calls, 100 * table["before"], "--", color="#666666", label="with all rows at home")
    axes.plot(calls, 100 * table["after"], color=COLOURS[Phase.OWN], label="as it was")
    axes.plot(calls[acted], 100 * table["before"][acted], "v", color=COLOURS[Phase.PROTOCOL], label="changed")
    axes.set_xlabel("call of map_blocks")
    axes.set_ylabel("imbalance in percent")
    axes.set_ylim(bottom=0)
    axes.grid(color="#dddddd", linewidth=0.6)
    figure.legend(loc="outside upper center", ncols=3, fontsize="small", frameon=False)
    return figure


def _map(make: Any, run: Run) -> Any:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    owned = owners(run)
    if not (owned >= 0).any():
        return None
    figure = make(figsize=(6.4, 5.2), layout="constrained")
    axes = figure.subplots()
    n = len(RANK_COLOURS)
    shown = np.where(owned >= 0, owned % n, np.nan)
    axes.imshow(shown, cmap=ListedColormap(RANK_COLOURS), vmin=-0.5, vmax=n - 0.5, interpolation="nearest")
    axes.set_axis_off()
    if run.size <= n:
        handles = [Patch(color=RANK_COLOURS[rank], label=f"rank {rank}") for rank in range(run.size)]
        figure.legend(handles=handles, loc="outside right upper", fontsize="small", frameon=False)
    return figure


def _matrix(make: Any, run: Run, way: Way) -> Any:
    from matplotlib.ticker import MaxNLocator

    moved = matrix(run, way)
    if not moved.any():
        return None
    figure = make(figsize=(5.4, 4.6), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(np.where(moved > 0, moved, np.nan), cmap="viridis_r", interpolation="nearest")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("to rank")
    axes.set_ylabel("from rank")
    figure.colorbar(shown, label=WAYS[way])
    return figure
