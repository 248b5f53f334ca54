"""What the site is made with: docstrings as Sphinx wants them, and the protocol's pictures."""

import importlib.util
from types import ModuleType

import pytest

from lb_mpi.searching.drafting import TABLE
from tools.documents import ROOT


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


docstrings, protocol = module("docstrings"), module("protocol")


def test_parameters_become_definitions_and_examples_code():
    lines = ["Do `this` to *that_.", "", "    x = 1", "", "Parameters", "----------", "a : first,", "    `b`.", "", "Or so."]
    assert docstrings.convert(lines) == [
        *("Do ``this`` to \\*that\\_.", ""),
        *(".. code-block:: none", "", "    x = 1", ""),
        *("", ".. rubric:: Parameters", ""),
        *("``a``", "    first,", "    ``b``.", "", "Or so."),
    ]


@pytest.mark.parametrize("route", ["ring", "random"])
def test_each_change_of_state_is_in_the_picture_and_each_row_in_the_table(route):
    rows = [row for row in TABLE if row.route == route]
    picture, table = protocol.picture(rows), protocol.table(rows)
    assert len(table.splitlines()) == len(rows) + 2
    drawn = {row for row in rows if row.state.isupper() and row.then.isupper() and row.state != row.then}
    for number, row in enumerate(rows, start=1):
        assert row.event in table
        assert (row not in drawn) or f"{number}" in picture
    assert picture.count("marker-end") == len({(row.state, row.then) for row in drawn})
