"""The page: sections in Markdown with their pictures beside it, and a summary on top."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.papers.verdicts import MARKS, VERDICTS, Item

DATA = Path(__file__).parent.parent.parent / "tests" / "data"


class Run(NamedTuple):
    """How this run is to be."""

    folder: Path  # for the pictures
    plt: Any  # matplotlib.pyplot; None: no pictures
    full: bool  # as much as the paper drew, hours if need be
    say: Callable[[str], None]  # is told what is going on

    def draw(self, name: str, title: str, plot: Callable[[Any], Any]) -> list[str]:
        """The lines that show the figure that plot(plt) returns, saved as `name`; none without matplotlib."""
        if self.plt is None:
            return []
        figure = plot(self.plt)
        figure.savefig(self.folder / name, dpi=110)
        self.plt.close(figure)
        return ["", f"![{title}]({name})", ""]


@dataclass
class Section:
    """What the page says of one paper: its reference, all its items, and lines of Markdown."""

    title: str
    source: str
    items: list[Item] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def show(self, heading: str, items: Sequence[Item], *notes: str, folded: bool = False) -> None:
        """Add a table of items, one a line, under a heading; `folded`: to be opened by a click."""
        self.items += items
        table = ["| | printed | ours | verdict |", "|---|---|---|---|"]
        table += [f"| {one.name} | {one.printed} | {one.ours} | {_verdict(one)} |" for one in items]
        if folded:
            self.lines += ["", "<details><summary>" + heading + "</summary>", "", *table, "", "</details>", "", *notes]
        else:
            self.lines += ["", f"### {heading}", "", *notes, "", *table]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of a table, with an empty one before and after."""
    lines = ["", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return [*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows), ""]


def left_out(paper: str) -> list[str]:
    """The lines on what a paper leaves out, from left_out.md."""
    text = (Path(__file__).parent / "left_out.md").read_text()
    parts = dict(part.split("\n", 1) for part in text.removeprefix("# ").split("\n# "))
    return ["", "### What is left out, and how it is closed here", *parts[paper].splitlines()]


def write(sections: Sequence[Section], seconds: float, full: bool) -> str:
    """The page as Markdown."""
    lines = ["# The papers, beside what lb_mpi computes", ""]
    lines += ["Written by `python -m benchmarks.papers" + (" --full" if full else "") + f"` in {seconds:.0f} s.", ""]
    lines += [
        "Every verdict follows from numbers of this run, by one rule: the first that holds of **same** (ours rounds to the "
        "printed number, or, where the paper drew its instance, the printed number lies within our draws), **error in "
        "print** (a computed reason why the number can't be right), **better**, **not reproducible** (a computed reason, "
        "of what is missing or was tried) and **differs**. In tables of many a mark stands for the verdict: "
        + ", ".join(f"`{mark}` {word}" for word, mark in MARKS.items())
        + ".",
    ]
    counts = [Counter(one.verdict for one in section.items) for section in sections]
    rows = [
        [f"[{section.title}](#{_anchor(section.title)})", *(count[word] or "" for word in VERDICTS), count.total()]
        for section, count in zip(sections, counts, strict=True)
    ]
    lines += table(["", *VERDICTS, "in all"], rows)
    for section in sections:
        lines += ["", f"## {section.title}", "", section.source, *section.lines]
    return "\n".join([*_without_double_blanks(lines), ""])


def _verdict(item: Item) -> str:
    return f"**{item.verdict}**" + (f": {item.why}" if item.why else "")


def _anchor(title: str) -> str:
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def _without_double_blanks(lines: Sequence[str]) -> list[str]:
    return [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]
