"""Arrangement: values against brute force and plain eigenvalues, the methods, predictions, the command."""

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lb_mpi
from lb_mpi.arranging import arrange as methods_module
from lb_mpi.arranging import objectives as aims_module
from lb_mpi.arranging.arrange import METHODS, OBJECTIVES, predict_steps
from lb_mpi.arranging.objectives import AIMS, UniformAim, costs, find_modes, first_swap_below, see
from lb_mpi.cli.run.hosts import read_hosts
from lb_mpi.diffusion.diffusion import balance
from lb_mpi.diffusion.setup import laplacian, paper_tau
from lb_mpi.graph import Floats, Graph, parse


def value(graph: Graph, layout: Floats, objective: str) -> float:
    """The cost by the unsymmetric matrix itself, as the paper has it."""
    tau = np.ones(graph.n_edges) if objective == "uniform" else paper_tau(graph, layout)
    values = np.sort(np.linalg.eigvals(laplacian(graph, tau).toarray() / layout[:, None]).real)
    return float(values[-1] / values[1] if objective == "uniform" else 1.0 / values[1])


@st.composite
def cases(draw: st.DrawFn, least: int = 3, most: int = 12) -> tuple[Graph, Floats]:
    """A connected graph and speeds, some of them equal."""
    n, seed = draw(st.integers(least, most)), draw(st.integers(0, 10**6))
    graph = nx.gnp_random_graph(n, draw(st.floats(0, 1)), seed=seed)
    graph.add_edges_from(nx.random_labeled_tree(n, seed=seed).edges)
    rng = np.random.default_rng(seed)
    speeds = rng.uniform(1, 10, n) if draw(st.booleans()) else rng.integers(1, 4, n).astype(float)
    return Graph.from_networkx(graph), speeds * 10.0 ** draw(st.integers(-3, 3))


def test_the_place_of_the_greedy_among_all_arrangements(command):
    graph, speeds = parse("2,3/1,4,6/1,5/2/3,6/2,5"), np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    found = lb_mpi.arrange(graph, speeds, method="paper")
    every = np.array([value(graph, speeds[list(order)], "uniform") for order in itertools.permutations(range(6))])
    at = methods_module.compare_with_all(graph, speeds, found.p)
    assert (at.n, at.below) == (720, int((every < found.p * (1 - 1e-7)).sum()))
    assert at.above == int((every > found.p * (1 + 1e-7)).sum())
    assert (at.least, at.greatest) == (pytest.approx(every.min()), pytest.approx(every.max()))
    assert at.relative == pytest.approx((found.p - every.min()) / (every.max() - every.min()))
    line = "arrange --graph 2,3/1,4,6/1,5/2/3,6/2,5 --speeds 1,2,3,4,5,6 --method paper"
    comparison = command(line, "--json").json["comparison"]
    assert comparison == {**at._asdict(), "relative": at.relative, "percentile": at.percentile}
    assert f"{at.below} are below this one, {at.above} above; Pr " in command(line).out
    with pytest.raises(ValueError, match="all arrangements of 16 vertices: expected at most 9"):
        methods_module.compare_with_all(parse("mesh:4x4"), np.ones(16), 1.0)


@given(cases(), st.sampled_from(OBJECTIVES))
def test_costs_are_those_of_the_matrix(case, objective):
    graph, speeds = case
    aim = AIMS[objective](graph)
    layouts = np.array([speeds, speeds[::-1]])
    assert costs(aim, layouts).tolist() == pytest.approx([value(graph, one, objective) for one in layouts], rel=1e-7)
    assert aim.changes(speeds).cost == pytest.approx(value(graph, speeds, objective), rel=1e-7)


@settings(deadline=None)  # compiled at first use
@given(cases())
def test_the_secular_equation_for_two_speeds(case):
    graph, speeds = case
    aim = UniformAim(graph)
    seen = see(find_modes(aim.laplacian, speeds, 1, 1), speeds, aim.degrees)
    for i, j in itertools.combinations(range(graph.n), 2):
        if speeds[i] == speeds[j]:
            continue
        layout = speeds.copy()
        layout[[i, j]] = layout[[j, i]]
        p = costs(aim, layout[None])[0]
        ends = np.array([i]), np.array([j])
        assert first_swap_below(seen, *ends, p * (1 + 1e-6)) == 0
        assert first_swap_below(seen, *ends, p * (1 - 1e-6)) == 1


