"""The law of drafting (ring, walks), termination and bound, as a check of one global state: searchers, messages."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lb_mpi.cli.simulate.search import SimulatedSearch, Simulation, search
from lb_mpi.searching import saves, walking
from lb_mpi.searching.bound import WORST
from lb_mpi.searching.drafting import MOVES, Kind, Send, State
from lb_mpi.searching.guard import Guard
from lb_mpi.searching.searcher import Reason, Searcher, Work
from lb_mpi.searching.termination import Scholten, Token
from lb_mpi.searching.walking import Walking
from lb_mpi.virtual import Network
from tests.pile import Pile, children, unpack, value_of


def check_law(searchers: Sequence[Searcher], in_flight: Iterable[Send], *, work: bool = True) -> None:
    """AssertionError when a law of `lb_mpi.searching.drafting`, `.termination` or `.bound` is broken.

    `work`: each piece of it is looked for, too, which takes longest (and what is lost once stays lost).
    """
    in_flight = list(in_flight)
    failed = any(searcher.error is not None for searcher in searchers)
    check_bound(searchers, in_flight)
    if not failed:
        check_cut(searchers, in_flight)
    # What a rank was about to absorb when it failed is lost; so may be work that comes when an answer is found, where
    # messages keep no order.
    walks = isinstance(searchers[0].drafting, Walking)
    if work and not failed and not (walks and any(pile_of(searcher).found for searcher in searchers)):
        check_work(searchers, in_flight)
    if failed or any(searcher.over or searcher._finished for searcher in searchers):
        reasons = {searcher.reason for searcher in searchers if searcher.over}
        assert len(reasons) <= 1, "ranks disagree on the end"
        if Reason.EXHAUSTED in reasons:
            assert not any(in_hand(searcher) for searcher in searchers), "over, but there is work in hand"
            assert not any(message.kind in MOVES for _, message in in_flight), "over, but there is work under way"
        return
    if walks:
        check_walks(searchers, in_flight, [bool(in_hand(searcher)) for searcher in searchers])
        return
    check_drafts(searchers, in_flight)
    check_safra(searchers, in_flight)


def check_simulation(simulation: Simulation, *, work: bool = True) -> None:
    """Hold the law against a simulation."""
    check_law(simulation.searchers, [(to, message) for _, to, message in simulation.under_way.values()], work=work)


def simulated(
    problems: Sequence[Any], seed: int, check: Callable[[Simulation], None] = check_simulation, **more: Any
) -> SimulatedSearch:
    """A search on ranks of unequal speeds, with delays log-uniform over three decades, under `check` at each step."""
    speeds = [1.0 / (1 + rank % 5) for rank in range(len(problems))]
    more = {"network": Network((1e-6, 1e-3)), "unit_s": 20e-6, "quantum_s": 60e-6, **more}
    return search(problems, speeds=speeds, seed=seed, check=check, **more)


def check_work(searchers: Sequence[Searcher], in_flight: Sequence[Send]) -> None:
    """Every piece of work is in exactly one place."""
    piles = [pile_of(searcher) for searcher in searchers]
    done = [item for pile in piles for item in pile.done]
    counts = Counter(done)
    for searcher in searchers:
        counts.update(in_hand(searcher))
    for _, message in in_flight:
        if message.kind in MOVES:
            counts.update(unpack(message.payload))
    expected = Counter(child for item in done for child in children(item, piles[0].limit))
    expected[1] += 1
    assert counts == expected, f"work lost {expected - counts} or doubled {counts - expected}"


def pile_of(searcher: Searcher) -> Pile:
    """The problem of a searcher, as it is behind its guard."""
    problem = searcher.problem
    pile: Pile = problem.problem if type(problem) is Guard else problem  # asking for a Pile, a Protocol, takes long
    return pile


def in_hand(searcher: Searcher) -> list[int]:
    """Items in the pile, and those of parts that are kept for later."""
    out = getattr(pile_of(searcher), "out", [])
    return [*pile_of(searcher).items, *out, *(item for part in searcher.drafting.kept for item in unpack(part))]


def check_bound(searchers: Sequence[Searcher], in_flight: Sequence[Send]) -> None:
    """Nobody's best value is better than what was found; who is known to have a value has it, or it is under way."""
    ends = {searcher.rank: searcher.sharing for searcher in searchers if searcher.sharing is not None}
    sent = [(message.source, to, message.load) for to, message in in_flight if message.kind is Kind.BOUND]
    assert ends or not sent, "a BOUND without a bound"
    found = {value_of(item) for searcher in searchers for item in pile_of(searcher).done} if ends else set()
    for rank, sharing in ends.items():
        bound = sharing.bound
        assert bound.best in found | {WORST[bound.sense]}, f"rank {rank} has {bound.best}, which nobody has found"
        own = [value_of(item) for item in pile_of(searchers[rank]).done]
        assert not any(bound._is_better(value, bound.best) for value in own), f"rank {rank} forgot one of {own}"
        for other, value in sharing.known.items():
            has = not bound._is_better(value, ends[other].bound.best)
            dropped = searchers[other].over or searchers[other]._ending
            assert has or dropped or (rank, other, value) in sent, f"rank {rank} has not sent rank {other} {value}"


