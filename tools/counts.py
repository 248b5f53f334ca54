"""Tests by how they ended, counted from the reports (JUnit XML) that every pytest writes, never from what it prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from lb_mpi.cli.run import processes

NO_TEST = 5  # pytest's exit code when nothing was selected


class Counts(NamedTuple):
    """Tests by how they ended."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        """Write the closing line."""
        return f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")


def count(reports: Sequence[Path], exit_code: int, *, may_be_empty: bool = False) -> tuple[Counts, str]:
    """Count the tests of one pytest run from its ranks' JUnit reports, given in rank order; and say what else is wrong.

    A test that failed on any rank has failed; the lowest rank that left a report says how the others ended.
    A run that went wrong counts as one failure at least.
    """
    failed: set[tuple[str, str]] = set()
    ended: dict[tuple[str, str], bool] = {}  # True: passed, False: skipped
    missing = []
    for rank, report in enumerate(reports):
        try:
            cases = list(ElementTree.parse(report).iter("testcase"))
        except (FileNotFoundError, ElementTree.ParseError):
            missing.append(str(rank))
            continue
        first = len(missing) == rank
        for case in cases:
            name = case.get("classname", ""), case.get("name", "")
            if case.find("failure") is not None or case.find("error") is not None:
                failed.add(name)
            elif first:
                ended[name] = case.find("skipped") is None
    rest = [passed for name, passed in ended.items() if name not in failed]
    problem = ""
    if exit_code == processes.HUNG:
        problem = "hung"
    elif missing:
        problem = f"exit code {exit_code}, no report" + (f" of rank {', '.join(missing)}" if len(reports) > 1 else "")
    elif not failed and True not in rest and not may_be_empty:
        problem = "no test ran"
    elif exit_code and not failed and not (may_be_empty and exit_code == NO_TEST):
        problem = f"exit code {exit_code}"
    return Counts(sum(rest), len(failed) or int(problem != ""), len(rest) - sum(rest)), problem
