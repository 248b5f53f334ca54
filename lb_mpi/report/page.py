"""The page of a run: one self-contained HTML file; and its figures.   (pure)

Rasters are PNGs with 16 colours, half a byte a pixel, so that a thousand ranks fit into a page; everything else is SVG. The
PNG encoder has ten lines, since no package that lb_mpi needs has one.  On the page, page.js shows rasters on a canvas with
zoom and axes; as files, all figures are SVG with axes and key (`svg_files`).  The page's numbers are those of `run`.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import time
import zlib
from collections.abc import Callable, Iterable
from html import escape
from importlib import resources
from itertools import groupby
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from lb_mpi.graph import Floats, Ints, mesh
from lb_mpi.record.events import Driver, Phase, Way
from lb_mpi.record.launches import DEATH
from lb_mpi.report.run import (
    DRIVERS,
    NAMES,
    SAVE,
    SHORT,
    UNITS,
    WAYS,
    Headline,
    Run,
    bounds,
    drafts,
    headline,
    layout_of,
    matrix,
    owners,
    steps,
    timeline,
    times,
)
from lb_mpi.table import Table

# Colours of Okabe and Ito, for the colour-blind; computing is blue, losses are warm colours.
COLOURS = {
    Phase.OWN: "#0072b2",
    Phase.FOREIGN: "#56b4e9",
    Phase.PROTOCOL: "#d55e00",
    Phase.PACKING: "#cc79a7",
    Phase.WAITING: "#f0e442",
    Phase.RESTING: "#7f9fb0",
    Phase.OUTSIDE: "#c8c8c8",
}
# Ranks on a map: colours of Okabe and Ito, then lighter and darker ones of other hues.
RANK_COLOURS = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442",
    "#7b3294", "#a6dba0", "#8c510a", "#35978f", "#b2abd2", "#666666", "#fdae61",
]  # fmt: skip
NOTHING = len(Phase)  # the index of unknown data: transparent
COLUMNS, HALVINGS = 1000, 3  # of the strip: halved until the picture is small enough
MOST_BYTES = 150_000  # of a picture
MOST_ROWS, ROW_PIXELS = 1024, 20
LEVELS = 15  # of a matrix, besides nothing
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 920, 290, 56, 12, 32, 50  # of a curve, and its margins
CURVES = [
    ("imbalance without lending", "var(--soft)"),
    ("actual imbalance", "var(--now)"),
    ("distribution changed for the following calls", "var(--act)"),
]
POINTS = 900  # of a curve of costs
FLOWS_WIDTH, FLOWS_MARGIN, MOST_ON_A_RING, MOST_ON_A_GRAPH = 420, 30, 16, 64  # of a graph of flows; ranks

Edges = NDArray[np.int32]
Places = list[tuple[float, float]]


# --- rasters ---------------------------------------------------------------------------------------------------------


class Picture(NamedTuple):
    """A raster and its description."""

    png: bytes
    width: int  # pixels
    height: int  # pixels
    each: int = 1  # ranks per row of pixels; 1 if each rank has at least one row

    @property
    def url(self) -> str:
        """Return the picture as a data URL."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


def strip(parts: Floats) -> Picture:
    """Draw each rank's `timeline` from left to right; the height of each phase is its share of the time."""
    for halving in range(HALVINGS + 1):
        if halving:
            parts = 0.5 * (parts[:, 0::2] + parts[:, 1::2])
        pixels, each = strip_pixels(parts)
        picture = Picture(encode(pixels, [*COLOURS.values()]), pixels.shape[1], len(pixels), each)
        if len(picture.png) <= MOST_BYTES:
            break
    return picture


