"""What is shown of a Balancer's calls: each rank's share of them, and their history."""

import math

from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.balancing.record import Balanced, History, Loans
from lb_mpi.record.record import Record


def call(loans: Loans, began: float, rows: int, computing_s: float, before: float, after: float, home: int = 90) -> None:
    last = Balanced(False, "plan unchanged", before, after, 0, 0, 0, 0.0, 0.0)
    loans.mapped(began, began + 1.0, last, Knowledge(0, range(1), []), (home, rows), computing_s)


def test_calls_add_up() -> None:
    both = [Loans(Record(0.0), [0, 1], rank) for rank in range(2)]
    for loans, rows, computing_s in zip(both, (150, 50), (0.9, 0.5), strict=True):
        call(loans, 1.0, rows, computing_s, math.nan, math.nan, home=100)
        call(loans, 5.0, rows, computing_s, 1.0, 0.25)
        assert loans.ended == 6.0
    found = both[1].report(loans.rank for loans in both)
    assert [one.rank for one in found.ranks] == [0, 1]
    assert [one.owned for one in found.ranks] == [90, 90]
    assert [one.done for one in found.ranks] == [300, 100]
    assert [round(one.idle, 12) for one in found.ranks] == [0.1, 0.5]
    assert (found.n, found.imbalance_home, found.imbalance) == (2, 1.0, 0.25)
    assert "one rank" not in str(found)


def test_shares_print_a_line_a_rank_and_say_what_imbalance_is() -> None:
    loans = Loans(Record(0.0), [0], 0)
    call(loans, 0.0, 1000, 0.75, math.nan, 0.125, home=1000)
    lines = str(loans.report([loans.rank])).splitlines()
    assert lines[1].split() == ["0", "1,000", "1,000", "0.750", "25.0%"]
    assert lines[2].endswith("; there is one rank only: mpiexec -n starts more")
    assert lines[3] == "imbalance of the last call: 12.5%, without lending ?"


def test_before_the_first_call_there_is_nothing() -> None:
    loans = Loans(Record(0.0), [0], 0)
    found = loans.report([loans.rank])
    assert found.ranks[0].idle == 0.0
    assert "0 calls in 0.000 s" in str(found)
    assert "imbalance of the last call: ?" in str(found)


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
