"""The report of a run as one page of HTML that needs nothing else: no network, no other file.   (pure)"""

from __future__ import annotations

import time
from html import escape
from importlib import resources
from itertools import groupby

import numpy as np

from lb_mpi.record.events import Driver, Phase, Way
from lb_mpi.record.launches import DEATH
from lb_mpi.report import charts
from lb_mpi.report.markup import figure, key, mean, percent, seconds, table
from lb_mpi.report.numbers import NAMES, SHORT, Headline, headline, matrix
from lb_mpi.report.page_moves import map_of_ranks, moves
from lb_mpi.report.pictures import COLOURS, MOST_ROWS, strip
from lb_mpi.report.run import DRIVERS, SAVE, Run, steps

MOST_LINES = 200  # of a table of steps


def page(run: Run) -> str:
    """Write the page."""
    told = headline(run)
    about = run.ranks[0].about
    parts = [
        _head(run, told),
        _strips(run),
        _calls(run),
        moves(run),
        map_of_ranks(run),
        _ranks(run),
        _machine(run),
    ]
    style = resources.files("lb_mpi.report").joinpath("page.css").read_text()
    script = resources.files("lb_mpi.report").joinpath("page.js").read_text()
    title = escape(_title(about.program))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{style}</style></head><body>{''.join(parts)}<script>{script}</script></body></html>\n"
    )


def _title(program: str) -> str:
    words = program.split()
    return " ".join([words[0].rpartition("/")[2], *words[1:]]) if words else "a run"


def _head(run: Run, told: Headline) -> str:
    about = run.ranks[0].about
    when = "virtual time" if about.virtual else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(about.wall_s))
    hosts = f"{len(run.hosts):,} host{'s' * (len(run.hosts) > 1)}"
    cards = [
        (seconds(told.seconds), "from begin to end"),
        (f"{told.ratio:.2f}" if np.isfinite(told.ratio) else "-", "time / lower bound"),
        (percent(told.parallel), "parallel efficiency"),
        (percent(told.balance), "load balance"),
        (percent(told.communication), "communication efficiency"),
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
        + f'</div><p class="big">{escape(told.words)}</p>'
        f'<div class="bar" role="img" aria-label="all ranks\' time by phase">{bar}</div>'
        + key(
            [(f"{NAMES[phase]} {percent(totals[phase] / whole)}", COLOURS[phase]) for phase in Phase if totals[phase]]
        )
        + f'<p class="soft">A rank spent {seconds(told.inside_s)} at most in lb_mpi; the work of all calls takes '
        f"{seconds(told.bound_s)} at least, on all ranks together by their speeds. The efficiencies are those of the POP "
        "project and count seconds, whoever is how fast: useful time is that in the user's work, a slow rank's rests "
        "included.</p>"
    )


def _strips(run: Run) -> str:
    """The strips of all starts, and what happened in them."""
    phases = [phase for phase in Phase if any(one.totals[:, phase].any() for one in (run, *run.earlier))]
    parts = ["<h2>What each rank did when</h2>", key([(NAMES[phase], COLOURS[phase]) for phase in phases])]
    for number, one in enumerate((*run.earlier, run)):
        if run.earlier:
            parts.append(f"<h3>Start {number + 1}: {one.size:,} ranks, {seconds(one.seconds)}</h3>")
        parts.append(_strip(one))
    lines = [
        [str(number + 1), seconds(max(0.0, it.began_s)), seconds(it.ended_s - it.began_s) if it.what == SAVE else "",
         it.what, str(it.rank) if it.rank >= 0 else "", escape(it.words)]
        for number, one in enumerate((*run.earlier, run))
        for it in one.happened
    ]  # fmt: skip
    if lines:
        parts.append("<h2>Saves, deaths and restarts</h2>")
        parts.append(table(["start", "at", "took", "what", "rank", ""], lines[:MOST_LINES], text=(3, 5)))
        if len(lines) > MOST_LINES:
            parts.append(f'<p class="soft">... and {len(lines) - MOST_LINES:,} lines more</p>')
    return "".join(parts)


def _strip(run: Run) -> str:
    picture = strip(run)
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
        "a line a rank; its colour is what took most of that time"
        if len(run.ranks) > MOST_ROWS // 4
        else "each rank's phases one above the other, in the parts that they take of that time"
    )
    many = f" Each line stands for {each} ranks." if each > 1 else ""
    marked = " Lines from top to bottom: saves; a cross: a death." if data["marks"] else ""
    return figure(picture, data, f"{how}, grouped by host; {picture.width} columns of time.{many}{marked}")