def check_cut(searchers: Sequence[Searcher], in_flight: Sequence[Send]) -> None:
    """WORK is counted as it is; while any rank's state is taken, none is under way, and all keep still."""
    if any(searcher.saves is None or searcher.over for searcher in searchers):
        return
    under_way = sum(message.kind in MOVES for _, message in in_flight)
    counted = sum(searcher.saves.under_way for searcher in searchers)
    assert counted == under_way, f"{counted} WORK counted, {under_way} under way"
    for searcher in searchers:
        assert not (searcher.paused and isinstance(searcher.job, Work)), f"rank {searcher.rank} works while it is paused"
    root = searchers[0].saves
    if root.state in (saves.SaveState.OPENING, saves.SaveState.WRITING, saves.SaveState.COMMITTING):
        assert not under_way, "states are taken while WORK is under way"
        for searcher in searchers:
            assert searcher.paused, f"rank {searcher.rank} goes on while states are taken"
            assert searcher.saves.number == root.number, f"rank {searcher.rank} is at another save"


def check_drafts(searchers: Sequence[Searcher], in_flight: Sequence[Send]) -> None:
    """One token per source; one promise per rank, answered once; WORK and NOWORK only to who is ready to accept."""
    tokens = defaultdict[int, int](int)  # DRAFTING under way, by source
    held = defaultdict[tuple[int, int, int], int](int)  # (rank, source, seq): the promise is in a token, or being answered
    admitted = defaultdict[tuple[int, int], int](int)  # (source, seq): admission, or its answer, under way
    for destination, message in in_flight:
        draft = (message.source, message.seq)
        if message.kind is Kind.DRAFTING:
            tokens[message.source] += 1
            held[(message.pid, *draft)] += 1
        elif message.kind in (Kind.REJECT, Kind.ADMISSION):
            held[(destination, *draft)] += 1
            admitted[draft] += message.kind is Kind.ADMISSION
        elif message.kind in (Kind.WORK, Kind.NOWORK):
            admitted[draft] += 1
            assert destination == message.source, f"{message} is under way to rank {destination}"
    for searcher in searchers:
        promise = searcher.drafting.promise
        if searcher.drafting.state is State.READY_FOR_SPLIT and promise is not None:
            # Paused, or rank 0 between the end of a save and its next turn.
            assert searcher.saves is not None, f"rank {searcher.rank} does not split"
            assert searcher.paused or searcher.rank == 0, f"rank {searcher.rank} does not split"
            admitted[promise] += 1
            held[(searcher.rank, *promise)] += 1
    for searcher in searchers:
        rank, drafting = searcher.rank, searcher.drafting
        state, promise = drafting.state, drafting.promise
        waiting = state is State.WAIT_FOR_ACK
        assert state is not State.IDLE or not pile_of(searcher).items, f"rank {rank} is IDLE with work in hand"
        assert tokens[rank] == waiting, f"rank {rank} is {state.name} with {tokens[rank]} tokens on the ring"
        ready = state is State.READY_FOR_ACCEPT
        assert admitted[(rank, drafting.seq)] == ready, f"rank {rank}: admission not answered once"
        promised = state in (State.WAIT_FOR_ADMISSION, State.READY_FOR_SPLIT)
        assert (promise is not None) == promised, f"rank {rank}: promise {promise} in {state.name}"
        if promise is not None:
            assert held[(rank, *promise)] == 1, f"rank {rank}: promise {promise} held {held[(rank, *promise)]} times"


def check_safra(searchers: Sequence[Searcher], in_flight: Sequence[Send]) -> None:
    """One token; EWD998's invariant."""
    order = [0]
    while len(order) < len(searchers):
        order.append(searchers[order[-1]].drafting.successor)
    ranks = [searchers[rank] for rank in order]
    tokens = [(order.index(s.rank), s.termination.token) for s in ranks if s.termination.token is not None]
    tokens += [
        (order.index(destination), Token(message.seq, bool(message.pid)))
        for destination, message in in_flight
        if message.kind is Kind.TOKEN
    ]
    assert len(tokens) == 1, f"{len(tokens)} tokens of Safra"
    check_ewd998(
        *tokens[0],
        sum(message.kind is Kind.WORK for _, message in in_flight),
        [searcher.termination.count for searcher in ranks],
        [searcher.termination.black for searcher in ranks],
        [not pile_of(searcher).items for searcher in ranks],
    )


def check_ewd998(
    at: int, token: Token, under_way: int, counts: list[int], black: list[bool], passive: list[bool]
) -> None:
    """The invariant as it stands in `lb_mpi.searching.termination`; positions on the ring, the initiator's is 0."""
    assert under_way == sum(counts), "messages under way and counts differ"
    position = at or len(counts)
    visited, rest = range(1, position), [0, *range(position, len(counts))]
    p1 = all(passive[rank] for rank in visited) and sum(counts[rank] for rank in visited) == token.total
    p2 = sum(counts[rank] for rank in rest) + token.total > 0
    p3 = any(black[rank] for rank in rest)
    assert p1 or p2 or p3 or token.black, f"EWD998: {token} at place {at}, counts {counts}, black {black}"


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
