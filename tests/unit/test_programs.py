"""The programs before and after: how changed lines are counted, and that each says what it needs."""

import configparser
import re

from benchmarks.programs.__main__ import HERE, sources
from tools.environment import ROOT


def test_each_program_names_its_source_and_its_packages():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    extra = {re.split("[>=]", line)[0] for line in parser["options.extras_require"]["programs"].split()}
    programs = sources()
    assert len(programs) >= 8
    needed = {package for program in programs.values() for package in program.needs.values()}
    assert needed == extra
    for name, program in programs.items():
        text = (HERE / f"{name}.py").read_text()
        assert "\nSource: " in text, name
        assert program.title.endswith(".")
        imported = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))
        assert set(program.needs) <= imported, name


def test_each_program_stands_in_the_table():
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*)\|[^|]*\| (\d+) \|", (ROOT / "docs" / "programs.md").read_text(), re.MULTILINE)
    assert {name: int(lines) for name, _, lines in rows} == {name: one.lines for name, one in sources().items()}
