"""A round of lending, played by imaginary ranks in any order of events: every row is computed once, and the round ends."""

from __future__ import annotations

import random
from collections import Counter, deque

import numpy as np
import pytest

from lb_mpi.balancing.judge import end_s
from lb_mpi.balancing.loans import LATENCY_S, Kind, Loans, ProtocolError, share
from lb_mpi.graph import Graph, from_edges, mesh, parse

Message = tuple[Kind, list[tuple[int, int]]]  # with rows: (owner, number)


class Rank:
    """One rank with its blocks of one row each."""

    def __init__(self, rank: int, graph: Graph, rows: int, plan: dict[int, dict[int, int]], loans: type[Loans]) -> None:
        self.rank, self.neighbours = rank, graph.neighbours(rank).tolist()
        lent, first = {}, 0
        for borrower, count in plan[rank].items():
            lent[borrower] = np.arange(first, first + count)
            first += count
        self.lent = lent
        self.loans = loans(self.neighbours, [lender for lender in plan if rank in plan[lender]], lent)
        self.home = list(range(first, rows))
        self.foreign: list[tuple[int, list[tuple[int, int]]]] = []
        self.computed: Counter[tuple[int, int]] = Counter()
        self.has: Counter[int] = Counter()

    @property
    def left(self) -> bool:
        return self.loans.over and not self.foreign

    def begin(self) -> list[tuple[int, Message]]:
        return [(b, (Kind.PLANNED, [(self.rank, int(k)) for k in rows])) for b, rows in self.lent.items()]

    def turn(self, rng: random.Random) -> list[tuple[int, Message]]:
        """Help if it can, then compute one thing or say that it's dry."""
        sends: list[tuple[int, Message]] = []
        for helper in self.loans.helpers():
            if self.home and rng.random() < 0.7:
                n = rng.randint(1, len(self.home))
                given, self.home = self.home[:n], self.home[n:]
                self.loans.lend(helper, np.array(given))
                sends.append((helper, (Kind.HELP, [(self.rank, k) for k in given])))
        if not (self.home or self.foreign or self.loans.dry):
            self.loans.dry = True
            sends += [(rank, (Kind.DRY, [])) for rank in self.neighbours]
        elif self.foreign:
            lender, rows = self.foreign.pop(0)
            self.computed.update(rows)
            sends.append((lender, (Kind.DONE, rows)))
        elif self.home:
            row = self.home.pop()
            self.computed[self.rank, row] += 1
            self.has[row] += 1
        return sends

    def take(self, source: int, message: Message) -> None:
        kind, rows = message
        if kind == Kind.DONE:
            mine = self.loans.back(source)
            assert [row for _, row in rows] == mine.tolist()
            self.has.update(mine.tolist())
        else:
            self.loans.heard(source, kind)
            if rows:
                self.foreign.append((source, rows))


