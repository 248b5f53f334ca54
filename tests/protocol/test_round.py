"""A round of lending: the law in every state of small ones, seeded simulations of larger ones, and known-wrong variants."""

import itertools
import math
import random

import numpy as np
import pytest

from lb_mpi.balancing import round as round_module
from lb_mpi.balancing.deciding import end_s
from lb_mpi.balancing.round import (
    BLOCK_S,
    LATENCY_S,
    MOMENT_S,
    PART,
    PAUSE_S,
    Asking,
    Computed,
    Job,
    Packing,
    Round,
    RoundKind,
    RoundMessage,
    Unpacking,
    join,
    numbers,
    part,
    shortest_s,
)
from lb_mpi.cli.simulate.rows import World, _Clock
from lb_mpi.errors import ProtocolError
from lb_mpi.graph import Graph, mesh, most_square_mesh, parse
from lb_mpi.virtual import Network, Raised
from tests.protocol.explore import for_each_seed
from tests.protocol.mutate import rejects
from tests.protocol.round_law import check_end, check_law, explore, first_state
from tests.protocol.round_mutants import MUTANTS

PAIR, PATH, TRIANGLE = [(0, 1)], [(0, 1), (1, 2)], [(0, 1), (1, 2), (0, 2)]
SMALL = [
    ([3], [], {}),
    ([3, 0], PAIR, {}),
    ([3, 1], PAIR, {(0, 1): 1}),
    ([2, 2], PAIR, {(0, 1): 1, (1, 0): 0}),
    ([2, 1], [], {(0, 1): 1}),
    ([2, 0, 1], PATH, {(0, 1): 1}),
    ([2, 0, 0], PATH, {}),
    ([2, 0, 1], TRIANGLE, {(0, 1): 1, (2, 1): 0}),
    ([2, 0, 0], PATH, {(0, 2): 1}),
]
QUICK = 5  # so many of these have few states


NEAR = [
    ([3, 0], PAIR, {}), ([2, 0, 1], PATH, {(0, 1): 1}), ([2, 0, 0], PATH, {(0, 1): 1}),
    ([1, 0, 1], TRIANGLE, {(0, 1): 1, (2, 1): 0}), ([2, 1], [], {}),
]  # fmt: skip
KINDS = {
    "rows": [(one, {"failures": 1}) for one in SMALL],
    "objects": [(one, {"failures": 1, "objects": True}) for one in SMALL[:QUICK]],  # which are packed and opened by jobs
    "a quick call": [(SMALL[k], {"failures": int(k < QUICK), "quick": True}) for k in (0, 1, 2, 3, 4, 8)],
    "neighbours only": [(one, {"failures": int(len(one[0]) < 3), "near": True}) for one in NEAR],
}


CASES = [pytest.param(*case, id=f"{kind}-{k}") for kind, cases in KINDS.items() for k, case in enumerate(cases)]


@pytest.mark.parametrize(("setting", "options"), CASES)
def test_the_law_holds_in_every_reachable_state(setting, options):
    assert explore(first_state(*setting, **options)) > 3


def test_a_rank_that_knows_its_neighbours_only_asks_one_after_the_other():
    round = Round(1, [], lent={}, lenders=[], neighbours=[0, 3], speeds={0: 1.0, 1: 2.0, 3: 1.0})
    asked = [to for to, message in round.turn(0.0, []) if message.kind is RoundKind.DRY]
    assert asked == [0]
    assert not round.turn(0.0, [])
    assert round.wake_at == PAUSE_S
    assert not round.asking.asked(3)
    assert round.turn(PAUSE_S, []) == [(3, RoundMessage(RoundKind.DRY))]
    assert round.asking.asked(3)
    assert not round.turn(1e9, [])
    assert round.wake_at == math.inf
    with pytest.raises(ProtocolError):
        round.turn(1e9, [(2, RoundMessage(RoundKind.HELP, slice(0, 1)))])


class Failing(World):
    """Jobs fail now and then; of the others it's known which rows they computed, (owner, row)."""

    rng: random.Random
    chance = 0.0
    computed: list[tuple[int, int]]

    def end(self, rank: int, job: Job | Packing | Unpacking) -> Computed | int:
        if self.rng.random() < self.chance:
            raise Raised(ZeroDivisionError())
        if not isinstance(job, Job):
            return super().end(rank, job)
        self.computed += [(job.owner, row) for row in numbers(job.rows).tolist()]
        return super().end(rank, job)


