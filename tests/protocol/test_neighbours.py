"""Plans made by neighbours: the law in every order that small graphs allow, on larger ones in drawn orders, and mutants."""

from __future__ import annotations

import inspect
import random
import types
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from lb_mpi.balancing import neighbours as module
from lb_mpi.balancing.course import Course, RowCosts
from lb_mpi.balancing.judge import BalanceReason, Observation, RankReport, RoundProblem, Trigger, Verdict
from lb_mpi.balancing.neighbours import Reduction, momentum
from lb_mpi.balancing.simulate import Cluster, in_step, reduced, row_costs, simulate
from lb_mpi.balancing.transfers import Plan
from lb_mpi.errors import ProtocolError
from lb_mpi.graph import Graph, mesh, parse
from lb_mpi.virtual import Network

QUICK = Network((1e-7, 1e-7))
Ready = Callable[[list[int]], int]  # chooses the rank that goes on


class Ranks(NamedTuple):
    """All ranks after a round."""

    graph: Graph
    courses: list[Course]
    judges: list[Any]
    work: list[float]


def ranks(graph: Graph, seed: int, *, scheme: str = "fos") -> Ranks:
    """Ranks with drawn loads, speeds and worths, of which the observations on all edges tell, after two rounds."""
    rng = np.random.default_rng(seed)
    worth = np.exp(rng.uniform(-1.5, 0.0, graph.n))
    slow, load = rng.uniform(1.0, 3.0, graph.n), rng.uniform(1.0, 4.0, graph.n)
    load[(rng.random(graph.n) < 0.4) & (seed % 2 == 1)] = 0.0  # work may pass such a rank, but it has none to lend
    near = [graph.neighbours(rank).tolist() for rank in range(graph.n)]
    courses = [Course(rank, [rank, *theirs], theirs) for rank, theirs in enumerate(near)]
    judges = [module.NeighbourJudge(one, graph.n, Trigger("always"), momentum(graph, scheme)) for one in courses]
    for late in range(2):
        reports = []
        for rank, course in enumerate(courses):
            ratios = np.log(worth / worth[rank])
            told = tuple(Observation(course.known.index(other), 1.0, float(ratios[other])) for other in near[rank])
            ticks = load[rank] / worth[rank]
            reports.append(
                RankReport(False, 7, 0, ticks, ticks * slow[rank], ticks, 0.0, 0, 0, began_s=0.1 * rank if late else np.nan,
                           told=told[::2] if rank % 2 else told)
            )  # fmt: skip
        told_all = reduced([judge.report(report) for judge, report in zip(judges, reports, strict=True)])
        for course, judge in zip(courses, judges, strict=True):
            course.hear(judge.hear(told_all))
    for course, ticks in zip(courses, load / worth, strict=True):
        course.costs = RowCosts(0, 1)
        course.costs.ticks[:] = ticks
    return Ranks(graph, courses, judges, (load / worth).tolist())


