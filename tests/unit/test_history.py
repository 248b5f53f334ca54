"""What is shown of a Balancer's calls: each rank's share of them, and their history."""

import math

from lb_mpi.balancing.record import Balanced, History, shares
from lb_mpi.record.events import Driver, Step, merged


def step(began: float, rows: int, computing_s: float, before: float, after: float, home: int = 90) -> Step:
    return Step(Driver.ROWS, began, began + 1.0, computing_s, rows, 1.0, before, after, home=home, busy_s=computing_s)


def test_calls_add_up() -> None:
    fast, slow = (
        merged(step(1.0, rows, computing_s, math.nan, math.nan, home=100), step(5.0, rows, computing_s, 1.0, 0.25))
        for rows, computing_s in ((150, 0.9), (50, 0.5))
    )
    found = shares([fast, slow], step(5.0, 150, 0.9, 1.0, 0.25))
    assert [one.rows_home for one in found.ranks] == [90, 90]
    assert [one.rows_computed for one in found.ranks] == [300, 100]
    assert [round(one.idle, 12) for one in found.ranks] == [0.1, 0.5]
    assert (found.n_calls, found.imbalance_home, found.imbalance) == (2, 1.0, 0.25)


def test_shares_print_a_line_a_rank_and_say_what_imbalance_is() -> None:
    one = step(0.0, 1000, 0.75, math.nan, 0.125, home=1000)
    lines = str(shares([one], one)).splitlines()
    assert lines[1].split() == ["0", "1,000", "1,000", "0.750", "25.0%"]
    assert "imbalance of the last one: 12.5%, with all rows at home ?" in lines[2]


def test_before_the_first_call_there_is_nothing() -> None:
    found = shares([None], None)
    assert found.ranks[0].idle == 0.0
    assert "0 calls; imbalance of the last one: ?" in str(found)


def test_a_history_prints_a_line_a_call() -> None:
    history = History()
    for reason in ("plan unchanged", "balanced: it saves more than it costs"):
        history.append(Balanced(reason[0] == "b", reason, math.nan, 0.5, 1000, 2_000_000, 1, 0.001, 0.25))
    header, first, second = str(history).splitlines()
    assert header.endswith("decision")
    assert first.split() == ["1", "?", "50.0%", "1,000", "2.00", "1", "1.00", "250.0", "plan", "unchanged"]
    assert second.startswith("   2")
    assert second.endswith("than it costs")
    assert str(history[1]).splitlines()[1].startswith("   1")
