"""Refusals of each door: a wrong argument, on one rank or on all, is the same error on all ranks, and the door still works.

A row of a table is a call as data: the door, the arguments that are wrong, the error, and its words.  Numbers of all kinds
are in test_numbers.py, what a user's function does in test_misbehaving_*.py.
"""

import itertools
import json
import math

import numpy as np
import pytest
from mpi4py import MPI
from scipy import sparse

import lb_mpi
from lb_mpi.graph import Graph, parse
from lb_mpi.machine import Machine
from tests.misbehaviour import NotForPickling
from tests.mpi.calls import CALLS, ONE, ROWS, SPEEDS
from tests.mpi.doors import CALLS as DOORS
from tests.mpi.doors import USES
from tests.mpi.sizes import COMM, LAST, RANK, SIZE, several
from tests.pile import Pile

pytestmark = [pytest.mark.mpi, pytest.mark.one_mpi, pytest.mark.pair]
ALIKE = ", all ranks alike"  # with the wrong argument, since it is compared first; of others, the root alone looks at some
BY_ALL = ("map", "imap", "distribute")
BAD_ROWS = [
    ([1.0, 2.0], TypeError, r"rows\[0\] of type float: expected a numpy array"),
    (np.array([None]), TypeError, "rows of dtype object: expected a numpy array without Python objects; for a list"),
    (np.float64(3.0), TypeError, "rows of type float64: expected a numpy array"),
    (np.array(3.0), ValueError, r"rows of shape \(\): expected at least one dimension"),
    ((np.zeros(3), np.zeros(4)), ValueError, r"rows\[1\] has 4 rows: expected 3, as rows\[0\] has"),
    ((), TypeError, "rows without arrays: expected at least one"),
    (np.ma.masked_array([1.0]), TypeError, "expected a numpy array"),
    (ROWS.view(np.matrix), TypeError, "rows of type matrix: expected a numpy array"),
]
BAD_VALUES = [
    (np.zeros(6), ValueError, r"values\[0\] has 6 rows: expected 5"),
    (np.float64(1.0), TypeError, r"values\[0\] of type float64"),
    (np.zeros(()), ValueError, r"values\[0\] of shape \(\)"),
    (np.array([None] * 5), TypeError, r"values\[0\] of dtype object"),
    (np.ma.zeros(5), TypeError, r"values\[0\] of type MaskedArray"),
    ([1] * 5, TypeError, r"values\[0\] of type list: expected .* or a list of objects with pack and unpack$"),
    (3, TypeError, r"values\[0\] of type int"),
    (sparse.eye_array(5).tocsc(), TypeError, r"values\[0\], a sparse matrix in CSC"),
    (sparse.eye_array(6).tocsr(), ValueError, r"values\[0\] has 6 rows"),
    (sparse.csr_array((np.array([None] * 5), range(5), range(6))), TypeError, r"values\[0\] of dtype object"),
    (sparse.csr_array(np.ones(5)), ValueError, r"values\[0\], a sparse array of shape \(5,\)"),
]
OTHERS = {"hosts": ("a",) * 9, "speeds": np.ones(9), "latency_s": np.zeros((9, 9)), "s_per_byte": np.zeros((9, 9))}


class Plain(Pile):
    save = None


class Misspelt(Pile):
    absorb = lb_mpi.Problem.absorb


