"""The apps on real MPI, on as many ranks as there are: exact counts, marks and bits, verified paths, clear errors."""

import contextlib
import functools
import io
import json
import math
import pathlib
import re
import sys
import types
from functools import partialmethod

import numpy as np
import pytest
import scipy
from mpi4py import MPI

import lb_mpi
from apps import command, heat, maze, particles, sweep, tsp, uts, weather
from apps.maze_search import FREE, random_maze
from apps.speeds import Varying
from apps.weather_physics import Climate, physics, wind
from lb_mpi.diffusion.setup import ROWS_SCHEMES
from lb_mpi.graph import Graph
from lb_mpi.mpi.graph.halo import HaloPlan
from tests.mpi.sizes import COMM
from tests.unit.test_tsp import held_karp

PAPER = str(pathlib.Path(__file__).parents[1] / "data" / "maze16.txt")
SPEEDS = [0.8, 0.4, 0.2, 0.2]
pytestmark = [pytest.mark.mpi, pytest.mark.one_mpi]


def run(app, monkeypatch, *arguments):
    """Run an app as the command line does; (exit code, stdout, stderr), the outputs as on rank 0."""
    monkeypatch.setattr(sys, "argv", ["app", *arguments])
    monkeypatch.setattr("lb_mpi.compiling.SHOWN_S", math.inf)  # where no kernels are in the cache
    out, err = io.StringIO(), io.StringIO()
    with pytest.raises(SystemExit) as ended, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        command.run(app.COMMAND)
    code = ended.value.code
    assert COMM.allgather(code) == [code] * COMM.size
    return code, *COMM.bcast((out.getvalue(), err.getvalue()))


def answer(app, monkeypatch, *arguments):
    code, out, err = run(app, monkeypatch, *arguments, "--json")
    assert (code, err) == (0, "")
    given = json.loads(out.splitlines()[-1])
    assert given["ranks"] == COMM.size
    assert len(given.get("busy_fraction", range(COMM.size))) == COMM.size
    assert given["seconds"] > 0
    return given


def alone(app, *arguments):
    """Return what one rank finds."""
    command.compile_once(COMM, app.compile_kernels)
    return app.main(MPI.COMM_SELF, app.COMMAND.parser("app").parse_args(arguments))[0]


@pytest.mark.parametrize(("tree", "counts", "at"), [
    ("T1", (4130071, 3305118, 10), SPEEDS), ("T3", (4112897, 3599034, 1572), [1.0]),
])  # fmt: skip
def test_published_trees(monkeypatch, tree, counts, at):
    speeds = np.resize(at, COMM.size).tolist()
    given = answer(uts, monkeypatch, "--tree", tree, "--speeds", ",".join(map(str, speeds)))
    assert (given["nodes"], given["leaves"], given["depth"]) == counts
    assert given["lower_bound_seconds"] == pytest.approx(given["cpu_seconds"] / sum(speeds))


@pytest.mark.parametrize(
    "extra",
    [[], ["--no-balance"], ["--split-rule", "half"], ["--quantum", "100"], ["--tile", "64"], ["--route", "random"]],
)
def test_all_reachable_cells_of_a_walled_maze_are_marked(monkeypatch, extra):
    given = answer(maze, monkeypatch, "--dim", "700", "--free", "0.6", "--seed", "5", "--walled", *extra)
    labels, _ = scipy.ndimage.label(random_maze(700, 0.6, 5, walled=True) == FREE, structure=np.ones((3, 3)))
    assert given["visited"] - given["visited_twice"] == np.count_nonzero(labels == labels[1, 1])
    assert (given["found"], given["path_length"]) == (False, 0)
    assert given["visited_twice"] >= 0


@pytest.mark.parametrize("extra", [[], ["--tile", "50"]])
def test_paths_are_found(monkeypatch, extra):
    for seed in range(5):
        given = answer(maze, monkeypatch, "--dim", "500", "--seed", str(seed), *extra)
        labels, _ = scipy.ndimage.label(random_maze(500, 0.7, seed) == FREE, structure=np.ones((3, 3)))
        assert given["found"] == (labels[1, 1] == labels[-2, -2])
        assert (given["path_length"] >= 500) == given["found"]