def play(seed: int, *, sizes: tuple[int, ...] = (1, 2, 3, 4, 6, 9)) -> World:
    """A round of random ranks, speeds, rows and plans under the law; delays log-uniform over three decades."""
    rng = random.Random(seed)
    size = rng.choice(sizes)
    graphs = [mesh(1, size), parse(f"complete:{size}") if size > 1 else mesh(1, 1), Graph.from_edges(size, [], [])]
    graph: Graph = rng.choice(graphs)
    n_rows = [rng.choice([0, 0, 1, 5, 12]) for _ in range(size)]
    lent: list[dict[int, object]] = [{} for _ in range(size)]
    first = [0] * size
    for rank in range(size):
        for borrower in rng.sample([r for r in range(size) if r != rank], rng.randint(0, min(3, size - 1))):
            n = rng.randint(0, n_rows[rank] - first[rank])
            lent[rank][borrower] = np.arange(first[rank], first[rank] + n)
            first[rank] += n
    width = rng.choice([1, 1, 4])
    speeds = np.exp([rng.uniform(-2.0, 0.0) for _ in range(size)])
    objects = seed % 3 == 0
    rounds = [
        Round(
            rank,
            [slice(row, min(row + width, n_rows[rank])) for row in range(first[rank], n_rows[rank], width)],
            lent=lent[rank],
            lenders=[lender for lender in range(size) if rank in lent[lender]],
            neighbours=graph.neighbours(rank).tolist(),
            speeds=speeds,
            objects=objects,
            quick=seed % 2 == 1,
        )
        for rank in range(size)
    ]
    row_s = rng.choice([1e-5, 1e-3, 1e-2])
    draws = random.Random(seed)
    world = Failing(rounds, lambda rank, job: row_s * len(numbers(job.rows)) / speeds[rank], Network((1e-6, 1e-3)), draws)
    world.rng, world.chance, world.computed = draws, rng.choice([0.0, 0.0, 0.1]), []
    late = [rng.choice([0.0, 0.0, 5e-3]) for _ in range(size)]
    steps = itertools.count()

    def check(world: World) -> None:
        if size < 10 or not next(steps) % size:
            check_law(world.rounds, n_rows, world.under_way.values())

    world.run(late, check)
    check_end(rounds, n_rows)
    if not any(round.failed for round in rounds):
        assert sorted(world.computed) == [(rank, row) for rank, n in enumerate(n_rows) for row in range(n)]
        known = sum(timed.ticks for round in rounds for timed in round.learned.timed)
        assert known == pytest.approx(world.busy_s.sum()), f"{world.busy_s.sum()} ticks were taken, {known} are known"
    return world


def test_simulated_rounds_keep_the_law_at_each_step():
    for_each_seed(range(120), play)


def test_many_ranks_help_each_other():
    helped = 0
    for seed in range(3):
        world = play(seed, sizes=(16, 33, 64))
        helped += sum(timed.helped for round in world.rounds for timed in round.learned.timed)
    assert helped > 0


def find_fault() -> None:
    """What is wrong with it: every state of the smallest rounds, simulations, every state of the others."""
    for number, setting in enumerate(SMALL):
        if number == QUICK:
            for seed in range(60):
                play(seed)
        explore(first_state(*setting, failures=1), most_states=20_000)
        if number % 2 == 0:
            explore(first_state(*setting, failures=1, quick=True), most_states=20_000)
        if number < QUICK:
            explore(first_state(*setting, failures=1, objects=True), most_states=20_000)


test_known_wrong_variants_are_caught = rejects(
    find_fault, [(round_module, *one) for one in MUTANTS], IndexError, TypeError, right=False
)


def test_messages_outside_the_table_are_protocol_errors():
    lent = {4: np.arange(2), 5: np.arange(0)}
    round = Round(0, [slice(2, 3)], lent=lent, lenders=[3], neighbours=[1, 2], speeds=np.ones(6))
    round.turn(0.0, [])
    assert set(round.away) == {4}
    wrong = [(1, RoundKind.PLANNED), (1, RoundKind.HELP), (3, RoundKind.HELP), (5, RoundKind.DONE), (1, RoundKind.FAILED)]
    for source, kind in wrong:
        with pytest.raises(ProtocolError, match=f"rank 0 got {kind.name} from rank {source}"):
            round.turn(0.0, [(source, RoundMessage(kind, slice(0, 1)))])
    round.turn(0.0, [(1, RoundMessage(RoundKind.DRY))])
    with pytest.raises(ProtocolError, match="rank 1"):
        round.turn(0.0, [(1, RoundMessage(RoundKind.DRY))])
    with pytest.raises(ProtocolError, match="rank 0 got OVER from rank 0"):
        round.turn(0.0, [(0, RoundMessage(RoundKind.OVER))])