REFUSED = [
    ("Pool", {"root": SIZE}, ValueError, f"root = {SIZE}: expected"),
    ("Pool", {"initializer": 3}, TypeError, "initializer = 3: expected a function"),
    ("Executor", {"max_workers": 0}, ValueError, "max_workers must be greater than 0, not 0"),
    ("Executor", {"max_workers": "2"}, ValueError, "max_workers = '2': expected an integer"),
    ("Executor", {"initializer": 3}, TypeError, "initializer = 3: expected"),
    ("map", {"items": "abc"}, TypeError, "items = 'abc': expected an iterable"),
    ("map", {"items": 3.0}, TypeError, "items = 3.0: expected an iterable, such as a list"),
    ("map", {"items": 1 << 28}, ValueError, "items: expected at most 268,435,454"),
    ("map", {"items": range(-(2**70), 2**70, 3)}, ValueError, "items: expected at most 268,435,454"),
    ("map", {"items": [1, NotForPickling()]}, TypeError, r"items\[1\] can't be pickled"),
    ("map", {"to": "me"}, ValueError, "to = 'me': expected one of root, all"),
    ("map", {"function": None}, TypeError, "function = None: expected a function"),
    ("map", {"progress": 3}, TypeError, "progress = 3: expected a function"),
    ("map", {"retries": 1.5}, ValueError, "retries = 1.5: expected"),
    ("map", {"retry_pause": -1}, ValueError, "retry_pause = -1: expected"),
    *[("map", {"timeout": one}, ValueError, f"timeout = {one!r}: expected") for one in (0, math.nan, math.inf, "soon")],
    ("map", {"checkpoint": "log", "key": 3}, TypeError, "key = 3: expected a text"),
    *[("map", {"checkpoint": one}, TypeError, "checkpoint = .*: expected the name") for one in (3.5, b"log", True)],
    *[("map", {"checkpoint": one}, ValueError, "checkpoint = .*: expected the name of a file") for one in ("", "a\0b")],
    ("map", {"checkpoint": "/"}, ValueError, "checkpoint = .*: expected a file"),
    ("map", {"checkpoint": "/no/log"}, FileNotFoundError, r"\[Errno 2\] checkpoint: No such file or directory: .*/no/log"),
    ("map", {"checkpoint": "log", "items": {1, 2}}, TypeError, r"items = \{.*\}: expected items in a fixed order"),
    ("imap", {"cost": [1]}, TypeError, "unexpected keyword argument 'cost'; did you mean costs"),
    ("imap", {"buffersize": 0}, ValueError, "buffersize = 0: expected"),
    ("imap", {"buffersize": 2, "costs": [1, 2, 3]}, ValueError, "buffersize = 2: expected None with costs="),
    ("imap", {"buffersize": 2, "checkpoint": "log"}, ValueError, "buffersize = 2: expected None with checkpoint="),
    ("imap", {"buffersize": 2, "progress": True}, ValueError, "buffersize = 2: expected None with progress="),
    ("Balancer", {"scheme": "magic"}, ValueError, "scheme = 'magic': expected"),
    ("Balancer", {"scheme": "cg"}, ValueError, "scheme = 'cg': expected"),
    ("Balancer", {"when": "never"}, ValueError, "when = 'never': expected"),
    ("Balancer", {"graph": 7}, TypeError, "graph = 7: expected"),
    ("Balancer", {"graph": parse("ring:99")}, ValueError, "graph.*expected"),
    *[("map_rows", {"rows": rows}, kind, words) for rows, kind, words in BAD_ROWS],
    ("map_rows", {"function": 3}, TypeError, "function = 3: expected a function"),
    ("map_rows", {"function": None, "fill_value": 1}, TypeError, "function = None: expected a function"),
    ("map_rows", {"function": ROWS, "rows": np.copy}, TypeError, r"^[^\n]*function = array\(\[\[[^\n]* a function$"),
    *[("map_rows", {"more": (2.0, one)}, TypeError, r"more\[1\] of type \w+: expected a numpy array .*or a scalar.*keyword")
      for one in ([1.0, 2.0], {"a": 1}, object())],
    ("map_rows", {"more": (2.0, ROWS[:1])}, ValueError, r"more\[1\] has 1 row: expected 5, as rows has"),
    ("map_rows", {"block_rows": 0}, ValueError, "block_rows = 0: expected an integer >= 1"),
    ("map_rows", {"rows": [object()]}, TypeError, "for a list of objects pass pack=, unpack="),
    ("map_rows", {"rows": [1], "pack": 3, "unpack": json.loads}, TypeError, "pack = 3: expected a function"),
    ("map_rows", {"rows": [1], "pack": json.dumps}, TypeError, "pack and unpack: expected both or neither"),
    *[("migrate", {"rows": rows}, kind, words) for rows, kind, words in BAD_ROWS],
    *[("migrate", {"costs": one}, ValueError, "costs") for one in ([1.0], [-1.0] * 5, [math.nan] * 5, "text", [1e308] * 5)],
    ("migrate", {"order": "sorted"}, ValueError, "order = 'sorted': expected one of appended, kept"),
    ("migrate", {"order": 3}, ValueError, "order = 3: expected"),
    ("search", {"balance": "no"}, ValueError, "balance = 'no': expected"),
    ("search", {"trace": print}, ValueError, "trace = <built-in function print>: expected True or False"),
    ("search", {"route": "line"}, ValueError, "route = 'line': expected"),
    ("search", {"bound": 3.0}, TypeError, "bound = 3.0: expected an lb_mpi.Bound, or None"),
    ("search", {"limit_s": "1"}, ValueError, "limit_s = '1': expected"),
    ("search", {"save_every_s": math.nan}, ValueError, "save_every_s = nan: expected"),
    ("search, all ranks alike", {"save": 3}, TypeError, "save = 3: expected the name of a folder"),
    ("search, all ranks alike", {"save": "nowhere", "problem": Plain(10)}, TypeError, "it lacks save"),
    ("search", {"problem": "not a problem"}, TypeError, "it lacks absorb, "),
    ("search", {"problem": Misspelt(9)}, TypeError, "it lacks absorb$"),
    ("distribute", {"graph": sparse.eye_array(4).tocsr()[:3]}, ValueError, "square"),
    ("distribute", {"graph": Graph.from_edges(2, [0], [1], None, [1e-320] * 2)}, ValueError, "vertex weights of sum 2e-320"),
    ("distribute", {"root": SIZE}, ValueError, f"root = {SIZE}"),
    ("distribute", {"method": "best"}, ValueError, "method = 'best'"),
    ("distribute", {"machine": "m.json", "speeds": None}, TypeError, "machine = 'm.json'"),
    ("distribute", {"machine": Machine(**OTHERS), "speeds": None}, ValueError, "machine of 9 ranks"),
    ("distribute", {"aim": "speed"}, ValueError, "aim = 'speed'"),
    ("distribute", {"aim": "time"}, ValueError, "aim = 'time' without unit_s"),
    ("distribute", {"aim": "time", "method": "block"}, ValueError, "with method = 'block'"),
    ("distribute", {"aim": "time", "method": "slabs", "unit_s": 1.0}, ValueError, "aim = 'time' with method"),
    ("distribute", {"aim": "time", "parts": [0] * 12}, ValueError, "with parts"),
    ("distribute", {"effort": "none"}, ValueError, "effort = 'none'"),
    ("distribute", {"parts": [0, 1]}, ValueError, "parts of shape"),
    ("distribute", {"parts": [SIZE] * 12}, ValueError, rf"parts\[0\] = {SIZE}"),
    ("distribute", {"parts": [-1] * 12}, ValueError, r"parts\[0\] = -1"),
    ("distribute", {"parts": [0.5] * 12}, ValueError, r"parts of shape \(12,\) = \[0.5, 0.5"),
    ("distribute", {"emulated_speed": 2.0 if RANK == LAST else 1.0, "speeds": None}, ValueError, "speed = 2.0"),
    ("distribute", {"kernel": 5}, TypeError, "kernel = 5"),
    *[("rebalance", {"values": value}, kind, words) for value, kind, words in BAD_VALUES],
    ("rebalance", {"when": "never"}, ValueError, "when = 'never'"),
    ("rebalance", {"every": 0}, ValueError, "every = 0"),
    ("rebalance", {"tolerance": -1.0}, ValueError, "tolerance = -1.0"),
    ("rebalance", {"imbalance": 0.0}, ValueError, "imbalance = 0.0"),
    *[("rebalance", {"costs": one}, ValueError, "costs") for one in ([1.0], -np.ones(5), np.full(5, np.nan), [1e308] * 5)],
    ("rebalance", {"costs": np.full(5, 1e100)}, ValueError, r"costs with sum 5e\+100: expected at most 1e\+100"),
    ("rebalance", {"pack": str}, TypeError, "pack and unpack"),
    ("rebalance", {"pack": 1, "unpack": 2}, TypeError, "pack = 1"),
    ("reorder_ranks", {"speeds": [1.0] * (SIZE + 1)}, ValueError, "speeds of shape"),
    ("reorder_ranks", {"speeds": [1.0] * LAST + [0.0]}, ValueError, "= 0.0"),
    ("reorder_ranks", {"graph": parse(f"ring:{SIZE + 1}")}, ValueError, f"expected {SIZE}, one for each rank"),
    ("reorder_ranks", {"graph": 4}, TypeError, "graph = 4"),
    *[("reorder_ranks, all ranks alike", {"graph": Graph.from_edges(SIZE, [], [])}, ValueError, "components")] * (SIZE > 1),
    ("reorder_ranks", {"objective": "best"}, ValueError, "objective = 'best'"),
    ("reorder_ranks", {"method": "luck"}, ValueError, "method = 'luck'"),
    ("measure", {"kernel": 3}, TypeError, "kernel = 3"),
    ("measure", {"rounds": True}, ValueError, "rounds = True"),
    ("measure", {"round_s": math.nan}, ValueError, "round_s = nan"),
    ("measure", {"emulated_speed": 2.0}, ValueError, "speed = 2.0"),
    ("measure, all ranks alike", {"kernel": lambda n: None}, ValueError, "expected some work"),
    ("save", {"step": -1}, ValueError, "step = -1: expected an integer"),
    ("save", {"folder": 7}, TypeError, "folder = 7: expected the name of a folder"),
    *[("save", {"folder": one}, ValueError, "folder = '.*': expected the name of a folder") for one in ("", "a\0b")],
    ("save", {"folder": "/etc/passwd"}, ValueError, "folder = /etc/passwd: expected a folder"),
    ("save", {"heat": np.ma.masked_invalid([1.0, 2.0, 3.0])}, TypeError, "heat of type MaskedArray: expected a numpy array"),
    ("save", {"heat": np.array([None, "a", 1], object)}, TypeError, "heat of dtype object: expected a numpy"),
    ("save", {"heat": 3.0}, TypeError, "heat of type float: expected a numpy array or a list of rows"),
    ("save", {"wind": np.zeros(2)}, ValueError, "wind has 2 rows: expected 3, as heat has"),
    ("save", {"a-b": ONE}, ValueError, "array 'a-b': expected a name of letters"),
    ("save", {"options": [1]}, TypeError, r"options = \[1\]: expected names"),
    ("save", {"options": {"a": object()}}, TypeError, "options = .*: expected names"),
    ("save", {"index": np.zeros((3, 1), int)}, ValueError, r"index is \(3, 1\) of int64: expected \(n,\) integers"),
    ("save", {"index": [0.5, 1, 2]}, ValueError, r"index is \(3,\) of float64: expected \(n,\) integers"),
]  # fmt: skip
DIFFERENT = [np.zeros((5, 2), "f4"), np.zeros((5, 3)), np.zeros(5), (np.zeros((5, 2)),)]
DIFFER = [  # good ones, which aren't those of the other ranks
    *[("Balancer", one, ValueError, next(iter(one))) for one in
      ({"scheme": "fos"}, {"every": 2}, {"when": 0.1}, {"tolerance": 0.1})],
    *[("map_rows", {"rows": rows}, TypeError, "rows") for rows in DIFFERENT],
    ("map_rows", {"rows": np.zeros(5, [("x", "f8"), ("y", "i4"), ("z", "f4")])[["z", "x"]]}, TypeError, "rows = .*'names'"),
    ("map_rows", {"block_rows": 3}, TypeError, "rows = .* in blocks of 3"),
    *[("migrate", {"rows": rows}, ValueError, "rows") for rows in DIFFERENT],
    ("migrate", {"order": "kept"}, ValueError, "order = 'kept'"),
    ("search", {"route": "random"}, ValueError, "route"),
    ("search", {"bound": lb_mpi.Bound("max")}, ValueError, "bound = 'max'"),
    *[("distribute", one, ValueError, f"{next(iter(one))} = ") for one in ({"root": LAST}, {"kernel": lambda n: None})],
    ("rebalance", {"values": np.zeros((5, 3))}, TypeError, "values = "),
    ("rebalance", {"values": np.zeros(5, "f4")}, TypeError, "values = "),
    ("rebalance", {"when": "always"}, TypeError, "when = "),
    ("rebalance", {"every": 2}, TypeError, "every = "),
    ("rebalance", {"costs": np.ones(5)}, TypeError, "costs = "),
    *[("reorder_ranks", one, ValueError, next(iter(one))) for one in
      ({"speeds": SPEEDS[::-1]}, *[{"graph": f"ring:{SIZE}"}] * (SIZE > 2), {"objective": "paper"},
       {"method": "fill"}, {"seed": 5})],
    *[("measure", one, ValueError, f"{next(iter(one))} = ") for one in
      ({"rounds": 2}, {"round_s": 0.002}, {"messages": True}, {"kernel": lambda n: None})],
    ("save", {"step": 7}, ValueError, "step = 7"),
    ("save", {"folder": "other"}, ValueError, "folder = 'other'"),
    ("save", {"wind": ..., "rain": ONE}, ValueError, r"arrays = \['heat', 'rain'\]"),
    ("save", {"heat": ONE.astype("f4")}, ValueError, "heat = .*float32"),
    ("save", {"wind": np.zeros((3, 2))}, ValueError, r"wind = .*\(2,\)"),
    ("save", {"options": {"seed": 8}}, ValueError, "options = .*8"),
    ("save", {"index": [0, 1, 2]}, ValueError, "index = 'given'"),
]  # fmt: skip