def play(seed: int, loans: type[Loans] = Loans) -> None:
    """One round of random ranks, rows, plans and order of events; messages between two ranks keep their order."""
    rng = random.Random(seed)
    size = rng.choice([1, 2, 3, 4, 6, 9])
    graph = rng.choice([mesh(1, size), parse(f"complete:{size}") if size > 1 else mesh(1, 1), from_edges(size, [], [])])
    rows = [rng.choice([0, 0, 1, 5, 12]) for _ in range(size)]
    plan: dict[int, dict[int, int]] = {rank: {} for rank in range(size)}
    for rank in range(size):
        left = rows[rank]
        for borrower in rng.sample([r for r in range(size) if r != rank], rng.randint(0, size - 1)):
            plan[rank][borrower] = rng.randint(0, left)
            left -= plan[rank][borrower]
    ranks = [Rank(rank, graph, rows[rank], plan, loans) for rank in range(size)]
    wires: dict[tuple[int, int], deque[Message]] = {}

    def post(source: int, sends: list[tuple[int, Message]]) -> None:
        for target, message in sends:
            wires.setdefault((source, target), deque()).append(message)

    for rank in ranks:
        post(rank.rank, rank.begin())
    slow = rng.randrange(size)
    for _ in range(20_000):
        busy = [ends for ends, wire in wires.items() if wire]
        if not busy and all(rank.left for rank in ranks):
            break
        if busy and rng.random() < 0.5:
            source, target = rng.choice(busy)
            assert not ranks[target].left, "a message for a rank that is at the end of its round"
            ranks[target].take(source, wires[source, target].popleft())
        else:
            rank = rng.choice(ranks)
            if (rank.rank != slow or rng.random() < 0.05) and not rank.left:
                post(rank.rank, rank.turn(rng))
    else:
        raise AssertionError("the round doesn't end")
    for rank in ranks:
        assert rank.has == Counter(range(rows[rank.rank]))
    computed = sum((rank.computed for rank in ranks), Counter())
    assert computed == Counter((rank, row) for rank in range(size) for row in range(rows[rank]))


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_every_row_is_computed_once_and_the_round_ends(first: int) -> None:
    for seed in range(first, first + 50):
        try:
            play(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


class EndsBeforeTheOthersAreDry(Loans):
    @property
    def over(self) -> bool:
        return self.dry and not (self.planned or self.away)


class ForgetsWhatIsPlanned(Loans):
    @property
    def over(self) -> bool:
        return self.dry and not (self.giving or self.away)


class LeavesItsRows(Loans):
    @property
    def over(self) -> bool:
        return self.dry and not (self.planned or self.giving)


class LendsWhenDry(Loans):
    def helpers(self) -> list[int]:
        return sorted(self._idle)


class LendsToWhoIsNotDry(Loans):
    def helpers(self) -> list[int]:
        return [] if self.dry else sorted(self._idle | self.giving)


@pytest.mark.parametrize(
    "wrong", [EndsBeforeTheOthersAreDry, ForgetsWhatIsPlanned, LeavesItsRows, LendsWhenDry, LendsToWhoIsNotDry]
)
def test_wrong_books_are_noticed(wrong: type[Loans]) -> None:
    def play_all() -> None:
        for seed in range(400):
            play(seed, wrong)

    with pytest.raises((AssertionError, ProtocolError)):
        play_all()


def test_what_the_law_rules_out() -> None:
    loans = Loans([1, 2], [3], {4: np.arange(2), 5: np.arange(0)})
    assert set(loans.away) == {4}
    for rank, kind in ((1, Kind.PLANNED), (3, Kind.HELP), (4, Kind.DRY)):
        with pytest.raises(ProtocolError, match=f"rank {rank}"):
            loans.heard(rank, kind)
    with pytest.raises(ProtocolError, match="rank 5"):
        loans.back(5)
    loans.heard(1, Kind.DRY)
    with pytest.raises(ProtocolError, match="rank 1"):
        loans.heard(1, Kind.HELP)
    with pytest.raises(ProtocolError, match="rank 2"):
        loans.lend(2, np.arange(3))
    loans.lend(1, np.arange(3))
    assert loans.helpers() == []


@pytest.mark.parametrize("faster", [0.1, 0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("block_s", [1e-4, 5e-3, 1.0])
def test_a_share_ends_soonest(faster: float, block_s: float) -> None:
    for n in range(30):
        ends = [max((n - k) * block_s, k * block_s / faster + LATENCY_S * (k > 0)) for k in range(n + 1)]
        given = share(n, block_s, faster)
        assert given == 0 or ends[given] == pytest.approx(min(ends))
        assert given > 0 or min(ends) + LATENCY_S > ends[0] - 1e-9


def test_the_end_of_late_ranks() -> None:
    speeds = np.array([1.0, 1.0, 2.0])
    assert end_s(8.0, speeds, np.zeros(3)) == pytest.approx(2.0)
    assert end_s(8.0, speeds, np.array([0.0, 4.0, 1.0])) == pytest.approx(10.0 / 3.0)  # the second comes too late
    assert end_s(0.0, speeds, np.array([0.0, 4.0, 1.0])) == 0.0
    rng = np.random.default_rng(0)
    for _ in range(200):
        late, speeds = rng.exponential(1.0, 5), rng.uniform(0.1, 5.0, 5)
        late -= late.min()
        end = end_s(3.0, speeds, late)
        assert (speeds * np.maximum(0.0, end - late)).sum() == pytest.approx(3.0)