def test_rows_that_could_not_be_packed_have_not_left():
    lent = {1: np.arange(2), 2: slice(0, 0)}
    round = Round(0, [slice(2, 5)], lent=lent, lenders=[], neighbours=[3], speeds=np.ones(4), objects=True)
    sends = round.turn(0.0, [])
    assert [(rank, message.kind) for rank, message in sends] == [(2, RoundKind.PLANNED)]
    assert isinstance(round.job, Packing)
    sends = round.fail(error := ZeroDivisionError())
    assert round.error is error
    assert [(rank, message.kind, len(numbers(message.rows))) for rank, message in sends] == [(1, RoundKind.PLANNED, 0)]
    assert not round.away
    assert round.learned.rows_lent == 0
    ((to, learned),) = round.turn(0.0, [])  # a rank that has failed wants no help
    assert (to, learned.kind, learned.payload.failed, round.settled) == (0, RoundKind.SETTLED, True, True)


def test_of_many_neighbours_only_the_next_ones_are_asked_at_once():
    """On a complete graph, 31 ranks gave a row each to a slow one, which then needed three times the bound in each call."""
    asking = Asking(10, 12, range(10))
    assert asking.due(0.0, idle=True) == [0, 1, 2, 3]
    assert [asking.due(1e-2 * k, idle=True) for k in range(1, 9)] == [[11], *([k] for k in range(4, 10)), []]


def test_neighbours_are_asked_at_once_and_one_more_after_each_pause():
    round = Round(2, [], lent={}, lenders=[], neighbours=[1, 4], speeds=np.ones(6))
    asked = []
    for _ in range(6):
        sends = round.turn(round.wake_at if asked else 0.0, [])
        asked.append([rank for rank, message in sends if message.kind is RoundKind.DRY])
        assert round.turn(PAUSE_S * (len(asked) - 0.5), []) == []
        if round.wake_at == math.inf:
            break
    assert asked == [[1, 4], [3], [5], [0]]
    round = Round(2, [], lent={}, lenders=[], neighbours=[1, 4], speeds=np.ones(6))
    round.turn(0.0, [])
    round.turn(0.0, [(1, RoundMessage(RoundKind.HELP, slice(0, 9)))])
    assert round.wake_at == math.inf  # it has something to do
    round.done(round.job, Computed(1.0, 1.0))
    assert round.turn(1.0, []) == []
    assert round.wake_at == 1.0 + PAUSE_S


def test_dry_ranks_of_quick_calls_ask_after_a_moment():
    round = Round(2, [], lent={}, lenders=[], neighbours=[1, 4], speeds=np.ones(6), quick=True)
    assert [message.kind for _, message in round.turn(1.0, [])] == [RoundKind.SETTLED]
    assert round.wake_at == pytest.approx(1.0 + MOMENT_S)
    assert not round.asking.asked(1)
    assert [to for to, _ in round.turn(round.wake_at, [])] == [1, 4]
    assert round.wake_at == pytest.approx(1.0 + MOMENT_S + PAUSE_S)


@pytest.mark.parametrize(("usual_s", "helps"), [(0.0, True), (1e-6, False), (1e-3, True)])
def test_rows_that_took_microseconds_in_the_call_before_are_not_lent_to_dry_ranks(usual_s, helps):
    """In empty calls of four ranks, each rank helped another one in two calls of three."""
    round = Round(0, [slice(0, 60)], lent={}, lenders=[], neighbours=[1], speeds=np.ones(2), usual_s=usual_s, quick=True)
    sends = round.turn(0.0, [(1, RoundMessage(RoundKind.DRY))])
    assert [message.kind for _, message in sends] == [RoundKind.HELP] * helps


def test_every_rank_gets_rows_of_one_that_has_all():
    """In the first call, unequal speeds unknown: near the bound, neighbour or not."""
    for size, speeds, most in ((4, [0.8, 0.4, 0.2, 0.2], 1.1), (4, [0.2, 0.4, 0.8, 0.2], 1.2), (16, [1.0] * 16, 1.35)):
        n = 2000
        rounds = [
            Round(rank, [slice(k, k + 20) for k in range(0, n, 20)] if rank == 0 else [], lent={}, lenders=[],
                  neighbours=mesh(*most_square_mesh(size)).neighbours(rank).tolist(), speeds=np.ones(size))
            for rank in range(size)
        ]  # fmt: skip
        clock = _Clock([np.full(n, 4e-3)], np.array(speeds), 0.0, random.Random(0))
        world = World(rounds, clock.seconds, Network((1e-5, 1e-5)), random.Random(0))
        seconds = world.run(np.zeros(size)).max()
        bound = n * 4e-3 / sum(speeds)
        assert world.busy_s.min() > 0.5 * bound, (size, world.busy_s)
        assert seconds < most * bound, (size, seconds / bound)