def check_all(rows, door, folder, *, by_all=False, more=""):
    """Each wrong call is the error of its row on all ranks, whose text also has `more`; then a right one works."""
    made, call = CALLS[door.removesuffix(ALIKE)]
    with made(folder) as one:
        for _, wrong, kind, words in [row for row in rows if row[0] == door]:
            given = wrong if by_all or RANK == LAST else {}
            reported = "nothing"
            try:
                call(one, **given)
            except Exception as error:
                reported = f"{type(error).__name__}: {error}"
                with pytest.raises(kind, match=words):
                    raise
                assert more in reported
            assert "nothing" not in COMM.allgather(reported), wrong
            call(one)


@pytest.mark.parametrize("door", sorted({row[0] for row in REFUSED}))
def test_a_wrong_argument_is_the_same_error_on_all_ranks(door, tmp_path):
    check_all(REFUSED, door, COMM.bcast(tmp_path / "saves"), by_all=door in BY_ALL or door.endswith(ALIKE))


@several
@pytest.mark.parametrize("door", sorted({row[0] for row in DIFFER}))
def test_arguments_that_differ_are_an_error_on_all_ranks(door, tmp_path):
    check_all(DIFFER, door, COMM.bcast(tmp_path / "saves"), more=f" on rank {LAST}: expected")


