"""The law of a round, checked from outside on all ranks at once; and every state that small rounds can reach."""

from __future__ import annotations

import copy
import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

from lb_mpi.balancing.round import Kind, Message, Round
from lb_mpi.balancing.rowsets import count, numbers
from tests.reach import reach

UnderWay = Iterable[tuple[int, int, Message]]  # source, destination, message


def check_law(rounds: Sequence[Round], n_rows: Sequence[int], under_way: UnderWay) -> None:
    """AssertionError unless each row is in exactly one place, and nothing is on its way to who is at the end."""
    places: Counter[tuple[int, int]] = Counter()
    loans: dict[tuple[int, int], int] = {}  # (owner, borrower): loans with rows, or their answers, that are not settled
    messages = list(under_way)

    def put(owner: int, rows: object) -> None:
        places.update((owner, int(row)) for row in numbers(rows))  # type: ignore[arg-type]

    for rank, round in enumerate(rounds):
        for block in round.home:
            put(rank, block)
        for rows in (round.to_lend or {}).values():
            put(rank, rows)
        for job in round.borrowed:
            put(job.owner, job.rows)
            loans[job.owner, rank] = loans.get((job.owner, rank), 0) + 1
        for timed in round.learned.timed:
            put(rank, timed.rows)
            assert timed.by == rank or count(timed.rows), "a loan without rows was answered"
    for source, destination, message in messages:
        late = rounds[destination].over and message.kind is not Kind.DRY
        assert not late, f"{message} for rank {destination}, which is at the end of its round"
        if message.kind in (Kind.PLANNED, Kind.HELP) and message.rows is not None and count(message.rows):
            put(source, message.rows)
            heard = destination in rounds[source].dry
            assert message.kind is Kind.PLANNED or heard, f"help for rank {destination}, which has not said that it is dry"
            loans[source, destination] = loans.get((source, destination), 0) + 1
        if message.kind in (Kind.DONE, Kind.FAILED):
            loan = rounds[destination].away.get(source)
            assert loan is not None, f"{message} for rank {destination}, which has lent rank {source} nothing"
            put(destination, loan.rows)
            loans[destination, source] = loans.get((destination, source), 0) + 1
    away = {(owner, borrower): 1 for owner, round in enumerate(rounds) for borrower in round.away}
    assert loans == away, f"loans {loans}, in the books {away}"
    twice = [place for place, n in places.items() if n > 1]
    assert not twice, f"rows in two places: {twice}"
    if not any(round.failed for round in rounds):
        assert len(places) == sum(n_rows), f"{sum(n_rows) - len(places)} rows are lost"
    for rank, round in enumerate(rounds):
        said = Counter(to for source, to, message in messages if source == rank and message.kind is Kind.DRY)
        said.update(other for other, theirs in enumerate(rounds) if rank in theirs.dry)
        assert not said or max(said.values()) == 1, f"rank {rank} has said twice that it is dry: {said}"
        told = {other for other in range(len(rounds)) if round.telling.told(other)}
        gone = {other for other, theirs in enumerate(rounds) if theirs.over}  # it means nothing to them
        right = set(said) <= told - {rank} <= set(said) | gone
        assert right, f"rank {rank} has told {sorted(said)}, and believes {sorted(told)}"
        assert not (said and round.home), f"rank {rank} is dry, but has rows not begun"
        assert not (round.failed and (round.home or round.borrowed)), f"rank {rank} has failed, and goes on"
        if round.over:
            assert all(one.told for one in rounds), f"rank {rank} is at its end, others are not"
        if round.told:
            assert round.settled, f"rank {rank} has told too soon"
            known = sum(count(timed.rows) for timed in round.learned.timed)
            assert known == n_rows[rank] or round.learned.failed, f"rank {rank} has told of {known} of its rows"
        if round.settled:
            assert not any(job.owner == rank for one in rounds for job in one.borrowed), f"rank {rank} is settled too soon"


def check_end(rounds: Sequence[Round], n_rows: Sequence[int]) -> None:
    """AssertionError unless all rows have been computed, once, by who says so."""
    for rank, round in enumerate(rounds):
        assert round.over
        if not any(one.failed for one in rounds):
            done = sorted(int(row) for timed in round.learned.timed for row in numbers(timed.rows))
            assert done == list(range(n_rows[rank])), f"rank {rank}: {done}"
    if not any(one.failed for one in rounds):
        assert not any(one.learned.failed for one in rounds)
        by_plan = [
            timed.ticks
            for owner, round in enumerate(rounds)
            for timed in round.learned.timed
            if timed.by != owner and not timed.helped
        ]
        planned = sum(round.learned.planned_ticks for round in rounds)
        assert sum(by_plan) == pytest.approx(planned), f"by plan {sum(by_plan)} ticks, {planned} as the borrowers know"
        given = sum(timed.ticks for round in rounds for timed in round.learned.timed if timed.helped)
        taken = sum(round.learned.help_ticks + round.learned.late_ticks for round in rounds)
        assert given == pytest.approx(taken), f"helped for {given} ticks as the owners know, {taken} as the helpers do"