def drive(all_ranks: Ranks, choose: Ready) -> list[tuple[Plan, int]]:
    """Run the plans of all ranks, one request at a time, in the chosen order; ProtocolError if they wait for ever."""
    graph, size = all_ranks.graph, all_ranks.graph.n
    making = [judge.plan() for judge in all_ranks.judges]
    requests: list[Any] = [next(one) for one in making]
    wires: defaultdict[tuple[int, int], deque[Any]] = defaultdict(deque)
    asked: list[list[Any]] = [[] for _ in range(size)]  # what each rank has asked, in order
    n_answers, sent, done = [0] * size, [False] * size, dict[int, tuple[Plan, int]]()

    def ready(rank: int) -> bool:
        if rank in done:
            return False
        if isinstance(requests[rank], module.Fetch):
            return bool(wires[graph.neighbours(rank).tolist()[requests[rank].neighbour], rank])
        if isinstance(requests[rank], module.LoadExchange):
            return not sent[rank] or all(wires[other, rank] for other in graph.neighbours(rank).tolist())
        return isinstance(requests[rank], module.Ask | module.Post) or all(len(one) > n_answers[rank] for one in asked)

    while len(done) < size:
        can = [rank for rank in range(size) if ready(rank)]
        if not can:
            raise ProtocolError(f"ranks {sorted(set(range(size)) - set(done))} wait for ever")
        rank = choose(can)
        request, near = requests[rank], graph.neighbours(rank).tolist()
        reply: Any = None
        if isinstance(request, module.LoadExchange) and not sent[rank]:
            sent[rank] = True
            numbers = np.broadcast_to(request.numbers, (len(near), request.numbers.shape[-1]))
            for row, other in zip(numbers, near, strict=True):
                wires[rank, other].append(row.copy())
                assert len(wires[rank, other]) <= 2, "a rank is ahead of a neighbour by more than a step"
            continue
        if isinstance(request, module.LoadExchange):
            sent[rank] = False
            reply = np.array([wires[other, rank].popleft() for other in near]).reshape(len(near), request.numbers.shape[-1])
        elif isinstance(request, module.Post):
            wires[rank, near[request.neighbour]].append(request.table.copy())
        elif isinstance(request, module.Fetch):
            reply = wires[near[request.neighbour], rank].popleft()
            assert reply.shape[1:] == (request.columns,), "a table of another kind"
        elif isinstance(request, module.Ask):
            asked[rank].append(request.numbers)
        else:
            reply = reduced([one[n_answers[rank]] for one in asked])
            n_answers[rank] += 1
        try:
            requests[rank] = making[rank].send(reply)
        except StopIteration as ended:
            done[rank] = ended.value
    assert not any(wires.values()), "messages are left"
    return [done[rank] for rank in range(size)]


def check_plans(all_ranks: Ranks, plans: Sequence[tuple[Plan, int]]) -> None:
    """AssertionError unless both ends of each edge know who lends, no rank lends more than it has, and all get level."""
    graph, size = all_ranks.graph, all_ranks.graph.n
    assert len({steps for _, steps in plans}) == 1
    amounts = {}
    for rank, (plan, _) in enumerate(plans):
        mine = plan.of(rank)
        assert (np.diff(mine.amounts) <= 0.0).all()
        assert (np.diff(plan.sources) >= 0).all()
        assert (mine.amounts >= 0.0).all()
        assert not (len(mine.amounts) and plan.to(rank)), "a rank lends and borrows"
        course = all_ranks.courses[rank]
        work = all_ranks.work[rank] * course.worth[course.place]
        assert mine.amounts.sum() <= work * (1.0 + 1e-9), f"rank {rank} lends {mine.amounts.sum()} of {work}"
        amounts.update({(rank, int(to)): amount for to, amount in zip(mine.destinations, mine.amounts, strict=True)})
    expected = {(source, rank) for rank, (plan, _) in enumerate(plans) for source in plan.to(rank)}
    assert expected == set(amounts), f"{expected} are awaited, {set(amounts)} are sent"
    for rank, (plan, _) in enumerate(plans):
        for source, believed in zip(plan.sources.tolist(), plan.amounts, strict=True):
            assert source == rank or amounts[source, rank] == believed, "the two ends of a loan differ"
    for rank, course in enumerate(all_ranks.courses):
        for other in {*course.neighbours, *plans[rank][0].of(rank).destinations.tolist()}:
            theirs = all_ranks.courses[other]
            place = course.known.index(other)
            assert course.worth[place] == theirs.worth[theirs.place]
            assert course.speeds[place] == theirs.speeds[theirs.place]
    before, after = np.zeros(size), np.zeros(size)
    for rank, course in enumerate(all_ranks.courses):
        before[rank] = all_ranks.work[rank] * course.worth[course.place] + course.late[course.place]
    after = before.copy()
    for (source, destination), amount in amounts.items():
        after[source] -= amount
        after[destination] += amount
    speeds = np.array([course.speeds[course.place] for course in all_ranks.courses])
    if graph.components()[0] == 1:
        worst = (after / speeds).max() / (before.sum() / speeds.sum())
        assert worst <= 1.051, worst


GRAPHS = ("mesh:1x2", "mesh:1x3", "ring:4", "complete:4", "mesh:3x3", "mesh:1x8", "torus:4x5")


