"""What is shown of a Balancer's calls: each rank's share of them, and their history."""

import math

import pytest

from lb_mpi.balancing.deciding import BalanceReason
from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.balancing.record import Balanced, Loans, balances
from lb_mpi.rebalancing.deciding import RebalanceDecision
from lb_mpi.rebalancing.record import Rebalanced, reason_of, rebalances
from lb_mpi.record.history import MOST_RECORDS
from lb_mpi.record.record import Record

REASONS = (BalanceReason.GAIN, BalanceReason.UNCHANGED, BalanceReason.WITHIN)


def call(loans: Loans, began: float, rows: int, computing_s: float, before: float, after: float, home: int = 90) -> None:
    last = Balanced(False, "plan unchanged", before, after, 0, 0, 0, 0.0, 0.0)
    loans.mapped(began, began + 1.0, last, Knowledge(0, range(1), []), (home, rows), computing_s)


def test_calls_add_up():
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
    assert (found.n, found.imbalance_before, found.imbalance) == (2, 1.0, 0.25)
    assert "one rank" not in str(found)


def test_shares_print_a_line_a_rank_and_say_what_imbalance_is_before_the_first_call_too():
    loans = Loans(Record(0.0), [0], 0)
    none = loans.report([loans.rank])
    assert none.ranks[0].idle == 0.0
    assert all(words in str(none) for words in ("0 calls in 0.000 s", "imbalance of the last call: ?"))
    call(loans, 0.0, 1000, 0.75, math.nan, 0.125, home=1000)
    lines = str(loans.report([loans.rank])).splitlines()
    assert lines[1].split() == ["0", "1,000", "1,000", "0.750", "25.0%"]
    assert lines[2].endswith("; there is one rank only: mpiexec -n starts more")
    assert lines[3] == "imbalance of the last call: 12.5%, without lending ?"


def test_a_history_prints_a_line_for_calls_that_change_nothing_for_the_same_reason():
    history, gain, holds, within = balances(), *(reason.words for reason in REASONS)
    for reason in (gain, within + "; 1,000 rows were lent in this call", holds, within, holds, gain, holds):
        history.append(Balanced(reason is gain, reason, math.nan, 0.5, 1000, 2_000_000, 1, 0.001, 0.25))
    header, first, second, third, fourth = (line.split(maxsplit=9) for line in str(history).splitlines())
    assert header[-1].endswith("decision")
    assert first == ["1", "1", "?", "50.0%", "1,000", "2.00", "1", "1.00", "250.0", gain]
    assert second == ["2-5", "2", "?", "50.0%", "4,000", "8.00", "4", "4.00", "250.0", within]
    assert (third[0], third[-1], fourth[0], fourth[1], fourth[-1]) == ("6", gain, "7", "0", holds)
    assert str(history[1]).splitlines()[1].startswith("    1")


def test_the_history_of_a_plan_shows_the_last_decision_of_its_line():
    history = rebalances()
    no_gain = RebalanceDecision(BalanceReason.NO_GAIN, cost_s=9.0)
    some, more = (reason_of(no_gain._replace(lost_s=lost_s)) for lost_s in (0.25, 0.5))
    for reason in (some, BalanceReason.LATER.words, more, "why not"):
        history.append(Rebalanced(False, reason, 0.5, 0.5, 0, 0, 7.0, 0, 0.001))
    first, second = (line.split(maxsplit=9) for line in str(history).splitlines()[1:])
    assert first == ["1-3", "2", "50.0%", "50.0%", "0", "0.00", "7", "0", "3.00", more]
    assert more.endswith("; a move takes about 9 s, and this one would have saved 0.5 s so far")
    assert (second[0], second[-1]) == ("4", "why not")


def test_a_long_history_keeps_its_numbers_and_totals():
    history = rebalances()
    for number in range(1, MOST_RECORDS + 501):
        acted = number in (3, 9000)
        history.append(Rebalanced(acted, "moved" if acted else "within", 0.5, 0.5, 7 * acted, 0, 1.0, 0, 0.0))
    assert (len(history), history.n_calls, history.n_acted, history.n_moved) == (MOST_RECORDS, 10_500, 2, 14)
    assert [line.split()[0] for line in str(history).splitlines()[1:]] == ["501-8999", "9000", "9001-10500"]
    last = history[-3:]
    assert (len(last), list(last), last.n_moved) == (3, [history[-3], history[-2], history[-1]], 0)
    assert str(last).splitlines()[1].split()[0] == "10498-10500"
    assert repr(last) == "<History: calls 10,498 to 10,500>"
    assert str(history[8499:8500]).splitlines()[1].split()[0] == "9000"
    assert not len(history[5:5])
    with pytest.raises(ValueError, match=r"history\[::2\]: expected consecutive calls"):
        history[::2]
