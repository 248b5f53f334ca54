"""The public names, and the checks of all doors: numpy's numbers, words for what is wrong."""

import inspect
import math
import pydoc
import subprocess
import sys

import numpy as np
import pytest

import lb_mpi
from lb_mpi import checks
from lb_mpi.graph import Graph, mesh
from tests.process.started import needs_mpiexec
from tools.environment import here

pytestmark = pytest.mark.one_mpi


def needs_mpi():
    return pytest.importorskip("mpi4py")


# --- names ------------------------------------------------------------------------------------------------------------


def test_every_public_name_is_there_and_listed():
    needs_mpi()
    assert sorted(lb_mpi.__all__) == lb_mpi.__all__
    assert set(lb_mpi.__all__) == {name for name in dir(lb_mpi) if not name.startswith("_")}
    for name in lb_mpi.__all__:
        assert inspect.getdoc(getattr(lb_mpi, name)), name
    with pytest.raises(AttributeError, match="no attribute 'blance'"):
        lb_mpi.blance  # noqa: B018


def test_help_shows_all_names_and_no_noise():
    needs_mpi()
    text = pydoc.plain(pydoc.render_doc(lb_mpi))
    for name in lb_mpi.__all__:
        assert f"class {name}(" in text or f"{name}(" in text
    for noise in ("TYPE_CHECKING", "_PUBLIC", "Any ="):
        assert noise not in text


def test_no_field_of_a_result_is_an_alias():
    needs_mpi()
    for name in lb_mpi.__all__:
        assert "Alias for field" not in pydoc.render_doc(getattr(lb_mpi, name)), name


def test_importing_brings_neither_numpy_nor_mpi():
    script = "import sys, lb_mpi.checks, lb_mpi.cli.run.hosts; print({'numpy', 'mpi4py', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


@pytest.mark.parametrize("door", ["Pool", "search", "Balancer"])
def test_a_door_is_open_without_what_only_others_need(door):
    heavy = "{'numba', 'scipy.sparse', 'scipy.linalg', 'networkx', 'numpy.ma'}"  # each 0.1 s and 20 MB; the last 10 ms
    script = f"import sys, lb_mpi; lb_mpi.{door}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("set()\n", 0), done.stderr


@needs_mpiexec
def test_the_first_plan_of_a_balancer_needs_no_slow_import(tmp_path):
    """On a machine of a tenth of the speed, an import of 0.3 s takes 3 s of the user's first step."""
    program = tmp_path / "program.py"
    program.write_text(FIRST_PLAN)
    answer = here().answer(2, [str(program)], 120.0)
    assert min(answer["acted"]) > 0
    assert answer["imported"] == []


FIRST_PLAN = """
import json, sys, time
import numpy as np
from mpi4py import MPI
import lb_mpi

def work(rows):
    until = time.thread_time() + float(rows.sum())
    while time.thread_time() < until:
        pass
    return rows

acted = []
for scheme in ("direct", "fos"):
    with lb_mpi.Balancer(MPI.COMM_WORLD, when="always", scheme=scheme) as balancer:
        rows = np.full(20, 5e-3 if MPI.COMM_WORLD.rank else 1e-3)
        acted.append(0)
        for _ in range(4):
            balancer.map_rows(work, rows)
            acted[-1] += balancer.last.acted
heavy = [name for name in ("numba", "scipy.sparse", "scipy.linalg", "networkx", "numpy.ma") if name in sys.modules]
imported = sum(MPI.COMM_WORLD.allgather(heavy), [])
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps({"acted": acted, "imported": imported}))
"""


def test_options_are_given_by_name():
    allowed = {"partition": 2, "arrange": 2, "allocate": 2, "partition_metrics": 3, "as_graph": 1}
    for name, most in allowed.items():
        kinds = [parameter.kind for parameter in inspect.signature(getattr(lb_mpi, name)).parameters.values()]
        assert kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) == most, name


# --- numbers ---------------------------------------------------------------------------------------------


def test_numbers_of_numpy_are_numbers():
    assert lb_mpi.partition("ring:8", np.int8(2), imbalance=np.float32(0), seed=np.uint64(3)).sum() == 4
    found = lb_mpi.arrange("ring:3", np.arange(1, 4), seed=np.int64(1), tolerance=np.float32(0.1)).positions
    assert sorted(found.tolist()) == [0, 1, 2]
    assert lb_mpi.allocate(np.int32(4), np.ones(2), cap=np.int64(2)).counts.tolist() == [2, 2]
    assert Graph.from_edges(np.int64(2), [0], [1]).n == mesh(np.int64(1), np.int8(2)).n == 2  # type: ignore[arg-type]


VALIDATORS = {
    "integer": (
        lambda v: checks.integer("x", v, 0, 9),
        (0, 9, np.int8(3), np.uint64(3)),
        (-1, 10, 1.0, "1", True, np.bool_(1), None, [1]),
    ),
    "number": (
        lambda v: checks.number("x", v, above=0.0, most=1.0),
        (1, 0.5, np.float32(0.5), np.int64(1)),
        (0, 1.5, math.nan, math.inf, 10**400, "1", True, np.bool_(1), None, np.ones(2), 1j),
    ),
    "seed": (lambda v: checks.seed(v, "x"), (0, np.int64(7), 1 << 80), (-1, 0.5, "a", None, True)),
    "emulated_speed": (lambda v: checks.emulated_speed(v, "x"), (1, 0.1, np.float64(0.5)), (0, 1.1, "fast", math.nan)),
    "choice": (lambda v: checks.choice("x", v, ("a", "b")), ("a",), ("c", 1, None, ["a"])),
    "comma_list": (lambda v: checks.comma_list("x", str(v), 2), ("1,2", "1e3,.5"), ("", "1,", "a,b", "1_0,2", "1,2,3")),
}


@pytest.mark.parametrize("kind", VALIDATORS)
def test_one_validator_for_each_kind(kind):
    check, good, bad = VALIDATORS[kind]
    for value in good:
        check(value)
    for value in bad:
        with pytest.raises(ValueError, match=r"^x (= .*: expected|has 3 numbers: expected)"):
            check(value)


def test_a_list_says_how_many_numbers_it_has_and_should_have():
    for text, size, says in (("1", 2, "x has 1 number: expected 2"), ("a", 1, "x = 'a': expected a number")):
        with pytest.raises(ValueError, match=f"^{says}$"):
            checks.comma_list("x", text, size)


def test_values_without_a_repr_are_refused_with_a_message():
    class Unspeakable:
        def __repr__(self):
            raise ZeroDivisionError

    with pytest.raises(ValueError, match="x = <Unspeakable>: expected an integer"):
        checks.integer("x", Unspeakable())
    with pytest.raises(ValueError, match=r"\.\.\. \(1002 characters\)"):
        checks.number("x", "y" * 1000)