def strip_pixels(parts: Floats) -> tuple[NDArray[np.uint8], int]:
    """Return a timeline as colour indices, (rows, columns), and the number of ranks in one row."""
    each = -(-len(parts) // MOST_ROWS)
    if each > 1:
        parts = np.add.reduceat(parts, np.arange(0, len(parts), each)) / each
    n_ranks, n_columns, n_phases = parts.shape
    if n_ranks > MOST_ROWS // 4:  # one row of pixels for each: the longest phase
        pixels = parts.argmax(axis=2).astype(np.uint8)
        pixels[parts.sum(axis=2) < 0.5] = NOTHING
        return pixels, each
    rows = max(3, min(ROW_PIXELS, MOST_ROWS // n_ranks))
    levels = (np.arange(rows) + 0.5) / rows
    sums = np.cumsum(parts, axis=2)
    stacked = (sums[:, None, :, :] < levels[None, :, None, None]).sum(axis=3).astype(np.uint8)
    stacked[stacked >= n_phases] = NOTHING
    if rows >= 8:
        stacked[:, -1] = NOTHING  # a gap between ranks
    return stacked.reshape(n_ranks * rows, n_columns), each


def square(values: Floats) -> Picture:
    """Draw a matrix (n, n) of numbers >= 0, darker for larger values; in a large one, neighbours are added up."""
    values, each = binned(values)
    most = float(values.max(initial=0.0))
    pixels = np.ceil(LEVELS * np.sqrt(values / most)).astype(np.uint8) if most else np.zeros(values.shape, np.uint8)
    return Picture(encode((LEVELS - pixels).astype(np.uint8), _ramp()), values.shape[1], values.shape[0], each)


def binned(values: Floats) -> tuple[Floats, int]:
    """Return a matrix of at most 256 rows, and the number of rows and columns merged into one."""
    each = -(-len(values) // 256)
    if each > 1:
        edges = np.arange(0, len(values), each)
        values = np.add.reduceat(np.add.reduceat(values, edges, axis=0), edges, axis=1)
    return values, each


def map_of(owned: Ints, most_pixels: int = 512) -> Picture:
    """Draw (h, w) ranks, -1 for none, each in its colour of RANK_COLOURS, which repeat for further ranks."""
    height, width = owned.shape
    each = max(1, most_pixels // max(height, width))
    pixels = np.where(owned < 0, len(RANK_COLOURS), owned % len(RANK_COLOURS)).astype(np.uint8)
    large = pixels.repeat(each, axis=0).repeat(each, axis=1)
    return Picture(encode(large, RANK_COLOURS), large.shape[1], large.shape[0])


def _ramp() -> list[str]:
    """Return the colours of a matrix, from the largest value to the smallest."""
    stops = np.array([[68, 1, 84], [33, 145, 140], [253, 231, 37]])
    at = np.linspace(0.0, 2.0, LEVELS)
    return ["#" + "".join(f"{int(np.interp(x, [0, 1, 2], part)):02x}" for part in stops.T) for x in at]


def encode(pixels: NDArray[np.uint8], colours: list[str]) -> bytes:
    """Return a PNG of (rows, columns) indices of at most 15 colours; the index after the last one is transparent."""
    height, width = pixels.shape
    padded = np.pad(pixels, ((0, 0), (0, width % 2)))
    packed = padded[:, 0::2] << 4 | padded[:, 1::2]
    lines = np.hstack([np.zeros((height, 1), np.uint8), packed])  # each starts with its filter number: none
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0),
        b"PLTE": b"".join(bytes.fromhex(colour[1:]) for colour in [*colours, "#000000"]),
        b"tRNS": b"\xff" * len(colours) + b"\x00",
        b"IDAT": zlib.compress(lines.tobytes(), 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    )


# --- curves ----------------------------------------------------------------------------------------------------------


def imbalance(run: Run) -> str:
    """Draw the imbalance of each call of map_rows, with all rows on their owners and as it was; "" without any."""
    table = steps(run)[0]
    table = table[table["driver"] == Driver.ROWS]
    before, after = table["before"].astype(float), table["after"].astype(float)
    known = np.concatenate([before, after])
    known = known[np.isfinite(known)]
    if not len(known):
        return ""
    calls = np.cumsum(table["n"]) - table["n"] + 1
    most, last = ceiling(float(known.max())), int(calls[-1])

    def x(call: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (call - 1) / max(1, last - 1)

    parts, y = _levels(most, 4, HEIGHT, lambda value: f"{value:.{0 if most >= 0.08 else 1}%}")
    for call in sorted({round(1 + (last - 1) * k / 5) for k in range(6)}):
        parts.append(label(x(call), HEIGHT - BOTTOM + 18, f"{call:,}"))
    parts.append(label((WIDTH + LEFT) / 2, HEIGHT - 4, "call of map_rows"))
    for name, values in (("home", before), ("now", after)):
        points = [(x(call), y(value)) for call, value in zip(calls, values, strict=True) if math.isfinite(value)]
        parts.append(_line(name, points))
    reasons = run.ranks[0].reasons
    for call, value, acted, reason in zip(calls, before, table["acted"], table["reason"], strict=True):
        if acted:
            words = escape(reasons[reason]) if 0 <= reason < len(reasons) else "changed"
            at = f"{x(call):.1f} {y(value if math.isfinite(value) else 0.0) - 4:.1f}"
            parts.append(f'<path class="act" d="M{at}l5 -9h-10z"><title>call {call}: {words}</title></path>')
    return drawing(WIDTH, HEIGHT, parts, "imbalance of each call")


def costs(run: Run) -> str:
    """Draw the costs of the rows by rank, relative to their mean; "" unless known for all ranks."""
    known = sorted(((one.about.rank, one.costs) for one in run.ranks), key=lambda pair: pair[0])
    if not all(len(mine) and mine.sum() > 0.0 for _, mine in known):
        return ""
    many = max(1, POINTS // len(known))
    shown = [
        np.interp(np.linspace(0, len(mine) - 1, min(many, len(mine))), np.arange(len(mine)), mine) for _, mine in known
    ]
    values = np.concatenate(shown)
    values /= values.mean()
    height = HEIGHT - 60
    parts, y = _levels(ceiling(float(values.max())), 2, height, lambda value: f"{value:g}")
    places = LEFT + (WIDTH - LEFT - RIGHT) * np.arange(len(values) + 1) / len(values)
    parts.append(_line("now", list(zip(np.repeat(places, 2)[1:-1], map(y, np.repeat(values, 2)), strict=True))))
    begins = np.cumsum([0, *map(len, shown)])
    for (rank, _), begin in list(zip(known, begins, strict=False))[:: -(-len(known) // 16)]:
        at = places[begin]
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{height - BOTTOM + 6}"/>')
        parts.append(label(at + 3, height - BOTTOM + 18, str(rank), "start"))
    parts.append(label((WIDTH + LEFT) / 2, height - 4, "rows, by the rank that owns them"))
    return drawing(WIDTH, height, parts, "costs of rows")


def _levels(most: float, n: int, height: int, words: Callable[[float], str]) -> tuple[list[str], Callable[[float], float]]:
    """Return lines across a curve at n + 1 levels from 0 to `most`, and a function from a value to its height."""

    def y(value: float) -> float:
        return height - BOTTOM - (height - TOP - BOTTOM) * value / most

    parts = []
    for k in range(n + 1):
        at = y(most * k / n)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(label(LEFT - 6, at + 4, words(most * k / n), "end"))
    return parts, y


def ceiling(value: float) -> float:
    """Return the next number 1, 2, 4 or 8 times a power of ten."""
    if value <= 0.0:
        return 0.01
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * k for k in (1, 2, 4, 8, 10) if power * k >= value * 0.999)


def drawing(width: float, height: float, parts: Iterable[str], what: str) -> str:
    """Assemble a drawing; `what` it shows is for readers who can't see it."""
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(what)}">{"".join(parts)}</svg>'


def label(x: float, y: float, words: str, anchor: str = "middle", kind: str = "") -> str:
    """Write words at a place of a drawing."""
    marked = f' class="{kind}"' if kind else ""
    return f'<text{marked} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _line(kind: str, points: Places) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


# --- graphs of flows -------------------------------------------------------------------------------------------------


def flows(moved: Floats, unit: str, edges: Edges) -> str:
    """Draw how much each rank gave to each other as arrows; "" for many ranks, or if nothing has moved.

    moved : (P, P) from the row's rank to the column's; edges : (E, 2) of the process graph, grey; without edges: a ring.
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
    for giver, receiver in np.argwhere((moved > 0) & ~np.eye(size, dtype=bool)).tolist():
        amount = float(moved[giver, receiver])
        words = f"{giver} to {receiver}: {amount:,.0f} {unit}"
        parts.append(_arrow(places[giver], places[receiver], radius, amount / most, words))
    for rank, (x, y) in enumerate(places):
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{radius:g}"/>{label(x, y + 4, str(rank), kind="rank")}')
    return drawing(FLOWS_WIDTH, height, parts, f"{unit} between ranks")


def layout(size: int, edges: Edges) -> Places:
    """Return places of the ranks of a process graph, in any unit: grids for meshes and tori, others by Kamada and Kawai.

    T. Kamada, S. Kawai, An algorithm for drawing general undirected graphs, Information Processing Letters 31, 1989.
    """
    mine = {(min(edge), max(edge)) for edge in edges.tolist()}
    for rows in range(math.isqrt(size), 0, -1):
        for periodic in (False, True):
            if size % rows or (periodic and rows == 1):  # drawn as a ring
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
    """Fit places into the width; return them and the height that they need."""
    array = np.array(places)
    array -= array.min(axis=0)
    spans = np.maximum(array.max(axis=0), 1e-9)
    scale = (FLOWS_WIDTH - 2 * FLOWS_MARGIN) / float(spans.max())
    height = round(float(spans[1]) * scale) + 2 * FLOWS_MARGIN
    if height < FLOWS_WIDTH // 3:  # room for bent arrows
        array[:, 1] += (FLOWS_WIDTH // 3 - height) / 2 / scale
        height = FLOWS_WIDTH // 3
    array[:, 0] += (float(spans.max()) - spans[0]) / 2
    return [(FLOWS_MARGIN + scale * x, FLOWS_MARGIN + scale * y) for x, y in array.tolist()], height


def _arrow(begin: tuple[float, float], end: tuple[float, float], radius: float, part: float, words: str) -> str:
    """Return a bent arrow, so that opposite arrows don't overlap."""
    dx, dy = end[0] - begin[0], end[1] - begin[1]
    length = math.hypot(dx, dy)
    ux, uy = dx / length, dy / length
    x1, y1 = begin[0] + (radius + 2) * ux, begin[1] + (radius + 2) * uy
    x2, y2 = end[0] - (radius + 4) * ux, end[1] - (radius + 4) * uy
    bend = min(0.16 * length, FLOWS_MARGIN)  # half of it is the distance of the arrow, which stays within the margin
    cx, cy = (x1 + x2) / 2 - bend * uy, (y1 + y2) / 2 + bend * ux
    return (
        f'<path class="flow" marker-end="url(#tip)" stroke-width="{1 + 5 * part:.1f}" '
        f'd="M{x1:.0f} {y1:.0f}Q{cx:.0f} {cy:.0f} {x2:.0f} {y2:.0f}"><title>{escape(words)}</title></path>'
    )


# --- the page ----------------------------------------------------------------------------------------------------------


MOST_LINES = 200  # of a table
MOST_VALUES = 64  # ranks of a matrix whose numbers are in the page


def page(run: Run, gain: float = math.nan) -> str:
    """Return the page; for `gain`, see `headline`."""
    parts = [_head(run, headline(run, gain)), _strips(run), _calls(run), _moves(run), _map(run), _ranks(run), _machine(run)]
    style, script = (resources.files("lb_mpi.report").joinpath(name).read_text() for name in ("page.css", "page.js"))
    title = escape(_title(run.ranks[0].about.program))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{style}</style></head>"
        f"<body>{''.join(parts)}<script>{script}</script></body></html>\n"
    )


def _title(program: str) -> str:
    words = program.split()
    return " ".join([words[0].rpartition("/")[2], *words[1:]]) if words else "a run"


def _head(run: Run, head: Headline) -> str:
    about = run.ranks[0].about
    when = "virtual time" if about.virtual else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(about.wall_s))
    hosts = f"{len(run.hosts):,} host{'s' * (len(run.hosts) > 1)}"
    cards = [
        (seconds(head.seconds), "from start to end"),
        (f"{head.ratio:.2f}" if np.isfinite(head.ratio) else "-", "time / ideal time"),
        (percent(head.parallel), "parallel efficiency"),
        (percent(head.balance), "load balance"),
        (percent(head.communication), "communication efficiency"),
    ]
    known = "predicted" if np.isfinite(head.gain) else "this record has too little data to predict it"
    totals = run.totals.sum(axis=0)
    whole = float(totals.sum()) or 1.0
    bar = "".join(
        f'<div style="width:{100 * totals[phase] / whole:.2f}%;background:{COLOURS[phase]}" title="{NAMES[phase]}"></div>'
        for phase in Phase
    )
    notes = "".join(f'<p class="note">{escape(note[:300])}</p>' for note in run.notes[:10])
    return (
        f'<h1>{escape(_title(about.program)[:300])}</h1><p class="soft">{run.size:,} rank{"s" * (run.size > 1)} on {hosts}, '
        f"{when}</p>{notes}"
        + _card(times(head.gain), f"times as fast as without balancing ({known})", " gain")
        + f'<p class="big">{escape(head.words)}</p>'
        + (f'<p class="big">Next: {escape(head.next_step)}</p>' if head.next_step else "")
        + f'<div class="cards">{"".join(_card(value, name) for value, name in cards)}</div>'
        + f'<div class="bar" role="img" aria-label="all ranks\' time by phase">{bar}</div>'
        + _key(
            [(f"{NAMES[phase]} {percent(totals[phase] / whole)}", COLOURS[phase]) for phase in Phase if totals[phase]]
        )
        + f'<p class="soft">Time in lb_mpi, longest rank: {seconds(head.inside_s)}. Ideal time for the same work at '
        f"the ranks' speeds (lower bound): {seconds(head.bound_s)}. The time without balancing is that "
        "which python -m lb_mpi advise predicts. The efficiencies are the metrics of the POP "
        "project. They count seconds, whatever the speed of a rank. Useful time is time in the user's work, including "
        "the rests "
        "of an emulated slow rank. The record begins with the first call of lb_mpi; a program's own clock may also count "
        "the time to import it.</p>"
    )


def _card(value: str, name: str, kind: str = "") -> str:
    return f'<div class="card{kind}"><b>{value}</b><span>{name}</span></div>'


def _strips(run: Run) -> str:
    """Return the strips of all starts, and the events in them."""
    starts = (*run.earlier, run)
    phases = [phase for phase in Phase if any(one.totals[:, phase].any() for one in starts)]
    parts = ["<h2>What each rank did at what time</h2>", _key([(NAMES[phase], COLOURS[phase]) for phase in phases])]
    for number, one in enumerate(starts):
        if run.earlier:
            parts.append(f"<h3>Start {number + 1}: {one.size:,} ranks, {seconds(one.seconds)}</h3>")
        parts.append(_strip_of(one))
    lines = [
        [str(number + 1), seconds(max(0.0, it.began_s)), seconds(it.ended_s - it.began_s) if it.what == SAVE else "",
         it.what, str(it.rank) if it.rank >= 0 else "", it.words]
        for number, one in enumerate(starts)
        for it in one.happened
    ]  # fmt: skip
    if lines:
        parts.append("<h2>Saves, deaths and restarts</h2>")
        parts.append(Table(["start", "at", "duration", "what", "rank", ""], lines, (3, 5), MOST_LINES).html())
    return "".join(parts)


def _strip_of(run: Run) -> str:
    picture = strip(timeline(run, COLUMNS))
    each = picture.each
    shown = run.ranks[::each]
    firsts = [
        (name, next(k for k, one in enumerate(run.ranks) if one.about.host == name) // each) for name in run.hosts
    ]
    rows = {one.about.rank: k // each for k, one in enumerate(run.ranks)}
    data = {
        "time": run.seconds,
        "rows": len(shown),
        "each": each,
        "names": [one.about.rank for one in shown],
        "hosts": firsts if len(run.hosts) > 1 else [],
        "phases": {colour: NAMES[phase] for phase, colour in COLOURS.items()},
        "marks": [
            [round(it.began_s, 6), round(it.ended_s, 6), rows.get(it.rank, -1), it.what, it.words]
            for it in run.happened[:MOST_LINES]
            if it.what in (SAVE, DEATH)
        ],
    }
    how = (
        "One line per rank, in the colour of its longest phase in that time slice"
        if len(run.ranks) > MOST_ROWS // 4
        else "One strip per rank. The height of each colour is its share of that time slice"
    )
    many = f" Each line stands for {each} ranks." if each > 1 else ""
    marked = " Lines from top to bottom are saves, a cross is a death." if data["marks"] else ""
    return _figure(picture, data, f"{how}. Ranks are grouped by host; {picture.width} time slices.{many}{marked}")


def _calls(run: Run) -> str:
    if not steps(run).size:
        return ""
    parts = ["<h2>Calls, and what was decided</h2>"]
    if chart := imbalance(run):
        words = "Imbalance: time of the slowest rank / time at perfect balance, minus 1."
        parts.append(f'{_key(CURVES)}<figure class="chart">{chart}<figcaption>{words}</figcaption></figure>')
    header = ["calls", "what", "time", "ideal", "time / ideal", "done", "moved", "without lending", "actual", "decision"]
    parts.append(Table(header, _lines(run), (1, 9), MOST_LINES).used().html("tight reason"))
    if chart := costs(run):
        words = "Most recently measured cost of each row, relative to the mean."
        parts.append(f'<figure class="chart">{chart}<figcaption>{words}</figcaption></figure>')
    return "".join(parts)


def _lines(run: Run) -> list[list[str]]:
    """Return a line for consecutive calls with the same decision."""
    calls = steps(run)
    first, offsets = calls[0], np.array(run.offsets_s)[:, None]
    spans = (calls["ended"] + offsets).max(axis=0) - (calls["began"] + offsets).min(axis=0)
    ideal, ends, reasons = bounds(calls), np.cumsum(first["n"]), run.ranks[0].reasons
    lines = []
    for (driver, reason), group in groupby(range(len(ends)), key=lambda k: (first["driver"][k], first["reason"][k])):
        some = list(group)
        begin, end = ends[some[0]] - first["n"][some[0]] + 1, ends[some[-1]]
        span, bound = float(spans[some].sum()), float(ideal[some].sum())
        # For rows, every rank knows the number lent on all ranks; parts and steals are each rank's own.
        moved = calls["moved"][:1] if driver in (Driver.ROWS, Driver.MIGRATE) else calls["moved"]
        name, unit, what = DRIVERS[Driver(int(driver))]
        done, amount = calls["units"][:, some].sum(dtype=float), moved[:, some].sum(dtype=float)
        lines.append([
            f"{begin:,}" if begin == end else f"{begin:,}\N{EN DASH}{end:,}",
            name, seconds(span), seconds(bound), f"{span / bound:.2f}" if bound else "-",
            f"{done:,.0f} {unit}" if done else "-", f"{amount:,.0f} {what}" if amount else "-",
            _mean(first["before"][some]), _mean(first["after"][some]), reasons[reason] if 0 <= reason < len(reasons) else "",
        ])  # fmt: skip
    return lines


def _moves(run: Run) -> str:
    """Return the work that each rank gave to each other."""
    parts: list[str] = []
    edges = np.concatenate([one.edges for one in run.ranks])  # of the process graph, on which rows move; one rank knows it
    for way in Way:
        moved = matrix(run, way)
        if not moved.any():
            continue
        picture = square(moved)
        data: dict[str, Any] = {"rows": picture.height, "each": picture.each, "hosts": [], "unit": UNITS[way]}
        if len(moved) <= MOST_VALUES:
            data["values"] = moved.astype(int).tolist()
        chart = flows(moved, UNITS[way], edges if way in (Way.LOAN, Way.GIFT) else edges[:0])
        top = binned(moved)[0].max()
        caption = f"{moved.sum():,.0f} {WAYS[way]}; yellow: few, violet: up to {top:,.0f}, white: none."
        if picture.each > 1:
            caption += f" Each cell is the sum of {picture.each} by {picture.each} ranks."
        shown = _figure(picture, data, caption, "paper")
        parts.append(f'<div class="two">{shown}{f"<figure>{chart}</figure>" if chart else ""}</div>')
    if not parts:
        return ""
    text = ""
    if (asked := drafts(run)) is not None:
        text = (
            f"<p>{asked.n:,} drafts: {asked.work:,} brought work ({asked.bytes / 1e6:,.2f} MB in all; median time from the "
            f"draft to the work: {seconds(asked.median_s)}). For {asked.unanswered:,} no rank volunteered, and "
            f"{asked.nothing:,} the volunteer had nothing left.</p>"
        )
    return f"<h2>Work moved between ranks</h2>{text}{''.join(parts)}"


def _map(run: Run) -> str:
    """Return the domain in the colours of ranks; "" if unknown."""
    owned = owners(run)
    ranks = [rank for rank in np.unique(owned).tolist() if rank >= 0]
    if not ranks:
        return ""
    height, width = owned.shape
    layout = layout_of(run)
    domain = f"The graph, laid out {layout}," if layout else "The domain"
    words = f"{domain} in {height} x {width} places, each in the colour of the rank that computed most of it."
    legend, more = "", f" Ranks that are {len(RANK_COLOURS)} apart have the same colour."
    if run.size <= len(RANK_COLOURS):
        parts = [float((owned == rank).sum() / (owned >= 0).sum()) for rank in ranks]
        names = [f"rank {rank}: {percent(part)}" for rank, part in zip(ranks, parts, strict=True)]
        legend, more = _key(zip(names, [RANK_COLOURS[rank] for rank in ranks], strict=True)), ""
    picture = map_of(owned)
    return (
        f'<h2>The part of each rank</h2>{legend}<figure class="map">'
        f'<img alt="{words}" width="{picture.width}" height="{picture.height}" src="{picture.url}">'
        f"<figcaption>{words}{more}</figcaption></figure>"
    )


def _ranks(run: Run) -> str:
    totals = run.totals
    phases = [phase for phase in Phase if totals[:, phase].any()]
    called = {Driver(driver) for one in run.ranks for driver in np.unique(one.steps["driver"]).tolist()}
    units = sorted({DRIVERS[driver][1] for driver in called})
    header = ["rank", "host", "speed", "seconds", *(f"{SHORT[phase]} %" for phase in phases)]
    header += [*(f"{unit} {'made' if unit == 'exchanges' else 'computed'}" for unit in units), "got", "gave"]
    got, gave = (sum((matrix(run, way).sum(axis=axis) for way in Way), np.zeros(run.size)) for axis in (0, 1))
    speeds = [float(np.average(one.steps["speed"], weights=one.steps["n"])) if len(one.steps) else 1.0 for one in run.ranks]
    lines = []
    for one, spent, speed in zip(run.ranks, totals, speeds, strict=True):
        whole = float(spent.sum()) or 1.0
        rank = one.about.rank
        done = dict.fromkeys(units, 0.0)
        for driver, amount in one.steps[["driver", "units"]].tolist():
            done[DRIVERS[Driver(driver)][1]] += amount
        lines.append([
            str(rank), one.about.host[:24], f"{speed / np.mean(speeds):.2f}x", f"{whole:.2f}",
            *(f"{100 * spent[phase] / whole:.1f}" for phase in phases),
            *(f"{amount:,.0f}" for amount in done.values()), f"{got[rank]:,.0f}", f"{gave[rank]:,.0f}",
        ])  # fmt: skip
    return (
        f"<h2>Ranks</h2>{Table(header, lines, (1,)).used('0').html('tight')}"
        '<p class="soft">speed: 1.00x is the mean of all ranks; in a pool or a search, ranks count as equally fast unless '
        "they emulate slow ones. seconds: recorded time; the phase columns are percentages of it. computed: on this "
        "rank, in "
        "all calls, also for other ranks. got, gave: parts of work, rows and tasks.</p>"
    )


def _machine(run: Run) -> str:
    about = run.ranks[0].about
    versions = list(dict.fromkeys(one.about.versions for one in run.ranks))
    counts = [sum(one.about.host == host for one in run.ranks) for host in run.hosts]
    named = [f"{host} ({n} rank{'s' * (n > 1)})" for host, n in zip(run.hosts[:32], counts, strict=False)]
    more = f", and {len(run.hosts) - 32:,} more" if len(run.hosts) > 32 else ""
    rows = [
        ("program", about.program),
        ("hosts", ", ".join(named) + more),
        ("software", "; ".join(versions[:4])),
        ("clocks", run.clock),
        ("resolution", f"bins of {seconds(max(one.width_s for one in run.ranks))}"),
    ]
    return "<h2>The machine</h2><dl>" + "".join(f"<dt>{name}<dd>{escape(text)}" for name, text in rows) + "</dl>"


def _figure(picture: Picture, data: dict[str, Any], caption: str, kind: str = "") -> str:
    """Return a picture that page.js shows with `data`."""
    packed = escape(json.dumps(data, separators=(",", ":")), quote=True)
    return (
        f'<figure class="{kind}" data-view="{packed}"><div class="tools"></div>'
        f'<img alt="{escape(caption)}" src="{picture.url}"><figcaption>{escape(caption)}</figcaption></figure>'
    )


def _key(entries: Iterable[tuple[str, str]]) -> str:
    """Return a key of (words, colour)."""
    items = "".join(f'<li><i style="background:{colour}"></i>{name}' for name, colour in entries)
    return f'<ul class="key">{items}</ul>'


def seconds(value: float) -> str:
    """Write seconds in a suitable unit."""
    if not np.isfinite(value):
        return "not known"
    for least, unit, factor in ((100.0, "s", 1.0), (1.0, "s", 1.0), (1e-3, "ms", 1e3)):
        if value >= least:
            return f"{value * factor:,.{0 if value * factor >= 100 else 1 if value * factor >= 10 else 2}f} {unit}"
    return f"{1e6 * value:.0f} us"


def percent(value: float) -> str:
    """Write a fraction in percent."""
    return f"{value:.1%}" if np.isfinite(value) else "-"


def _mean(values: Any) -> str:
    """Write the mean of the known values."""
    known = values[np.isfinite(values)]
    return f"{known.mean():.1%}" if len(known) else "-"
