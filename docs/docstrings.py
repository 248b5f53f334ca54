"""Our docstrings as Sphinx wants them: plain text with `code`, indented examples, and "name : words" under Parameters.

Comments behind the fields of results are their documentation; Sphinx doesn't see them, so they are read here.
"""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator

_CODE = re.compile(r"`+([^`]+)`+")
_ENTRY = re.compile(r"([\w, *]+) : (.*)")


def process(app: object, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Rewrite the lines of a docstring in place."""
    lines[:] = convert(lines)
    if what == "class" and dataclasses.is_dataclass(thing):
        for field, words in fields(thing):
            lines += ["", f"``{field}``", f"    {inline(words) or '..'}"]


def fields(thing: object) -> Iterator[tuple[str, str]]:
    """The fields of a dataclass, and the comment behind each."""
    for line in inspect.getsource(thing).splitlines():  # type: ignore[arg-type]
        if line.startswith("    def ") or line.startswith("    @"):
            return
        if found := re.match(r"    (\w+): [^#]*(?:# (.*))?$", line):
            yield found[1], found[2] or ""


def convert(lines: list[str]) -> list[str]:
    """Turn a docstring into reStructuredText."""
    out: list[str] = []
    in_parameters = False
    k = 0
    while k < len(lines):
        line = lines[k]
        if k + 1 < len(lines) and line and re.fullmatch("-{3,}", lines[k + 1].strip()):
            in_parameters = line.strip() == "Parameters"
            out += ["", f".. rubric:: {line.strip()}", ""]
            k += 2
            continue
        if in_parameters and (found := _ENTRY.match(line)):
            out += [f"``{found[1]}``", f"    {inline(found[2])}"]
        elif in_parameters and line.startswith("    "):
            out.append(inline(line))
        elif line.startswith("    ") and (not out or not out[-1].strip()):
            block = []
            while k < len(lines) and (not lines[k].strip() or lines[k].startswith("    ")):
                block.append(lines[k])
                k += 1
            out += [
                ".. code-block:: none",
                "",
                *textwrap.indent(textwrap.dedent("\n".join(block)), "    ").splitlines(),
            ]
            out.append("")
            continue
        else:
            in_parameters = in_parameters and not line.strip()
            if line.startswith("- ") and out and out[-1].strip() and not out[-1].startswith(("- ", "  ")):
                out.append("")
            out.append(("" if not line.startswith("- ") else "- ") + inline(line.removeprefix("- ")))
        k += 1
    return out


def inline(text: str) -> str:
    """Code in backticks as reStructuredText has it; nothing else means anything."""
    parts = _CODE.split(text)
    return "".join(
        f"``{part}``" if k % 2 else re.sub(r"([*|\\]|_(?=\W|$))", r"\\\1", part) for k, part in enumerate(parts)
    )