@pytest.mark.parametrize("scheme", ["fos", "sos"])
@pytest.mark.parametrize("name", GRAPHS)
def test_any_order_gives_the_same_lawful_plans(name: str, scheme: str) -> None:
    graph = parse(name)
    for seed in range(3):
        first = drive(drawn := ranks(graph, seed, scheme=scheme), min)
        check_plans(drawn, first)
        rng = random.Random(seed)
        orders: list[Ready] = [max, rng.choice, lambda can, rng=rng: rng.choice(can[:2])]  # type: ignore[misc]
        for choose in orders:
            other = drive(ranks(graph, seed, scheme=scheme), choose)
            assert repr([(plan.table().tolist(), steps) for plan, steps in other]) == repr(
                [(plan.table().tolist(), steps) for plan, steps in first]
            ), seed


def test_every_order_of_two_ranks() -> None:
    """All orders of the first requests, each followed to the end: 2 ** 8 schedules."""
    graph, found = mesh(1, 2), set[str]()
    for number in range(2**8):
        choices = iter([number >> k & 1 for k in range(8)])
        plans = drive(ranks(graph, 3), lambda can, choices=choices: can[next(choices, 0) % len(can)])  # type: ignore[misc]
        found.add(repr([(plan.table().tolist(), steps) for plan, steps in plans]))
    assert len(found) == 1


def test_ranks_without_neighbours_plan_nothing() -> None:
    for graph in (Graph.from_edges(3, [], []), Graph.from_edges(3, [0], [2]), mesh(1, 1)):
        drawn = ranks(graph, 0)
        check_plans(drawn, drive(drawn, min))


def test_worths_are_found_along_the_edges() -> None:
    """Pairs of ranks tell their ratio; in a few plans all worths fit."""
    graph = mesh(1, 6)
    drawn = ranks(graph, 5)
    worth = np.exp(np.random.default_rng(5).uniform(-1.5, 0.0, graph.n))
    for _ in range(6):
        drive(drawn, min)
    found = np.array([course.worth[course.place] for course in drawn.courses])
    assert np.abs(np.log(found / worth) - np.log(found / worth).mean()).max() < 0.05


def test_all_ranks_decide_the_same() -> None:
    """Whatever they measured alone: the costs of a plan, failures, rows that differ, times before a call."""
    for seed in range(20):
        rng = random.Random(seed)
        drawn = ranks(parse("ring:4"), seed)
        verdicts: list[Verdict] = []
        for _ in range(4):
            for judge in drawn.judges:
                judge.changed(lending=True, seconds=rng.random())
            bad = rng.choice([0, 0, 0, 1, 2])
            reports = [
                RankReport(bad == 1 and rank == 2, 7 + (bad == 2 and rank == 1), 0, rng.random(), rng.random(), 1.0,
                           rng.random(), rank, 100 * rank, began_s=rng.random())
                for rank in range(4)
            ]  # fmt: skip
            told = reduced([judge.report(report) for judge, report in zip(drawn.judges, reports, strict=True)])
            verdicts = [judge.hear(told) for judge in drawn.judges]
            costs_s = [judge.policy.trigger.cost_s for judge in drawn.judges]
            same = [(*verdict[:7], cost_s) for verdict, cost_s in zip(verdicts, costs_s, strict=True)]
            assert len(set(map(repr, same))) == 1, seed
            problem = (RoundProblem.NONE, RoundProblem.FAILED, RoundProblem.DIFFER)[bad]
            assert verdicts[0].problem is problem
            if not bad:
                assert (verdicts[0].rows, verdicts[0].bytes) == (6, 600)
            for course, verdict in zip(drawn.courses, verdicts, strict=True):
                course.hear(verdict)
            late_s = [float(course.late[course.place] / course.speeds[course.place]) for course in drawn.courses]
            assert min(late_s) >= 0.0


