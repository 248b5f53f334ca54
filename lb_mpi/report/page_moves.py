"""What has moved between the ranks of a run, and what each of them computed, on its page.   (pure)"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from lb_mpi.record.events import Way
from lb_mpi.report.flow_chart import flows
from lb_mpi.report.maps import layout_of, owners
from lb_mpi.report.markup import figure, key, percent, seconds
from lb_mpi.report.numbers import WAYS, drafts, matrix
from lb_mpi.report.pictures import RANK_COLOURS, map_of
from lb_mpi.report.pictures import table as matrix_picture
from lb_mpi.report.run import Run

MOST_VALUES = 64  # ranks of a matrix whose numbers are told
UNITS = {Way.DRAFT: "parts", Way.LOAN: "rows", Way.STEAL: "tasks", Way.GIFT: "rows"}


def moves(run: Run) -> str:
    """Say who gave to whom."""
    parts: list[str] = []
    edges = np.concatenate([one.known.edges for one in run.ranks])  # the graph is known to one rank
    for way in Way:
        moved = matrix(run, way)
        if not moved.any():
            continue
        picture = matrix_picture(moved)
        data: dict[str, Any] = {"rows": picture.height, "each": picture.each, "hosts": [], "unit": UNITS[way]}
        if len(moved) <= MOST_VALUES:
            data["values"] = moved.astype(int).tolist()
        chart = flows(moved, UNITS[way], edges if way in (Way.LOAN, Way.GIFT) else edges[:0])
        top = _most(moved, picture.each)
        caption = f"{moved.sum():,.0f} {WAYS[way]}; yellow: few, violet: up to {top:,.0f}, white: none."
        if picture.each > 1:
            caption += f" Sums of {picture.each} by {picture.each} ranks."
        shown = figure(picture, data, caption, "paper")
        parts.append(f'<div class="two">{shown}{f"<figure>{chart}</figure>" if chart else ""}</div>')
    if not parts:
        return ""
    text = ""
    if (all_drafts := drafts(run)) is not None:
        text = (
            f"<p>{all_drafts.n:,} drafts: {all_drafts.work:,} brought work ({seconds(all_drafts.median_s)} from the draft "
            f"to the work, in the median; {all_drafts.bytes / 1e6:,.2f} MB in all), for {all_drafts.nobody:,} nobody "
            f"volunteered, and {all_drafts.nothing:,} came too late: the volunteer had nothing left.</p>"
        )
    return f"<h2>Who gave to whom</h2>{text}{''.join(parts)}"


def map_of_ranks(run: Run) -> str:
    """Show who computed what; "" where that isn't known."""
    owned = owners(run)
    ranks = [rank for rank in np.unique(owned).tolist() if rank >= 0]
    if not ranks:
        return ""
    height, width = owned.shape
    layout = layout_of(run)
    domain = f"The graph, laid out {layout}," if layout else "The domain"
    words = f"{domain} in {height} x {width} places, each in the colour of the rank that computed most of it."
    if few := run.size <= len(RANK_COLOURS):
        parts = [float((owned == rank).sum() / (owned >= 0).sum()) for rank in ranks]
        names = [f"rank {rank}: {percent(part)}" for rank, part in zip(ranks, parts, strict=True)]
        legend = key(zip(names, [RANK_COLOURS[rank] for rank in ranks], strict=True))
    picture = map_of(owned)
    image = base64.b64encode(picture.png).decode()
    more = "" if few else f" Ranks that are {len(RANK_COLOURS)} apart have the same colour."
    return (
        f"<h2>Who computed what</h2>{legend if few else ''}<figure class=\"map\">"
        f'<img alt="{words}" width="{picture.width}" height="{picture.height}" src="data:image/png;base64,{image}">'
        f"<figcaption>{words}{more}</figcaption></figure>"
    )


def _most(moved: Any, each: int) -> float:
    """Return the most in a field of the picture."""
    if each > 1:
        edges = np.arange(0, len(moved), each)
        moved = np.add.reduceat(np.add.reduceat(moved, edges, axis=0), edges, axis=1)
    return float(moved.max())
