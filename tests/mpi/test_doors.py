"""Any shape of a graph will do at every door that is opened by all ranks, and what is none is refused alike."""

import re

import numpy as np
import pytest
from mpi4py import MPI
from scipy import sparse

import lb_mpi
from lb_mpi.graph import mesh
from tests.mpi.calls import same
from tests.mpi.doors import DOORS as ALL_DOORS
from tests.mpi.sizes import COMM, RANK, SIZE

pytestmark = pytest.mark.mpi


def arranged(graph):
    lb_mpi.reorder_ranks(COMM, graph, np.arange(1.0, SIZE + 1)).Free()


LOADS = np.arange(1.0, 9.0)
GRAPHS = {0: mesh(2, 4), 1: mesh(1, SIZE)}  # of anything, of the ranks
DOORS = {  # the graph that it needs, and a call with it
    "Balancer": (1, lambda graph: lb_mpi.Balancer(COMM, graph=graph).close()),
    "reorder_ranks": (1, arranged),
    "distribute": (0, lambda graph: lb_mpi.distribute(COMM, graph, method="block").close()),
    "as_graph": (0, lambda graph: lb_mpi.as_graph(graph).indices),
    "partition": (0, lambda graph: lb_mpi.partition(graph, 2, effort="fast")),
    "partition_metrics": (0, lambda graph: lb_mpi.partition_metrics(graph, [0, 1] * 4, 2).cut),
    "arrange": (0, lambda graph: lb_mpi.arrange(graph, LOADS, method="fill").positions),
    "balance": (0, lambda graph: lb_mpi.balance(graph, LOADS, LOADS[::-1], tolerance=0.5).flow),
}


def shapes(graph, folder):
    """A mesh in every shape in which a graph can be given; the files are in a folder that all ranks see."""
    lists = [[int(j) + 1 for j in graph.neighbours(k)] for k in range(graph.n)]
    if RANK == 0:
        head = f"{graph.n} {len(graph.indices) // 2}\n"
        (folder / "a.graph").write_text(head + "".join(" ".join(map(str, some)) + "\n" for some in lists))
        entries = "".join(f"{j + 1} {i + 1}\n" for i, j in zip(*graph.edges(), strict=True))
        for name in ("a.mtx", "a.txt"):
            size = f"{graph.n} {graph.n} {len(graph.indices) // 2}"
            (folder / name).write_text(f"%%MatrixMarket matrix coordinate pattern symmetric\n{size}\n{entries}")
    COMM.Barrier()
    return {
        "Graph": graph,
        **({"networkx": graph.to_networkx()} if SIZE == 1 else {}),  # which takes long to import
        "csr array": graph.to_scipy(),
        "coo matrix": sparse.coo_matrix(graph.to_scipy()),
        "name": "mesh:2x4" if graph is GRAPHS[0] else f"mesh:1x{SIZE}",
        "lists": "/".join(",".join(map(str, some)) for some in lists) or graph,
        "METIS": str(folder / "a.graph"),
        "Matrix Market": folder / "a.mtx",
        "Matrix Market, by its content": folder / "a.txt",
    }


@pytest.mark.one_mpi
@pytest.mark.parametrize("door", DOORS)
def test_any_shape_of_a_graph(door, folder):
    of, call = DOORS[door]
    expected = call(GRAPHS[of])
    for shape, graph in shapes(GRAPHS[of], folder).items():
        assert np.array_equal(call(graph), expected), shape
    for wrong, kind, words in (
        ("grid:3x3", OSError, "there is none of this name"),
        (np.eye(3), TypeError, "scipy.sparse matrix"),
        (8, TypeError, "graph = 8: expected an lb_mpi"),
        ("mesh:0x3", ValueError, "mesh:0x3"),
    ):
        with pytest.raises(kind, match=words):
            call(wrong if RANK == 0 or door not in ("Balancer", "reorder_ranks", "distribute") else GRAPHS[of])