class State(NamedTuple):
    """All ranks, and what is under way between each two of them, in order."""

    rounds: tuple[Round, ...]
    wires: dict[tuple[int, int], tuple[Message, ...]]
    failures: int  # that may still happen

    def key(self) -> object:
        """Equal for states that can't be told apart."""
        ranks = tuple(
            (
                tuple(map(_rows, r.home)), tuple((job.owner, _rows(job.rows), job.helps) for job in r.borrowed),
                tuple(sorted((by, _rows(loan.rows), loan.helps) for by, loan in r.away.items())), r.to_lend is None,
                tuple(sorted(r.lenders)), tuple(sorted(r.dry)), r.telling.begun, r.telling.at,
                r.telling.next, r.failed, r.told, r.over, r.learned.late_ticks, r.learned.failed,
                tuple(sorted((_rows(t.rows), t.by, t.helped) for t in r.learned.timed)), r.learned.home_size,
            )
            for r in self.rounds
        )  # fmt: skip
        wires = tuple(
            sorted((ends, tuple((m.kind, _rows(m.rows)) for m in wire)) for ends, wire in self.wires.items() if wire)
        )
        return ranks, wires, self.failures


def _rows(rows: object) -> tuple[int, ...]:
    return () if rows is None else tuple(numbers(rows).tolist())  # type: ignore[arg-type]


def clone(round: Round) -> Round:
    """A copy that shares nothing that changes."""
    other = copy.copy(round)
    other.home, other.borrowed, other.away = list(round.home), deque(round.borrowed), dict(round.away)
    other.to_lend = None if round.to_lend is None else dict(round.to_lend)
    other.lenders, other.dry, other.telling = set(round.lenders), dict(round.dry), copy.copy(round.telling)
    learned = round.learned
    other.learned = replace(learned, timed=list(learned.timed))
    return other


def first_state(
    n_rows: Sequence[int],
    edges: Iterable[tuple[int, int]],
    plan: dict[tuple[int, int], int] | None = None,
    *,
    failures: int = 0,
    round_class: type[Round] = Round,
) -> State:
    """Ranks with rows in blocks of one; plan[owner, borrower]: how many of the first rows are lent."""
    plan, pairs, size = plan or {}, list(edges), len(n_rows)
    rounds = []
    for rank, n in enumerate(n_rows):
        first, lent = 0, {}
        for (owner, borrower), rows in plan.items():
            if owner == rank:
                lent[borrower] = np.arange(first, first + rows)
                first += rows
        rounds.append(
            round_class(
                rank,
                [slice(row, row + 1) for row in range(first, n)],
                lent=lent,
                lenders=[owner for owner, borrower in plan if borrower == rank],
                neighbours=sorted({*(b for a, b in pairs if a == rank), *(a for a, b in pairs if b == rank)}),
                speeds=np.ones(size),
            )
        )
    return State(tuple(rounds), {}, failures)


def successors(state: State) -> list[State]:
    """One delivery, one turn without any (now, or after a long time), one job done or failed, one that tells, or ends."""
    states = []

    def step(rank: int, arrived: Sequence[tuple[int, Message]], wires: dict, failures: int, how: str) -> None:  # type: ignore[type-arg]
        rounds = tuple(clone(round) if number == rank else round for number, round in enumerate(state.rounds))
        round, new = rounds[rank], dict(wires)
        sends: list[tuple[int, Message]] = []
        if how in ("turn", "late"):
            sends = round.turn(0.0 if how == "turn" else math.inf, arrived)
        elif how == "tell":
            round.tell()
        elif how == "end":
            round.end()
        else:
            job = round.job
            assert job is not None
            sends = round.done(job, 1.0, 1.0) if how == "done" else round.fail()
        for destination, message in sends:
            new[rank, destination] = (*new.get((rank, destination), ()), message)
        states.append(State(rounds, new, failures))

    all_told = all(round.told for round in state.rounds)
    for (source, rank), wire in state.wires.items():
        if wire and not all_told:  # what comes later means nothing, see check_law
            step(rank, [(source, wire[0])], {**state.wires, (source, rank): wire[1:]}, state.failures, "turn")
    for rank, round in enumerate(state.rounds):
        if round.over:
            continue
        step(rank, [], state.wires, state.failures, "turn")
        if round.telling.at == math.inf:
            step(rank, [], state.wires, state.failures, "late")
        if round.ready:
            step(rank, [], state.wires, state.failures, "tell")
        if all_told:
            step(rank, [], state.wires, state.failures, "end")
        if round.job is not None and round.to_lend is None:
            step(rank, [], state.wires, state.failures, "done")
            if state.failures:
                step(rank, [], state.wires, state.failures - 1, "fail")
    return states


def explore(first: State, *, most_states: int = 100_000) -> tuple[int, int]:
    """Check the law in every reachable state, and that the end can be reached from each; (states, ends among them)."""
    constants = type(first.rounds[0]).turn.__globals__  # of a mutant's module, too
    with patch.dict(constants, PAUSE_S=math.inf):  # a turn "late" is after any pause, all others are before it
        return _explore(first, most_states)


def _explore(first: State, most_states: int) -> tuple[int, int]:
    n_rows = [
        sum(count(block) for block in r.home) + sum(count(rows) for rows in (r.to_lend or {}).values()) for r in first.rounds
    ]

    def look(state: State) -> bool:
        check_law(state.rounds, n_rows, [(*ends, m) for ends, wire in state.wires.items() for m in wire])
        over = all(round.over for round in state.rounds)
        if over:
            check_end(state.rounds, n_rows)
        return over

    found = reach([first], successors, key=State.key, look=look, most_states=most_states)
    return found.states, found.ends