MUTANTS = [
    ("np.flatnonzero(flow < -nothing)", "np.flatnonzero(flow < -0.3 * abs(flow).max())"),
    ("np.flatnonzero(flow > nothing)", "np.flatnonzero(flow > 0.3 * abs(flow).max())"),
    ("lots.append((course.rank, work))", "lots.appendleft((course.rank, work))"),
    ("lots.append((course.rank, work))", "lots.append((course.rank, 0.5 * work))"),
    ("if owner != course.rank:", "if True:"),
    ("lots.append((owner, amount))\n", "lots.appendleft((course.rank, amount))\n"),
    ("part = min(lot, amount)", "part = lot"),
    ("lots.appendleft((owner, lot - part))", "pass"),
    ("via.setdefault(owner, k)", "via[owner] = above[0]"),
    ("staying.get(owner, 0.0) + amount", "amount"),
    ("table[through == k]", "table"),
    ("if row[0] == course.rank]", "if row[0] == 0]"),
    ("worth, speed = float(course.worth[0]), self._speed\n", "worth, speed = 1.0, self._speed\n"),
    ("np.minimum(speed, theirs[:, 0])", "speed"),
    ("(np.maximum(degree, theirs[:, 1]) + 1.0)", "(degree + 1.0)"),
    ("float(self._seen[:, 1].sum() - theirs[:, 1].sum())", "float(self._seen[:, 1].sum() + theirs[:, 1].sum())"),
    ("float(self._seen[:, 1].sum() - theirs[:, 1].sum())", "float(self._seen[:, 1].sum())"),
    ("weight[:near] += theirs[:, 0]", "pass"),
    ("mean + MOMENTUM * (logs[0] - before)", "mean"),
    ("MOMENTUM * (logs[0] - before)", "MOMENTUM * (before - logs[0])"),
    ("worst = float((yield Await()).maxima[0])", "yield Await(); worst = excess"),
    ("worst <= tolerance or waited", "excess <= tolerance or waited"),
    ("ends.heard = (yield LoadExchange(np.array([scheme.potential])))[:, 0]", "yield LoadExchange(np.zeros(1))"),
    ("if worst <= tolerance", "if steps >= period or worst <= tolerance"),
    ("worth[self._near] = (yield LoadExchange(np.array([worth[0]])))[:, 0]", "pass"),
    ("speeds[0], speeds[self._near] = speed, theirs[:, 0]", "speeds[0] = speed"),
    ("if moving is None:\n            yield", "if moving is None and near > 1:\n            yield"),
    ("policy.trigger.paid(most.planned_s)", "policy.trigger.paid(self._planned_s)"),
    ("most.mark != -most.mark_low", "most.mark != self._course.rank + 7"),
    ("most.mark != -most.mark_low", "False"),
    ("if most.failed or", "if"),
    ("self._late_s.append(self._began_s + most.early_s)", "self._late_s.append(-self._began_s - most.early_s)"),
    ("balanced_s, mean_s = total.done / total.speed", "balanced_s, mean_s = total.done / total.speed + 1e-9 * self._speed"),
    ("repeat((self._omega, self._omega - 1.0))", "repeat((2.5, 1.5))"),
]  # fmt: skip


def mutant(before: str, after: str) -> Any:
    """The module, with `take` from another one, with one change in its source; its requests stay the same."""
    source, taking = inspect.getsource(module), inspect.getsource(module.take)
    assert (source + taking).count(before) == 1, f"not one such place: {before!r}"
    changed = types.ModuleType("mutant")
    vars(changed)["__name__"] = module.__name__
    exec(compile(source.replace(before, after), "mutant", "exec"), vars(changed))
    exec(compile(taking.replace(before, after), "mutant", "exec"), vars(changed))
    for name in ("LoadExchange", "Ask", "Await", "Post", "Fetch", "Reduction"):
        setattr(changed, name, getattr(module, name))
    return changed