def test_what_a_door_returns_shows_its_rank_and_its_state():
    place = f"rank {RANK} of {SIZE}"
    with lb_mpi.Pool(COMM) as pool:
        assert repr(pool) == f"<lb_mpi.Pool: {place}, open>"
    assert repr(pool) == f"<lb_mpi.Pool: {place}, closed>"
    with lb_mpi.Balancer(COMM) as balancer:
        balancer.map_rows(np.cos, np.ones(5))
        assert repr(balancer) == f"<lb_mpi.Balancer: {place}, 1 call, open>"
    assert repr(balancer) == f"<lb_mpi.Balancer: {place}, 1 call, closed>"
    executor = lb_mpi.Executor(COMM)
    assert repr(executor) == f"<lb_mpi.Executor: {place}, open>"
    with executor:
        pass
    assert repr(executor) == f"<lb_mpi.Executor: {place}, shut down>"
    with lb_mpi.distribute(COMM, f"ring:{8 * SIZE}", method="block") as plan:
        assert repr(plan).startswith("<lb_mpi.HaloPlan: 8 vertices and ")


@pytest.mark.parametrize("door", ALL_DOORS)
def test_traffic_of_the_caller_is_not_disturbed(door, tmp_path):
    request = COMM.Irecv(received := np.zeros(1), MPI.ANY_SOURCE, MPI.ANY_TAG)
    with ALL_DOORS[door][1](COMM, COMM.bcast(tmp_path / "saves")) as call:
        call()
    came = request.Test()
    COMM.Barrier()  # a faster rank must not send before that test
    assert not came
    COMM.Send(np.array([7.0]), (RANK + 1) % SIZE)
    request.Wait()
    assert received[0] == 7.0


class Metres(np.ndarray):
    """An array with a unit."""


ARRAY_DOORS = {
    "items": lambda array, _: in_a(lb_mpi.Pool(COMM), lambda pool: pool.map(same, array)),
    "rows": lambda array, _: in_a(lb_mpi.Balancer(COMM), lambda balancer: balancer.map_rows(np.copy, array)),
    "rows[0]": lambda array, _: in_a(lb_mpi.Balancer(COMM), lambda balancer: balancer.migrate((array, array))[0]),
    "more[0]": lambda array, _: in_a(
        lb_mpi.Balancer(COMM),
        lambda balancer: balancer.map_rows(lambda rows, more: rows if np.isscalar(more) else more, np.ones(4), array),
    ),
    "values": lambda array, _: in_a(ring(), lambda plan: plan.exchange(array)[: len(array)]),
    "values[0]": lambda array, _: in_a(ring(), lambda plan: plan.rebalance(array)[0]),
    "x": lambda array, folder: (lb_mpi.save(COMM, folder, 1, x=array), lb_mpi.load(COMM, folder))[1][1]["x"],
}


def ring():
    return lb_mpi.distribute(COMM, f"ring:{4 * SIZE}", method="block")


def in_a(door, call):
    with door:
        return call(door)


