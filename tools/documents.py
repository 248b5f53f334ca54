"""What README and the pages show, as data: files, commands, and the output that is shown beneath them.

The rules, which a reader can see in the page's text:
- A fenced block whose first line is a comment with a file's name (`# squares.py`, `% bridge.graph`) is that file.
- A block marked `sh` is commands, run in order, in a folder that begins empty and has the page's files.
- A block marked `text` right below is what the commands have printed.
- A comment before a block: `<!-- not run: why -->`, `<!-- long -->` (run on request),
  `<!-- figures differ -->` (the words are as shown, the numbers are not).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "commands.md",
    ROOT / "docs" / "papers.md",
    *sorted((ROOT / "docs" / "tutorial").glob("*.md")),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
]
LANGUAGES = {"python", "sh", "text", "diff", "{figure}", "{image}", "{toctree}", "{include}", "ini"}

_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^>]*?) -->\n)?^```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_NAME = re.compile(r"[#%] (\S+\.\w+)\n")
_NUMBER = re.compile(r"\d[\d,.]*")


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    mark: str  # what the comment before it says
    text: str
    line: int  # of the page, where it begins

    @property
    def name(self) -> str:
        """The file that it is; "" when it is none."""
        found = _NAME.match(self.text)
        return found[1] if found and self.language != "sh" else ""

    @property
    def commands(self) -> list[str]:
        """Its lines, those that are continued put together, without comments of whole lines."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks(page: Path) -> Iterator[Block]:
    """All fenced blocks of a page."""
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        yield Block(found["language"], found["mark"] or "", found["text"], line)


def same(shown: str, seen: str, *, figures_differ: bool) -> bool:
    """Whether what a page shows is what was seen; `figures_differ`: but for the numbers, and blanks beside them.

    A report says when ranks queued for cores, which no page shows.
    """
    seen = re.sub("; ranks queued for cores .*", "", seen)
    if figures_differ:
        shown, seen = (" ".join(_NUMBER.sub(" # ", text).replace("?%", "#%").split()) for text in (shown, seen))
    return shown.strip() == seen.strip()
