"""The programs before and after: how changed lines are counted, and that each says what it needs."""

import configparser
import re

import pytest

from benchmarks.programs.__main__ import HERE, Tasks, achievable, list_schedule, sources
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


def test_a_list_schedule_begins_with_the_longest_task_on_the_rank_that_ends_it_first():
    assert list_schedule([1.0, 2.0, 1.0], [1.0, 0.5]) == 3.0  # 2 on the fast rank, 1 on the slow one, 1 on the fast one
    assert list_schedule([1.0], [0.1, 0.5]) == 2.0
    assert list_schedule([], [0.1, 0.5]) == 0.0


def test_serial_parts_need_the_time_of_rank_0_and_calls_do_not_overlap():
    alone = Tasks([[1.0, 1.0, 3.0]], [(0.2, 0), (0.0, 2)], 0.3)  # two tasks in the first call, one in the second
    assert achievable(alone, [0.5, 1.0], 1.0) == pytest.approx(0.5 / 0.5 + 2.0 + 3.0)
    assert achievable(alone, [0.5, 1.0], 2.0) == pytest.approx(0.5 / 0.5 + 4.0 + 6.0)  # tasks only
    assert alone.seconds / alone.mean_s == pytest.approx(3.0)
