"""The five pictures of docs/papers.md, one for the idea of each paper, and that of docs/programs.md.

The numbers of the five are computed; those of the last one come from the table on its page.

python -m tools.figures
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from html import escape

import numpy as np

import lb_mpi
from lb_mpi.graph import parse
from lb_mpi.searching.drafting import TABLE
from tools.documents import ROOT

STYLE = (
    "text{font:13px sans-serif;text-anchor:middle;fill:#1c2430}.soft{fill:#5b6675;font-size:12px}"
    ".left{text-anchor:start}.right{text-anchor:end}.before{fill:#d55e00}.after{fill:#0b5cad}"
    ".line{stroke:#5b6675;fill:none}.flow{stroke:#0b5cad;stroke-width:2;fill:none;marker-end:url(#tip)}"
    ".box{fill:#fff;stroke:#5b6675}.water{fill:#9cc9ee}.dash{stroke:#d55e00;stroke-dasharray:5 4;fill:none}"
    ".curve{stroke:#0b5cad;stroke-width:2;fill:none}.cut{stroke:#d55e00;stroke-width:3}.tip{fill:#0b5cad}.page{fill:#fff}"
    "@media (prefers-color-scheme:dark){text{fill:#e6eaef}.soft{fill:#a8b3c1}.line{stroke:#a8b3c1}.page{fill:none}"
    ".box{fill:#0d1117;stroke:#a8b3c1}.water{fill:#1f5f99}.flow,.curve{stroke:#58a6ff}.tip,.after{fill:#58a6ff}}"
)
TIP = (
    '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" orient="auto" '
    'markerUnits="userSpaceOnUse"><path class="tip" d="M0 0L10 5L0 10z"/></marker></defs>'
)
PICTURES, PROGRAMS = ROOT / "docs" / "pictures", ROOT / "docs" / "programs.md"
SPEEDS, TIMES = (2.0, 1.0, 3.0, 1.5), (4.0, 9.0, 2.0, 6.0)
STATES = {  # of figure 1: centres of their boxes
    "IDLE": (110, 60), "WAIT_FOR_ACK": (410, 60), "READY_FOR_ACCEPT": (710, 60),
    "BUSY": (110, 200), "WAIT_FOR_ADMISSION": (410, 200), "READY_FOR_SPLIT": (710, 200),
}  # fmt: skip
WAYS = (  # from, to, line of the table, words, shift of both, its label
    ("IDLE", "WAIT_FOR_ACK", "DRAFTING", (0, -8), (0, -12)),
    ("WAIT_FOR_ACK", "IDLE", "own DRAFTING, none", (0, 8), (0, 18)),
    ("WAIT_FOR_ACK", "READY_FOR_ACCEPT", "own DRAFTING, pid", (0, 0), (0, -10)),
    ("READY_FOR_ACCEPT", "BUSY", "WORK", (0, 0), (0, 0)),
    ("BUSY", "IDLE", "no work left", (0, 0), (-48, 4)),
    ("BUSY", "WAIT_FOR_ADMISSION", "DRAFTING, Q > load", (0, -8), (0, -12)),
    ("WAIT_FOR_ADMISSION", "BUSY", "REJECT", (0, 8), (0, 18)),
    ("WAIT_FOR_ADMISSION", "READY_FOR_SPLIT", "ADMISSION", (0, 0), (0, -10)),
    ("READY_FOR_SPLIT", "BUSY", "split: WORK", (0, 52), (0, 18)),
)


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Words at a place."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, kind: str = "box", fill: str = "") -> str:
    """A rectangle by its upper left corner."""
    style = f' style="fill:{fill}"' if fill else ""
    return f'<rect class="{kind}"{style} x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4"/>'


def path(points: Sequence[tuple[float, float]], kind: str) -> str:
    """A line through points."""
    return f'<path class="{kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'


def vessels() -> tuple[float, float, list[str]]:
    """Draw nodes as vessels: width is speed, height of the water time; and the common level."""
    graph = parse("mesh:1x4")
    loads = np.array(SPEEDS) * TIMES
    after = lb_mpi.balance(graph, loads, SPEEDS, tolerance=1e-9)
    level, ground, parts, x = float(loads.sum() / sum(SPEEDS)), 210.0, [], 30.0
    pipes = []
    for k, (speed, time) in enumerate(zip(SPEEDS, TIMES, strict=True)):
        width = 46.0 * speed
        parts += [rect(x, ground - 18 * time, width, 18 * time, "water"), rect(x, ground - 175, width, 175, "line")]
        middle = x + width / 2
        parts += [text(middle, ground + 20, f"s = {speed:g}"), text(middle, ground + 37, f"time {time:g}", "soft")]
        if k < 3:
            amount = float(after.flow[k])
            ends = [(x + width + 4, ground - 12), (x + width + 52, ground - 12)]
            parts.append(path(ends if amount > 0 else ends[::-1], "flow"))
            pipes.append(text(x + width + 28, ground - 20, f"{abs(amount):.1f}"))
        x += width + 56
    parts += [path([(20, ground - 18 * level), (x - 40, ground - 18 * level)], "dash"), *pipes]
    parts.append(text(x - 36, ground - 18 * level + 4, f"level {level:.2f}", "left"))
    return x + 60, 260.0, parts


def states() -> tuple[float, float, list[str]]:
    """Draw figure 1: the six states of a processor, and what leads from one to the other."""
    known = {(row.state, row.then) for row in TABLE if row.route == "ring"}
    parts = []
    for source, target, words, shift, label in WAYS:
        assert (source, target) in known or source == "READY_FOR_SPLIT", (source, target)
        (x1, y1), (x2, y2) = (np.array(STATES[one], dtype=float) + shift for one in (source, target))
        if source == "READY_FOR_ACCEPT":
            parts += [path([(x1, 84), (x1, 130), (x2 + 40, 130), (x2 + 40, 176)], "flow"), text(410, 122, words, "soft")]
            continue
        if source == "READY_FOR_SPLIT":
            parts += [path([(x1, 224), (x1, y1), (x2, y1), (x2, 224)], "flow"), text(410, y1 + 18, words, "soft")]
            continue
        way = np.array([x2 - x1, y2 - y1])
        share = min(half / abs(one) if one else math.inf for half, one in zip((84, 24), way, strict=True))
        from_, to = np.array([x1, y1]) + share * way, np.array([x2, y2]) - share * way
        parts.append(path([tuple(from_.tolist()), tuple(to.tolist())], "flow"))
        x, y = ((from_ + to) / 2 + label).tolist()
        parts.append(text(x, y, words, "soft"))
    for name, (x, y) in STATES.items():
        parts += [rect(x - 80, y - 20, 160, 40), text(x, y + 5, name)]
    return 820.0, 290.0, parts


def arrangement() -> tuple[float, float, list[str]]:
    """Draw a 3x3 mesh with speeds in order, and as arranged."""
    graph, speeds = parse("mesh:3x3"), np.arange(1.0, 10.0)
    found = lb_mpi.arrange(graph, speeds)
    parts = []
    titles = (f"in order: p = {found.p_before:.1f}", f"arranged: p = {found.p:.1f}")
    for left, order, words in zip((60, 360), (np.arange(9), found.positions), titles, strict=True):
        spots = [(left + 80 * (k % 3), 60 + 70 * (k // 3)) for k in range(9)]
        edges = zip(*(ends.tolist() for ends in graph.edges()), strict=True)
        parts += [path([spots[i], spots[j]], "line") for i, j in edges]
        for (x, y), speed in zip(spots, speeds[order].tolist(), strict=True):
            parts.append(f'<circle class="box" cx="{x}" cy="{y}" r="{8 + 2 * speed:.0f}"/>{text(x, y + 5, f"{speed:g}")}')
        parts.append(text(left + 80, 262, words))
    return 580.0, 280.0, parts


def jumps() -> tuple[float, float, list[str]]:
    """Draw S(y), the tasks that can be done until y, with its two jumps."""
    n, time, talk = 12.0, np.array([1.0, 1.4, 2.0]), np.array([0.5, 0.3, 0.0])
    slope = time + talk * n
    limit = np.array([12.0, 12.0, 12.0])
    full = limit * (time + talk * (n - limit))

    def total(y: float) -> float:
        root = 2.0 * y / (slope + np.sqrt(np.maximum(slope**2 - 4.0 * talk * y, 0.0)))
        return float(np.where(y > full, limit, np.minimum(root, limit)).sum())

    levels = np.unique([*np.linspace(0.0, 22.0, 200), *full, *full * (1.0 + 1e-9)])
    heights = [total(float(y)) for y in levels]
    spots = [(60 + 24 * float(y), 240 - 6.0 * s) for y, s in zip(levels, heights, strict=True)]
    parts = [path([(60, 30), (60, 240), (600, 240)], "line"), path(spots, "curve")]
    parts += [path([(60, 240 - 6 * n), (600, 240 - 6 * n)], "dash"), text(612, 244 - 6 * n, "n", "left")]
    for k in (0, 1):
        x = 60 + 24 * float(full[k])
        parts += [text(x, 258, f"y_{k + 1}"), path([(x, 240), (x, 60)], "line")]
    parts += [text(330, 276, "y: seconds until all are done"), text(60, 20, "S(y): tasks that can be done by then", "left")]
    return 640.0, 290.0, parts


def multilevel() -> tuple[float, float, list[str]]:
    """Draw a graph that is coarsened, halved and restored."""
    graph = parse("mesh:4x8")
    half = lb_mpi.partition(graph, 2, method="spectral")
    colours = ("#9cc9ee", "#f5c9a3")
    parts: list[str] = []

    def drawn(left: float, words: str, each: int, sides: bool) -> None:
        rows, columns = 4 // each, 8 // each
        cells = [(r, c) for r in range(rows) for c in range(columns)]
        spots = {(r, c): (left + 26 * each * (c + 0.5), 40 + 26 * each * (r + 0.5)) for r, c in cells}
        for (r, c), spot in spots.items():
            for other in ((r + 1, c), (r, c + 1)):
                if other in spots:
                    ends = [half[rr * each * 8 + cc * each] for rr, cc in ((r, c), other)]
                    parts.append(path([spot, spots[other]], "cut" if sides and ends[0] != ends[1] else "line"))
        for (r, c), (x, y) in spots.items():
            fill = f' style="fill:{colours[int(half[r * each * 8 + c * each])]}"' if sides else ""
            parts.append(f'<circle class="box"{fill} cx="{x:.0f}" cy="{y:.0f}" r="{5 + 2 * each}"/>')
        parts.append(text(left + 104, 168, words))

    stages = (("graph", 1, False), ("coarsened", 2, False), ("halved by v_2", 2, True), ("restored", 1, True))
    for k, (words, each, sides) in enumerate(stages):
        drawn(10 + 245 * k, words, each, sides)
        if k:
            parts.append(path([(245 * k - 22, 92), (245 * k + 6, 92)], "flow"))
    return 970.0, 185.0, parts


def programs() -> tuple[float, float, list[str]]:
    """Draw the times of the programs, before and after, from the table of their page."""
    table = re.findall(r"^\| `(\w+)` \|.*\| ([\d.]+) \| ([\d.]+) \|$", PROGRAMS.read_text(), re.MULTILINE)
    left, scale, step = 90.0, 90.0, 34.0
    end = 40.0 + step * len(table)
    parts = [text(left, 16, "time / achievable time, on ranks of speeds 0.4, 0.2, 0.1 and 0.1:", "left")]
    parts += [rect(left + 430, 6, 12, 11, "before"), text(left + 448, 16, "before", "left")]
    parts += [rect(left + 505, 6, 12, 11, "after"), text(left + 523, 16, "with lb_mpi", "left")]
    for k, (name, *ratios) in enumerate(table):
        y = 34.0 + step * k
        parts.append(text(left - 8, y + 17, name, "right"))
        for row, (kind, ratio) in enumerate(zip(("before", "after"), ratios, strict=True)):
            parts.append(rect(left, y + 12 * row, scale * float(ratio), 11, kind))
            parts.append(text(left + scale * float(ratio) + 6, y + 10 + 12 * row, ratio, "soft left"))
    parts += [path([(left + scale, 28), (left + scale, end)], "line"), text(left + scale, end + 14, "1: achievable", "soft")]
    return left + 6.0 * scale + 60.0, end + 24.0, parts


FIGURES: dict[str, Callable[[], tuple[float, float, list[str]]]] = {
    "vessels": vessels, "states": states, "arrangement": arrangement, "jumps": jumps, "multilevel": multilevel,
    "programs": programs,
}  # fmt: skip


def svg(name: str) -> str:
    """Draw one of them."""
    width, height, parts = FIGURES[name]()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}"><style>{STYLE}</style>{TIP}'
        f'<rect class="page" width="100%" height="100%"/>{"".join(parts)}</svg>\n'
    )


def main() -> None:
    """Draw all of them."""
    for name in FIGURES:
        file = PICTURES / f"{name}.svg"
        file.write_text(svg(name))
        print(f"{file.relative_to(ROOT)}  {file.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
