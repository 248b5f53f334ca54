"""The law of walking drafts and of their termination, as a check of one global state."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from lb_mpi.searching import walking
from lb_mpi.searching.drafting import MOVES, Kind, Send, State
from lb_mpi.searching.searcher import Searcher
from lb_mpi.searching.termination import Scholten


def check_walks(searchers: Sequence[Searcher], in_flight: Sequence[Send], active: Sequence[bool]) -> None:
    """The law as it stands in `lb_mpi.searching.walking`; `active`: who has work in hand, or kept."""
    walks = defaultdict[int, int](int)  # by source: DRAFTING under way or queued, or its WORK under way
    stands = defaultdict[tuple[int, int], int](int)  # (source, neighbour): STAND under way or kept, or its WORK under way
    for to, message in in_flight:
        if message.kind is Kind.DRAFTING:
            walks[message.source] += 1
        elif message.kind is Kind.STAND:
            stands[message.source, to] += 1
        elif message.kind is Kind.WORK:
            assert to == message.source, f"{message} is under way to rank {to}"
            walks[to] += message.seq > 0
            stands[to, message.pid] += message.seq == 0
    for searcher in searchers:
        for draft in searcher.drafting.drafts.walks:
            walks[draft.source] += 1
        for draft in searcher.drafting.drafts.standing:
            stands[draft.source, searcher.rank] += 1
    n_standing = 0
    for searcher in searchers:
        rank, drafting = searcher.rank, searcher.drafting
        name = f"rank {rank} is {drafting.state.name}"
        assert walks[rank] == drafting.out, f"{name}, out {drafting.out}, with {walks[rank]} walks"
        others = walking.neighbours(rank, len(searchers))
        standing = {other: stands[rank, other] for other in others if stands[rank, other]}
        assert standing == dict.fromkeys(drafting.stood, 1), (
            f"{name}, stood {drafting.stood}, but drafts stand: {standing}"
        )
        n_standing += len(standing)
        assert drafting.state is not State.WALKING or drafting.out, f"{name} without a walk"
        assert drafting.state is State.BUSY or not active[rank], f"{name} with work"
        if drafting.state is State.ASLEEP:
            assert not drafting.out, f"{name} with a walk out"
            unborn = not drafting.received and rank and drafting.stood == {walking.parent(rank)}
            assert unborn or drafting.stood == set(others) or drafting.terms.once, f"{name}, stood {drafting.stood}"
    assert n_standing == sum(stands.values()), "a draft stands with who is no neighbour"
    work = Counter(message.pid for _, message in in_flight if message.kind in MOVES)
    acks: Counter[int] = Counter()
    for to, message in in_flight:
        acks[to] += message.pid if message.kind is Kind.ACK else 0
    check_engagement([searcher.termination for searcher in searchers], work, acks, active)


def check_engagement(ranks: Sequence[Scholten], work: Counter[int], acks: Counter[int], active: Sequence[bool]) -> None:
    """The invariant as it stands in `lb_mpi.searching.termination`; `work` under way by sender, `acks` by receiver.

    ACKs that a rank owes to others than its parent count like ACKs under way.
    """
    children = Counter(each.parent for each in ranks if each.engaged and each.rank)
    acks = acks.copy()
    for each in ranks:
        acks.update(each.owed)
        assert each.engaged or not each.owed, f"rank {each.rank} is free, and owes {each.owed}"
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