def test_the_maze_of_the_paper(monkeypatch):
    given = answer(maze, monkeypatch, PAPER)
    assert given["found"]
    assert 16 <= given["path_length"] <= given["visited"] <= 130
    assert answer(maze, monkeypatch, "--dim", "1")["path_length"] == 1


@pytest.mark.parametrize("extra", [[], ["--private"], ["--split-rule", "half", "--quantum", "5"]])
def test_the_shortest_tour(monkeypatch, extra):
    given = answer(tsp, monkeypatch, "--cities", "9", "--seed", "2", "--compare", *extra)
    assert given["length"] == pytest.approx(held_karp(tsp.random_cities(9, 2)), rel=1e-12)
    assert sorted(given["tour"]) == list(range(9))
    assert given["nodes_ratio"] == given["nodes"] / given["nodes_alone"]


def test_a_tour_within_a_time_limit(monkeypatch):
    given = answer(tsp, monkeypatch, "--cities", "25", "--limit-s", "0.5")
    assert given["timed_out"] is True
    assert sorted(given["tour"]) == list(range(25))
    code, out, err = run(tsp, monkeypatch, "--cities", "25", "--limit-s", "0.5")
    assert (code, err) == (0, "")
    assert "shortest tour through 25 cities, so far: " in out


def test_messages_between_ranks_are_printed_in_order(monkeypatch):
    given = answer(maze, monkeypatch, "--dim", "300", "--walled", "--trace", "states")
    story = [str(line).split(maxsplit=5) for line in given["trace"]]
    assert [float(line[0]) for line in story] == sorted(float(line[0]) for line in story)
    assert len({line[3] for line in story}) == (COMM.size if COMM.size > 1 else 0)
    asked = set()
    counts = {}
    for *_, rank, verb, rest in story:
        if verb == "to":
            kind, draft = rest.split()[1], rest.split(maxsplit=2)[2].partition(":")[0]
            counts[kind] = counts.get(kind, 0) + 1
            asked |= {draft} if kind == "ADMISSION" else set()
            assert kind not in ("WORK", "NOWORK") or draft in asked, rank
    kinds = ("DRAFTING", "REJECT", "ADMISSION", "WORK", "NOWORK")
    assert counts == {kind: n for kind, n in given["messages"].items() if kind in kinds}


SLOW = ",".join(str(0.8 / (1 + rank % 4)) for rank in range(COMM.size))
SMALL = {
    heat: "mesh:17x23 --work 5 --steps 6", weather: "--shape 24x48 --levels 6 --steps 6",
    particles: "--shape 9x12 --particles 3000 --work 20 --steps 25", sweep: "--tasks 30 --until 5",
}  # fmt: skip
WAYS = [
    (heat, "--balance block"), (heat, "--balance random --seed 3"), (heat, f"--balance static --speeds {SLOW}"),
    *[(weather, f"--balance {scheme} --speeds {SLOW}") for scheme in ("none", "auto", *ROWS_SCHEMES)],
    (weather, "--bound 0.03"), (particles, ""), (particles, f"--rebalance --speeds {SLOW}"),
]  # fmt: skip


@pytest.mark.parametrize(("app", "way"), WAYS, ids=[f"{app.__name__} {way.partition(' --speeds')[0]}" for app, way in WAYS])
def test_the_last_bit_does_not_depend_on_ranks_or_balancing(monkeypatch, app, way):
    given = answer(app, monkeypatch, *SMALL[app].split(), *way.split())
    assert given["checksum"] == alone(app, *SMALL[app].split())["checksum"]
    assert given["checksum"] != alone(app, *SMALL[app].split()[:-1], "5")["checksum"]
    assert 0 < given["lower_bound_seconds"] <= 1.05 * given["seconds"]


def test_particles_stay_within_their_neighbourhood():
    """In a step, a particle reaches one of the cells around its own at most."""
    positions = particles.initial(5000, (9, 12))
    before = positions.copy()
    particles.advect(positions, 9, 12, 4.0, 6.0, 7)
    assert np.abs(positions[:, 1:] - before[:, 1:]).max() <= 1.0
    assert len(np.unique(particles.cells_of(positions, 12))) > 50


