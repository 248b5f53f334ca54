"""The page: sections in Markdown with their pictures beside it, and a summary on top."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

# --- A printed number beside ours, and the outcome that follows: the one rule, for all papers -------------------------
#
# The first that holds:
# 1. same               ours, rounded as the paper rounds, is the printed one: they differ by half a unit of its last digit
#                       at most.  Where the paper drew its instance and doesn't print it: the printed one lies within what
#                       our draws gave.
# 2. error in print     evidence, computed in this run, that the printed number can't be right.
# 3. better             ours is on the better side, where there is one.
# 4. explained          a model of what the paper's program did, fixed beforehand, predicts an interval, and the printed
#                       number is inside.  The page says how often a number would be inside by chance.
# 5. not reproducible   evidence, computed in this run, of what was tried, or of what is missing.
# 6. differs            none of these.  There should be none.
#
# Nothing else makes an outcome: a reason is a text with a condition, and counts only when the condition holds.

SAME, MISPRINT, BETTER, EXPLAINED = "same", "error in print", "better", "explained by a model"
LOST, DIFFERS = "not reproducible", "differs"
OUTCOMES = (SAME, BETTER, MISPRINT, EXPLAINED, LOST, DIFFERS)
MARKS = {SAME: "=", BETTER: "+", MISPRINT: "x", EXPLAINED: "~", LOST: "?", DIFFERS: "!"}
SLACK = 1e-9  # of rounding in binary


# Whose number stands in the column of print.
PRINT, ARITHMETIC, OURS = "print", "arithmetic of print", "ours"
KINDS = (PRINT, ARITHMETIC, OURS)


class Printed(NamedTuple):
    """A number as it is printed: "7.0" is another one than "7"."""

    text: str

    @property
    def value(self) -> float:
        """The number."""
        return float(self.text)

    @property
    def half(self) -> float:
        """Half a unit of its last digit."""
        return 0.5 * 10.0 ** -len(self.text.partition(".")[2])

    @property
    def least(self) -> float:
        """The smallest number that is printed so."""
        return self.value - self.half

    @property
    def most(self) -> float:
        """The largest number that is printed so."""
        return self.value + self.half

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest number that is printed so."""
        return self.least, self.most

    def agrees(self, ours: float) -> bool:
        """Tell if ours would be printed so, too."""
        return abs(ours - self.value) <= self.half * (1.0 + SLACK)


class Evidence(NamedTuple):
    """A reason, with the numbers in its text, and whether this run has found that it holds."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Item:
    """One line of the page: what, as printed, ours, the outcome with its reason, and whose number was compared.

    kind   PRINT: ours beside a printed number; ARITHMETIC: a printed number beside what follows from others in print;
           OURS: lb_mpi beside a second implementation, or another number of ours: nothing of it is printed
    """

    name: str
    printed: str
    ours: str
    outcome: str
    why: str = ""
    kind: str = PRINT

    @property
    def cell(self) -> str:
        """Ours, what is printed, and a mark of the outcome: for tables of many."""
        return f"{self.ours} ({self.printed}) {MARKS[self.outcome]}"


def compare(
    name: str,
    printed: str,
    ours: float,
    *,
    shown: str = "",
    better: str = "",
    drawn: Sequence[float] = (),
    error: Evidence | None = None,
    model: Evidence | None = None,
    lost: Evidence | None = None,
) -> Item:
    """The item of a printed number.

    shown   ours as text, if it isn't to be rounded like the printed one, with a digit more
    better  "less" or "more": which side of the printed number would be better; "" for none
    drawn   ours, of several drawn instances, where the paper's own isn't printed; `ours` is then their median, say
    error   why the print must be wrong
    model   what a model of the paper's program predicts, and whether the printed number is that
    lost    why it can't be reproduced
    """
    number = Printed(printed)
    shown = shown or f"{ours:.{len(printed.partition('.')[2]) + (ours != round(ours))}f}"
    if drawn and min(drawn) < max(drawn):
        shown += f" [{min(drawn):.4g}..{max(drawn):.4g}]"
    same = min(drawn) <= number.most and number.least <= max(drawn) if drawn else number.agrees(ours)
    ahead = (better == "less" and ours < number.value) or (better == "more" and ours > number.value)
    return Item(name, printed, shown, *_decide(same, error, ahead, model, lost))


def claim(
    name: str,
    printed: str,
    ours: str,
    holds: bool,
    *,
    error: Evidence | None = None,
    model: Evidence | None = None,
    lost: Evidence | None = None,
) -> Item:
    """The item of a printed statement, which holds or doesn't by what was computed."""
    return Item(name, printed, ours, *_decide(holds, error, False, model, lost))


