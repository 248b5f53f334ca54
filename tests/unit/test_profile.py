"""Profiles without MPI: who waited for whom, metrics, table; on times that are made up, with known answers."""

import json
from array import array
from dataclasses import replace

import numpy as np
import pytest

from lb_mpi.cli.profile.profile import (
    ABSENT,
    ANYBODY,
    INSIDE,
    MOST_CALLS,
    NOBODY,
    PARTLY,
    TOGETHER,
    Calls,
    ClockComparison,
    Line,
    Profile,
    RankProfile,
    common,
    lateness,
    summary,
    table,
    until_the_end,
)
from lb_mpi.table import Table


def split(kinds, posted, entered, left, *, members=None):
    """Waits and whom of P ranks in calls, as lists; each argument has a row for each rank."""
    members = range(len(posted)) if members is None else members
    calls = np.array([np.broadcast_to(kinds, np.shape(posted)), posted, entered, left])
    waits, whom = zip(*(lateness(row, members, calls) for row in range(len(posted))), strict=True)
    return [row.tolist() for row in waits], [row.tolist() for row in whom]


def test_calls_that_do_not_match_are_nobodys_wait():
    came = [[0], [5]]
    assert split([[TOGETHER], [PARTLY]], came, came, [[6], [6]]) == ([[0], [0]], [[NOBODY], [NOBODY]])
    stopped = split([[ABSENT], [TOGETHER], [TOGETHER]], [[9], [4], [2]], [[9], [4], [2]], [[9]] * 3)
    assert stopped == ([[0], [5], [7]], [[NOBODY], [0], [0]]), "for the one that had not come at the end"


@pytest.mark.parametrize("seed", range(20))
def test_waits_are_those_that_loops_over_calls_find(seed):
    rng = np.random.default_rng(seed)
    n_ranks, n_calls = int(rng.integers(2, 6)), 30
    kinds = np.broadcast_to(rng.choice([TOGETHER, PARTLY], n_calls), (n_ranks, n_calls))
    posted = rng.integers(0, 50, (n_ranks, n_calls))
    entered = posted + rng.integers(0, 5, posted.shape)
    left = entered + rng.integers(0, 50, posted.shape)
    waits, whom = split(kinds, posted, entered, left, members=[7 * rank for rank in range(n_ranks)])
    for rank in range(n_ranks):
        for call in range(n_calls):
            others = [q for q in range(n_ranks) if kinds[0, call] == TOGETHER or posted[q, call] <= left[rank, call]]
            last = max(others, key=lambda q: (posted[q, call], -q))
            until = min(posted[last, call], left[rank, call])
            expected = max(0, until - entered[rank, call]) if last != rank else 0
            assert (waits[rank][call], whom[rank][call]) == (expected, 7 * last if expected else NOBODY), f"seed {seed}"


def test_a_clock_drifts_between_two_comparisons():
    clocks = ClockComparison(0, 100e-9), ClockComparison(1000, 200e-9)
    assert common(np.array([0, 500, 1000]), clocks).tolist() == [100, 650, 1200]


def test_calls_of_a_place_add_up():
    calls = Calls()
    place = calls.number("a.py", 3, "main", "recv")
    assert calls.number("a.py", 3, "main", "recv") == place != calls.number("a.py", 3, "main", "send")
    calls.add(place, 10, 15, whom=2)
    calls.add(place, 20, 21, whom=2)
    calls.add(place, 30, 37)
    assert calls.in_mpi_ns == 13
    line = calls.lines[0]
    assert (line.calls, line.waited_s) == (3, {2: pytest.approx(6e-9)})
    assert line.seconds == pytest.approx(13e-9)


def test_streams_are_those_of_the_ranks_and_have_a_bound():
    calls = Calls(most_calls=2)
    assert calls.stream([0]) is None  # nobody to wait for
    assert calls.stream([0, NOBODY]) is None  # another program
    stream = calls.stream([2, 0])
    assert stream is calls.stream([0, 2])  # a duplicate, or in another order
    assert [calls.join(stream, TOGETHER, 0, 1, 2) for _ in range(3)] == [0, 1, -1]
    assert (len(stream), calls.n_lost) == (2, 1)
    assert sum(column.itemsize for column in vars(stream).values() if isinstance(column, array)) * MOST_CALLS < 100e6


def line(call: str, seconds: float, waited: dict[int, float], calls: int = 10) -> Line:
    return Line("jacobi.py", 12, "main", call, calls, seconds, waited)


