"""docs/papers.md: what its tables name for each equation, rule and figure of the papers exists."""

import importlib
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from lb_mpi.cli.commands import COMMANDS
from tools import pictures
from tools.environment import ROOT

PAGE = (ROOT / "docs" / "papers.md").read_text()
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in re.sub(r"^```.*?^```", "", PAGE, flags=re.DOTALL | re.MULTILINE).splitlines()
    if line.startswith("| ") and "Here |" not in line
]
SHARED = ("apps/command.py", "lb_mpi/cli/balance.py", "benchmarks/measuring.py")  # with options of several programs


def found(name: str) -> Any:
    """The object of this name; ImportError or AttributeError if there is none.  A field of a dataclass is its class."""
    here: Any = importlib.import_module(name.split(".")[0])
    for k, part in enumerate(name.split(".")[1:], 2):
        if part in getattr(here, "__dataclass_fields__", ()):
            continue
        if inspect.ismodule(here) and not hasattr(here, part):
            importlib.import_module(".".join(name.split(".")[:k]))
        here = getattr(here, part)
    return here


def check_call(text: str) -> None:
    name, _, arguments = text.partition("(")
    named = found(name)
    parameters = inspect.signature(named).parameters if arguments else {}
    for argument in re.findall(r"(\w+)=", arguments):
        assert argument in parameters, text


def check_command(text: str) -> None:
    words = shlex.split(text)
    words = words[words.index("python") + 2 :]
    options = [word for word in words if word.startswith("--")]
    if words[0] == "lb_mpi":
        known = COMMANDS[words[1]].parser("lb_mpi").format_help()
    else:
        path = ROOT / Path(*words[0].split("."))
        file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__main__.py"
        known = "".join((ROOT / one).read_text() for one in (str(file.relative_to(ROOT)), *SHARED))
    for option in options:
        assert re.search(rf"{option}\b", known), text


def test_each_of_the_five_papers_has_a_table():
    assert len(ROWS) > 35
    assert PAGE.count("| Here |") == 5
    assert PAGE.count("Errors in print:") + PAGE.count("No errors in print") == 5


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:40] for row in ROWS])
def test_each_call_and_command_that_is_named_exists(row):
    _, here = row
    spans = re.findall(r"`([^`]+)`", here)
    calls = [span for span in spans if re.match(r"(lb_mpi|apps)\.", span)]
    commands = [span for span in spans if "python -m " in span]
    assert calls or commands or here.startswith("Not "), row
    for text in calls:
        check_call(text)
    for text in commands:
        check_command(text)


def test_the_bars_of_the_programs_are_those_of_their_table():
    assert (ROOT / "docs" / "pictures" / "programs.svg").read_text() == pictures.bars()
