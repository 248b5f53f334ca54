"""The law of a round, checked from outside on all ranks at once; and every state that small rounds can reach."""

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from lb_mpi.balancing import round as round_module
from lb_mpi.balancing.round import Computed, Job, Packing, Round, RoundKind, RoundMessage, Unpacking, count, numbers
from tests.protocol.explore import ALL, Exploration, State

UnderWay = Iterable[tuple[int, int, RoundMessage]]  # source, destination, message


def check_law(rounds: Sequence[Round], n_rows: Sequence[int], under_way: UnderWay) -> None:
    """AssertionError unless each row is in exactly one place, and nothing is on its way to who is at the end."""
    found = list[tuple[int, int]]()
    loans: dict[tuple[int, int], int] = {}  # (owner, borrower): loans with rows, or their answers, that are not settled
    messages = list(under_way)

    def put(owner: int, rows: object) -> None:
        found.extend((owner, row) for row in numbers(rows).tolist())

    for rank, round in enumerate(rounds):
        for block in round.home:
            put(rank, block)
        for rows in (round.to_lend or {}).values():
            put(rank, rows)
        for job in round.borrowed:
            put(job.owner, job.rows)
            loans[job.owner, rank] = loans.get((job.owner, rank), 0) + 1
        for parcel in round.parcels:
            assert parcel.borrower in round.away, f"rank {rank} has a parcel of rows that are not away"
            put(rank, round.away[parcel.borrower].rows)
            loans[rank, parcel.borrower] = loans.get((rank, parcel.borrower), 0) + 1
        for timed in round.learned.timed:
            put(rank, timed.rows)
            assert timed.by == rank or count(timed.rows), "a loan without rows was answered"
    for source, destination, message in messages:
        if message.kind in (RoundKind.SETTLED, RoundKind.OVER):
            continue
        late = rounds[destination].over and message.kind is not RoundKind.DRY
        assert not late, f"{message} for rank {destination}, which is at the end of its round"
        if message.kind in (RoundKind.PLANNED, RoundKind.HELP) and message.rows is not None and count(message.rows):
            put(source, message.rows)
            packed = message.payload is not None
            assert packed == rounds[source].objects, f"objects for rank {destination} that are not packed"
            informed = destination in rounds[source].dry
            planned = message.kind is RoundKind.PLANNED
            assert planned or informed, f"help for rank {destination}, which has not said that it is dry"
            loans[source, destination] = loans.get((source, destination), 0) + 1
        if message.kind in (RoundKind.DONE, RoundKind.FAILED):
            loan = rounds[destination].away.get(source)
            assert loan is not None, f"{message} for rank {destination}, which has lent rank {source} nothing"
            put(destination, loan.rows)
            loans[destination, source] = loans.get((destination, source), 0) + 1
    away = {(owner, borrower): 1 for owner, round in enumerate(rounds) for borrower in round.away}
    assert loans == away, f"loans {loans}, in the books {away}"
    assert len(found) == len({*found}), f"rows in two places: {sorted(found)}"
    if not any(round.failed for round in rounds):
        assert len(found) == sum(n_rows), f"{sum(n_rows) - len(found)} rows are lost"
    dry = [(source, to) for source, to, message in messages if message.kind is RoundKind.DRY]
    dry += [(source, to) for to, round in enumerate(rounds) for source in round.dry]
    for rank, round in enumerate(rounds):
        said = [to for source, to in dry if source == rank]
        assert len(said) == len({*said}), f"rank {rank} has said twice that it is dry: {said}"
        known = {other for other in range(len(rounds)) if round.asking.asked(other)}
        gone = {other for other, theirs in enumerate(rounds) if theirs.over}  # it means nothing to them
        right = set(said) <= known - {rank} <= set(said) | gone
        assert right, f"rank {rank} has asked {sorted(said)}, and believes {sorted(known)}"
        assert not (said and round.home), f"rank {rank} is dry, but has rows not begun"
        assert not (round.failed and (round.home or round.borrowed)), f"rank {rank} has failed, and goes on"
        if round.over:
            assert all(one.ended for one in rounds), f"rank {rank} is at its end, others are not"
        if round.ended:
            assert round.settled, f"rank {rank} has ended too soon"
            assert all(job.helps for job in round.borrowed), f"rank {rank} has ended, and has rows that were lent by plan"
            known = sum(count(timed.rows) for timed in round.learned.timed)
            assert known == n_rows[rank] or round.learned.failed, f"rank {rank} has reported {known} of its rows"
        if round.settled and round.to_lend is None:
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


