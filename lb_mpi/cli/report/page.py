"""The page of a run: one self-contained HTML file; and its figures.   (pure)

Rasters are PNGs with 16 colours, half a byte a pixel, so that a thousand ranks fit into a page.  The PNG encoder has ten
lines, since no package that lb_mpi needs has one.  A `chart` is a box that is stretched to the width of the page, with its
labels as text beside it.  The page's numbers are those of `run`.
"""

from __future__ import annotations

import base64
import math
import struct
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from lb_mpi.cli.report.run import (
    DRIVERS,
    NAMES,
    NO_CORE,
    SHORT,
    WAYS,
    Advice,
    Headline,
    Run,
    bounds,
    headline,
    matrix,
    of_ranks,
    spans,
    spent,
    steps,
    timeline,
    times,
)
from lb_mpi.graph import Floats
from lb_mpi.record.events import Driver, Phase, Way
from lb_mpi.record.record import Rows
from lb_mpi.table import Table, counted, percent, shown_seconds

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
BAR = {**{NAMES[phase]: COLOURS[phase] for phase in (Phase.OWN, Phase.FOREIGN, Phase.RESTING)}, NO_CORE: "#993404"}
BAR |= {NAMES[phase]: colour for phase, colour in COLOURS.items()}
NOTHING = len(Phase)  # the index of unknown data: transparent
COLUMNS, HALVINGS = 1000, 3  # of the strip: halved until the picture is small enough
MOST_BYTES = 150_000  # of a picture
MOST_ROWS, ROW_PIXELS = 1024, 20
MOST_POINTS, LINES = 100, 20  # of a curve; of the table of calls
SMOOTH = 200  # time slices if calls are short
LEVELS = 15  # of a matrix, besides nothing
RANK_PIXELS, MOST_STRIPS, LETTER = 18.0, 560.0, 12.0  # height of a rank's strip, of all, of a label
CELLS, PHONE_CELLS, DIGIT = 440.0, 240.0, 7.5  # width of a matrix, on a phone; of a digit
N_TIMES = 5  # labels of the time, at most, and 0
ROUND = (1, 2, 5, 10)  # digits of a number on an axis of ranks or calls
TIMES = [("time of a call", "var(--now)"), ("ideal time", "var(--soft)")]


# --- rasters ---------------------------------------------------------------------------------------------------------


class Picture(NamedTuple):
    """A raster and its description."""

    png: bytes
    width: int  # pixels
    height: int  # pixels
    each: int = 1  # ranks per row of pixels; 1 if each rank has at least one row

    @property
    def html(self) -> str:
        """The raster, to fill the box of a chart."""
        return f'<img alt="" src="data:image/png;base64,{base64.b64encode(self.png).decode()}">'


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


def square(values: Any) -> Picture:
    """Draw a matrix (n, n), dense or sparse, of numbers >= 0: larger is darker; in a large one, neighbours are summed."""
    values, each = binned(values)
    most = float(values.max(initial=0.0))
    pixels = np.ceil(LEVELS * np.sqrt(values / most)).astype(np.uint8) if most else np.zeros(values.shape, np.uint8)
    return Picture(encode((LEVELS - pixels).astype(np.uint8), _ramp()), values.shape[1], values.shape[0], each)