@settings(deadline=None)
@given(cases(), st.sampled_from(OBJECTIVES))
def test_bounds_of_swaps_are_never_above_the_cost(case, objective):
    graph, speeds = case
    aim = AIMS[objective](graph)
    first, second = np.triu_indices(graph.n, 1)
    changes = aim.changes(speeds)
    layouts = np.repeat(speeds[None], len(first), axis=0)
    rows = np.arange(len(first))
    layouts[rows, first], layouts[rows, second] = speeds[second], speeds[first]
    exact = costs(aim, layouts)
    assert (changes.swap_bounds(first, second) <= exact * (1 + 1e-9)).all()
    for k in range(len(first)):  # what is skipped as too dear has to be too dear
        assert changes.first_below(first[k:], second[k:], float(exact[k]) * (1 + 1e-6)) == 0 or (
            speeds[first[k]] == speeds[second[k]]
        )


@settings(deadline=None)
@given(cases(), st.sampled_from(OBJECTIVES))
def test_the_place_of_least_cost_is_found(case, objective):
    graph, speeds = case
    aim = AIMS[objective](graph)
    diagonal = np.arange(graph.n)
    layouts = np.repeat(speeds[None], graph.n, axis=0)
    layouts[diagonal, diagonal] = 2.5 * speeds.min()
    exact = costs(aim, layouts)
    found = aim.changes(speeds).placement_costs(diagonal, 2.5 * speeds.min())
    assert found.min() == pytest.approx(exact.min(), rel=1e-7)
    assert exact[found.argmin()] == pytest.approx(exact.min(), rel=1e-7)


@settings(max_examples=15, deadline=None)
@given(cases(most=5), st.sampled_from(OBJECTIVES))
def test_exhaustive_is_brute_force(case, objective):
    graph, speeds = case
    found = lb_mpi.arrange(graph, speeds, objective=objective, method="exhaustive")
    least = min(value(graph, np.array(layout), objective) for layout in itertools.permutations(speeds))
    assert value(graph, speeds[found.positions], objective) == pytest.approx(least, rel=1e-7)


@settings(max_examples=20, deadline=None)
@given(cases(), st.sampled_from(OBJECTIVES), st.sampled_from(METHODS))
def test_every_method_gives_a_permutation_and_nothing_worse(case, objective, method):
    graph, speeds = case
    if method == "exhaustive" and graph.n > 6:
        return
    found = lb_mpi.arrange(graph, speeds, objective=objective, method=method, seed=3)
    assert sorted(found.positions.tolist()) == list(range(graph.n))
    assert found.vertices[found.positions].tolist() == list(range(graph.n))
    assert found.p_before == pytest.approx(value(graph, speeds, "uniform"), rel=1e-7)
    assert found.p == pytest.approx(value(graph, speeds[found.positions], "uniform"), rel=1e-7)
    before, after = (value(graph, layout, objective) for layout in (speeds, speeds[found.positions]))
    assert method == "paper" or after <= before * (1 + 1e-7)
    assert method == "paper" or after < before * (1 - 1e-10) or found.note
    if objective == "paper":
        assert 1 / found.spectrum.low == pytest.approx(after, rel=1e-7)
    again = lb_mpi.arrange(graph, speeds, objective=objective, method=method, seed=3)
    assert again.positions.tolist() == found.positions.tolist()


