"""Refusals: the wrong arguments of functions and command lines, each with the text of its error."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from scipy import sparse

import lb_mpi
from apps.lockstep import lockstep
from apps.maze_search import BLOCKED, MazeSearch, check_path, random_maze
from apps.maze_tiles import TiledMazeSearch
from apps.speeds import change_of
from lb_mpi.balancing.deciding import Trigger
from lb_mpi.checks import function, show
from lb_mpi.cli.run.hosts import Host
from lb_mpi.cli.simulate.rows import Cluster, row_costs
from lb_mpi.cli.simulate.search import search
from lb_mpi.cli.throttle import own_speed
from lb_mpi.diffusion.setup import chosen_scheme, prepare, rows_scheme
from lb_mpi.distributing.allocation import MAX_TASKS
from lb_mpi.graph import Graph, host_graph, mesh, most_square_mesh, parse, ring_order
from lb_mpi.graph_files import parts_text
from lb_mpi.machine import Machine
from lb_mpi.metrics import check_loads, check_parts, check_speeds, imbalance
from lb_mpi.partitioning.quality import connected, cut, part_weights, volume
from lb_mpi.partitioning.spectral import spectral_bisection
from lb_mpi.rebalancing.rebalance import rebalance
from lb_mpi.rebalancing.slabs import best_ends
from lb_mpi.searching.guard import Quantum
from lb_mpi.searching.uts import Tree, UnbalancedTreeSearch
from lb_mpi.virtual import Network
from tests.pile import Pile

nan, inf = math.nan, math.inf
SPEED = "speed = {}: expected a finite number above 0 and at most 1"
A_NAME = "expected a graph, a matrix, a file (there is none of this name) or a name: mesh:RxC, torus:RxC"
AN_OBJECT = "expected an lb_mpi.Graph, a networkx graph, a scipy.sparse matrix, a name or the path of a file"


def of_ranks(n: int) -> Machine:
    return Machine(("a",) * n, np.ones(n), np.zeros((n, n)), np.zeros((n, n)))


def maze(dim: int = 3, *blocked: tuple[int, int]) -> np.ndarray:
    cells = random_maze(dim, 1.0, 0)
    for where in blocked:
        cells[where] = BLOCKED
    return cells


def read_only(cells: np.ndarray) -> np.ndarray:
    cells.flags.writeable = False
    return cells


def state_of(dim: int, seed: int) -> bytes:
    return MazeSearch(random_maze(dim, 0.7, seed), 0).save()


def tiled() -> TiledMazeSearch:
    return TiledMazeSearch(random_maze(8, 1.0, 0), 0, 2, tile=4)


def network(**fields: object) -> Network:
    return Network()._replace(**fields).checked()


def weighted(weight: object) -> Graph:
    return Graph.from_networkx(nx.Graph([("a", "b", {"weight": weight})]))


def varying(speed: object) -> None:
    speeds = iter([1.0, speed])
    lb_mpi.throttle(lambda: next(speeds)).charge(1.0)


# Of each function: arguments that are right; then an argument, values of it that are wrong, and what the error says of each
# ({}: the value).  The name of another kind of error than a ValueError stands before what it says.
KINDS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (TypeError, FileNotFoundError)}
Rows = list[tuple[str, tuple[Any, ...], str]]
OF_PARTS: Rows = [
    ("parts", ([0, 1],), "parts of shape (2,) = [0, 1]: expected 3 integers"),
    ("parts", ([0.0, 1.0, 0.0],), "expected 3 integers"),
    ("parts", ([0, 2, 0],), "parts[1] = 2: expected 0..1"),
    ("parts", ([0, 1, -1],), "parts[2] = -1"),
    ("parts", ([[0, 1, 0]],), "parts of shape"),
]
TABLE: list[tuple[Callable[..., Any], dict[str, Any], Rows]] = [
    (lb_mpi.partition, {"graph": "mesh:3x3", "k": 2}, [
        ("k", (0, 2.5), "k = {}: expected an integer, 1 to"),
        ("seed", (-1, 0.5, "a"), "seed = {}"),
        ("targets", ("ab",), "targets = 'ab': expected numbers"),
        ("targets", ([1, 2, 3],), "targets of shape"),
        ("targets", ([1, 0],), "targets[1] = 0.0"),
        ("targets", ([1e-320, 1e300],), "targets[0] = 1e-320: too small"),
        ("imbalance", (-0.1, nan, inf, "little"), "imbalance = {}"),
        ("effort", ("great",), "effort = {}: expected one of fast, good, best"),
        ("method", ("magic",), "method = {}: expected one of multilevel, multilevel-spectral"),
        ("aim", ("speed",), "aim = {}: expected one of cut, time"),
        ("aim", ("time",), "aim = 'time' without a machine"),
        ("unit_s", (1.0,), "unit_s = 1.0 without a machine"),
        ("machine", (of_ranks(1),), "machine of 1 ranks: expected 2"),
        ("machine", ("m.json",), "TypeError: machine = 'm.json'"),
        ("graph", (np.eye(3),), "TypeError: pass scipy.sparse.csr_array(it)"),
    ]),
    (lb_mpi.partition, {"graph": "mesh:3x3", "k": 3, "method": "spectral"}, [
        ("threshold", ("mean",), "halves, with threshold = 'mean'"),
        ("threshold", ("quantile",), "threshold = 'quantile': expected one of median, mean"),
    ]),
    (spectral_bisection, {"graph": mesh(1, 9)}, [("target", (1.0,), "target = 1.0")]),
    (spectral_bisection, {"graph": mesh(1, 9), "threshold": "mean"}, [("target", (0.3,), "target = 0.3: expected 0.5")]),
    (lb_mpi.partition_metrics, {"graph": "mesh:1x3", "parts": [0, 1, 0], "k": 2}, [
        *OF_PARTS,
        ("targets", ([1, 0],), "targets[1] = 0.0"),
        ("targets", ([1, 2, 3],), "targets of shape"),
        ("k", (0,), "k = 0"),
        ("machine", (of_ranks(3),), "machine of 3 ranks: expected 2"),
        ("unit_s", (1.0,), "unit_s = 1.0 without a machine"),
        ("targets", ([5e-324, 1e300],), "targets[0] = 5e-324: too small"),
    ]),
    (lb_mpi.partition_metrics, {"graph": "mesh:1x3", "parts": [0, 1, 0], "k": 2, "machine": of_ranks(2)}, [
        ("unit_s", (-1.0,), "unit_s = -1.0"),
        ("unit_s", (5e-324,), "speeds of the machine with unit_s = 5e-324"),
        ("unit_s", (1e308,), "the time on the machine exceeds"),
    ]),
    (check_parts, {"n": 3, "k": 2}, OF_PARTS),
    *((figure, {"graph": mesh(1, 3), "k": 2}, OF_PARTS[:3]) for figure in (cut, volume, connected, part_weights)),
    (lb_mpi.arrange, {"graph": parse("ring:3"), "speeds": [1, 2, 3]}, [
        ("speeds", ([1, 2, 0],), "speeds[2] = 0.0"),
        ("speeds", ([1, 2],), "speeds of shape"),
        ("objective", ("best",), "objective = {}"),
        ("method", ("luck",), "method = {}"),
        ("seed", (-1, "a"), "seed = {}"),
        ("tolerance", (0.0, nan), "tolerance = {}"),
        ("graph", (Graph.from_edges(3, [0], [2]),), "2 components (vertex 1"),
    ]),
    (lb_mpi.arrange, {"graph": "mesh:2x5", "speeds": [1.0] * 10}, [("method", ("exhaustive",), "at most 9")]),
    (lb_mpi.allocate, {"tasks": 10, "time": [1, 2, 3]}, [
        ("tasks", (-1, 2.5, MAX_TASKS + 1), "tasks = {}: expected an integer, 0 to"),
        ("time", ([1, 0, 2],), "time[1] = 0.0: expected a finite number > 0"),
        ("time", (0.0,), "time[0] = 0.0"),
        ("time", ([-1, 0, 2],), "time[0] = -1.0: expected a finite number > 0"),
        ("time", ([], [[1, 2, 3]]), "time of shape"),
        ("time", (["a", 1, 2],), "expected numbers"),
        ("time", ([1, 1e308, 1e308],), "time of all tasks on node 1: exceeds"),
        ("edge_probability", (1.5, -0.5, nan), "edge_probability = {}: expected a finite number >= 0 and at most 1"),
        ("exchange", ([1, 1, -1],), "exchange[2] = -1.0"),
        ("exchange", ([1, 1],), "exchange of shape (2,) = [1, 1]: expected 3 numbers"),
        ("wait_probability", ([0, 2, 0],), "wait_probability[1] = 2.0: expected 0..1"),
        ("wait", ([0, 0, inf],), "wait[2] = inf"),
        ("cap", ([1, 2, 3],), "cap adds up to 6: expected at least tasks = 10"),
        ("cap", ([9, 0, 0],), "cap adds up to 9: expected at least tasks = 10"),
        ("cap", ([9.5, 9, 9], 9.5), "cap[0] = 9.5: expected a whole number"),
        ("cap", ("many",), "expected numbers"),
        ("cap", ([-1, 9, 9],), "cap[0] = -1.0"),
        ("cap", ([10, 10],), "cap of shape"),
        ("method", ("greedy",), "method = 'greedy': expected one of exact, paper"),
    ]),
    (lb_mpi.balance, {"graph": "mesh:2x2", "loads": [1, 2, 3, 4], "speeds": [1, 1, 1, 1]}, [
        ("speeds", ([1, 1, 0, 1],), "speeds[2] = 0.0"),
        ("speeds", ([1, 1, 1],), "speeds of shape"),
        ("loads", ([1, 1, 1, -1],), "loads[3] = -1.0"),
        ("loads", ([1, 1, 1],), "loads of shape"),
        ("loads", ([1.7e308] * 4,), "the sum of loads exceeds"),
        ("speeds", ([1e-300, 1, 1, 1],), "speeds[0] = 1e-300: expected at least 1e-12 of"),
        ("tolerance", (-1.0, nan, inf), "tolerance = {}"),
        ("scheme", ("fast",), "scheme = 'fast': expected one of fos"),
        ("tau", ("best",), "tau = 'best': expected one of paper"),
        ("max_steps", (-1,), "max_steps = -1"),
    ]),
    (prepare, {"graph": mesh(100, 100), "speeds": np.ones(10_000)}, [("scheme", ("ops",), "at most 8000")]),
    (rows_scheme, {"graph": mesh(1, 4)}, [("scheme", ("cg",), "scheme = 'cg': expected one of direct, fos, sos, auto")]),
    (chosen_scheme, {"graph": mesh(1, 4)}, [("scheme", ("best",), "scheme = 'best': expected one of fos, ")]),
    (function, {"name": "f"}, [("value", (3, None), "TypeError: f = {}: expected a function")]),
    (function, {"name": "f", "optional": True}, [("value", (3,), "TypeError: f = 3: expected a function, or None")]),
    (check_speeds, {"size": 3}, [
        *(("speeds", ([1.0, bad, 2.0],), f"speeds[1] = {bad}: expected a finite number > 0") for bad in (-1.0, 0.0, nan)),
        ("speeds", ([1.0, inf, 2.0],), "speeds[1] = inf"),
        ("speeds", ([1.0, 2.0], [[1.0], [2.0], [3.0]], 1.0, []), "expected 3 numbers"),
        ("speeds", (["fast"],), "expected numbers"),
    ]),
    (check_speeds, {"name": "times"}, [("speeds", ([0.0],), "times[0] = 0.0"), ("speeds", ([],), "at least one number")]),
    (check_loads, {}, [
        ("loads", ([0, 1, bad],), f"loads[2] = {bad}: expected a finite number >= 0") for bad in (-1.0, nan, inf)
    ]),
    (imbalance, {"loads": [1, 2, 3]}, [("speeds", ([1, 2],), "speeds of shape")]),
    (parse, {}, [("text", (
        "", "mesh", "mesh:", "mesh:3", "mesh:3x", "mesh:3x3x3", "mesh:0x4", "mesh:-1x4", "mesh: 3x3", "mesh:3x3 ",
        "mesh:3X3", "mesh:3x3\n", "mesh:1e2x3", "mesh:٣x3", "torus:3.5x2", "ring:0", "ring:2x2", "mesh:100000x100000",
        "hypercube:-1", "hypercube:99", "hypercube:99999999999999", "cube:0", "cube:1000000000000", "star:4",
        "complete:0", "complete:100000",
    ), "graph = {}")]),
    (lb_mpi.as_graph, {}, [
        ("graph", ("grid:3x3", "nosuch.graph"), f"FileNotFoundError: graph = {{}}: {A_NAME}"),
        ("graph", (Path("nosuch.mtx"),), f"FileNotFoundError: graph = 'nosuch.mtx': {A_NAME}"),
        ("graph", (np.eye(8), 8, None, [[1, 0]], {0: 1}), f"TypeError: graph = {{}}: {AN_OBJECT}"),
        ("graph", ("2/1/4",), "vertex 3 lists 4"),
        ("graph", ("2/1,3/",), "vertex 2 lists 3, but not"),
        ("graph", ("2,2/1,1",), "lists 2 twice"),
        ("graph", ("1/1",), "vertex 1 lists 1"),
    ]),
    (parts_text, {}, [("parts", ([0, -1], [0.5], [[0, 1]]), "parts")]),
    (rebalance, {"graph": mesh(1, 2), "parts": [0, 1], "speeds": [1.0, 1.0]}, [
        ("parts", ([0, 5],), "parts[1] = 5: expected 0..1"),
        ("speeds", ([1.0, 0.0],), "speeds[1] = 0.0: expected a finite number > 0"),
        ("costs", ([1.0],), "costs of shape (1,) = [1.0]: expected 2 numbers"),
        ("tolerance", (0,), "tolerance = 0: expected a finite number above 0"),
    ]),
    (host_graph, {}, [("hosts", ([],), "hosts = []: expected one for each rank")]),
    (most_square_mesh, {}, [("size", (0,), "size = 0")]),
    (ring_order, {}, [("size", (0,), "size = 0")]),
    (Graph, {"indptr": np.array([0, 1, 2]), "weights": np.ones(2), "vertex_weights": np.ones(2)}, [
        ("indices", (np.array([1.0, 0.0]),), "TypeError: indices of dtype float64"),
    ]),
    (Graph.from_edges, {"n": 2, "tails": [0]}, [
        ("heads", ([5],), "edge 0-5: expected vertices in 0..1"), ("heads", ([1, 1],), "1 tails, 2 heads"),
    ]),
    (Graph.from_edges, {"n": 2, "tails": [0], "heads": [1]}, [
        ("weights", ([1e308],), "the sum of the weights of the graph exceeds"),  # of both ends
        ("vertex_weights", ([1e308] * 2,), "the sum of the weights of the graph exceeds"),
    ]),
    (best_ends, {"costs": [1e300], "counts": [1, 0]}, [("speeds", ([1e-300, 1.0],), "speeds[0] = 1e-300")]),
    (Graph.from_scipy, {}, [
        ("matrix", (sparse.csr_array(np.ones((2, 3))),), "expected a square"),
        ("matrix", (sparse.csr_array(np.eye(2) * 1j),), "complex128"),
        ("matrix", (sparse.csr_array([[0.0, 1.0], [0.0, 0.0]]),), "0-1 is one-sided"),
        ("matrix", (np.eye(2),), "TypeError: ndarray"),
        ("matrix", (sparse.csr_array([[0.0, -2.0], [-2.0, 0.0]]),), "weight -2.0: expected a number >= 0, such as in abs"),
    ]),
    (Graph.from_networkx, {}, [
        ("graph", (nx.DiGraph([(0, 1)]),), "directed"), ("graph", (nx.Graph([("a", "a")]),), "'a' has a self-loop"),
    ]),
    (weighted, {}, [("weight", (-1, nan, inf, "heavy", None), "weight of edge 'a'-'b' = {}")]),
    (Machine, {
        "hosts": ("a", "a", "b"), "speeds": [2.0, 1.0, 0.5], "latency_s": np.zeros((3, 3)), "s_per_byte": np.zeros((3, 3)),
    }, [
        ("hosts", (["a", "a"], []), "speeds"),
        ("hosts", (["a", "", "b"], ["a", 1, "b"], "aab"), "hosts"),
        ("speeds", ([1, 0, 1],), "speeds[1] = 0.0"),
        ("speeds", ("fast",), "speeds"),
        ("latency_s", ([0, 0, 0], [[0, 1], [1, 0]]), "latency_s of shape"),
        ("latency_s", ([[0, 1], [1]],), "latency_s"),
        ("latency_s", ([[0, 1, 1], [1, 0, -1], [1, 1, 0]],), "latency_s[1][2] = -1.0"),
        ("s_per_byte", ([[0, 1, 1], [1, 0, nan], [1, 1, 0]],), "s_per_byte[1][2] = nan"),
        ("s_per_byte", ([[0, 1, 1], [1, 3, 1], [1, 1, 0]],), "s_per_byte[1][1] = 3.0: expected 0"),
        ("wait_probability", ([0, 1.5, 0],), "wait_probability[1] = 1.5: expected 0 to 1"),
        ("wait_s", ([0, 1],), "wait_s of shape"),
        ("wait_s", ([0, 1, -1],), "wait_s[2] = -1.0"),
    ]),
    (network, {}, [
        (name, (value,), f"{name} = ") for name, value in (
            ("latency_s", (0.0, 1.0)), ("between_s", (2.0, 1.0)), ("bytes_per_s", 0.0), ("n_cores", -1), ("turn_s", -1e-3),
        )
    ]),
    (search, {"problems": [Pile(3), Pile(3)]}, [
        ("network", (Network((1e-3, nan)),), "latency_s"),
        ("unit_s", (-1.0,), "unit_s = -1.0: expected"),
        ("quantum_s", (inf,), "quantum_s = inf: expected"),
        ("speeds", ([1.0, 0.0],), "speed"),
    ]),
    (Cluster, {"graph": parse("ring:4"), "speeds": np.ones(4)}, [
        ("noise", (-1.0, "a"), "noise = {}: expected"),
        ("tolerance", (0.0,), "tolerance = {}: expected"),
        ("when", ("never",), "when = {}: expected"),
        ("seed", (-1,), "seed = {}: expected"),
        ("speeds", (np.ones(3),), "speeds"),
    ]),
    (row_costs, {"n_ranks": 3, "n_rows": 3}, [("kind", ("odd",), "costs = {}: expected one of constant, lognormal, ")]),
    (lb_mpi.Bound, {}, [("sense", ("", "smallest", None, min), "sense = {}: expected one of min, max")]),
    (lb_mpi.TreeSearch, {"root": 0, "children": list}, [
        (name, (5,), f"TypeError: {name} = 5: expected a function") for name in ("children", "value", "merge", "until")
    ]),
    (Host, {"name": "a"}, [
        ("name", ("a b", "-a", "a:b", "", "a\n"), "expected"),
        ("slots", (0, True, 1.5), "slots = {}: expected"),
        ("speed", (0.0, "2"), "speed = {}: expected"),
    ]),
    (lb_mpi.throttle, {}, [("speed", (0, -0.5, 1.01, nan, inf, "fast", None), SPEED)]),
    (varying, {}, [("speed", (0, 1.01, nan, "fast", None), SPEED)]),
    (own_speed, {"text": "0.8,0.4"}, [
        ("variables", ({}, {"PMI_RANK": "one"}), "no rank in the environment"),
        ("variables", ({"PMI_RANK": "2"},), "has 2 numbers: expected one for each of the ranks, of which this is number 2"),
        ("variables", ({"PMI_RANK": "2"},), "with commas between them"),
    ]),
    (own_speed, {"variables": {"PMI_RANK": "0", "PMI_SIZE": "4"}}, [
        ("text", ("1,1,1,1,1",), "has 5 numbers: expected one for each of the 4 ranks"),
        ("text", ("0.8,1.1",), "rank 1 = 1.1: expected a finite number above 0"),
    ]),
    (change_of, {}, [
        ("text", ("", "1:2:3", "1:a:3:0.5", "-1:0:1:0.5", "0:-1:1:0.5", "0:2:2:0.5", "0:1:2:0", "0:1:2:1.5"), "expected"),
    ]),
    (Trigger, {}, [
        ("when", ("never", 0.0, -1.0, nan, inf, True, None, [1]), "when = {}: expected"),
        ("every", (0, -1, 1.0, True, "2", None), "every = {}: expected"),
    ]),
    (lockstep, {"problems": [MazeSearch(maze(), rank) for rank in range(2)]}, [
        ("ring", ([0], [0, 0], [1, 2]), "ring = {}: expected"),
    ]),
    (lockstep, {"problems": [MazeSearch(maze(), rank) for rank in range(2)], "ring": [0, 1]}, [
        ("problems", ([],), "problems"),
        ("threshold", (-1.0, nan), "threshold = {}: expected"),
    ]),
    (Quantum, {}, [("fixed", (0, -1, 1.5), "quantum = {}: expected an integer >= 1")]),
    (Tree, {}, [
        ("type", ("balanced", None), "type = {}: expected"),
        ("shape", ("expdec", 3), "shape = {}: expected"),
        ("depth", (0, 1001, 2.0, True), "depth = {}: expected"),
        ("branching", (0, -4.0, nan, inf, "4", 4j), "branching = {}: expected"),
        ("seed", (-1, 2**31, 1.5), "seed = {}: expected"),
        ("q", (-0.1, 1.1, nan, False), "q = {}: expected"),
        ("m", (0, 101, "8"), "m = {}: expected"),
        ("shift", (-0.5, nan), "shift = {}: expected"),
        ("may_be_infinite", (1,), "TypeError: may_be_infinite = 1: expected"),
    ]),
    (UnbalancedTreeSearch, {}, [("tree", ("T1",), "TypeError: tree = 'T1': expected a Tree")]),
    (random_maze, {"dim": 4, "free": 0.5, "seed": 0}, [
        ("dim", (0, 2.0, True), "dim = {}"),
        ("free", (0.0, 1.5, nan), "free = {}"),
        ("seed", (-1, 0.5), "seed = {}"),
        ("out", (np.zeros((5, 5), np.uint8),), "out"),
        ("out", (np.zeros((6, 6)),), "TypeError: out"),
    ]),
    (random_maze, {"dim": 2, "free": 0.5, "seed": 0}, [("walled", (True,), "dim = 2")]),
    (MazeSearch, {"rank": 0}, [
        ("cells", (maze(4, (1, 1)),), "entry"),
        ("cells", (maze(4, (4, 4)),), "exit"),
        ("cells", ([[2, 2], [2, 2]], np.zeros((5, 5))), "TypeError: cells"),
        *(("cells", (np.full(shape, 2, np.uint8),), "cells") for shape in ((2, 2), (4, 5), 9)),
        ("cells", (np.full((10, 10), 2, np.uint8)[::2, ::2], np.zeros((5, 5), np.uint8)), "cells"),
        ("cells", (read_only(maze()),), "writeable"),
    ]),
    (MazeSearch, {"cells": maze()}, [("rank", (-1, 0.5), "rank = {}")]),
    (MazeSearch, {"cells": maze(), "rank": 0}, [("split_rule", ("all",), "split_rule = 'all'")]),
    (MazeSearch(random_maze(12, 0.7, 0), 0).resume, {"mine": range(1)}, [
        ("states", ([state_of(13, 0)],), "dim 12: expected 13"),
        ("states", ([state_of(12, 1)],), "other cells blocked"),
        ("states", ([state_of(12, 0)[:-1]],), "expected"),
    ]),
    (TiledMazeSearch, {"cells": random_maze(8, 1.0, 0), "rank": 0, "size": 1, "tile": 4}, [
        ("tile", (3,), "tile = 3: expected"), ("size", (0,), "size"),
    ]),
    (tiled().resume, {"mine": [0]}, [("states", ([state_of(9, 0)],), "maze of dim 8: expected 9")]),
    (check_path, {"cells": maze(3, (2, 1))}, [
        ("path", ([],), "at least one"),
        ("path", ([[6, 18]],), "one dimension"),
        ("path", ([6.0, 12.0, 18.0],), "integer"),
        ("path", ([6, 12, 99],), "expected 0 to 24"),
        ("path", ([7, 12, 18],), "begins"),
        ("path", ([6, 12, 17],), "ends"),
        ("path", ([6, 11, 12, 18], [6, 0, 6, 12, 18]), "blocked"),
        ("path", ([6, 18], [6, 6, 12, 18]), "neighbours"),
        ("path", ([6, 12, 7, 12, 18],), "twice"),
    ]),
]  # fmt: skip
CASES = [
    pytest.param(called, {**right, name: value}, says, show(value), id=f"{called.__qualname__}-{name}-{value!r:.30}")
    for called, right, rows in TABLE
    for name, values, says in rows
    for value in values
]


@pytest.mark.parametrize(("called", "arguments", "says", "shown"), CASES)
def test_a_wrong_argument_is_refused_in_words(called, arguments, says, shown):
    name, _, rest = says.partition(": ")
    kind, says = (KINDS[name], rest) if name in KINDS else (ValueError, says)
    with pytest.raises(kind) as raised:
        called(**arguments)
    assert says.replace("{}", shown) in str(raised.value)


# --- a line of a command, of which one is enough for each option: the rest is in the table above ---

FILES = {
    "twice.txt": "a slots=2\nb slots=2\n",
    "bad.txt": "-x one\n",
    "bad.graph": "2 1\n3\n1\n",
    "bad.mtx": "%%MatrixMarket matrix coordinate real general\n2 3 0\n",
}
LINES = [
    ("simulate search --ranks 0", "ranks = 0: expected an integer, 1 to 65536"),
    ("simulate search --unit-s 5e-324", "--unit-s = 5e-324: expected"),
    ("simulate search --threshld 3", "python -m lb_mpi simulate search: error: unrecognized"),
    ("simulate search --tree T9", "T9"),
    ("simulate rows --row-s 0", "--row-s = 0.0: expected"),
    ("simulate rows --graph mesh:2x2 --speeds=-1,1", "--speeds[0] = -1.0: expected"),
    ("simulate rows --graph complete:20000000", "ranks = 20000000: expected an integer, 1 to 65536"),
    ("simulate tasks --hosts 99999", "hosts = 99999: expected an integer, 1 to 10000 (ranks in all)"),
    ("report no_folder", "error: FOLDER = 'no_folder': expected a folder made with LB_MPI_RECORD or `run --record`"),
    ("throttle --speed 2 true", "--speed = 2.0: expected a finite number above 0 and at most 1"),
    ("throttle --speed 0.8,0.4 true", "error: --speed has 2 numbers: expected 1; did you mean --speeds?"),
    ("run --restarts -1 -- true", "--restarts -1: expected 0 or more"),
    ("run -n 0 -- true", "-n 0: expected at least 1"),
    ("run -n 1 --hosts hosts.txt python", "run: error: --hosts hosts.txt: No such file or directory"),
    ("allocate --tasks 10 --time 1,,2", "time = '1,,2': expected numbers with commas between"),
    ("allocate --tasks 10 --time 1,2 --edge-probability 2", "--edge-probability = 2.0"),
    ("allocate --tasks -1 --time 1,2", "tasks = -1"),
    ("balance mesh:2x2 --tolerance -1", "tolerance = -1.0"),
    ("balance mesh:2x2 --speeds 1,2", "--speeds of shape (2,) = array([1., 2.]): expected 4 numbers"),
    ("balance mesh:1x2 --times=1,-1", "error: --times[1] = -1.0: expected a finite number >= 0"),
    ("balance mesh:1x2 --times=1,1,1", "error: --times of shape (3,)"),
    ("balance mesh:1x2 --speeds=0,1", "error: --speeds[0] = 0.0: expected a finite number > 0"),
    ("balance mesh:1x2 missing.txt", "missing.txt"),
    ("partition nosuch.graph -k 2", "nosuch.graph"),
    ("partition mesh:2x2 -k 2 --machine no.json", "error: --machine no.json: No such file or directory"),
    ("partition mesh:2x2 -k 2 --targets 1,x", "targets = '1,x'"),
    ("partition bad.graph -k 2 --json", "error: bad.graph:2: neighbour 3"),
    ("partition bad.mtx -k 2", "error: bad.mtx: "),
    ("arrange --graph 2/1/4/3", "2 components"),
    ("arrange --graph ring:3 --speeds uniform:0:0", "speeds"),
    ("arrange --graph ring:3 --hosts twice.txt", "one for each vertex"),
    ("arrange --graph ring:3 --hosts bad.txt", "bad.txt:1"),
    ("arrange --graph mesh:2x2 --hosts no.txt", "error: --hosts no.txt: No such file or directory"),
]


@pytest.mark.parametrize(("line", "says"), LINES)
def test_a_mistake_is_one_line_and_exit_code_2(command, tmp_path, monkeypatch, line, says):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    out, err = command(line, code=2)
    assert (out, err.count("\n")) == ("", 1)
    assert says in err
