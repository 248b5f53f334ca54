"""From loads to a plan that all ranks know; what goes wrong on the root alone is an error on all."""

from collections.abc import Iterator

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.balancing import migrate as migrate_module
from lb_mpi.balancing.course import Course
from lb_mpi.balancing.migrate import ROWS, Plan, plan
from lb_mpi.balancing.trigger import Trigger
from lb_mpi.diffusion import setup as schemes_module
from lb_mpi.diffusion.diffusion import balance
from lb_mpi.diffusion.setup import SCHEMES, usual_scheme
from lb_mpi.graph import Floats, Graph, parse
from lb_mpi.mpi.common.presence import duplicate, presence_of
from lb_mpi.mpi.rows import root as root_module
from lb_mpi.mpi.rows.process_graph import METHODS
from lb_mpi.mpi.rows.root import Diffuser, Root
from tests.misbehaviour import RAISES
from tests.mpi.sizes import parameters

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
LOADS = np.random.default_rng(0).uniform(0, 9, SIZE)
pytestmark = pytest.mark.mpi


@pytest.fixture
def own() -> Iterator[MPI.Intracomm]:
    """A communicator of our own."""
    made = duplicate(COMM)
    yield made
    presence_of(made).close()


def planner(comm: MPI.Intracomm, graph: Graph, scheme: str, exchange: str = METHODS[0]) -> Root:
    course = Course(comm.rank, range(comm.size), graph.neighbours(comm.rank).tolist())
    return Root(comm, course, Trigger(tolerance=1e-3), graph, scheme, None, exchange)


def make_plan(root: Root, load: float, speeds: Floats) -> tuple[Plan, int]:
    root._course.speeds = speeds
    return root.plan(load)


def columns(of: Plan) -> list[list[float]]:
    return [column.tolist() for column in (of.sources, of.destinations, of.amounts, of.margins, of.shares, of.seconds)]


@pytest.mark.parametrize("scheme", parameters(SCHEMES, every_size=["fos", "cg", "direct"]))
def test_a_plan_is_that_of_the_whole_graph_on_all_ranks(scheme: str, own: MPI.Intracomm) -> None:
    graph, planners = parse(f"complete:{SIZE}"), []
    for exchange in METHODS:
        planners.append(made := planner(own, graph, scheme, exchange))
        for speeds in (np.ones(SIZE), np.linspace(1, 2, SIZE), np.linspace(1, 2.001, SIZE)):  # the last are no others
            used = speeds if speeds[-1] <= 2 else np.linspace(1, 2, SIZE)
            whole = balance(graph, LOADS, used, scheme=scheme, tolerance=1e-3)
            expected = columns(plan(graph, whole.flow, LOADS, used))
            found, steps = make_plan(made, LOADS[RANK], speeds)
            assert COMM.allgather(columns(found)) == [expected] * SIZE
            assert steps == (1 if scheme == "direct" else whole.steps)
    for made in planners:
        made.close()


@pytest.mark.every_size
def test_auto_is_what_suits_the_graph(own: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """On few ranks direct; with bounds that say that these are many, the same scheme on all ranks, and the same flow."""
    graph = parse(f"complete:{SIZE}")
    for most_direct in (512, 1):
        monkeypatch.setattr(schemes_module, "MOST_DIRECT", most_direct)
        monkeypatch.setattr(schemes_module, "LONG", 0.5)
        scheme = usual_scheme(graph)
        assert scheme == ("direct" if most_direct >= SIZE else "fos" if SIZE > 1 else "direct")
        whole = balance(graph, LOADS, np.ones(SIZE), scheme=scheme, tolerance=1e-3)
        made = planner(own, graph, "auto")
        found, _ = make_plan(made, LOADS[RANK], np.ones(SIZE))
        assert COMM.allgather(columns(found)) == [columns(plan(graph, whole.flow, LOADS, np.ones(SIZE)))] * SIZE
        made.close()


@pytest.mark.every_size
def test_sums_of_many_ranks_are_one_reduction(own: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with all ranks' numbers added up by each rank, but for rounding."""
    graph, speeds = parse(f"complete:{SIZE}"), 1.0 + np.arange(SIZE)
    found = []
    for most in (512, 0):
        monkeypatch.setattr(root_module, "MOST_GATHERED", most)
        diffuser = Diffuser(own, graph, "cg", tolerance=1e-6)
        found.append(diffuser.diffuse(LOADS, speeds))
        diffuser.close()
    assert len(found[0].imbalance) == len(found[1].imbalance)
    assert found[0].imbalance[-1] <= 1e-6
    assert found[1].flow == pytest.approx(found[0].flow, rel=1e-9, abs=1e-12)


def test_a_long_plan(own: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more transfers than ranks."""
    many = np.arange(3.0 * SIZE)
    monkeypatch.setattr(migrate_module, "plan", lambda *_: Plan(many, many + 1, many + 2, many + 3, many + 4, many + 5))
    made = planner(own, parse(f"ring:{SIZE}") if SIZE > 2 else parse(f"mesh:1x{SIZE}"), "direct")
    assert columns(make_plan(made, 1.0, np.ones(SIZE))[0]) == [(many + k).tolist() for k in range(ROWS)]


@pytest.mark.parametrize("name", RAISES)
def test_what_only_the_root_can_raise(name: str, own: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next call works."""
    graph = parse(f"mesh:1x{SIZE}")
    kinds = {"Unspeakable": Exception, "SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}
    kind = ValueError if name == "ValueError" else kinds.get(name, Exception) if RANK == 0 else lb_mpi.Error
    for made, module in ((planner(own, graph, "direct"), migrate_module), (planner(own, graph, "cg"), root_module)):
        with monkeypatch.context() as patch:
            patch.setattr(module, "plan", RAISES[name])
            with pytest.raises(kind):
                make_plan(made, LOADS[RANK], np.ones(SIZE))
        make_plan(made, LOADS[RANK], np.ones(SIZE))
        made.close()
