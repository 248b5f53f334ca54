"""The page of a run: one HTML file with everything in it, which needs no network.   (pure)

Figures are shown by page.js on a canvas, which zooms; the page's numbers are those of `run`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from html import escape
from importlib import resources
from itertools import groupby
from typing import Any

import numpy as np

from lb_mpi.record.events import Driver, Phase, Way
from lb_mpi.record.launches import DEATH
from lb_mpi.report import figures
from lb_mpi.report.figures import COLOURS, MOST_ROWS, RANK_COLOURS, Picture
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
)
from lb_mpi.table import Table

MOST_LINES = 200  # of a table
MOST_VALUES = 64  # ranks of a matrix whose numbers are in the page


def page(run: Run) -> str:
    """Write the page."""
    parts = [_head(run, headline(run)), _strips(run), _calls(run), _moves(run), _map(run), _ranks(run), _machine(run)]
    script = resources.files("lb_mpi.report").joinpath("page.js").read_text()
    title = escape(_title(run.ranks[0].about.program))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{figures.style()}</style></head>"
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
        (seconds(head.seconds), "from begin to end"),
        (f"{head.ratio:.2f}" if np.isfinite(head.ratio) else "-", "time / ideal time"),
        (percent(head.parallel), "parallel efficiency"),
        (percent(head.balance), "load balance"),
        (percent(head.communication), "communication efficiency"),
    ]
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
        + '<div class="cards">'
        + "".join(f'<div class="card"><b>{value}</b><span>{name}</span></div>' for value, name in cards)
        + f'</div><p class="big">{escape(head.words)}</p>'
        f'<div class="bar" role="img" aria-label="all ranks\' time by phase">{bar}</div>'
        + _key(
            [(f"{NAMES[phase]} {percent(totals[phase] / whole)}", COLOURS[phase]) for phase in Phase if totals[phase]]
        )
        + f'<p class="soft">Time in lb_mpi, longest rank: {seconds(head.inside_s)}. Ideal time for the same work at '
        f"the ranks' speeds (lower bound): {seconds(head.bound_s)}. The efficiencies are the metrics of the POP project. "
        "They count seconds, however fast a rank is: useful time is time in the user's work, and includes the rests of an "
        "emulated slow rank.</p>"
    )


def _strips(run: Run) -> str:
    """The strips of all starts, and what happened in them."""
    starts = (*run.earlier, run)
    phases = [phase for phase in Phase if any(one.totals[:, phase].any() for one in starts)]
    parts = ["<h2>What each rank did when</h2>", _key([(NAMES[phase], COLOURS[phase]) for phase in phases])]
    for number, one in enumerate(starts):
        if run.earlier:
            parts.append(f"<h3>Start {number + 1}: {one.size:,} ranks, {seconds(one.seconds)}</h3>")
        parts.append(_strip(one))
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


def _strip(run: Run) -> str:
    picture = figures.strip(run)
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
    if chart := figures.imbalance(run):
        parts.append(
            f'<figure class="chart">{chart}</figure>'
            '<p class="soft">Imbalance: time of the slowest rank / time at perfect balance, minus 1.</p>'
        )
    header = ["calls", "what", "time", "ideal", "time / ideal", "done", "moved", "at home", "as it was", "decision"]
    parts.append(Table(header, _lines(run), (1, 9), MOST_LINES).html("reason"))
    if chart := figures.costs(run):
        parts.append(
            f'<figure class="chart">{chart}</figure>'
            '<p class="soft">Most recently measured cost of each row, relative to the mean.</p>'
        )
    return "".join(parts)


def _lines(run: Run) -> list[list[str]]:
    """A line for calls in a row with the same decision."""
    calls = steps(run)
    first, offsets = calls[0], np.array(run.offsets_s)[:, None]
    spans = (calls["ended"] + offsets).max(axis=0) - (calls["began"] + offsets).min(axis=0)
    ideal, ends, reasons = bounds(calls), np.cumsum(first["n"]), run.ranks[0].reasons
    lines = []
    for (driver, reason), group in groupby(range(len(ends)), key=lambda k: (first["driver"][k], first["reason"][k])):
        some = list(group)
        begin, end = ends[some[0]] - first["n"][some[0]] + 1, ends[some[-1]]
        span, bound = float(spans[some].sum()), float(ideal[some].sum())
        # Of rows, every rank knows how many were lent on all; parts and steals are each rank's own.
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
    """Work that each rank gave to each other."""
    parts: list[str] = []
    for way in Way:
        moved = matrix(run, way)
        if not moved.any():
            continue
        picture = figures.square(moved)
        data: dict[str, Any] = {"rows": picture.height, "each": picture.each, "hosts": [], "unit": UNITS[way]}
        if len(moved) <= MOST_VALUES:
            data["values"] = moved.astype(int).tolist()
        chart = figures.flows(moved, UNITS[way], figures.edges_of(run, way))
        top = figures.binned(moved)[0].max()
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
            f"{asked.nothing:,} came too late: the volunteer had nothing left.</p>"
        )
    return f"<h2>Work moved between ranks</h2>{text}{''.join(parts)}"


def _map(run: Run) -> str:
    """The domain in the colours of ranks; "" where that isn't known."""
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
    picture = figures.map_of(owned)
    return (
        f'<h2>The part of each rank</h2>{legend}<figure class="map">'
        f'<img alt="{words}" width="{picture.width}" height="{picture.height}" src="{picture.url}">'
        f"<figcaption>{words}{more}</figcaption></figure>"
    )


