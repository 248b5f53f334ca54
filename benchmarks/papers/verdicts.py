"""A printed number beside ours, and the verdict that follows: the one rule, for all papers.

The first that holds:
1. same               ours, rounded as the paper rounds, is the printed one: they differ by half a unit of its last digit at
                      most.  Where the paper drew its instance and doesn't print it: the printed one lies within what our
                      draws gave.
2. error in print     evidence, computed in this run, that the printed number can't be right.
3. better             ours is on the better side, where there is one.
4. not reproducible   evidence, computed in this run, of what was tried, or of what is missing.
5. differs            none of these.  There should be none.

Nothing else makes a verdict: a reason is a text with a condition, and counts only when the condition holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

SAME, MISPRINT, BETTER, LOST, DIFFERS = "same", "error in print", "better", "not reproducible", "differs"
VERDICTS = (SAME, BETTER, MISPRINT, LOST, DIFFERS)
MARKS = {SAME: "=", BETTER: "+", MISPRINT: "x", LOST: "?", DIFFERS: "!"}
SLACK = 1e-9  # of rounding in binary


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

    def agrees(self, ours: float) -> bool:
        """Tell if ours would be printed so, too."""
        return abs(ours - self.value) <= self.half * (1.0 + SLACK)


class Evidence(NamedTuple):
    """A reason, with the numbers in its text, and whether this run has found that it holds."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Item:
    """One line of the page: what, as printed, ours, and the verdict with its reason."""

    name: str
    printed: str
    ours: str
    verdict: str
    why: str = ""

    @property
    def cell(self) -> str:
        """Ours, what is printed, and a mark of the verdict: for tables of many."""
        return f"{self.ours} ({self.printed}) {MARKS[self.verdict]}"


def compare(
    name: str,
    printed: str,
    ours: float,
    *,
    shown: str = "",
    better: str = "",
    drawn: Sequence[float] = (),
    error: Evidence | None = None,
    lost: Evidence | None = None,
) -> Item:
    """The item of a printed number.

    shown   ours as text, if it isn't to be rounded like the printed one, with a digit more
    better  "less" or "more": which side of the printed number would be better; "" for none
    drawn   ours, of several drawn instances, where the paper's own isn't printed; `ours` is then their median, say
    error   why the print must be wrong
    lost    why it can't be reproduced
    """
    number = Printed(printed)
    shown = shown or f"{ours:.{len(printed.partition('.')[2]) + (ours != round(ours))}f}"
    if drawn:
        shown += f" [{min(drawn):.4g}..{max(drawn):.4g}]"
    same = min(drawn) <= number.most and number.least <= max(drawn) if drawn else number.agrees(ours)
    ahead = (better == "less" and ours < number.value) or (better == "more" and ours > number.value)
    return Item(name, printed, shown, *_judge(same, ahead, error, lost))


def claim(
    name: str, printed: str, ours: str, holds: bool, *, error: Evidence | None = None, lost: Evidence | None = None
) -> Item:
    """The item of a printed statement, which holds or doesn't by what was computed."""
    return Item(name, printed, ours, *_judge(holds, False, error, lost))


def _judge(same: bool, ahead: bool, error: Evidence | None, lost: Evidence | None) -> tuple[str, str]:
    if same:
        return SAME, ""
    if error is not None and error.holds:
        return MISPRINT, error.text
    if ahead:
        return BETTER, ""
    if lost is not None and lost.holds:
        return LOST, lost.text
    return DIFFERS, ""
