"""Who gave how much to whom, drawn on the process graph, or on a ring where there is none.   (pure)"""

from __future__ import annotations

import math
from html import escape

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from lb_mpi.graph import mesh
from lb_mpi.report.charts import svg
from lb_mpi.report.run import Floats

MOST_ON_A_RING, MOST_ON_A_GRAPH = 16, 64  # ranks
WIDTH, MARGIN = 420, 30
Places = list[tuple[float, float]]
Edges = NDArray[np.int32]


def flows(moved: Floats, unit: str, edges: Edges) -> str:
    """Draw who gave how much to whom as arrows between ranks; "" for many ranks, or when nothing has moved.

    moved : (P, P) from the row's rank to the column's; edges : (E, 2) of the process graph, grey lines; none: a ring.
    """
    size = len(moved)
    on_graph = set(edges.ravel().tolist()) == set(range(size))
    if not 2 <= size <= (MOST_ON_A_GRAPH if on_graph else MOST_ON_A_RING) or not moved.any():
        return ""
    places, height = _fit(layout(size, edges) if on_graph else _ring(size))
    radius = 15.0 if size <= 16 else 11.0
    parts = [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="13" markerHeight="13" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
    ]
    for one, other in edges.tolist() if on_graph else []:
        (x1, y1), (x2, y2) = places[one], places[other]
        parts.append(f'<line class="grid" x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}"/>')
    most = float(moved.max())
    for giver, taker in np.argwhere((moved > 0) & ~np.eye(size, dtype=bool)).tolist():
        amount = float(moved[giver, taker])
        words = f"{giver} to {taker}: {amount:,.0f} {unit}"
        parts.append(_arrow(places[giver], places[taker], radius, amount / most, words))
    for rank, (x, y) in enumerate(places):
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{radius:g}"/>')
        parts.append(f'<text class="rank" x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{rank}</text>')
    return svg(WIDTH, height, parts, f"{unit} between ranks")


def layout(size: int, edges: Edges) -> Places:
    """Places of the ranks of a process graph, in any unit: meshes and tori as they are, others by Kamada and Kawai.

    T. Kamada, S. Kawai, An algorithm for drawing general undirected graphs, Information Processing Letters 31, 1989.
    """
    mine = {(min(edge), max(edge)) for edge in edges.tolist()}
    for rows in range(math.isqrt(size), 0, -1):
        for periodic in (False, True):
            if size % rows or (periodic and rows == 1):  # a ring is drawn as one
                continue
            tails, heads = mesh(rows, size // rows, periodic=periodic).edges()
            if mine == {(min(edge), max(edge)) for edge in zip(tails.tolist(), heads.tolist(), strict=True)}:
                return [(float(rank % (size // rows)), float(rank // (size // rows))) for rank in range(size)]
    graph = nx.Graph(list(mine))
    if not nx.is_connected(graph):
        return _ring(size)
    found = nx.kamada_kawai_layout(graph)
    return [(float(found[rank][0]), float(found[rank][1])) for rank in range(size)]


def _ring(size: int) -> Places:
    angles = 2 * np.pi * np.arange(size) / size - np.pi / 2
    return [(math.cos(angle), math.sin(angle)) for angle in angles]


def _fit(places: Places) -> tuple[Places, int]:
    """Fit places into the width; and the height that they take."""
    array = np.array(places)
    array -= array.min(axis=0)
    spans = np.maximum(array.max(axis=0), 1e-9)
    scale = (WIDTH - 2 * MARGIN) / float(spans.max())
    height = round(float(spans[1]) * scale) + 2 * MARGIN
    if height < WIDTH // 3:  # room for arrows that are bent
        array[:, 1] += (WIDTH // 3 - height) / 2 / scale
        height = WIDTH // 3
    array[:, 0] += (float(spans.max()) - spans[0]) / 2
    return [(MARGIN + scale * x, MARGIN + scale * y) for x, y in array.tolist()], height


def _arrow(begin: tuple[float, float], end: tuple[float, float], radius: float, part: float, words: str) -> str:
    """A bent arrow, so that those there and back don't lie on each other."""
    dx, dy = end[0] - begin[0], end[1] - begin[1]
    length = math.hypot(dx, dy)
    ux, uy = dx / length, dy / length
    x1, y1 = begin[0] + (radius + 2) * ux, begin[1] + (radius + 2) * uy
    x2, y2 = end[0] - (radius + 4) * ux, end[1] - (radius + 4) * uy
    cx, cy = (x1 + x2) / 2 - 0.16 * length * uy, (y1 + y2) / 2 + 0.16 * length * ux
    return (
        f'<path class="flow" marker-end="url(#tip)" stroke-width="{1 + 5 * part:.1f}" '
        f'd="M{x1:.0f} {y1:.0f}Q{cx:.0f} {cy:.0f} {x2:.0f} {y2:.0f}"><title>{escape(words)}</title></path>'
    )
