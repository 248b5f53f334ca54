"""The table of who had, did and waited how much."""

import math

from lb_mpi.balancing.record import Balanced
from lb_mpi.balancing.tally import Tally


def balanced(before: float, after: float) -> Balanced:
    return Balanced(False, "the plan stays", before, after, 0, 0, 0, 0.0, 0.0)


def test_calls_add_up() -> None:
    fast, slow = Tally(), Tally()
    for tally, rows, computing_s in ((fast, 150, 0.9), (slow, 50, 0.5)):
        tally.called(1.0, 2.0, (100, rows), computing_s, balanced(math.nan, math.nan))
        tally.called(5.0, 6.0, (90, rows), computing_s, balanced(1.0, 0.25))
    found = fast.shares([fast.share(0), slow.share(1)])
    assert [one.rows_home for one in found.ranks] == [90, 90]
    assert [one.rows_computed for one in found.ranks] == [300, 100]
    assert [round(one.idle, 12) for one in found.ranks] == [0.1, 0.5]
    assert (found.n_calls, found.imbalance_home, found.imbalance) == (2, 1.0, 0.25)


def test_it_prints_a_line_a_rank_and_says_what_imbalance_is() -> None:
    tally = Tally()
    tally.called(0.0, 1.0, (1000, 1000), 0.75, balanced(math.nan, 0.125))
    lines = str(tally.shares([tally.share(0)])).splitlines()
    assert lines[1].split() == ["0", "1,000", "1,000", "0.750", "25.0%"]
    assert "imbalance of the last one: 12.5%, with all rows at home ?" in lines[2]


def test_before_the_first_call_there_is_nothing() -> None:
    tally = Tally()
    assert tally.share(0).idle == 0.0
    assert "0 calls; imbalance of the last one: ?" in str(tally.shares([]))
