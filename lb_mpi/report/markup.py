"""Pieces of a page: numbers in words, tables, keys of colours, pictures.   (pure)"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from lb_mpi.report.pictures import Picture


def seconds(value: float) -> str:
    """Write seconds in a unit that fits."""
    if not np.isfinite(value):
        return "not known"
    for least, unit, factor in ((100.0, "s", 1.0), (1.0, "s", 1.0), (1e-3, "ms", 1e3)):
        if value >= least:
            return f"{value * factor:,.{0 if value * factor >= 100 else 1 if value * factor >= 10 else 2}f} {unit}"
    return f"{1e6 * value:.0f} us"


def figure(picture: Picture, data: dict[str, Any], caption: str, kind: str = "") -> str:
    """A picture that page.js shows by `data`."""
    packed = escape(json.dumps(data, separators=(",", ":")), quote=True)
    image = base64.b64encode(picture.png).decode()
    return (
        f'<figure class="{kind}" data-view="{packed}"><div class="tools"></div>'
        f'<img alt="{escape(caption)}" src="data:image/png;base64,{image}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def table(header: Sequence[str], lines: Iterable[Sequence[str]], kind: str = "", text: tuple[int, ...] = ()) -> str:
    """A table; HTML lets us leave out the ends of rows and cells, which saves a third for a thousand ranks."""
    marks = [' class="t"' if k in text else "" for k in range(len(header))]
    head = "".join(f"<th{mark}>{name}" for name, mark in zip(header, marks, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{mark}>{cell}" for cell, mark in zip(line, marks, strict=True)) for line in lines
    )
    return f'<div class="wide"><table class="{kind}"><thead><tr>{head}<tbody>{body}</table></div>'


def key(entries: Iterable[tuple[str, str]]) -> str:
    """A key of (words, colour)."""
    return (
        '<ul class="key">'
        + "".join(f'<li><i style="background:{colour}"></i>{name}' for name, colour in entries)
        + "</ul>"
    )


def percent(value: float) -> str:
    """Write a part of 1."""
    return f"{value:.1%}" if np.isfinite(value) else "-"


def mean(values: Any) -> str:
    """Write the mean of those that are known."""
    known = values[np.isfinite(values)]
    return f"{known.mean():.1%}" if len(known) else "-"