@pytest.mark.parametrize("faster", [0.1, 0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("row_s", [1e-5, 5e-3, 1.0])
def test_a_helper_gets_a_part_of_its_share_that_comes_back_in_time(faster, row_s):
    share = faster / (1.0 + faster)
    for n in range(1, 60):
        for sizes in ([1] * n, [3] * n, [9, *[2] * (n - 1)]):
            given = part(sizes, row_s, share, faster)
            rows, left = sum(sizes[:given]), sum(sizes)
            assert rows * row_s / faster + 2 * LATENCY_S <= left * row_s or given == 0
            assert rows <= max(sizes[0], share * left + 0.5 * max(sizes))
            if PART * share * left * row_s > BLOCK_S:
                assert rows <= max(sizes[0], PART * share * left + 0.5 * max(sizes))
            if sizes[0] * row_s / faster + 2 * LATENCY_S > left * row_s:
                assert given == 0
    assert part([4], 0.0, 0.5, 1.0) == 0


def test_blocks_that_follow_each_other_are_joined_to_one():
    assert join([slice(6, 9), slice(3, 6), slice(0, 3)]) == slice(0, 9)
    assert numbers(join([slice(6, 9), slice(0, 3)])).tolist() == [0, 1, 2, 6, 7, 8]
    assert numbers(join([np.array([4, 9]), slice(0, 2)])).tolist() == [0, 1, 4, 9]


def lengths_of_blocks(round: Round, n: int, call_s: float, row_s: float) -> list[int]:
    """Let a rank compute its n rows; a block takes `call_s`, and `row_s` for each row."""
    blocks = []
    while round.home:
        round.turn(0.0, [])
        blocks.append(numbers(round.job.rows).tolist())
        round.done(round.job, Computed(call_s + row_s * len(blocks[-1]), row_s * len(blocks[-1])))
    assert [row for block in blocks for row in block] == list(range(n))
    return list(map(len, blocks))


@pytest.mark.parametrize(("row_s", "longest"), [(1e-3, 60), (1.4e-3, 60), (3e-3, 8)])
def test_a_rank_that_finds_its_rows_slower_than_before_begins_no_long_block(row_s, longest):
    # Others are dry soon then, and nobody can help with a block that has begun.
    round = Round(
        0, [slice(0, 4), slice(4, 64), slice(64, 100)], lent={}, lenders=[], neighbours=[1], speeds=np.ones(8), usual_s=1e-3
    )
    assert max(lengths_of_blocks(round, 100, 0.0, row_s)) == longest


@pytest.mark.parametrize("handling_s", [0.0, 1e-3])
def test_blocks_too_short_to_be_handled_one_by_one_are_joined(handling_s):
    """In a first call a slow host spent half of its time between blocks of some rows."""
    row_s, n = 0.1e-3, 1000
    home = [slice(first, first + 2) for first in range(0, n, 2)]
    round = Round(0, home, lent={}, lenders=(), neighbours=(), speeds=np.ones(1), handling_s=handling_s)
    lengths = lengths_of_blocks(round, n, 0.0, row_s)
    shortest = int(shortest_s(handling_s) / row_s)
    assert lengths[0] == 2  # nothing is known yet
    assert all(shortest - 2 <= length <= shortest for length in lengths[1:-1])


@pytest.mark.parametrize(("call_s", "row_s", "expected"), [
    (2e-3, 0.05e-3, [1, 2, 4, 8, 16, 9]), (0.0, 2e-3, [1, 2, *[1] * 37]),
    (8e-3, 0.2e-3, [1, 2, 4, *[4] * 8, 1]), (0.0, 3e-3, [1, 2, *[1] * 37]),
])  # fmt: skip
def test_first_blocks_double_while_that_makes_rows_cheaper(call_s, row_s, expected):
    home = [slice(k, k + 1) for k in range(40)]
    round = Round(0, home, lent={}, lenders=(), neighbours=(), speeds=np.ones(1))
    assert lengths_of_blocks(round, 40, call_s, row_s) == expected


def test_the_end_of_late_ranks():
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
