"""The law of Dijkstra and Scholten's termination, and every reachable state of it alone."""

import copy
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from lb_mpi.searching.drafting import Kind
from lb_mpi.searching.termination import Scholten
from tests.protocol.reach import reach


def check_engagement(ranks: Sequence[Scholten], work: Counter[int], acks: Counter[int], active: Sequence[bool]) -> None:
    """The invariant as it stands in `lb_mpi.searching.termination`; `work` under way by sender, `acks` by receiver."""
    children = Counter(each.parent for each in ranks if each.engaged and each.rank)
    for each in ranks:
        due = work[each.rank] + acks[each.rank] + children[each.rank]
        assert each.deficit == due, f"rank {each.rank} has the deficit {each.deficit}, but {due} are due"
        assert each.engaged or not (active[each.rank] or each.deficit), f"rank {each.rank} works, but is free"
        steps, at = 0, each
        while each.engaged and at.rank:
            steps, at = steps + 1, ranks[at.parent]
            assert at.engaged, f"rank {each.rank} has no way to the root"
            assert steps < len(ranks), f"rank {each.rank} is its own ancestor"
    total = sum(work.values()) + sum(acks.values()) + sum(each.engaged for each in ranks[1:])
    assert sum(each.deficit for each in ranks) == total, "deficits, and what they stand for, differ"
    if ranks[0].over:
        assert not total, "over, but something is under way, or somebody is engaged"
        assert not any(active), "over, but somebody works"


class Net(NamedTuple):
    """All ranks, and a network in which any message may overtake any other."""

    ranks: tuple[Scholten, ...]
    active: tuple[bool, ...]  # by rank
    work: tuple[tuple[int, int], ...]  # (sender, receiver) of each WORK under way, sorted
    acks: tuple[int, ...]  # receiver of each ACK under way, sorted
    sent: int  # WORK messages so far

    def key(self) -> tuple[object, ...]:
        inner = tuple((each.parent if each.engaged else -1, each.deficit, each.over) for each in self.ranks)
        return (inner, *self[1:])


def moves(net: Net, most_work: int) -> list[Net]:
    """An active rank gives work to anybody or turns passive; a message arrives; a rank settles."""
    found = []

    def step(rank: int, **changes: object) -> Scholten:
        mine = copy.copy(net.ranks[rank])
        ranks = tuple(mine if each is net.ranks[rank] else each for each in net.ranks)
        found.append(net._replace(ranks=ranks, **changes))
        return mine

    def answer(sends: list, rank: int) -> None:
        for to, message in sends:
            assert message.kind is Kind.ACK
            assert message.source == rank
            found[-1] = found[-1]._replace(acks=tuple(sorted((*found[-1].acks, to))))

    def without(values: tuple, value: object) -> tuple:
        at = values.index(value)
        return (*values[:at], *values[at + 1 :])

    def turned(rank: int, to: bool) -> tuple[bool, ...]:
        return tuple(to if number == rank else one for number, one in enumerate(net.active))

    for rank in range(len(net.ranks)):
        if net.active[rank]:
            step(rank, active=turned(rank, False))
            for other in range(len(net.ranks)) if net.sent < most_work else ():
                if other != rank:
                    step(rank, work=tuple(sorted((*net.work, (rank, other)))), sent=net.sent + 1).sent()
        mine = step(rank)
        answer(mine.settle(net.active[rank]), rank)
    for pair in set(net.work):
        mine = step(pair[1], work=without(net.work, pair), active=turned(pair[1], True))
        answer(mine.received(pair[0]), pair[1])
    for to in set(net.acks):
        step(to, acks=without(net.acks, to)).acknowledged()
    return found


def explore_engagement(scholten: type, *, size: int, most_work: int) -> tuple[int, int]:
    """Any ranks have work at the start.  Returns (states, ends); AssertionError on a broken law, or when it can't end."""
    ranks = tuple(scholten(rank, size) for rank in range(size))
    starts = [Net(ranks, tuple(bool(n >> r & 1) for r in range(size)), (), (), 0) for n in range(1 << size)]

    def look(net: Net) -> bool:
        work, acks = Counter(sender for sender, _ in net.work), Counter(net.acks)
        check_engagement(net.ranks, work, acks, net.active)
        return net.ranks[0].over

    found = reach(starts, lambda net: moves(net, most_work), key=Net.key, look=look)
    return found.states, found.ends
