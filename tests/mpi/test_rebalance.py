"""Vertices that move between real ranks: a plan is that of a fresh distribution, values move along, errors move nothing."""

import dataclasses
import os
import signal
import sys
from collections import Counter, deque
from functools import partial

import numpy as np
import pytest

import lb_mpi
from benchmarks.campaign_rebalance_ranks import case
from lb_mpi.balancing.deciding import BalanceReason
from lb_mpi.graph import Graph, mesh, parse
from lb_mpi.mpi.graph import rebalance
from lb_mpi.mpi.graph.rebalance import load_kernels
from lb_mpi.rebalancing import pairs
from lb_mpi.rebalancing.actor import RebalanceOutcome
from lb_mpi.rebalancing.balance import PlanBalance
from lb_mpi.rebalancing.jobs import Built
from tests.mpi.doors import on_root, raised_by_all
from tests.mpi.sizes import COMM, LAST, RANK, SIZE, several
from tests.mpi.test_distribute import weighted

pytestmark = pytest.mark.mpi


def deal(graph, method="block", **options):
    return lb_mpi.distribute(COMM, on_root(graph), method=method, **options)


def at_speed(plan, speed):
    """Let this rank be so fast, as if that had been measured; what it has really computed since does not count."""
    plan._balance.speeds.recent.clear()
    plan._balance.speeds.recent.extend([speed] * 5)
    plan._balance._before = None


def speeds(seed):
    return np.random.default_rng(seed).uniform(0.2, 1.0, SIZE)


def check(plan, graph):
    """The plan is that of a fresh distribution by its owners, array for array."""
    owners = COMM.bcast(plan.owners())
    assert np.array_equal(np.flatnonzero(owners == RANK), plan.vertices)
    with lb_mpi.distribute(COMM, on_root(graph), parts=on_root(owners)) as fresh:
        for field in dataclasses.fields(fresh.part):
            mine, expected = getattr(plan.part, field.name), getattr(fresh.part, field.name)
            assert mine.dtype == expected.dtype, field.name
            np.testing.assert_array_equal(mine, expected, field.name)
        assert (plan.cut, plan.n_halo) == (pytest.approx(fresh.cut, rel=1e-9), fresh.n_halo)
    numbers = np.concatenate([plan.vertices, plan.ghosts])
    for values in (plan.vertices, plan.vertices.astype(np.float32)):
        np.testing.assert_array_equal(plan.exchange(values), numbers)


@pytest.mark.one_mpi
@pytest.mark.every_size
def test_slabs_stay_contiguous_and_follow_the_speeds():
    """Each rank has a range of vertices, which moves one rank far in a call, and fits the speeds in the end."""
    for graph in (mesh(1, 60), mesh(12, 9), weighted(80, 200, 3)):
        expected = np.random.default_rng(3).uniform(0.5, 1.0, SIZE)
        with deal(graph, "slabs", speeds=on_root(expected[::-1])) as plan:
            heat = plan.vertices * 1.0
            for _ in range(4):
                at_speed(plan, expected[RANK])
                (heat,) = plan.rebalance(heat, when="always")
                assert heat.tolist() == plan.vertices.tolist() == list(range(*plan.range))
                check(plan, graph)
            loads = COMM.allgather(plan.vertex_weights.sum())
            bounds = 1.03 * expected / expected.sum() * sum(loads) + graph.vertex_weights.max()
            assert (np.array(loads) <= bounds).all()


def test_parts_that_are_no_slabs_are_an_error_on_all_ranks():
    parts = np.arange(6)[::-1] % SIZE
    says = "ValueError: parts[1] = 1 after 2 with method = 'slabs': expected ascending parts"
    if SIZE == 3:
        check_named(raised_by_all(lambda: deal(mesh(2, 3), "slabs", parts=on_root(parts))), says)
    with deal(mesh(2, 3)) as plan:
        assert plan.range is None
    with deal(mesh(1, 2), "slabs", parts=on_root(np.array([0, LAST]))) as plan:  # ranks between them have none
        assert plan.range == (int(RANK > 0), 1 + (RANK == LAST and SIZE > 1) if RANK else 1 + (SIZE == 1))
    with deal(mesh(1, 2), "slabs", parts=on_root(np.full(2, LAST))) as plan:
        assert plan.range == ((0, 2) if RANK == LAST else (0, 0))


