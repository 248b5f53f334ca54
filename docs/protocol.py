"""The protocol's pictures and tables, drawn from the table that the protocol is tested against."""

import math
from html import escape
from pathlib import Path

from lb_mpi.searching.drafting import TABLE, Row

WIDTH, HEIGHT, RADIUS, BOX = 720, 470, 175, (148, 34)
INK = "fill='currentColor'"  # dark on light, light on dark
COLOURS = "fill='none' stroke='currentColor'"


def draw_all(folder: Path) -> None:
    """Write ROUTE.svg and ROUTE.md for each route."""
    folder.mkdir(exist_ok=True)
    for route in ("ring", "random"):
        rows = [row for row in TABLE if row.route == route]
        (folder / f"{route}.svg").write_text(picture(rows))
        (folder / f"{route}.md").write_text(table(rows))


def table(rows: list[Row]) -> str:
    """The rows with their numbers, in Markdown."""
    lines = ["| | state | what arrives | does | next state |", "|---" * 5 + "|"]
    lines += [f"| {k} | {row.state} | {row.event} | {row.does} | {row.then} |" for k, row in enumerate(rows, start=1)]
    return "\n".join(lines) + "\n"


def picture(rows: list[Row]) -> str:
    """States as boxes on a ring, each change of state as an arrow with the numbers of its rows."""
    states = list(dict.fromkeys(state for row in rows for state in (row.state, row.then) if state.isupper()))
    angles = [2 * math.pi * k / len(states) - math.pi / 2 for k in range(len(states))]
    places = {
        state: (WIDTH / 2 + 1.35 * RADIUS * math.cos(angle), HEIGHT / 2 + RADIUS * math.sin(angle))
        for state, angle in zip(states, angles, strict=True)
    }
    arrows: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(rows, start=1):
        if row.state in places and row.then in places and row.state != row.then:
            arrows.setdefault((row.state, row.then), []).append(number)
    parts = [
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' style='max-width:100%;height:auto' "
        f"aria-label='states of a rank, and what changes them' font-family='sans-serif' font-size='13'>",
        "<defs><marker id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='9' markerHeight='9' orient='auto'>"
        "<path d='M0 0L8 4L0 8z' fill='currentColor'/></marker></defs>",
    ]
    parts += [_arrow(places[begin], places[end], numbers) for (begin, end), numbers in arrows.items()]
    for state, (x, y) in places.items():
        width, height = BOX
        parts.append(
            f"<rect x='{x - width / 2:.0f}' y='{y - height / 2:.0f}' width='{width}' height='{height}' rx='6' {COLOURS}/>"
        )
        parts.append(
            f"<text x='{x:.0f}' y='{y + 4:.0f}' text-anchor='middle' {INK} font-size='12'>{escape(state)}</text>"
        )
    return "".join([*parts, "</svg>"])


def _arrow(begin: tuple[float, float], end: tuple[float, float], numbers: list[int]) -> str:
    """A bent arrow between two boxes, with the numbers of its rows in the middle."""
    dx, dy = end[0] - begin[0], end[1] - begin[1]
    length = math.hypot(dx, dy)
    bend = 0.2
    controls = [
        ((begin[0] + end[0]) / 2 - side * bend * dy, (begin[1] + end[1]) / 2 + side * bend * dx) for side in (1, -1)
    ]
    far = length > 1.4 * RADIUS  # between states that are no neighbours: through the middle, not through others' boxes
    cx, cy = min(controls, key=lambda at: math.hypot(at[0] - WIDTH / 2, at[1] - HEIGHT / 2)) if far else controls[0]
    x1, y1 = _edge(begin, (cx, cy))
    x2, y2 = _edge(end, (cx, cy))
    mx, my = 0.25 * x1 + 0.5 * cx + 0.25 * x2, 0.25 * y1 + 0.5 * cy + 0.25 * y2
    words = ", ".join(map(str, numbers))
    return (
        f"<path d='M{x1:.0f} {y1:.0f}Q{cx:.0f} {cy:.0f} {x2:.0f} {y2:.0f}' marker-end='url(#head)' {COLOURS}/>"
        f"<text x='{mx - 9 * dy / length:.0f}' y='{my + 9 * dx / length + 4:.0f}' text-anchor='middle' {INK}>{words}</text>"
    )


def _edge(centre: tuple[float, float], towards: tuple[float, float]) -> tuple[float, float]:
    """Where the line from a box's centre leaves the box, and a little further."""
    dx, dy = towards[0] - centre[0], towards[1] - centre[1]
    width, height = BOX[0] / 2 + 4, BOX[1] / 2 + 4
    scale = min(width / abs(dx) if dx else math.inf, height / abs(dy) if dy else math.inf)
    return centre[0] + scale * dx, centre[1] + scale * dy