@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_known_wrong_variants_are_caught(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NeighbourJudge", mutant(*MUTANTS[number]).NeighbourJudge)
    with pytest.raises((AssertionError, ProtocolError, ValueError, IndexError, RuntimeWarning)):
        find_fault()


def find_fault() -> None:
    test_all_ranks_decide_the_same()
    test_worths_are_found_along_the_edges()
    for name in GRAPHS:
        test_any_order_gives_the_same_lawful_plans(name, "fos")
    test_any_order_gives_the_same_lawful_plans(GRAPHS[-1], "sos")


@pytest.mark.parametrize("scheme", ["fos", "sos"])
@pytest.mark.parametrize("graph", ["mesh:2x2", "mesh:3x3", "torus:4x5"])
def test_neighbours_alone_level_the_ranks(graph: str, scheme: str) -> None:
    layout = parse(graph)
    speeds = np.random.default_rng(1).uniform(500.0, 2000.0, layout.n)
    cluster = Cluster(layout, speeds, scheme=scheme, network=QUICK)
    calls = simulate(cluster, row_costs("lognormal", layout.n, 120), 12)
    assert calls[0].alone_s / calls[0].bound_s > 1.3
    assert np.median([call.seconds / call.bound_s for call in calls[6:]]) < 1.10


@pytest.mark.parametrize("graph", ["mesh:1x16", "cube:21"])
def test_work_travels_over_many_edges_in_one_round(graph: str) -> None:
    layout = parse(graph)
    cluster = Cluster(layout, np.full(layout.n, 1000.0), scheme="sos", network=QUICK)
    costs = [np.full(200, 9.0 if 2 * rank < layout.n else 1.0) for rank in range(layout.n)]
    calls = simulate(cluster, lambda _call: costs, 10)
    assert calls[0].alone_s / calls[0].bound_s > 1.5
    assert np.median([call.seconds / call.bound_s for call in calls[5:]]) < 1.10


def test_a_rank_forgets_distant_ranks_but_not_what_they_measured() -> None:
    course = Course(3, [3, 2, 4], [2, 4])
    course.meet({2: (9.0, 9.0), 7: (2.0, 5.0), 8: (4.0, 6.0)})
    assert course.known == [3, 2, 4, 7, 8]
    course.costs = RowCosts(0, 3)
    course.costs.ticks[:], course.costs.measured_by[:] = 1.0, [0, 1, 4]
    course.meet({9: (8.0, 7.0)})
    assert course.known == [3, 2, 4, 8, 9]
    assert (course.worth.tolist(), course.speeds.tolist()) == ([1.0, 1.0, 1.0, 4.0, 8.0], [1.0, 1.0, 1.0, 6.0, 7.0])
    assert course.costs.work(course.worth).tolist() == [1.0, 1.0, 4.0]
    course.meet({})
    assert course.known == [3, 2, 4, 8]


def test_nothing_is_planned_among_equals() -> None:
    cluster = Cluster(mesh(2, 3), np.full(6, 500.0), scheme="fos", network=QUICK)
    calls = simulate(cluster, lambda _call: [np.ones(100)] * 6, 10)
    assert not any(call.acted for call in calls)


def test_days_of_work_on_a_hundred_thousand_ranks_add_up() -> None:
    judge, size = module.NeighbourJudge(Course(0, [0, 1], [1]), 100_000, Trigger()), 100_000
    mine = judge.report(RankReport(False, 1, 0, 3e5, 3e5, 3e5, 0.0, 10**9, 10**15))
    verdict = judge.hear(Reduction(mine.sums * size, mine.maxima))
    assert (verdict.rows, verdict.bytes) == (10**14, 10**20)
    assert verdict.imbalance_before == pytest.approx(0.0, abs=1e-9)
    assert verdict.imbalance_after == pytest.approx(0.0, abs=1e-9)


def test_lending_that_does_not_pay_is_given_up_by_all() -> None:
    judges = [module.NeighbourJudge(Course(rank, [0, 1], [1 - rank]), 2, Trigger()) for rank in range(2)]

    def round_of(busy_s: Sequence[float], spent_s: float) -> set[BalanceReason]:
        reports = [RankReport(False, 1, 0, 1.0, busy, 1.0, spent_s, 0, 0) for busy in busy_s]
        told = reduced([judge.report(report) for judge, report in zip(judges, reports, strict=True)])
        return {judge.hear(told).decision.reason for judge in judges}

    assert BalanceReason.HOME not in round_of((1.0, 0.5), 0.0)
    for judge in judges:
        judge.changed(lending=True, seconds=0.0)
    assert round_of((0.75, 0.75), 2.0) == {BalanceReason.HOME}
    assert not any(judge.policy.lending for judge in judges)


def test_ranks_that_are_not_in_step_are_noticed() -> None:
    drawn = ranks(mesh(1, 2), 0)
    with pytest.raises(ProtocolError):
        in_step([drawn.judges[0].plan(), drawn.judges[1].levels(1.0)], drawn.graph, QUICK)