def test_particles_move_with_their_cells(monkeypatch):
    monkeypatch.setattr(HaloPlan, "rebalance", functools.partialmethod(HaloPlan.rebalance, when="always"))
    with lb_mpi.distribute(COMM, particles.cells((9, 12)), parts=np.zeros(108, int)) as plan:
        mine = particles.initial(3000 * (COMM.rank == 0), (9, 12))
        mine, _ = particles.simulate(COMM, plan, mine, (9, 12), 3, 20, Varying(1.0), rebalance=True)
        assert np.isin(particles.cells_of(mine, 12), plan.vertices).all()
        assert plan.history.n_moved > 0 or COMM.size == 1
    assert COMM.allreduce(len(mine)) == 3000


TOO_FAST, ONE_MORE = ",".join(["2"] * COMM.size), ",".join(["1"] * (COMM.size + 1))
MISTAKES = [
    (maze, "--dim 0", "dim = 0"), (maze, "--dim 2 --walled", "dim = 2"), (maze, "--dim 10000000", "MiB of shared memory"),
    (maze, "--free nan", "free = nan"), (maze, "--seed -1", "seed = -1"), (maze, "nosuch.txt", "nosuch.txt"),
    (maze, f"{PAPER} --walled", "--walled"), (maze, "--threshold -1", "threshold"), (maze, "--lockstep 0", "--lockstep = 0"),
    (maze, "--quantum 0", "quantum = 0"), (maze, f"--speeds {ONE_MORE}", f"--speeds has {COMM.size + 1} numbers"),
    (maze, f"--speeds {TOO_FAST}", "--speeds: rank 0 = 2.0"), (maze, "--speeds fast", "--speeds"),
    (maze, "--split-rule all", "--split-rule"), (maze, "--tile 3", "--tile = 3: expected"),
    (uts, "--tree T99", "T99"), (uts, "--type binomial --q 0.5 --m 2", "q * m"), (uts, "--depth 0", "depth = 0"),
    (uts, "--branching nan", "branching = nan"), (uts, "--unknown", "--unknown"),
    (tsp, "--cities 2", "--cities"), (tsp, "--seed -1", "--seed"), (tsp, "--limit-s 0", "--limit-s"),
    (heat, "mesh:0x4", "mesh:0x4"), (heat, "mesh:4", "mesh:4"), (heat, "nosuch.graph", "nosuch.graph"),
    (heat, "--steps 0", "steps = 0"), (heat, "--work 0", "work = 0"), (heat, "--seed -1", "seed = -1"),
    (heat, "--balance best", "--balance"), (heat, "--effort most", "--effort"),
    (heat, "--machine nosuch.json", "nosuch.json"), (heat, f"--speeds {ONE_MORE}", f"--speeds has {COMM.size + 1} numbers"),
    (weather, "--shape 25x47" if COMM.size > 1 else "--shape 0x4", "shape = "), (weather, "--shape 128", "--shape"),
    (weather, "--shape axb", "--shape: 'axb': expected two integers, as in 40x60"), (weather, "--shape -4x8", "shape"),
    (weather, "--shape 100000000x100000000", "shape"), (weather, "--levels 0", "levels = 0"),
    (weather, "--steps -3", "steps = -3"),
    (weather, "--balance best", "--balance"), (weather, "--shape 12x12 --levels 2 --bound 0", "--bound = 0.0"),
    (weather, "--exchange pigeon", "--exchange"), (weather, f"--speeds {TOO_FAST}", "--speeds: rank 0 = 2.0"),
    (weather, "--speed-changes 0:1", "--speed-changes: a change of speed '0:1': expected RANK:FROM_S:TO_S:FACTOR"),
    (weather, f"--speed-changes {COMM.size}:0:1:0.5", f"--speed-changes: rank {COMM.size}: expected 0 to {COMM.size - 1}"),
    (particles, "--particles 0", "--particles = 0"), (particles, "--shape 0x5", "rows = 0"),
    (sweep, "--tasks 0", "--tasks = 0"), (sweep, "--until nan", "--until = nan"), (sweep, "--seed -1", "--seed = -1"),
    (sweep, "--tasks 3 --output /", "--output /"), (sweep, "--tasks 3 --output nosuch/sweep.npz", "nosuch/sweep.npz"),
]  # fmt: skip
APPS = (maze, uts, tsp, heat, weather, particles, sweep)