def binned(values: Any) -> tuple[Floats, int]:
    """Return a dense matrix of at most 256 rows, and the number of rows and columns merged into one."""
    entries, n = scipy.sparse.coo_array(values), values.shape[0]
    each = -(-n // 256)
    sums = np.zeros((-(-n // each), -(-n // each)))
    np.add.at(sums, (entries.row // each, entries.col // each), entries.data)
    return sums, each


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


# --- charts ----------------------------------------------------------------------------------------------------------


Labels = Mapping[float, str]  # by fraction of an axis, from the left or from the top


def chart(
    kind: str, inside: str, left: Labels, below: Labels, what: str, *, lines: Iterable[float] = (), height: float = 0.0
) -> str:  # fmt: skip
    """Return a chart: a box of the style `kind`, with `inside`, labels on two sides, and horizontal lines.

    what : for readers who can't see it; height : of the box, in pixels (0: that of the style)
    """
    y, x = (
        "".join(f'<span style="{side}:{100 * at:.2f}%">{escape(words)}</span>' for at, words in labels.items())
        for side, labels in (("top", left), ("left", below))
    )
    across = "".join(f'<hr style="top:{100 * at:.2f}%">' for at in lines)
    style = f' style="height:{height:g}px"' if height else ""
    return (
        f'<div class="chart {kind}" role="img" aria-label="{escape(what)}"><div class="y">{y}</div>'
        f'<div class="box"{style}>{across}{inside}</div><div class="x">{x}</div></div>'
    )


def durations(run: Run, calls: Rows) -> str:
    """Draw the time of each call and its ideal time, in milliseconds a call; "" for fewer than two calls.

    Exchanges and rebalancings are left out: a step of the record has many exchanges.  Many calls are drawn as means of
    neighbours, since curves of hundreds of short calls are noise.
    """
    calls = calls[:, ~np.isin(calls[0]["driver"], (Driver.EXCHANGE, Driver.REBALANCE))]
    n = calls[0]["n"].astype(float)
    if len(n) < 2:
        return ""
    numbers, each = np.cumsum(n) - n + 1, -(-len(n) // MOST_POINTS)
    curves = {"now": _means(1e3 * spans(run, calls) / n, each), "home": _means(1e3 * bounds(calls) / n, each)}
    middles = numbers[np.minimum(np.arange(len(curves["now"])) * each + each // 2, len(numbers) - 1)]
    most, last = ceiling(float(np.nanmax([*curves.values()]))), int(numbers[-1])

    def across(call: float) -> float:
        return (call - 1) / max(1, last - 1)

    drawn = ""
    for name, values in curves.items():
        known = [(call, value) for call, value in zip(middles, values, strict=True) if math.isfinite(value)]
        points = " ".join(f"{across(call):.4f},{1.0 - value / most:.4f}" for call, value in known)
        drawn += f'<polyline class="{name}" points="{points}"/>'
    levels = {1.0 - k / 4: f"{most * k / 4:,.6g} ms" for k in range(5)}
    numbered = {across(call): f"{call:,}" for call in ticks(last)}
    drawn = f'<svg viewBox="0 0 1 1" preserveAspectRatio="none">{drawn}</svg>'
    caption = f"<figcaption>call{f' (means of {each})' if each > 1 else ''}</figcaption>"
    return chart("curve", drawn, levels, numbered, "time of each call", lines=levels) + caption


def ticks(last: int) -> list[int]:
    """Return the labelled numbers of an axis from 1 to `last`, at most five and 1: 1, 5, 10, ..."""
    step = int(ceiling(max(1.0, last / 4), ROUND))
    return [1, *range(step, last + 1, step)] if step > 1 else [*range(1, last + 1)]


def _means(values: Floats, each: int) -> Floats:
    """Return the means of the known values of `each` neighbours; NaN where none is known."""
    edges = np.arange(0, len(values), each)
    known = np.isfinite(values)
    counts = np.add.reduceat(known.astype(float), edges)
    sums = np.add.reduceat(np.where(known, values, 0.0), edges)
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)


def ceiling(value: float, digits: Sequence[int] = (1, 2, 4, 6, 8, 10)) -> float:
    """Return the next of the `digits` times a power of ten (of the default, a quarter has few digits); 0.01 for 0."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0.0 else 0.01
    return next(power * k for k in digits if power * k >= value * 0.999)


# --- the page ----------------------------------------------------------------------------------------------------------


MOST_LINES = 200  # of a table
MOST_VALUES = 64  # ranks of a matrix whose numbers are in the page
LIGHT = 0.3  # of the largest value: smaller ones have a light colour


def page(run: Run, head: Headline | None = None, predicted: Sequence[Advice] = (), why: Sequence[str] = ()) -> str:
    """Return the page of a run, with this summary or one without predictions, the times `predicted`, and why not others."""
    calls, moved = steps(run), {way: matrix(run, way) for way in Way}
    parts = [
        _head(run, head or headline(run)), _strips(run, timeline(run, slices(calls))), _calls(run, calls),
        _moves(moved), _ranks(run, moved), _settings(predicted, why), _machine(run),
    ]  # fmt: skip
    style, script = (resources.files("lb_mpi.cli.report").joinpath(name).read_text() for name in ("page.css", "page.js"))
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
    hosts = counted(len(run.hosts), "host")
    known_gain = np.isfinite(head.gain)
    whole = shown_seconds(head.seconds), "from start to end"
    cards = [
        *([whole] if known_gain else []),
        (f"{head.ratio:.2f}" if np.isfinite(head.ratio) else "not known", "time / ideal time"),
        (percent(head.parallel, "-"), "parallel efficiency"),
        (percent(head.balance, "-"), "load balance"),
        (percent(head.communication, "-"), "communication efficiency"),
    ]
    first = (times(head.gain), "times as fast as without balancing (predicted)") if known_gain else whole
    known = spent(run)
    parts = {name: known[name] for name in BAR if known.get(name)}
    bar = "".join(
        f'<div style="width:{100 * part:.2f}%;background:{BAR[name]}" title="{name}"></div>' for name, part in parts.items()
    )
    notes = "".join(f'<p class="note">{escape(note[:300])}</p>' for note in run.notes[:10])
    return (
        f'<h1>{escape(_title(about.program)[:300])}</h1><p class="soft">{of_ranks(len(run.ranks), run.size)} on {hosts}, '
        f"{when}</p>{notes}"
        + _card(*first, " gain")
        + f'<p class="big">{escape(head.words)}</p>'
        + (f'<p class="big">Next: {escape(head.next_step)}</p>' if head.next_step else "")
        + f'<div class="cards">{"".join(_card(value, name) for value, name in cards)}</div>'
        + f'<div class="bar" role="img" aria-label="all ranks\' time by phase">{bar}</div>'
        + _key([(f"{name} {percent(part)}", BAR[name]) for name, part in parts.items()])
        + f'<p class="soft">Time in lb_mpi, longest rank: {shown_seconds(head.inside_s)}. Ideal time for the same work at '
        f"the ranks' speeds (lower bound): {shown_seconds(head.bound_s)}. "
        + ("The time without balancing is predicted by a replay of the record. " if known_gain else "")
        + "The efficiencies are the metrics of the POP project. They count seconds, whatever the speed of a rank. Useful "
        "time is time in the user's work, including the pauses of an emulated slow rank. The record begins with the first "
        "call of lb_mpi; a program's own clock may also count the time to import it.</p>"
    )


def _card(value: str, name: str, kind: str = "") -> str:
    return f'<div class="card{kind}"><b>{value}</b><span>{name}</span></div>'


def _strips(run: Run, parts: Floats) -> str:
    totals = run.totals
    key = _key((NAMES[phase], COLOURS[phase]) for phase in Phase if totals[:, phase].any())
    picture = strip(parts)
    each = picture.each
    how = (
        "One line per rank, in the colour of its longest phase in that time slice"
        if len(run.ranks) > MOST_ROWS // 4
        else "One strip per rank. The height of each colour is its share of that time slice"
    )
    caption = f"{how}. Ranks are grouped by host; {picture.width} time slices."
    caption += f" Each line stands for {each} ranks." if each > 1 else ""
    caption += f" Work includes the time {NO_CORE}." if NO_CORE in spent(run) else ""
    drawn = f"<figure>{_strip(run, picture)}<figcaption>{escape(caption)}</figcaption></figure>"
    return f"<h2>What each rank did when</h2>{key}{drawn}"


def _strip(run: Run, picture: Picture) -> str:
    """Draw the strips with their ranks, or hosts if there are too many ranks, and the time below."""
    n = len(run.ranks)
    height = min(MOST_STRIPS, n * RANK_PIXELS)
    firsts = [next(k for k, one in enumerate(run.ranks) if one.about.host == name) for name in run.hosts]
    edges = [k / n for k in (*firsts, n)]
    every = 1 if height / n >= LETTER else n if len(firsts) > 1 else int(ceiling(max(1.0, LETTER * n / height), ROUND))
    named = {(begin + end) / 2: name[:9] for name, begin, end in zip(run.hosts, edges, edges[1:], strict=False)}
    if every < n or n == 1:
        named = {(k + 0.5) / n: f"rank {run.ranks[k].about.rank}" for k in range(0, n, every)}
    shown: dict[float, str] = {}
    for at, name in named.items():
        if not shown or (at - max(shown)) * height >= LETTER:
            shown[at] = name
    unit, per_s = ("us", 1e6) if run.seconds < 2e-3 else ("ms", 1e3) if run.seconds < 2.0 else ("s", 1.0)
    whole = run.seconds * per_s or 1.0
    step = ceiling(whole / N_TIMES)
    times = {k * step / whole: f"{k * step:.6g} {unit}" for k in range(int(whole / step) + 1)}
    what = "what each rank did when"
    return chart("strips", picture.html, shown, times, what, lines=edges[1:-1], height=height)


def _calls(run: Run, calls: Rows) -> str:
    if not calls.size:
        return ""
    parts = ["<h2>Calls, and what was decided</h2>"]
    if drawn := durations(run, calls):
        parts.append(f"{_key(TIMES)}<figure>{drawn}</figure>")
    header = ["calls", "what", "time", "ideal", "time / ideal", "done", "moved", "without lending", "actual", "decision"]
    parts.append(Table(header, _lines(run, calls), (1, 9), MOST_LINES).used().html("tight reason"))
    return "".join(parts)


def _lines(run: Run, calls: Rows) -> list[list[str]]:
    """Return a line for consecutive calls with the same decision; of many, about LINES, with the most frequent one."""
    first, seconds = calls[0], spans(run, calls)
    ideal, ends, reasons = bounds(calls), np.cumsum(first["n"]), run.ranks[0].reasons
    lines = []
    drivers, decisions = first["driver"].tolist(), first["reason"].tolist()
    groups = [[*group] for _, group in groupby(range(len(ends)), key=lambda k: (drivers[k], decisions[k]))]
    if len(groups) > LINES:
        by_driver = [[*group] for _, group in groupby(range(len(ends)), key=lambda k: drivers[k])]
        each = -(-len(ends) // LINES)
        groups = [some[k : k + each] for some in by_driver for k in range(0, len(some), each)]
    for some in groups:
        driver = Driver(drivers[some[0]])
        decided = [decisions[k] for k in some if decisions[k] >= 0]
        reason = max(decided, key=decided.count, default=-1)
        words = reasons[reason] if 0 <= reason < len(reasons) else ""
        words += f" ({decided.count(reason)} of {len(some)})" if len({*decided}) > 1 else ""
        begin, end = ends[some[0]] - first["n"][some[0]] + 1, ends[some[-1]]
        span, bound = float(seconds[some].sum()), float(ideal[some].sum())
        # For rows, every rank knows the number lent on all ranks; parts and steals are each rank's own.  All ranks make
        # the same exchanges.
        done = calls["units"][:1] if driver == Driver.EXCHANGE else calls["units"]
        moved = calls["moved"][:1] if driver in (Driver.ROWS, Driver.MIGRATE, Driver.REBALANCE) else calls["moved"]
        name, unit, what = DRIVERS[driver]
        n, amount = done[:, some].sum(dtype=float), moved[:, some].sum(dtype=float)
        lines.append([
            f"{begin:,}" if begin == end else f"{begin:,}\N{EN DASH}{end:,}",
            name, shown_seconds(span), shown_seconds(bound), f"{span / bound:.2f}" if bound else "-",
            _counted(n, unit) if n else "-", _counted(amount, what) if amount else "-",
            _mean(first["before"][some]), _mean(first["after"][some]), words,
        ])  # fmt: skip
    return lines


def _counted(number: float, plural: str) -> str:
    return counted(round(number), "vertex" if plural == "vertices" else plural[:-1], plural)


def slices(calls: Rows) -> int:
    """Return the number of time slices of the strips: fewer if calls are shorter than a slice, or the strips are noise."""
    n = int(calls[0]["n"].sum()) if calls.size else 0
    return COLUMNS if n < COLUMNS // 10 else SMOOTH


def _moves(moves: Mapping[Way, Any]) -> str:
    """Return the work that each rank gave to each other."""
    parts = ["<h2>Work moved between ranks</h2>"]
    for way, moved in moves.items():
        if not moved.nnz:
            continue
        picture, (words, unit) = square(moved), WAYS[way]
        caption = f"{words.capitalize()}: {moved.sum():,.0f}, from the row's rank to the column's; blank: none."
        if picture.each > 1:
            caption += f" Each cell is the sum of {picture.each} by {picture.each} ranks."
        parts.append(f"<figure>{squares(picture, moved, unit)}<figcaption>{escape(caption)}</figcaption></figure>")
    return "".join(parts) if len(parts) > 1 else ""


def squares(picture: Picture, moved: Any, unit: str) -> str:
    """Draw a matrix with the numbers of its ranks, of its cells if they fit in, and a scale; inverted in the dark."""
    n, sums = moved.shape[0], binned(moved)[0]
    most, inside = float(sums.max(initial=0.0)), picture.html
    for row, column in zip(*np.nonzero(sums), strict=True) if len(sums) <= MOST_VALUES else ():
        number = f"{sums[row, column]:,.0f}"
        kind = "dark" if sums[row, column] <= LIGHT * most else "light"
        kind += " desk" * (DIGIT * len(number) * n > PHONE_CELLS)
        shown = number if DIGIT * len(number) * n <= CELLS else ""
        title = f"from {row} to {column}: {number} {unit}"
        inside += f'<i class="{kind}" style="grid-area:{row + 1}/{column + 1}" title="{title}">{shown}</i>'
    ranks = {(k + 0.5) / n: f"{k}" for k in range(0, n, int(ceiling(max(1.0, 24.0 * n / PHONE_CELLS), ROUND)))}
    words = f"{most:,.0f}", f"{most / 4:,.0f}" if most >= 4.0 else f"{most / 4:g}", "0"  # the colours show square roots
    scale = "".join(f"<span>{amount}</span>" for amount in words)
    drawn = chart("matrix", f'<div style="--n:{n}">{inside}</div>', ranks, ranks, f"{unit} moved between ranks")
    return f'<div class="pair">{drawn}<i class="scale"></i><div class="scale">{scale}</div></div>'


def _ranks(run: Run, moves: Mapping[Way, Any]) -> str:
    totals = run.totals
    phases = [phase for phase in Phase if totals[:, phase].any()]
    called = {Driver(driver) for one in run.ranks for driver in np.unique(one.steps["driver"]).tolist()}
    units = sorted({DRIVERS[driver][1] for driver in called})
    header = ["rank", "host", "speed", "seconds", *(f"{SHORT[phase]} %" for phase in phases)]
    header += [*(f"{unit} {'made' if unit == 'exchanges' else 'computed'}" for unit in units), "got", "gave"]
    got, gave = (sum(moved.sum(axis=axis) for moved in moves.values()) for axis in (0, 1))
    speeds = [float(np.average(one.steps["speed"], weights=one.steps["n"])) if len(one.steps) else 1.0 for one in run.ranks]
    lines = []
    for one, phase_s, speed in zip(run.ranks, totals, speeds, strict=True):
        whole = float(phase_s.sum()) or 1.0
        rank = one.about.rank
        done = dict.fromkeys(units, 0.0)
        for driver, amount in one.steps[["driver", "units"]].tolist():
            done[DRIVERS[Driver(driver)][1]] += amount
        lines.append([
            str(rank), one.about.host[:24], f"{speed / np.mean(speeds):.2f}x", f"{whole:.2f}",
            *(f"{100 * phase_s[phase] / whole:.1f}" for phase in phases),
            *(f"{amount:,.0f}" for amount in done.values()), f"{got[rank]:,.0f}", f"{gave[rank]:,.0f}",
        ])  # fmt: skip
    return (
        f"<h2>Ranks</h2>{Table(header, lines, (1,)).used('0').html('tight')}"
        '<p class="soft">speed: 1.00x is the mean of all ranks; in a pool or a search, ranks count as equally fast unless '
        "they emulate slow ones. seconds: recorded time; the phase columns are percentages of it. computed: on this "
        "rank, in "
        f"all calls, also for other ranks. got, gave: parts of work, rows, tasks, vertices.</p>"
    )


def _settings(predicted: Sequence[Advice], why: Sequence[str]) -> str:
    """Return the predicted times with other settings."""
    parts = ["<h2>With other settings</h2>"] if predicted or why else []
    for one in predicted:
        parts.append(f"<p>{escape(one.words)}</p>")
        if not one.doubt:
            parts += [one.table().html("tight"), *(f'<p class="soft">{escape(note)}</p>' for note in one.notes)]
    return "".join([*parts, *(f"<p>{escape(words)}</p>" for words in why)])


def _machine(run: Run) -> str:
    about = run.ranks[0].about
    versions = list(dict.fromkeys(one.about.versions for one in run.ranks))
    counts = [sum(one.about.host == host for one in run.ranks) for host in run.hosts]
    named = [f"{host} ({counted(n, 'rank')})" for host, n in zip(run.hosts[:32], counts, strict=False)]
    more = f", and {len(run.hosts) - 32:,} more" if len(run.hosts) > 32 else ""
    rows = [
        ("program", about.program),
        ("hosts", ", ".join(named) + more),
        ("software", "; ".join(versions[:4])),
        ("clocks", run.clock),
        ("resolution", f"bins of {shown_seconds(max(one.width_s for one in run.ranks))}"),
    ]
    return "<h2>The machine</h2><dl>" + "".join(f"<dt>{name}<dd>{escape(text)}" for name, text in rows) + "</dl>"


def _key(entries: Iterable[tuple[str, str]]) -> str:
    """Return a key of (words, colour)."""
    items = "".join(f'<li><i style="background:{colour}"></i>{name}' for name, colour in entries)
    return f'<ul class="key">{items}</ul>'


def _mean(values: Floats) -> str:
    return percent(float(_means(values, len(values))[0]), "-")