FIELDS = np.dtype([("x", "f8"), ("y", "i4"), ("z", "f4")])
GOOD = {  # arrays of four rows
    **{dtype: (lambda dtype=dtype: np.arange(4).astype(dtype)) for dtype in
       ("?", ">f8", "c16", "g", ">M8[s]", "m8[ms]", "U3", "S2", "V5", "V0", "f4,i8", "(2,3)f4")},
    "some fields": lambda: np.zeros(4, FIELDS)[["x", "z"]],
    "titles": lambda: np.zeros(4, np.dtype({"names": ["a"], "formats": ["f8"], "titles": ["T"]})),
    "no fields": lambda: np.zeros(4, []),
    "read-only": lambda: np.broadcast_to(np.arange(4.0), (4,)),
    "once": lambda: np.broadcast_to(np.arange(3.0), (4, 3)),
    "backwards": lambda: np.arange(12.0).reshape(4, 3)[::-1, ::-1],
    "Fortran's": lambda: np.asfortranarray(np.arange(12.0).reshape(4, 3)),
    "gaps": lambda: np.arange(24.0).reshape(4, 6)[:, ::2],
    "not aligned": lambda: np.frombuffer(bytearray(range(33)), np.uint8)[1:].view(np.float64),
    "empty rows": lambda: np.zeros((4, 0, 3), order="F"),
    "64 axes": lambda: np.zeros((4, *[1] * 63)),
}  # fmt: skip
LISTS = {
    "list": lambda: [1.0, 2.0, 3.0, 4.0], "rows": lambda: [[1, 2]] * 4, "range": lambda: range(4), "text": lambda: [*"abcd"],
    "memory": lambda: memoryview(bytearray(range(4))), "tuple": lambda: (1, 2, 3, 4),
}  # fmt: skip
TYPE = "{} of type {type}: expected a numpy array"
OBJECTS = "{} of dtype .*: expected a numpy array without Python objects"
WRONG = {
    "a unit": (lambda: np.arange(4.0).view(Metres), TypeError, rf"{TYPE}, such as np\.asarray\({{}}\)"),
    "a mask": (lambda: np.ma.arange(4.0), TypeError, rf"{TYPE}, such as {{}}\.filled\(0\.0\)"),
    "a matrix": (lambda: np.eye(4).view(np.matrix), TypeError, TYPE),
    "records": (lambda: np.rec.array([(1, 2.0)] * 4), TypeError, TYPE),
    "no array": (lambda: {1: 2}, TypeError, TYPE),
    "a sparse matrix": (lambda: sparse.eye_array(4).tocsc(), TypeError, "{}.*: expected"),
    "no axis": (lambda: np.array(3.0), ValueError, r"{} of shape \(\): expected at least one dimension, the rows"),
    "objects": (lambda: np.array([None] * 4), TypeError, OBJECTS),
    "a field of objects": (lambda: np.zeros(4, "f8,O"), TypeError, OBJECTS),
    "scalar": (lambda: np.float64(3.0), TypeError, TYPE),
    "number": (lambda: 3.0, TypeError, TYPE),
    "ragged": (lambda: [[1], [1, 2], [3], [4]], TypeError, r"{} of type list \(.*inhomogeneous.*: expected a numpy array"),
    "None": (lambda: [None] * 4, TypeError, OBJECTS),
}
OTHERWISE = {  # the words of a door that has a reason
    **{("items", kind): "" for kind in ("objects", "a field of objects", *LISTS, "ragged", "None")},  # they are pickled
    **{("items", kind): "items = .*: expected an iterable" for kind in ("scalar", "number")},
    **{("items", kind): "" for kind in ("no array", "a sparse matrix")},  # iterables
    **{("more[0]", kind): "" for kind in ("scalar", "number")},  # sent to the function as it is
    **{("rows", kind): TYPE.replace("{}", r"rows\[0\]") for kind in ("list", "rows", "text", "tuple", "ragged", "None")},
    **{(name, kind): TYPE for name in ("values[0]", "more[0]", "rows[0]") for kind in ("ragged", "None")},
    ("values", "tuple"): TYPE,  # which rebalance returns
}


@pytest.mark.one_mpi
@pytest.mark.skipif(SIZE > 1, reason="each rank checks its own")
@pytest.mark.parametrize("name", ARRAY_DOORS)
def test_a_column_is_the_same_at_every_door(name, tmp_path):
    """Each door refuses what is no column in the same words; no unit, mask or index is lost without a word."""
    door, folder = ARRAY_DOORS[name], COMM.bcast(tmp_path)
    for kind, make in {**GOOD, **LISTS, **{kind: make for kind, (make, _, _) in WRONG.items()}}.items():
        _, error, words = WRONG.get(kind, (make, TypeError, TYPE))
        good = kind in GOOD or (kind in LISTS and name in ("values", "x"))
        words = OTHERWISE.get((name, kind), "" if good else words)
        value = make()
        if words:
            with pytest.raises(error, match=words.replace("{}", re.escape(name)).replace("{type}", r"\w+")):
                door(value, folder / kind)
        elif (found := door(value, folder / kind)) is not None and good and name != "items":
            expected = np.asarray(value)
            assert (found.dtype.str, found.shape, found.tolist()) == (expected.dtype.str, expected.shape, expected.tolist())


@pytest.mark.parametrize("name", ARRAY_DOORS)
def test_files_in_memory_are_arrays(name, tmp_path):
    door, folder = ARRAY_DOORS[name], COMM.bcast(tmp_path) / "saves"
    mapped = np.memmap(tmp_path / "rows", mode="w+", shape=(4, 2))
    mapped[:] = np.arange(8.0).reshape(4, 2) + RANK
    found = door(mapped, folder)
    if found is not None:
        assert np.array(found).tolist() == np.asarray(mapped).tolist()