@pytest.mark.parametrize("app", APPS, ids=[app.__name__ for app in APPS])
def test_a_mistake_is_one_line(monkeypatch, app):
    for _, line, says in [row for row in MISTAKES if row[0] is app]:
        code, out, err = run(app, monkeypatch, *line.split())
        assert (code, out) == (2, ""), line
        assert says in err
        assert err.count("\n") == 1


@pytest.mark.parametrize("who", range(min(2, COMM.size)))
def test_compiling_that_fails_on_one_rank_is_an_error_of_all(monkeypatch, who):
    def compile_kernels():
        if COMM.rank == who:
            raise OSError("no room for the cache")

    def main(comm, _options):
        command.compile_once(comm, compile_kernels)

    own = types.SimpleNamespace(COMMAND=command.app("own", "fail", lambda parser: None, main))
    code, out, err = run(own, monkeypatch)
    assert (code, out) == (2, "")
    assert err == f"python -m apps.own: error: {'' if who == 0 else f'rank {who}: '}no room for the cache\n"


def test_a_failure_of_an_app_is_one_line(monkeypatch):
    def main(comm, _options):
        raise lb_mpi.BalanceError("rank 0: rows are gone")

    code, out, err = run(types.SimpleNamespace(COMMAND=command.app("own", "fail", lambda parser: None, main)), monkeypatch)
    assert (code, out, err) == (1, "", "python -m apps.own: error: rank 0: rows are gone\n")


def test_help_is_printed_once(monkeypatch):
    code, out, _ = run(uts, monkeypatch, "--help")
    assert code == 0
    assert out.count("usage:") == 1


# --- heat --------------------------------------------------------------------------------------------------------------


def test_saved_steps_go_on_with_another_distribution(monkeypatch, folder):
    save = ["--save", str(folder), "--save-every", "0", "--work", "5"]
    for graph, steps, balance, first in (("mesh:17x23", "4", "static", 0), ("mesh:17x23", "6", "random", 4)):
        given = answer(heat, monkeypatch, graph, "--steps", steps, "--balance", balance, *save)
        assert given["first_step"] == first
    assert given["checksum"] == alone(heat, *SMALL[heat].split())["checksum"]
    assert sorted(path.name for path in folder.glob("save-*")) == ["save-00000004", "save-00000006"]
    for graph, extra, says in (
        ("mesh:17x24", [], "graph = '408 vertices, 775 edges, CRC"),
        ("mesh:17x23", ["--work", "6"], "work = 6: expected 5, as in what is saved in"),
    ):
        code, out, err = run(heat, monkeypatch, graph, *save, *extra)
        assert (code, out) == (2, "")
        assert says in err


def test_the_last_bit_does_not_depend_on_rebalancing(monkeypatch, folder):
    """Saved after some rebalancings, and continued with others; they do not depend on how busy the machine is."""
    monkeypatch.setattr(lb_mpi.HaloPlan, "rebalance", partialmethod(lb_mpi.HaloPlan.rebalance, when="always"))
    speeds = ",".join(map(str, [0.8 / (1 + rank % 4) for rank in range(COMM.size)]))
    options = ["--balance", "block", "--rebalance", "--speeds", speeds, "--speed-changes", "0:0:9:0.5", "--work", "4000"]
    for steps, first in (("15", 0), ("30", 15)):
        given = answer(heat, monkeypatch, "mesh:17x23", "--steps", steps, *options, "--save", str(folder))
        assert given["first_step"] == first
    assert given["checksum"] == alone(heat, "mesh:17x23", "--steps", "30", "--work", "4000")["checksum"]
    assert COMM.size == 1 or given["vertices_moved"] > 0
    assert sum(given["vertices"]) == 17 * 23
    code, out, err = run(heat, monkeypatch, "mesh:17x23", "--steps", "20", *options)
    assert (code, err) == (0, "")
    assert COMM.rank > 0 or re.search("rebalancings? moved", out), out


