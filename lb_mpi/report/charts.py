"""Charts of a run as SVG: imbalance call by call, and what rows cost.   (pure)"""

from __future__ import annotations

import math
from html import escape

import numpy as np

from lb_mpi.record.events import Driver
from lb_mpi.report.run import Run, steps

WIDTH, HEIGHT = 920, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 40
POINTS = 900  # of a chart of costs


def imbalance(run: Run) -> str:
    """Draw the imbalance of each call of map_blocks, with all rows at home and as it was; "" when there was none."""
    table = steps(run)[0]
    table = table[table["driver"] == Driver.ROWS]
    before, after = table["before"].astype(float), table["after"].astype(float)
    known = np.concatenate([before, after])
    known = known[np.isfinite(known)]
    if not len(known):
        return ""
    calls = np.cumsum(table["n"]) - table["n"] + 1
    most = _ceiling(float(known.max()))

    def place(call: float, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * ((call - 1) / max(1.0, float(calls[-1]) - 1))
        return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most

    parts = _axes(most, int(calls[-1]), place)
    for name, values in (("home", before), ("now", after)):
        points = [place(call, value) for call, value in zip(calls, values, strict=True) if math.isfinite(value)]
        parts.append(f'<polyline class="{name}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
    acted = [row for row in zip(calls, before, table["acted"], table["reason"], strict=True) if row[2]]
    for call, value, _, reason in acted:
        x, y = place(call, value if math.isfinite(value) else 0.0)
        words = run.ranks[0].reasons[reason] if 0 <= reason < len(run.ranks[0].reasons) else "changed"
        parts.append(
            f'<path class="act" d="M{x:.1f} {y - 4:.1f}l5 -9h-10z"><title>call {call}: {escape(words)}</title></path>'
        )
    return svg(WIDTH, HEIGHT, parts, "imbalance of each call")


def _axes(most: float, n: int, place: object) -> list[str]:
    assert callable(place)
    parts = []
    for k in range(5):
        value = most * k / 4
        _, y = place(1, value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.{_digits(most)}%}</text>')
    for call in sorted({round(1 + (n - 1) * k / 5) for k in range(6)}):
        x, _ = place(call, 0.0)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{call:,}</text>')
    parts.append(f'<text x="{(WIDTH + LEFT) / 2:.0f}" y="{HEIGHT - 4}" text-anchor="middle">call of map_blocks</text>')
    return parts


def costs(run: Run) -> str:
    """Draw what the rows cost, rank by rank, relative to their mean; "" when that isn't known of all ranks."""
    known = sorted(((one.about.rank, one.known.costs) for one in run.ranks), key=lambda pair: pair[0])
    if not all(len(mine) and mine.sum() > 0.0 for _, mine in known):
        return ""
    many = max(1, POINTS // len(known))
    parts = [
        np.interp(np.linspace(0, len(mine) - 1, min(many, len(mine))), np.arange(len(mine)), mine) for _, mine in known
    ]
    values = np.concatenate(parts)
    values /= values.mean()
    most, height = _ceiling(float(values.max())), HEIGHT - 60
    x = LEFT + (WIDTH - LEFT - RIGHT) * np.repeat(np.arange(len(values) + 1), 2)[1:-1] / len(values)
    y = height - BOTTOM - (height - TOP - BOTTOM) * np.repeat(values, 2) / most
    drawn = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{most * k / 2:g}</text>'
        for k, at in ((k, height - BOTTOM - (height - TOP - BOTTOM) * k / 2) for k in range(3))
    ]
    drawn.append(f'<polyline class="now" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))}"/>')
    begins = np.cumsum([0, *map(len, parts)]) / len(values)
    every = -(-len(known) // 16)
    for (rank, _), begin in list(zip(known, begins, strict=False))[::every]:
        at = LEFT + (WIDTH - LEFT - RIGHT) * begin
        drawn.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{height - BOTTOM + 6}"/>')
        drawn.append(f'<text x="{at + 3:.1f}" y="{height - BOTTOM + 18}">{rank}</text>')
    drawn.append(
        f'<text x="{(WIDTH + LEFT) / 2:.0f}" y="{height - 4}" text-anchor="middle">rows, by the rank at home</text>'
    )
    return svg(WIDTH, height, drawn, "costs of rows")


def _digits(most: float) -> int:
    return 0 if most >= 0.08 else 1


def _ceiling(value: float) -> float:
    """The next number 1, 2, 4 or 8 times a power of ten."""
    if value <= 0.0:
        return 0.01
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * k for k in (1, 2, 4, 8, 10) if power * k >= value * 0.999)


def svg(width: int, height: int, parts: list[str], label: str) -> str:
    """Put together a drawing; `label` is for those who can't see it."""
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