class Rounds(Exploration):
    """Jobs may fail, `rest` of them; SETTLED goes to ALL, which answers when all ranks have sent theirs."""

    batches = False

    def __init__(self, first: State) -> None:
        super().__init__()
        self.n_rows = [
            sum(map(count, round.home)) + sum(map(count, (round.to_lend or {}).values())) for round in first.actors
        ]

    def key_of(self, r: Round) -> Hashable:
        return (
            tuple((type(one), one.borrower, one.message.kind) for one in r.parcels),
            tuple(map(_rows, r.home)), tuple((job.owner, _rows(job.rows), job.helps) for job in r.borrowed),
            tuple(sorted((by, _rows(loan.rows), loan.helps) for by, loan in r.away.items())), r.to_lend is None,
            tuple(sorted(r.lenders)), tuple(sorted(r.dry)), r.asking.begun, r.asking.at,
            r.asking.next, r.failed, r.ended, r.over, r.learned.late_ticks, r.learned.help_ticks,
            r.learned.planned_ticks, r.learned.failed,
            tuple(sorted((_rows(t.rows), t.by, t.helped) for t in r.learned.timed)), r.learned.home_size, r.next_size,
        )  # fmt: skip

    def key_of_message(self, message: RoundMessage) -> Hashable:
        failed = getattr(message.payload, "failed", False)  # of SETTLED
        return message.kind, _rows(message.rows), message.payload is None, failed

    def law(self, state: State) -> None:
        check_law(state.actors, self.n_rows, [(*ends, m) for ends, wire in state.wires.items() for m in wire])
        if self.is_end(state):
            check_end(state.actors, self.n_rows)

    def wire(self, source: int, destination: int, message: RoundMessage) -> tuple[int, int]:
        return source, ALL if message.kind is RoundKind.SETTLED else destination

    def answer(self, _everyone: Sequence[RoundMessage]) -> RoundMessage:
        return RoundMessage(RoundKind.OVER)

    def times(self, round: Round) -> Sequence[float]:
        """Now, or after a long time."""
        return (0.0, math.inf) if round.asking.at == math.inf else (0.0,)

    def run(self, state: State, rank: int, job: Job | Packing | Unpacking) -> Iterator[tuple[Any, State]]:
        if state.actors[rank].to_lend is None:
            yield Computed(1.0, 1.0), state
            if state.rest:
                yield ZeroDivisionError(), state._replace(rest=state.rest - 1)


def _rows(rows: object) -> tuple[int, ...]:
    return () if rows is None else tuple(numbers(rows).tolist())


def first_state(
    n_rows: Sequence[int],
    edges: Iterable[tuple[int, int]],
    plan: dict[tuple[int, int], int] | None = None,
    *,
    failures: int = 0,
    near: bool = False,
    objects: bool = False,
    quick: bool = False,
) -> State:
    """Ranks with rows in blocks of one; plan[owner, borrower]: how many of the first rows are lent.

    `near`: each rank knows its neighbours only.  `objects`: its rows are objects.  `quick`: a quick call.
    """
    plan, pairs, size = plan or {}, list(edges), len(n_rows)
    rounds = []
    for rank, n in enumerate(n_rows):
        neighbours = sorted({*(b for a, b in pairs if a == rank), *(a for a, b in pairs if b == rank)})
        first, lent = 0, {}
        for (owner, borrower), rows in plan.items():
            if owner == rank:
                lent[borrower] = np.arange(first, first + rows)
                first += rows
        rounds.append(
            Round(
                rank,
                [slice(row, row + 1) for row in range(first, n)],
                lent=lent,
                lenders=[owner for owner, borrower in plan if borrower == rank],
                neighbours=neighbours,
                speeds=dict.fromkeys([rank, *neighbours], 1.0) if near else np.ones(size),
                objects=objects,
                quick=quick,
            )
        )
    return State(tuple(rounds), {}, failures)


def explore(first: State, *, most_states: int = 100_000) -> int:
    """Check the law in every reachable state, and that the end can be reached from each; the number of states."""
    with patch.multiple(round_module, PAUSE_S=math.inf, MOMENT_S=math.inf):  # a turn "late" is after any pause, no other is
        return Rounds(first).reach(first, most_states).states