def _decide(
    same: bool, error: Evidence | None, ahead: bool, model: Evidence | None, lost: Evidence | None
) -> tuple[str, str]:
    if same:
        return SAME, ""
    if error is not None and error.holds:
        return MISPRINT, error.text
    if ahead:
        return BETTER, ""
    if model is not None and model.holds:
        return EXPLAINED, model.text
    if lost is not None and lost.holds:
        return LOST, lost.text
    return DIFFERS, ""


DATA = Path(__file__).parent.parent.parent / "tests" / "data"


class Run(NamedTuple):
    """How this run is to be."""

    folder: Path  # for the pictures
    plt: Any  # matplotlib.pyplot; None: no pictures
    full: bool  # as much as the paper drew, hours if need be
    say: Callable[[str], None]  # prints what is going on

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
    conclusion: str = ""  # what follows if no line differs
    items: list[Item] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def concluded(self) -> str:
        """The conclusion, with the numbers of outcomes."""
        counts = Counter(one.outcome for one in self.items if one.kind != ARITHMETIC)
        n, differs = counts.total(), counts[DIFFERS]
        if differs:
            return f"**Conclusion.** {differs} of {n} lines differ: see below."
        words = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
        return f"**Conclusion.** {self.conclusion} Of {n} lines: {words}."

    def show(self, heading: str, items: Sequence[Item], *notes: str, folded: bool = False, kind: str = "") -> None:
        """Add a table of items, one a line, under a heading; `folded`: to be opened by a click; `kind`: that of all."""
        items = [replace(one, kind=kind) for one in items] if kind else items
        self.items += items
        table = ["| | expected | from | ours | outcome |", "|---|---|---|---|---|"]
        table += [f"| {one.name} | {one.printed} | {one.kind} | {one.ours} | {_outcome(one)} |" for one in items]
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
        "Every outcome follows from numbers of this run, by one rule: the first that holds of **same** (ours rounds to the "
        "printed number, or, where the paper drew its instance, the printed number lies within our draws), **error in "
        "print** (a computed reason why the number can't be right), **better**, **explained by a model** (what a model of "
        "the paper's program predicts, which was fixed beforehand and could fail), **not reproducible** (a computed reason, "
        "of what is missing or was tried) and **differs**. In tables of many a mark stands for the outcome: "
        + ", ".join(f"`{mark}` {word}" for word, mark in MARKS.items())
        + "."
    ]
    lines += [
        "",
        f"Each line says where the expected number is from: **{PRINT}**; **{ARITHMETIC}**, that is what follows from other "
        f"printed numbers; **{OURS}**, that is a second implementation, on instances that were drawn here.",
    ]
    rows = []
    for section in sections:
        for kind in KINDS:
            count = Counter(one.outcome for one in section.items if one.kind == kind)
            if count:
                name = f"[{section.title}](#{_anchor(section.title)})"
                rows.append([name, kind, *(count[word] or "" for word in OUTCOMES), count.total()])
    lines += table(["", "from", *OUTCOMES, "in all"], rows)
    for section in sections:
        lines += ["", f"## {section.title}", "", section.source, "", section.concluded(), *section.lines]
    return "\n".join([*_without_double_blanks(lines), ""])


def _outcome(item: Item) -> str:
    return f"**{item.outcome}**" + (f": {item.why}" if item.why else "")


def _anchor(title: str) -> str:
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def _without_double_blanks(lines: Sequence[str]) -> list[str]:
    return [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]
