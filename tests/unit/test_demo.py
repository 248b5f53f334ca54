"""The sentences of ./launch/demo."""

import math

import pytest

from tools.jobs import JOBS, conclusion, obstacles, show

ROWS = [(JOBS[0], {"seconds": 4.0}, {"seconds": 2.0, "lower_bound_seconds": 1.9})]


def test_a_busy_machine_is_named_before_the_jobs() -> None:
    assert obstacles(2, 0.4) == "Other programs use 40% of this machine's cores: the times will say little about balancing."
    assert obstacles(1, 0.0).startswith("This machine gives the demo 1 core, and its four ranks need 1.6")
    assert obstacles(2, 0.01) == obstacles(2, math.nan) == ""


def test_a_gain_is_claimed_only_on_a_quiet_machine() -> None:
    assert conclusion(ROWS, 0.01) == "Times as fast with balancing: UTS tree T1L 2.0."
    assert "2.0" not in conclusion(ROWS, 0.4)
    assert "Run it again" in conclusion(ROWS, 0.4)


def test_ratios_have_two_decimals(capsys: pytest.CaptureFixture[str]) -> None:
    show(ROWS)
    assert capsys.readouterr().out.splitlines()[2].split()[-4:] == ["4.00", "2.00", "1.90", "1.05"]