# --- values ---


def moved_by_speeds(plan, seed, *values, **options):
    at_speed(plan, speeds(seed)[RANK])
    return plan.rebalance(*values, when="always", **options)


def test_the_same_objects_come_back_if_nothing_moves():
    with deal(mesh(6, 6)) as plan:
        heat, names = plan.vertices * 1.0, ["x"] * len(plan.vertices)
        vertices = plan.vertices
        given = plan.rebalance(heat, names, pack=str.encode, unpack=bytes.decode)
        assert given[0] is heat
        assert given[1] is names
        assert plan.vertices is vertices
        assert plan.rebalance() == ()
        assert not plan.last.acted


@pytest.mark.one_mpi
def test_costs_move_with_their_vertices():
    """A part that is expensive gives more vertices away; later the costs are known without being given."""
    graph = mesh(16, 16)

    def expected():
        return np.where(plan.vertices < 64, 5.0, 1.0)

    with deal(graph) as plan:
        for turn in range(12):
            if turn > 0:
                np.testing.assert_array_equal(plan._balance.costs, expected())
            at_speed(plan, 1.0)
            plan.rebalance(costs=expected() if turn < 2 else None, when="always")
        total = COMM.allgather(float(expected().sum()))
        assert max(total) <= 1.15 * np.mean(total)
        wrong = [-1.0] if RANK == LAST else 1e3 * expected()
        check_named(raised_by_all(lambda: plan.rebalance(costs=wrong)), "ValueError: costs")
        np.testing.assert_array_equal(plan._balance.costs, expected())  # no rank has the new ones
        assert plan._balance._before == (plan._halos.own_s, plan._halos.queued_s)  # its time does not count again


@pytest.mark.one_mpi
def test_it_reacts_to_a_rank_that_becomes_slow():
    """The first rank computes five times as long for each vertex."""
    with deal(mesh(16, 40)) as plan:
        virtual(plan, lambda _: len(plan.vertices) * (5.0 if RANK == 0 else 1.0), 12, when=0.3)
        sizes = COMM.allgather(len(plan.vertices))
        assert SIZE == 1 or sizes[0] < 0.6 * max(sizes)
        plan._balance.loading_s = 1.5 if RANK == LAST else 0.0
        report = plan.report()
        moved = [one.vertices_moved for one in plan.history if one.acted]
        calls = f"{len(moved)} rebalancing{'s' * (len(moved) != 1)}"
        *first, last = report.note.splitlines()
        assert first == ([] if SIZE == 1 else [f"{sum(moved):,} vertices moved in {calls}"])
        assert last == "to load the compiled code took up to 1.5 s, which count as idle"