def _ranks(run: Run) -> str:
    totals = run.totals
    phases = [phase for phase in Phase if totals[:, phase].any()]
    header = ["rank", "host", "speed", "seconds", *(f"{SHORT[phase]} %" for phase in phases), "done", "got", "gave"]
    got, gave = (sum((matrix(run, way).sum(axis=axis) for way in Way), np.zeros(run.size)) for axis in (0, 1))
    lines = []
    for one, spent in zip(run.ranks, totals, strict=True):
        whole = float(spent.sum()) or 1.0
        rank = one.about.rank
        speed = float(np.average(one.steps["speed"], weights=one.steps["n"])) if len(one.steps) else 1.0
        lines.append([
            str(rank), one.about.host[:24], f"{speed:.3g}", f"{whole:.3f}",
            *(f"{100 * spent[phase] / whole:.1f}" for phase in phases),
            f"{one.steps['units'].sum():,.0f}", f"{got[rank]:,.0f}", f"{gave[rank]:,.0f}",
        ])  # fmt: skip
    return (
        f"<h2>Ranks</h2>{Table(header, lines, (1,)).html()}"
        '<p class="soft">seconds: recorded time; the phase columns are percentages of it. done: units of work, rows and '
        "tasks computed here, in all calls. got, gave: parts of work, rows and tasks.</p>"
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
    """A picture that page.js shows with `data`."""
    packed = escape(json.dumps(data, separators=(",", ":")), quote=True)
    return (
        f'<figure class="{kind}" data-view="{packed}"><div class="tools"></div>'
        f'<img alt="{escape(caption)}" src="{picture.url}"><figcaption>{escape(caption)}</figcaption></figure>'
    )


def _key(entries: Iterable[tuple[str, str]]) -> str:
    """A key of (words, colour)."""
    items = "".join(f'<li><i style="background:{colour}"></i>{name}' for name, colour in entries)
    return f'<ul class="key">{items}</ul>'


def seconds(value: float) -> str:
    """Write seconds in a unit that fits."""
    if not np.isfinite(value):
        return "not known"
    for least, unit, factor in ((100.0, "s", 1.0), (1.0, "s", 1.0), (1e-3, "ms", 1e3)):
        if value >= least:
            return f"{value * factor:,.{0 if value * factor >= 100 else 1 if value * factor >= 10 else 2}f} {unit}"
    return f"{1e6 * value:.0f} us"


def percent(value: float) -> str:
    """Write a part of 1."""
    return f"{value:.1%}" if np.isfinite(value) else "-"


def _mean(values: Any) -> str:
    """Write the mean of those that are known."""
    known = values[np.isfinite(values)]
    return f"{known.mean():.1%}" if len(known) else "-"