def _calls(run: Run) -> str:
    tables = steps(run)
    if not len(tables[0]):
        return ""
    parts = ["<h2>Calls, and what was decided</h2>"]
    if chart := charts.imbalance(run):
        parts.append(
            f'<figure class="chart">{chart}</figure>'
            '<ul class="key"><li><i style="background:var(--soft)"></i>imbalance with all rows at '
            'home (dashed)<li><i style="background:var(--now)"></i>as it was<li><i style="background:var(--act)"></i>the '
            "distribution was changed (for the calls after it)</ul>"
            '<p class="soft">Imbalance: time of the slowest rank / time at perfect balance, less 1.</p>'
        )
    lines = _lines(run)
    header = ["calls", "what", "time", "bound", "time / bound", "done", "moved", "at home", "as it was", "decision"]
    parts.append(table(header, lines[:MOST_LINES], "reason", text=(1, 9)))
    if len(lines) > MOST_LINES:
        parts.append(f'<p class="soft">... and {len(lines) - MOST_LINES:,} lines more</p>')
    if chart := charts.costs(run):
        parts.append(
            f'<figure class="chart">{chart}</figure>'
            '<p class="soft">What rows cost, as heard last, relative to their mean.</p>'
        )
    return "".join(parts)


def _lines(run: Run) -> list[list[str]]:
    """A line for calls in a row for which the same was decided."""
    tables = steps(run)
    every = np.array(
        [[list(entry) for entry in table.tolist()] for table in tables], dtype=float
    )  # ranks, steps, fields
    names = tables[0].dtype.names
    assert names is not None
    column = {name: every[:, :, k] for k, name in enumerate(names)}
    offsets = np.array(run.offsets_s)[:, None]
    spans = (column["ended"] + offsets).max(axis=0) - (column["began"] + offsets).min(axis=0)
    bounds = (column["useful_s"] * column["speed"]).sum(axis=0) / column["speed"].sum(axis=0)
    ends = np.cumsum(tables[0]["n"])
    lines = []
    for _, group in groupby(range(len(ends)), key=lambda k: (tables[0]["driver"][k], tables[0]["reason"][k])):
        some = list(group)
        first, last = some[0], some[-1]
        driver = Driver(int(tables[0]["driver"][first]))
        begin = ends[first] - tables[0]["n"][first] + 1
        span, bound = float(spans[some].sum()), float(bounds[some].sum())
        # Of rows, every rank knows how many were lent on all; parts and steals are each rank's own.
        moved = (
            column["moved"][0, some].sum()
            if driver in (Driver.ROWS, Driver.MIGRATE)
            else column["moved"][:, some].sum()
        )
        reason, words = int(tables[0]["reason"][first]), run.ranks[0].reasons
        name, unit, what = DRIVERS[driver]
        lines.append([
            f"{begin:,}" if begin == ends[last] else f"{begin:,}\N{EN DASH}{ends[last]:,}",
            name, seconds(span), seconds(bound), f"{span / bound:.2f}" if bound else "-",
            f"{column['units'][:, some].sum():,.0f} {unit}", f"{moved:,.0f} {what}" if moved else "-",
            mean(column["before"][0, some]), mean(column["after"][0, some]),
            escape(words[reason]) if 0 <= reason < len(words) else "",
        ])  # fmt: skip
    return lines


def _ranks(run: Run) -> str:
    totals = run.totals
    phases = [phase for phase in Phase if totals[:, phase].any()]
    header = ["rank", "host", "speed", "seconds", *(SHORT[phase] for phase in phases), "done", "got", "gave"]
    got, gave = (sum((matrix(run, way).sum(axis=axis) for way in Way), np.zeros(run.size)) for axis in (0, 1))
    lines = []
    for one, spent in zip(run.ranks, totals, strict=True):
        whole = float(spent.sum()) or 1.0
        rank = one.about.rank
        speed = float(np.average(one.steps["speed"], weights=one.steps["n"])) if len(one.steps) else 1.0
        shares = [f"{100 * spent[phase] / whole:.1f}" for phase in phases]  # percent
        lines.append([
            str(rank), escape(one.about.host[:24]), f"{speed:.3g}", f"{whole:.3f}", *shares,
            f"{one.steps['units'].sum():,.0f}", f"{got[rank]:,.0f}", f"{gave[rank]:,.0f}",
        ])  # fmt: skip
    return (
        "<h2>Ranks</h2>"
        + table(header, lines, text=(1,))
        + '<p class="soft">seconds: recorded, of which so many percent in each phase; done: units of work, rows of its own, '
        "and tasks of all calls; got, gave: parts, rows and tasks.</p>"
    )


def _machine(run: Run) -> str:
    about = run.ranks[0].about
    versions = list(dict.fromkeys(one.about.versions for one in run.ranks))
    counts = [sum(one.about.host == host for one in run.ranks) for host in run.hosts]
    named = [f"{host} ({n} rank{'s' * (n > 1)})" for host, n in zip(run.hosts[:32], counts, strict=False)]
    more = f", and {len(run.hosts) - 32:,} more" if len(run.hosts) > 32 else ""
    rows = [
        ("program", escape(about.program)),
        ("hosts", escape(", ".join(named) + more)),
        ("software", escape("; ".join(versions[:4]))),
        ("clocks", escape(run.clock)),
        ("resolution", f"{seconds(max(one.width_s for one in run.ranks))} of time, by bins"),
    ]
    return "<h2>The machine</h2><dl>" + "".join(f"<dt>{name}<dd>{text}" for name, text in rows) + "</dl>"