@pytest.mark.one_mpi
def test_a_move_that_leaves_a_heavy_cut_is_followed_by_others_until_they_hardly_help():
    graph = mesh(24, 24)
    with lb_mpi.distribute(COMM, on_root(graph), parts=on_root(np.arange(576) // 24 * SIZE // 24)) as plan:
        opportunities = plan._balance.opportunities
        opportunities.first_cut = 1.0  # any cut is heavy
        opportunities.paid(1e-9)
        for _ in range(12):
            at_speed(plan, 0.2 if RANK == 0 else 1.0)
            opportunities._skipped = 0
            plan.rebalance(tolerance=0.1)
        check(plan, graph)
        reasons = [one.reason for one in plan.history if not one.reason.startswith("plan unchanged: the imb")]
        assert SIZE == 1 or reasons[0] == BalanceReason.GAIN.words
        assert SIZE == 1 or BalanceReason.CUT.words in reasons or "plan unchanged: no lighter cut was found" in reasons
        assert not opportunities._heavy
        assert opportunities.moves.patience == 1  # those that found no lighter cut were not in vain


def virtual(plan, seconds, steps, **options):
    """Run steps in virtual time; return the seconds of each one's slowest rank.  `seconds`: of a step on this rank."""
    slowest, (values,) = [], (plan.vertices * 1.0,)
    for step in range(steps):
        step_s = seconds(step)
        slowest.append(max(COMM.allgather(step_s)))
        with plan.waiting():
            plan._halos.own_s += step_s
            costs = options.get("costs")
            (values,) = plan.rebalance(values, **{**options, "costs": None if costs is None else costs[plan.vertices]})
        np.testing.assert_array_equal(values, plan.vertices)
    return slowest


@pytest.mark.one_mpi
@pytest.mark.parametrize("given", [None, 0.5, 1.0])
@pytest.mark.parametrize("name", ["slabs", "path", "complete"])
@several
def test_moves_come_to_rest_and_never_make_steps_slower(name, given):
    """The costs of the vertices are 1 to 101; the program passes none, wrong ones, or these.  Speeds are fixed."""
    n, true = 96, 1.0 + 100.0 * np.exp(-(((np.arange(96) - 48) / 8) ** 2))
    graph = f"complete:{n}" if name == "complete" else f"mesh:1x{n}"
    speed = np.resize([0.8, 0.4, 0.2], SIZE)
    with deal(parse(graph), "slabs" if name == "slabs" else "static", speeds=on_root(np.ones(SIZE))) as plan:
        costs = None if given is None else true**given
        slowest = virtual(plan, lambda _: true[plan.vertices].sum() / speed[RANK], 60, costs=costs)
        moves = [number for number, call in enumerate(plan.history, 1) if call.acted]
        assert all(call.imbalance_after < call.imbalance_before for call in plan.history if call.acted)
        assert slowest[-1] <= slowest[0]
        assert sum(slowest) < 60 * slowest[0]
        assert len(moves) < 20
        check(plan, parse(graph))
        if given == 1.0:
            assert max(moves) <= 30
            assert SIZE != 3 or name == "complete" or slowest[-1] <= 1.1 * true.sum() / speed.sum()


@pytest.mark.one_mpi
@pytest.mark.parametrize("method", ["static", "slabs"])
@several
def test_a_move_that_makes_steps_slower_is_undone(method):
    """The vertices at home cost little, all others much: no rank can know that before."""
    graph = mesh(16, 20)
    with deal(graph, method, speeds=on_root(np.ones(SIZE)), seed=1) as plan:
        home, speed = plan.vertices, 1.0 if RANK else 0.4
        slowest = virtual(plan, lambda _: (1.0 + 1e3 * ~np.isin(plan.vertices, home)).sum() / speed, 40)
        assert np.array_equal(plan.vertices, home)
        assert [call.reason for call in plan.history if call.acted] == [BalanceReason.GAIN.words, BalanceReason.UNDONE.words]
        assert slowest[-1] == slowest[0]
        check(plan, graph)


@pytest.mark.one_mpi
@several
def test_without_numba_the_first_call_says_what_is_missing(monkeypatch):
    if RANK == LAST:
        monkeypatch.setattr(rebalance, "_loaded", [])
        monkeypatch.setitem(sys.modules, "numba", None)
        for name in [name for name in sys.modules if name.startswith("lb_mpi.") and hasattr(sys.modules[name], "njit")]:
            monkeypatch.delitem(sys.modules, name)
    with deal(mesh(6, 6)) as plan:
        reported = raised_by_all(plan.rebalance)
        assert all('graphs need numba: pip install "PATH/TO/CLONE[graphs]"' in text for text in reported)


def move(balance, owners, reason=BalanceReason.GAIN, cost=1.0):
    """Let rank 0 have vertices of this cost that had these owners before, and expect 6 s for a step that took 8 s."""
    built = Built(None, np.full(len(owners), cost), np.array(owners, dtype=np.int64), None)
    balance.moved(built, [], RebalanceOutcome(reason, 1.0, 0.5, before_s=8.0, after_s=6.0))


def after_a_move(speed, n, owners):
    """A rank with n vertices of cost 1 and a speed that has been measured, after a move."""
    balance = PlanBalance(np.ones(n))
    balance.speeds.recent.extend([speed] * 5)
    move(balance, owners)
    return balance


@pytest.mark.one_mpi
@pytest.mark.parametrize(
    ("owners", "step_s", "costs"), [([0, 0, 0, 0, 1, 1], 8.0, [1, 1, 1, 1, 2, 2]), ([0, 0], 4.0, [2, 2])]
)
def test_what_vertices_that_came_need_longer_than_expected_is_their_cost(owners, step_s, costs):
    """Two vertices of cost 1 join four, at a speed of 1; the steps then take 8 s: they cost 2 each.  Or two stay."""
    balance = after_a_move(1.0, 4, owners)
    for own_s in (0.0, step_s, 2 * step_s):
        balance.measure(own_s, 0.0, balance.load)
    balance.learn(0)
    np.testing.assert_allclose(balance.costs, costs)
    assert balance.speed == pytest.approx(1.0)
    assert balance.speeds.before == pytest.approx(4.0 * balance.load / len(owners))  # takes as long as before
    move(balance, np.zeros(4), BalanceReason.UNDONE, cost=2.0)  # as is known by now
    assert balance.speed == pytest.approx(2.0)


def test_a_rank_that_had_no_work_keeps_its_speed_when_a_move_is_undone():
    balance = after_a_move(2.0, 0, [1])
    move(balance, np.zeros(0), BalanceReason.UNDONE)
    balance.learn(0)
    assert balance.speed == 2.0


def test_costs_that_are_given_after_a_move_are_not_changed_by_what_is_measured():
    balance = after_a_move(1.0, 4, [0, 0, 1, 1])
    balance.given(np.full(4, 10.0))
    assert (balance.speeds.recent.usual(), balance.speeds.before) == pytest.approx((10.0, 40.0))  # in the new unit
    for own_s in (0.0, 9.0, 18.0):
        balance.measure(own_s, 0.0, balance.load)
    balance.learn(0)
    assert balance.costs.tolist() == [10.0] * 4


@pytest.mark.one_mpi
def test_one_slow_step_is_noise_and_two_are_a_change():
    balance, own_s, found = PlanBalance(np.ones(6)), 0.0, []
    for step_s in (0.0, 1.0, 1.0, 1.0, 4.0, 1.0, 2.0, 3.0, 1.0, 1.0):
        own_s += step_s
        balance.measure(own_s, 0.0, 6.0)
        found.append(balance.speed)
    np.testing.assert_allclose(found[3:], 6.0 / np.array([1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 1.0]))


@pytest.mark.parametrize("cost", [1e-320, [np.inf, -np.inf], 1e308])
def test_wrong_or_negligible_costs_between_two_opportunities_are_no_speed(cost, recwarn):
    balance = PlanBalance(np.ones(6))
    balance.given(np.ones(6))
    for own_s in (0.0, 1.0):
        balance.skip((own_s, 0.0), np.resize(cost, 6))
    assert not balance.speeds.recent
    assert not recwarn


def test_a_call_that_has_failed_leaves_nothing_in_the_unit_of_its_costs():
    balance = PlanBalance(np.ones(6))
    for own_s in (0.0, 2.0):
        balance.measure(own_s, 0.0, 6.0)
    before = balance.known
    balance.given(np.full(6, 1e6))
    balance.failed(before)
    assert balance.known._replace(costs=None) == before._replace(costs=None)
    assert balance.speeds[1:] == (deque([3.0]), deque([3.0]))


def test_first_costs_between_two_opportunities_are_in_another_unit_and_no_speed():
    """They are used from the next opportunity on, as given costs."""
    balance = PlanBalance(np.ones(6))
    for own_s in (0.0, 2.0):
        balance.skip((own_s, 0.0), np.full(6, 1e6))
    assert [*balance.speeds.recent] == [3.0]


@pytest.mark.one_mpi
@pytest.mark.skipif(SIZE != 3, reason="three parts of one graph")
def test_a_rank_that_keeps_its_vertices_keeps_its_objects():
    """Rank 0 gives two vertices to rank 1."""
    with deal(mesh(1, 30), parts=on_root(np.repeat(np.arange(3), [12, 8, 10]))) as plan:
        part, value = plan.part, plan.vertices * 1.0
        at_speed(plan, 1.0)
        (found,) = plan.rebalance(value, when="always")
        assert COMM.allgather(len(plan.vertices)) == [10, 10, 10]
        if RANK == 2:
            assert found is value
            assert plan.part is part
        check(plan, mesh(1, 30))


@pytest.mark.one_mpi
def test_the_order_of_values_is_agreed_on_anew_when_vertices_have_moved():
    """A rank that is left with one vertex can't know the order in memory of its values."""
    with deal(mesh(1, 4 * SIZE)) as plan:
        value = np.asfortranarray(np.stack([plan.vertices] * 3, axis=1))
        assert plan.exchange(value).flags.f_contiguous
        for _ in range(3):
            at_speed(plan, 0.01 if RANK == 0 else 1.0)
            (value,) = plan.rebalance(value, when="always")
        assert SIZE == 1 or min(COMM.allgather(len(plan.vertices))) == 1
        around = plan.exchange(value)
        assert around.flags.f_contiguous
        np.testing.assert_array_equal(around[:, 0], [*plan.vertices, *plan.ghosts])


def test_a_wait_does_not_count():
    with deal(mesh(4, 9)) as plan:
        plan.exchange(plan.vertices)
        before = plan._halos.own_s
        with plan.waiting():
            counted = plan._halos.own_s
            sum(range(1_000_000))
        assert plan._halos.own_s == counted
        assert counted > before
        sum(range(1000))
        with plan.waiting():
            assert plan._halos.own_s > counted
        assert plan.report().n == 1


class Interrupted:
    def __array__(self, *_, **__):
        raise KeyboardInterrupt


def test_costs_of_a_call_between_two_opportunities_count_at_the_next():
    with deal(mesh(9, 9)) as plan:
        costs, values = 1.0 + np.arange(len(plan.vertices)), np.zeros(len(plan.vertices))
        rebalance = partial(plan.rebalance, when=1e9)  # nothing moves, however long ranks wait for cores
        for latest in (None, 2.0 * costs):
            rebalance(values)
            plan._balance.opportunities._skipped = 2
            assert rebalance("no values", costs=costs)[0] == "no values"  # not looked at
            assert "due in a later call" in plan.last.reason
            rebalance(values, costs=latest)
            (values,) = rebalance(values)
            np.testing.assert_array_equal(plan._balance.costs, costs if latest is None else latest)
            assert plan._balance.load == plan._balance.costs.sum()
        plan._balance.opportunities._skipped = 1
        assert rebalance(values, costs=[object()])[0] is values
        raised_by_all(lambda: rebalance(values))
        plan._balance.opportunities._skipped = 1
        with pytest.raises(KeyboardInterrupt):
            rebalance(values, costs=Interrupted())
        before = plan._halos.own_s
        with plan.waiting():
            assert plan._halos.own_s > before  # it computes again


def test_ctrl_c_is_raised_between_two_kernels(monkeypatch):
    """In a kernel that returns arrays it became a SystemError, or crashed."""
    ended = []

    def press(*arguments, plain=pairs.home_of):
        signal.raise_signal(signal.SIGINT)
        ended.append(True)
        return plain(*arguments)

    with deal(mesh(9, 9)) as plan:
        load_kernels()  # which chooses vertices, too
        monkeypatch.setattr(pairs, "home_of", press)
        if SIZE > 1:
            with pytest.raises((KeyboardInterrupt, lb_mpi.BalanceError)):
                moved_by_speeds(plan, 1)
            assert any(COMM.allgather(ended))
            monkeypatch.undo()
            moved_by_speeds(plan, 1)
            check(plan, mesh(9, 9))


def test_options_may_change_in_each_call():
    """Calls count towards the next opportunity whatever their options are."""
    with deal(mesh(9, 9)) as plan:
        for turn in range(4):
            at_speed(plan, speeds(3)[RANK])
            plan.rebalance(when="always", every=2, imbalance=0.03 + 0.01 * turn)
        assert SIZE == 1 or [one.acted for one in plan.history][:2] == [False, True]
        assert SIZE == 1 or "due in a later call" in plan.history[2].reason


@pytest.mark.every_size
def test_plans_and_values_are_those_of_a_fresh_distribution_after_random_rebalances():
    """`benchmarks.campaign_calls` has more of them."""
    first, n = int(os.environ.get("LB_MPI_SEED", "0")), int(os.environ.get("LB_MPI_RANDOM", "9" if SIZE < 6 else "3"))
    counts = Counter[str]()
    for number in range(n):
        assert not case(first, number, counts)
    assert counts["rebalances"] > n
    assert SIZE == 1 or n < 3 or counts["moved"]


# --- mistakes ---


def check_named(reported, says):
    kind, words = says.split(": ", 1)
    for text in reported:
        assert text.startswith((f"{kind}: {words}", f"{kind}: rank {LAST}: {words}", f"{kind}: rank 0: {words}")), text


@pytest.mark.parametrize("what", ["pack", "unpack", "bytes", "exit"])
@several
def test_a_pack_that_fails_moves_nothing(what):
    graph = mesh(10, 10)
    with deal(graph) as plan:
        objects = [str(v) for v in plan.vertices.tolist()]
        heat, before = plan.vertices * 1.0, plan.vertices

        def fail(*_):
            raise SystemExit(3) if what == "exit" else ZeroDivisionError("no such thing")

        def exit_on_root(one):  # rank 1 may pass vertices on
            return fail() if RANK == 0 else one.encode()

        plan._balance.opportunities._skipped = 1
        plan.rebalance(costs=np.full(len(heat), 2.0))
        at_speed(plan, 0.1 if RANK == 0 else 1.0)  # gives to rank 1
        packs = {"pack": fail, "exit": exit_on_root, "bytes": lambda _: "text"}
        pack = packs.get(what, str.encode)
        unpack = fail if what == "unpack" else bytes.decode
        reported = raised_by_all(lambda: plan.rebalance(heat, objects, when="always", pack=pack, unpack=unpack))
        guilty = 1 if what == "unpack" else 0
        words = {"unpack": "unpacking", "bytes": "lambda> returned 'text': expected bytes"}.get(what, "packing")
        for rank, text in enumerate(reported):
            if what == "exit" and rank == 0:
                assert text == "SystemExit: 3"
            else:
                assert f"rank {guilty}, " in text
                assert words in text
        assert plan.vertices is before
        assert heat.tolist() == plan.vertices.tolist()
        assert plan._balance.costs.tolist() == [2.0] * len(heat)  # which were given without an error
        check(plan, graph)
        at_speed(plan, 0.1 if RANK == 0 else 1.0)
        heat, objects = plan.rebalance(heat, objects, when="always", pack=str.encode, unpack=bytes.decode)
        assert plan.last.acted
        assert [float(one) for one in objects] == heat.tolist() == plan.vertices.tolist()
        check(plan, graph)


@pytest.mark.one_mpi
def test_tiny_costs_and_weights():
    """Sums of costs or edge weights as small as 1e-320 were divided by zero, on all ranks."""
    n = 4 * SIZE
    graph = Graph.from_edges(n, np.arange(n - 1), np.arange(1, n), np.full(n - 1, 1e-320))
    with deal(graph, parts=on_root(np.sort(np.arange(n) % SIZE))) as plan:
        for cost in (1e-320, 1e-98, 1e98):
            at_speed(plan, max(cost, 1e-98) * (0.1 if RANK == 0 else 1.0))
            plan.rebalance(costs=np.full(len(plan.vertices), cost), when="always")
            check(plan, graph)
        assert SIZE == 1 or [one.acted for one in plan.history][:2] == [False, True]


@pytest.mark.one_mpi
def test_a_rank_without_vertices_gets_some():
    """Also the one between two others without any; their values get the order in memory of the first owner's."""
    graph = mesh(12, 12)
    with deal(graph, parts=on_root(np.full(graph.n, LAST))) as plan:
        value = np.asfortranarray(np.stack([plan.vertices] * 3, axis=1))
        for _ in range(3 * SIZE):
            at_speed(plan, 1.0)
            (value,) = plan.rebalance(value, when="always")
            check(plan, graph)
            assert value.flags.f_contiguous
            assert np.array_equal(value, np.stack([plan.vertices] * 3, axis=1))
        sizes = COMM.allgather(len(plan.vertices))
        assert min(sizes) > 0.6 * graph.n / SIZE


def test_owners():
    parts = np.random.default_rng(1).integers(0, SIZE, 30)
    with deal(mesh(5, 6), parts=on_root(parts)) as plan:
        for root in {0, LAST}:
            owners = plan.owners(root)
            assert (owners is None) == (root != RANK)
            if owners is not None:
                np.testing.assert_array_equal(owners, parts)
        assert all("root = -1" in text for text in raised_by_all(lambda: plan.owners(-1)))