def profile(speeds: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Profile:
    """Three ranks, 10 s: rank 2 computes for 9 s, the others for 3 s; 1, 0.5 and 1 s of communication."""
    ranks = [
        RankProfile(0, "here", 10.0, 3.0, [line("Allreduce", 6.5, {2: 5.5}), line("recv", 0.5, {1: 0.5})]),
        RankProfile(1, "here", 10.0, 3.0, [line("Allreduce", 6.5, {2: 6.0}), line("sleep", 0.5, {ANYBODY: 0.5})]),
        RankProfile(2, "there", 10.0, 9.0, [line("Allreduce", 1.0, {})]),
    ]
    return Profile("jacobi.py", ranks, speeds)


def test_metrics_are_those_of_pop():
    made = profile()
    assert made.efficiency == pytest.approx((0.5, 5 / 9, 0.9))
    assert made.efficiency.balance * made.efficiency.communication == pytest.approx(made.efficiency.parallel)
    assert made.most_waited_for == (2, pytest.approx(11.5 / 20))
    assert made.balanced_s == pytest.approx(5 + 2.5 / 3)
    assert profile((1.0, 1.0, 0.5)).balanced_s == pytest.approx((3 + 3 + 4.5) / 2.5 + 2.5 / 3)


def test_the_table_names_who_was_waited_for_and_what_balance_would_gain():
    text = "\n".join(table(profile()))
    assert "profile of jacobi.py: 3 ranks on 2 hosts, 10.00 s" in text
    assert "jacobi.py:12 Allreduce" in text
    assert "rank 2 60%, any rank 5%" in text
    assert "load balance               55.6%" in text
    assert text.splitlines()[1:3] == [
        "the others wait for rank 2 during 57% of the time (mean), most at jacobi.py:12 Allreduce",
        "if all ranks are equally fast, perfect balance would cut the time to 58%",
    ]
    slow = replace(profile((1.0, 1.0, 0.5)), speeds_from="from throttle")
    assert summary(slow)[-1] == "perfect balance by speed (1, 1, 0.5: from throttle) would cut the time to 50%"
    assert max(map(len, table(profile()))) < 175
    named = table(replace(profile(), program="two\nlines.py"))
    assert named[0].startswith(r"profile of two\nlines.py: 3 ranks"), "one line, whatever the program's name"


def test_a_stopped_program_which_may_hang_gets_no_advice_on_balance():
    waits = Line("", 0, "", f"{INSIDE}Pool.map", 1, 9.0, {ANYBODY: 9.0})
    seen = Profile("p.py", [RankProfile(rank, "h", 10.0, 1.0, [waits]) for rank in range(2)], [1.0, 1.0])
    assert "python -m lb_mpi report" in summary(seen)[-1]
    assert len(summary(replace(seen, stopped=True))) == 1


def test_an_early_end_is_a_wait_for_who_ends_last():
    ranks = until_the_end([RankProfile(0, "h", 4.0, 4.0, []), RankProfile(1, "h", 10.0, 10.0, [])])
    made = Profile("p", ranks, [1.0, 1.0])
    assert made.most_waited_for == (1, pytest.approx(0.6))
    assert made.balanced_s == pytest.approx(7.0)


def test_one_rank_waits_for_nobody():
    made = Profile("p.py", [RankProfile(0, "h", 2.0, 2.0, [])], [1.0])
    assert summary(made) == ["no rank lets the others wait for more than 0.5% of the time"]
    assert "no calls of MPI" in table(made)


def test_json_has_the_metrics():
    found = json.loads(json.dumps(profile().to_json()))
    assert found["parallel_efficiency"] == pytest.approx(0.5)
    assert found["most_waited_for"] == 2
    assert [rank["waiting_s"] for rank in found["ranks"]] == [6.0, 6.5, 0.0]


def test_tables_fit_the_terminal():
    cells = [("a.py:1 of a name", "1", "what was done, in many words"), ("b.py:2", "23", ""), ("c" * 40, "456", "short")]
    wide = Table(("line", "long number", "words of it"), cells, words=(0, 2))
    assert wide.fitted(200) == str(wide)
    for columns in (30, 44, 60, 80):
        lines = wide.fitted(columns).splitlines()
        assert max(map(len, lines)) <= max(columns, 34), "12 for each text, 6 for the number: as narrow as it gets"
        assert "".join("".join(lines).split()) != "", lines
        letters = sorted("".join(lines).replace(" ", ""))
        assert letters == sorted(str(wide).replace(" ", "").replace("\n", "")), "nothing is lost"
    assert Table((), []).fitted(10) == ""
    long = Table(("line", "for"), [("walks.py:15 lb_mpi.Balancer.map_rows", "rank 0 52%, rank 1 43%")], words=(0, 1))
    assert [line.split()[0] for line in long.fitted(45).splitlines()[1:]] == ["walks.py:15", "lb_mpi.Balancer.map_rows"]
    assert Table(("a", ""), [["1", ""]], words=(1,)).fitted(10) == "a\n1"
    assert max(map(len, table(profile())[4:13])) <= 80, "ranks and lines"