def test_the_step_against_numpy():
    """A step of a whole random graph, against the matrix form of the same law."""
    rng = np.random.default_rng(1)
    pairs = rng.integers(0, 40, (90, 2))
    tails, heads = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0).T
    graph = Graph.from_edges(40, tails, heads, rng.uniform(0, 3, len(tails)))
    before = rng.uniform(0.2, 1.0, 40)
    after = np.empty(40)
    dt = 0.01
    for work in (1, 4):
        heat.step(before, after, graph.indptr, graph.indices, graph.weights, dt, work, 0, 40)
        dense = graph.to_scipy().toarray()
        expected = before + dt * (dense @ before - dense.sum(axis=1) * before)
        for _ in range(work):
            expected += heat.RADIATION / work * (heat.AIR**4 - expected**4)
        np.testing.assert_allclose(after, expected, rtol=1e-13)
    parts = np.full(40, np.nan)
    for first, end in ((0, 13), (13, 14), (14, 40)):
        heat.step(before, parts, graph.indptr, graph.indices, graph.weights, dt, 4, first, end)
    np.testing.assert_array_equal(parts, after)


def test_checksums_depend_on_values_and_places():
    """Of a field in two pieces, swapped values, one bit, and what is on which vertex."""
    vertices, field = np.arange(10), np.linspace(0, 1, 10)
    mine = slice(COMM.rank * 10 // COMM.size, (COMM.rank + 1) * 10 // COMM.size)
    whole = heat.checksum(MPI.COMM_SELF, vertices, field)
    assert heat.checksum(COMM, vertices[mine], field[mine]) == whole
    assert heat.checksum(MPI.COMM_SELF, vertices[::-1], np.ascontiguousarray(field[::-1])) == whole
    nearly = np.nextafter(field, 2)
    others = [field[::-1].copy(), nearly, np.where(vertices == 3, nearly, field), field * 1.0]
    sums = {heat.checksum(MPI.COMM_SELF, vertices, other) for other in others}
    assert len(sums) == 4
    assert whole in sums


# --- weather -----------------------------------------------------------------------------------------------------------


def test_saved_steps_go_on_on_another_number_of_ranks(monkeypatch, tmp_path):
    save = ["--save", str(COMM.bcast(tmp_path / "saves")), "--save-every", "3"]
    for steps, first in (("4", 0), ("5", 4), ("5", 5)):
        code, out, _ = run(weather, monkeypatch, *SMALL[weather].split()[:-1], steps, *save)
        assert code == 0
        assert out.startswith(f"went on from step {first}, saved in ") == (first > 0)
    expected = alone(weather, *SMALL[weather].split(), "--balance", "none")["checksum"]
    if COMM.rank == 0:
        options = weather.COMMAND.parser("app").parse_args([*SMALL[weather].split(), *save, "--balance", "none"])
        found, _ = weather.main(MPI.COMM_SELF, options)
        assert (found["checksum"], found["first_step"]) == (expected, 5)
    COMM.Barrier()
    for extra, says in (
        (["--steps", "5"], "steps = 5: expected at least 6, the step that is saved in"),
        (["--levels", "7"], "levels = 7: expected 6, as in what is saved in"),
        (["--shape", "48x48"], "shape = [48, 48]: expected [24, 48], as in what is saved in"),
        (["--save-every", "-1"], "--save-every = -1: expected an integer >= 0"),
    ):
        code, out, err = run(weather, monkeypatch, *SMALL[weather].split(), *save, *extra)
        assert (code, out) == (2, "")
        assert says in err


def test_a_change_of_speed_is_in_the_bound_and_printed(monkeypatch):
    change = "--speed-changes", "0:0:1000:0.5"
    answers = [answer(weather, monkeypatch, *SMALL[weather].split(), *more) for more in ([], change)]
    assert answers[0]["checksum"] == answers[1]["checksum"]
    for given, power in zip(answers, (COMM.size, COMM.size - 0.5), strict=True):
        assert given["lower_bound_seconds"] == pytest.approx(given["cpu_seconds"] / power)
    assert [one["after_seconds"] for one in answers[1]["steps_to_settle"]] == [0.0]


def test_steps_until_it_has_settled():
    imbalances, begins = [0.9, 0.1, 0.1, 0.8, 0.3, 0.1, 0.2, 0.1, 0.1], np.arange(9.0)
    found = [weather.steps_to_settle(imbalances, begins, moment) for moment in (0.0, 1.0, 3.0, 2.5, 8.0)]
    assert found == [1, 0, 4, 4, None]


def test_the_halo_has_the_neighbours_cells():
    block = weather.Block(COMM, (24, 48), 3)
    whole = Climate((24, 48), slice(0, 48), slice(0, 24)).initial(3)
    whole += np.arange(24 * 48).reshape(48, 24, 1)
    rows, columns = weather.most_square_mesh(COMM.size)
    row, column = divmod(COMM.rank, columns)
    lat, lon = row * block.n_lat, column * block.n_lon
    block.columns = whole[lon : lon + block.n_lon, lat : lat + block.n_lat].reshape(-1, 3)
    block.exchange_halo()
    block.fill()
    padded = np.pad(np.pad(whole, ((1, 1), (0, 0), (0, 0)), mode="wrap"), ((0, 0), (1, 1), (0, 0)), mode="edge")
    part = padded[lon : lon + block.n_lon + 2, lat : lat + block.n_lat + 2]
    np.testing.assert_array_equal(block.air[1:-1], part[1:-1])
    np.testing.assert_array_equal(block.air[:, 1:-1], part[:, 1:-1])
    assert rows * block.n_lat == 24


def test_kernels_against_plain_python():
    rng = np.random.default_rng(1)
    air = rng.uniform(220, 300, (5, 4, 7))
    after = np.empty((3, 2, 7))
    wind(air, after)
    mixed = air[:-2, 1:-1] + air[2:, 1:-1] + air[1:-1, :-2] + air[1:-1, 2:] - 4 * air[1:-1, 1:-1]
    expected = air[1:-1, 1:-1] + 0.1 * (air[:-2, 1:-1] - air[1:-1, 1:-1]) + 0.04 * mixed
    np.testing.assert_allclose(after, expected, rtol=1e-14)
    columns, sun, storm = rng.uniform(220, 300, (9, 7)), rng.uniform(-1, 1, 9).clip(0), rng.uniform(0, 1, 9)
    together = physics(columns, sun, storm)
    for k in range(9):  # a column doesn't depend on the others in the block
        np.testing.assert_array_equal(physics(columns[k : k + 1], sun[k : k + 1], storm[k : k + 1])[0], together[k])
        np.testing.assert_allclose(
            physics.py_func(columns[k : k + 1], sun[k : k + 1], storm[k : k + 1])[0], together[k]
        )


# --- sweep -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [[], ["--costs", "--speeds", ",".join(["0.5"] * COMM.size)]])
def test_the_file_holds_what_one_rank_finds(monkeypatch, folder, extra):
    file = str(folder / f"{len(extra)}.npz")
    code, out, err = run(sweep, monkeypatch, *SMALL[sweep].split(), *extra, "--output", file, "--json")
    assert (code, err) == (0, "")
    given = json.loads(out)
    assert given["ranks"] == len(given["busy_fraction"]) == COMM.size
    assert given["tasks"] == sum(given["tasks_by_rank"]) == 30
    mu = sweep.stiffnesses(30, 0)
    expected = np.array([sweep.solve(one, 5.0) for one in mu])
    with np.load(file) as found:
        assert np.array_equal(found["mu"], mu)
        for name, column in zip(sweep.Motion._fields, expected.T, strict=True):
            assert np.array_equal(found[name], column), name
    assert given["evaluations"] == expected[:, -1].sum()


def test_tasks_in_the_checkpoint_are_not_repeated(monkeypatch, folder):
    log = str(folder / "sweep.log")
    answers = [run(sweep, monkeypatch, *SMALL[sweep].split(), "--checkpoint", log, "--json") for _ in range(2)]
    assert [(code, err) for code, _, err in answers] == [(0, "")] * 2
    first, again = (json.loads(out) for _, out, _ in answers)
    assert (sum(first["tasks_by_rank"]), sum(again["tasks_by_rank"])) == (30, 0)
    assert again["evaluations"] == first["evaluations"]
    code, out, err = run(sweep, monkeypatch, "--tasks", "30", "--until", "6", "--checkpoint", log)
    assert (code, out) == (2, "")
    assert "sweep.log" in err


def test_costs_are_known_well():
    mu = sweep.stiffnesses(20, 1)
    costs = [sweep.solve(one, 20.0)[-1] for one in mu]
    assert np.corrcoef(np.log(costs), np.log(sweep.predicted_costs(mu, 20.0)))[0, 1] > 0.8