def test_each_method_is_better_than_the_one_before(monkeypatch):
    monkeypatch.setattr(methods_module, "ROUNDS", 8)
    graph, speeds = parse("mesh:8x8"), np.random.default_rng(0).uniform(1, 10, 64)
    p = {method: lb_mpi.arrange(graph, speeds, method=method).p for method in ("paper", "fill", "swap", "anneal")}
    assert p["paper"] == pytest.approx(89.07, abs=0.005)  # computed independently
    assert lb_mpi.arrange("ring:5", range(1, 6), method="paper").positions[0] == 4  # all are as good: the first
    assert p["fill"] <= 0.84 * p["paper"]
    assert p["swap"] <= 0.80 * p["paper"]
    assert p["anneal"] <= 0.78 * p["paper"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_swap_improves_a_local_minimum(objective):
    graph, speeds = parse("torus:3x5"), np.random.default_rng(1).uniform(1, 10, 15)
    layout = speeds[lb_mpi.arrange(graph, speeds, objective=objective, method="swap").positions]
    here = value(graph, layout, objective)
    for i, j in itertools.combinations(range(15), 2):
        other = layout.copy()
        other[[i, j]] = other[[j, i]]
        assert value(graph, other, objective) >= here * (1 - 1e-7)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_few_modes_do_as_well(monkeypatch, objective):
    graph, speeds = parse("mesh:7x7"), np.random.default_rng(2).uniform(1, 10, 49)
    by_all = lb_mpi.arrange(graph, speeds, objective=objective, method="fill")
    monkeypatch.setattr(aims_module, "DENSE", 20)
    monkeypatch.setattr(aims_module, "N_HIGH", 16)
    aim = AIMS[objective](graph)
    assert len(find_modes(UniformAim(graph).laplacian, speeds, 4, 16).values) == 20
    assert aim.changes(speeds).cost == pytest.approx(value(graph, speeds, objective), rel=1e-7)
    few = lb_mpi.arrange(graph, speeds, objective=objective, method="fill")
    assert value(graph, speeds[few.positions], objective) <= 1.1 * value(graph, speeds[by_all.positions], objective)
    assert few.steps_predicted == predict_steps(graph, speeds[few.positions], objective=objective)
    swapped = lb_mpi.arrange(graph, speeds, objective=objective, method="swap")
    assert value(graph, speeds[swapped.positions], objective) <= value(graph, speeds[few.positions], objective)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_one_two_and_equal_speeds_have_nothing_to_gain(method, objective):
    for graph, speeds in ((parse("ring:1"), [3.0]), (parse("ring:2"), [1.0, 5.0]), (parse("mesh:2x3"), [2.0] * 6)):
        found = lb_mpi.arrange(graph, speeds, objective=objective, method=method)
        assert found.positions.tolist() == list(range(graph.n))
        assert found.p == found.p_before
        assert found.note.startswith("nothing to gain")
        assert found.steps_predicted == found.steps_before
    assert lb_mpi.arrange("ring:1", [3.0], objective=objective, method=method).steps_predicted == 0


def test_a_good_order_is_kept():
    graph, speeds = parse("mesh:1x3"), np.array([1.0, 3.0, 2.0])
    for method in ("exhaustive", "fill", "swap", "anneal"):
        found = lb_mpi.arrange(graph, speeds, method=method)
        assert found.positions.tolist() == [0, 1, 2]
        assert found.note.startswith("nothing gained")


@pytest.mark.parametrize("method", ["fill", "anneal"])
def test_progress_rises_to_the_end(method):
    shares: list[float] = []
    graph, speeds = parse("mesh:3x4"), np.random.default_rng(0).uniform(1, 10, 12)
    lb_mpi.arrange(graph, speeds, method=method, progress=lambda text, done: shares.append(done))
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", ["mesh:3x3", "mesh:6x6", "hypercube:4", "ring:12"])
def test_predicted_steps_are_measured(name, objective):
    graph, rng = parse(name), np.random.default_rng(5)
    speeds = rng.uniform(1, 10, graph.n)
    found = lb_mpi.arrange(graph, speeds, objective=objective)
    for layout, predicted in ((speeds, found.steps_before), (speeds[found.positions], found.steps_predicted)):
        measured = [
            balance(graph, layout * rng.uniform(5, 15, graph.n), layout, tau=objective, tolerance=1e-6).steps
            for _ in range(7)
        ]
        assert np.median(measured) == pytest.approx(predicted, rel=0.15)


def test_nothing_left_to_do_takes_no_steps():
    assert predict_steps(parse("ring:5"), [1.0] * 5, tolerance=10.0) == 0
    assert predict_steps(parse("ring:2"), [1.0, 4.0]) == 1


def test_a_host_list_is_put_in_order(command, tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a speed=5 # the fastest\n\nb\nc slots=2 speed=1.5\n")
    line = "arrange --graph mesh:1x3 --hosts", path
    path.write_text(command(*line).out)
    hosts = read_hosts(path)
    assert {host.name: (host.slots, host.speed) for host in hosts} == {"a": (1, 5), "b": (1, 1), "c": (2, 1.5)}
    assert hosts[1].name == "a"  # the fastest in the middle
    assert [text.split()[0] for text in command(*line, "--json").json["hosts"]] == [host.name for host in hosts]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("unit", [1e-310, 1e-300, 1e300])
def test_an_arrangement_does_not_depend_on_the_unit_of_speeds(objective, unit):
    speeds = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    usual, found = (lb_mpi.arrange("mesh:1x5", speeds * factor, objective=objective) for factor in (1.0, unit))
    assert found.positions.tolist() == usual.positions.tolist()
    assert (found.p, found.steps_before, found.steps_predicted) == (
        pytest.approx(usual.p, rel=1e-3), usual.steps_before, usual.steps_predicted
    )  # fmt: skip