@several
def test_all_ranks_that_differ_are_named():
    others = "; ".join(f"{1 + rank} on rank {rank}" for rank in range(1, SIZE)[:3])
    with pytest.raises(ValueError, match=f"every = {others}.*: expected 1, as on rank 0$"):
        lb_mpi.Balancer(COMM, every=1 + RANK)


def test_what_is_no_communicator_is_refused(tmp_path):
    doors = [*itertools.product(["COMM_WORLD"], DOORS.values()), (None, DOORS["asked_to_stop"])]
    for comm, door in [*doors, ("COMM_WORLD", lambda comm, _: lb_mpi.Executor(comm))]:
        with pytest.raises(TypeError, match=f"comm = {comm!r}: expected an mpi4py intracommunicator"):
            door(comm, tmp_path)
        with pytest.raises(ValueError, match="comm = COMM_NULL: expected a communicator of this rank"):
            door(MPI.COMM_NULL, tmp_path)


@pytest.mark.parametrize("door", ["Pool.map", "Balancer.map_rows", "plan.exchange", "plan.rebalance", "plan.owners"])
def test_what_was_closed_twice_is_refused(door):
    made, use = USES[door]
    one = made(COMM)
    one.close()
    one.close()
    with pytest.raises(ValueError, match="closed"):
        use(one)
