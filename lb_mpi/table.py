"""A table for people, as text and as HTML."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Sequence
from html import escape
from itertools import zip_longest
from typing import NamedTuple

GAP = "  "  # between columns
NARROWEST = 12  # text columns are not wrapped to less


class Table(NamedTuple):
    """Lines of cells under a header: text columns are left-aligned, numbers right-aligned."""

    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    words: tuple[int, ...] = ()  # indices of the text columns
    most: int = 0  # maximum number of lines shown; 0: all

    def __str__(self) -> str:
        """Format as text."""
        return self._text([self.header, *self._shown])

    def fitted(self, columns: int | None = None) -> str:
        """Format as text of at most `columns` (None: those of the terminal), with cells over several lines where needed.

        The header gets lines first; then the widest column of text gives way, one column at a time.
        """
        columns = shutil.get_terminal_size().columns if columns is None else columns
        rows = [self.header, *self._shown]
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        room = columns - len(GAP) * (len(widths) - 1)
        if sum(widths) > room:
            for k, (name, *cells) in enumerate(zip(*rows, strict=True)):
                widths[k] = max(map(len, [*name.split(), *cells]), default=0)
        longest = [max((len(word) for word in " ".join(cells).split()), default=0) for cells in zip(*rows, strict=True)]
        for least in (longest, [0] * len(widths)):  # words are divided only if nothing else helps
            while sum(widths) > room and (left := [k for k in self.words if widths[k] > max(least[k], NARROWEST)]):
                widths[max(left, key=widths.__getitem__)] -= 1
        wrapped = [
            [textwrap.wrap(cell, width) if len(cell) > width else [cell] for cell, width in zip(row, widths, strict=True)]
            for row in rows
        ]
        return self._text([line for cells in wrapped for line in zip_longest(*cells, fillvalue="")])

    def _text(self, rows: Sequence[Sequence[str]]) -> str:
        """Join lines of cells, each padded to the width of its column."""
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        lines = [
            GAP.join(
                cell.ljust(width) if k in self.words else cell.rjust(width)
                for k, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, *filter(None, [self._rest])])

    def used(self, unused: str = "-") -> Table:
        """Return the table without columns, but for the first, in which all cells are empty or `unused`."""
        kept = [k for k, cells in enumerate(zip(*self.lines, strict=True)) if not k or set(cells) - {"", unused}]
        lines = [[line[k] for k in kept] for line in self.lines]
        words = tuple(new for new, k in enumerate(kept) if k in self.words)
        return Table([self.header[k] for k in kept], lines, words, self.most)

    def html(self, kind: str = "") -> str:
        """Format as HTML, with the class `kind`; HTML allows rows and cells without end tags, which saves a third."""
        marks = [' class="t"' if k in self.words else "" for k in range(len(self.header))]

        def row(tag: str, cells: Sequence[str]) -> str:
            return "<tr>" + "".join(
                f"<{tag}{mark}>{escape(cell)}" for cell, mark in zip(cells, marks, strict=True)
            )

        body = "".join(row("td", line) for line in self._shown)
        rest = f'<p class="soft">{self._rest}</p>' if self._rest else ""
        return f'<div class="wide"><table class="{kind}"><thead>{row("th", self.header)}<tbody>{body}</table></div>{rest}'

    @property
    def _shown(self) -> Sequence[Sequence[str]]:
        return self.lines[: self.most or None]

    @property
    def _rest(self) -> str:
        left = len(self.lines) - len(self._shown)
        return f"... and {left:,} more" if left else ""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: "1 rank", "1,000 ranks", "2 vertices"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def named_ranks(ranks: Sequence[int]) -> str:
    """Name ascending ranks: "rank 3", "ranks 0 to 5", "ranks 1, 4", and after the first eight "... and 5 more"."""
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    named = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8:,} more" if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {named}"


def percent(value: float, unknown: str = "?") -> str:
    """Format a ratio as a percentage with one digit; NaN: `unknown`."""
    return f"{value:.1%}" if math.isfinite(value) else unknown


def shown_seconds(value: float) -> str:
    """Format seconds in a suitable unit."""
    if not math.isfinite(value):
        return "not known"
    if value < 1e-3:
        return f"{1e6 * value:.0f} us"
    number, unit = (value, "s") if value >= 1.0 else (1e3 * value, "ms")
    return f"{number:,.{0 if number >= 100 else 1 if number >= 10 else 2}f} {unit}"
