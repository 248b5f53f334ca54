"""Parts of a graph on real ranks: everybody has what the whole graph says, and gets its ghosts; mistakes reach all."""


import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.graph import Graph, mesh, parse
from lb_mpi.machine import Machine
from lb_mpi.mpi.graph.distribute import METHODS, PARTITIONERS, allocation_of
from lb_mpi.partitioning.quality import mapping_cost
from tests.mpi.doors import on_root, raised_by_all
from tests.mpi.sizes import COMM, LAST, RANK, SIZE, parameters, several

EVEN = [1.0] * SIZE  # so that nothing is measured
pytestmark = pytest.mark.mpi


def weighted(n, n_edges, seed):
    """A random graph with weights, some of its vertices alone."""
    rng = np.random.default_rng(seed)
    tails, heads = np.stack(np.triu_indices(n, 1))[:, rng.choice(n * (n - 1) // 2, n_edges, replace=False)]
    weights, work = rng.integers(0, 9, n_edges).astype(float), rng.integers(0, 9, n).astype(float)
    return Graph.from_edges(n, tails, heads, weights, work)


def check(plan, graph, parts=None):
    """The plan is a part of `graph`, and those of all ranks together are all of it."""
    owned = COMM.allgather(plan.vertices)
    np.testing.assert_array_equal(np.sort(np.concatenate(owned)), np.arange(graph.n))
    owner = np.empty(graph.n, dtype=np.int64)
    for rank, vertices in enumerate(owned):
        owner[vertices] = rank
    if parts is not None:
        np.testing.assert_array_equal(owner, parts)
    numbers = np.concatenate([plan.vertices, plan.ghosts])
    for k, vertex in enumerate(plan.vertices.tolist()):
        mine = slice(plan.indptr[k], plan.indptr[k + 1])
        row = slice(graph.indptr[vertex], graph.indptr[vertex + 1])
        np.testing.assert_array_equal(numbers[plan.indices[mine]], graph.indices[row])
        np.testing.assert_array_equal(plan.weights[mine], graph.weights[row])
    np.testing.assert_array_equal(plan.vertex_weights, graph.vertex_weights[plan.vertices])
    tails, heads = graph.edges()
    assert plan.cut == graph.edge_weights()[owner[tails] != owner[heads]].sum()
    assert plan.halo_bytes == 8 * COMM.allreduce(len(plan.ghosts))
    around = plan.exchange(numbers[: len(plan.vertices)] * 10.0)
    np.testing.assert_array_equal(around, numbers * 10.0)
    product = graph.to_scipy() @ np.arange(0.0, 10.0 * graph.n, 10.0)
    np.testing.assert_array_equal(plan.matrix() @ around, product[plan.vertices])


@pytest.mark.one_mpi
def test_a_program_cannot_change_the_graph_of_a_plan():
    with lb_mpi.distribute(COMM, mesh(5, 5), method="block") as plan:
        part = plan.vertices, plan.ghosts, plan.indptr, plan.indices, plan.weights, plan.vertex_weights
        for array in (*part, plan.matrix().data):
            with pytest.raises(ValueError, match="read-only"):
                array += 1


@pytest.mark.parametrize("root", parameters(sorted({0, LAST}), every_size=[LAST]))
def test_given_parts(root):
    graphs = [mesh(6, 7), weighted(40, 80, 1), mesh(1, 1), parse("complete:9"), Graph.from_edges(5, [], [])]
    for seed, graph in enumerate(graphs):
        rng = np.random.default_rng(seed)
        for parts in (
            rng.integers(0, SIZE, graph.n),
            np.zeros(graph.n, dtype=np.int32),  # the others have nothing
            np.full(graph.n, LAST),
            np.arange(graph.n) % SIZE,
        ):
            given = on_root(graph, root)
            with lb_mpi.distribute(COMM, given, root=root, parts=on_root(parts, root)) as plan:
                check(plan, graph, parts)
                assert plan.allocation is None
                assert (plan.parts is not None) == (root == RANK)


@pytest.mark.one_mpi
@pytest.mark.parametrize("method", parameters(METHODS, every_size=["static"]))
def test_methods(method):
    for graph in (mesh(12, 20), weighted(60, 120, 2), parse("ring:3"), mesh(1, 1)):
        with lb_mpi.distribute(COMM, on_root(graph), method=method, speeds=on_root(EVEN), seed=5) as plan:
            check(plan, graph)
            assert (plan.allocation is not None) == (method == "slabs" or method in PARTITIONERS)
            sizes = COMM.allgather(len(plan.vertices))
            if method not in PARTITIONERS and method != "slabs":
                assert max(sizes) - min(sizes) <= 1


@pytest.mark.one_mpi
def test_static_follows_the_speeds():
    graph = mesh(30, 40)
    speeds = [1.0 + rank for rank in range(SIZE)]
    with lb_mpi.distribute(COMM, on_root(graph), speeds=speeds, imbalance=0.05) as plan:
        check(plan, graph)
        assert plan.allocation.counts.sum() == graph.n
        share = graph.n * speeds[RANK] / sum(speeds)
        assert abs(plan.allocation.counts[RANK] - share) <= 1
        assert len(plan.vertices) <= 1.06 * share + 1
    with lb_mpi.distribute(COMM, on_root(graph), method="random") as dealt:
        assert SIZE == 1 or plan.cut < dealt.cut / 2


def test_speeds_are_measured():
    graph = mesh(20, 30)
    asked = []

    def kernel(n):
        asked.append(n)
        sum(range(1000 * n))

    with lb_mpi.distribute(COMM, on_root(graph), kernel=kernel, unit_s=1e-6) as plan:
        check(plan, graph)
        assert plan.allocation is not None
    assert asked


@pytest.mark.one_mpi
def test_costs_of_messages_count_only_with_a_unit():
    """Where talking is dear, the model puts all tasks on one rank."""
    off = 1.0 - np.eye(3)
    machine = Machine(("a",) * 3, np.array([4.0, 2.0, 2.0]), off * 1e-3, off * 1e-3)
    graph = parse("complete:40")
    assert allocation_of(graph, 3, None, machine, None).counts.tolist() == [20, 10, 10]
    assert allocation_of(graph, 3, None, machine, 1e-9).counts.tolist() == [40, 0, 0]
    assert allocation_of(graph, 3, None, machine, 1e3).counts.tolist() == [20, 10, 10]
    assert allocation_of(graph, 3, [1.0, 1.0, 2.0], machine, None).counts.tolist() == [10, 10, 20]
    assert allocation_of(mesh(1, 1), 3, None, machine, 1.0).counts.tolist() == [1, 0, 0]
    assert allocation_of(Graph.from_edges(4, [], [], None, [0.0] * 4), 1, [1.0], None, 1.0).counts.tolist() == [4]


@pytest.mark.one_mpi
@pytest.mark.parametrize("tiny", [1e-300, 1e300])
def test_speeds_of_any_unit_give_the_same_numbers_of_vertices(tiny):
    """Their product with the weight of a vertex is no float."""
    graph = Graph.from_edges(40, [], [], None, [tiny ** (1 / 3)] * 40)
    assert allocation_of(graph, 3, np.array([2.0, 1.0, 1.0]) * tiny, None, None).counts.tolist() == [20, 10, 10]


def test_a_machine_counts_on_its_own_hosts():
    hosts = tuple(COMM.allgather(MPI.Get_processor_name()))
    none = np.zeros((SIZE, SIZE))
    graph = mesh(8, 8)
    with lb_mpi.distribute(COMM, on_root(graph), machine=Machine(hosts, np.ones(SIZE), none, none), unit_s=1.0) as plan:
        check(plan, graph)
    elsewhere = Machine((*hosts[:-1], "elsewhere"), np.ones(SIZE), none, none)
    reported = raised_by_all(lambda: lb_mpi.distribute(COMM, on_root(graph), machine=elsewhere))
    assert all(f"rank {LAST} on host elsewhere" in text for text in reported)


@pytest.mark.one_mpi
def test_the_least_time_is_an_aim():
    """The last rank is behind a slow link."""
    hosts = tuple(COMM.allgather(MPI.Get_processor_name()))
    last = np.arange(SIZE) == LAST
    s_per_byte = np.where(last[:, None] ^ last, 5e-6, 1e-8) * (1.0 - np.eye(SIZE))
    machine = Machine(hosts, 1.0 + np.arange(SIZE)[::-1], s_per_byte * 10, s_per_byte)
    graph, options = mesh(4, 5), {"machine": machine, "unit_s": 1e-5, "effort": "fast"}
    with lb_mpi.distribute(COMM, on_root(graph), aim=on_root("time"), **options) as plan:
        check(plan, graph)
        owners = COMM.bcast(plan.parts)
        np.testing.assert_allclose(plan.cost.objective_s, mapping_cost(graph, owners, machine, unit_s=1e-5).objective_s)
        seconds = COMM.allgather((plan.cost.objective_s, plan.cost_by_cut.objective_s))
        assert seconds == [seconds[0]] * SIZE
        assert seconds[0][0] <= seconds[0][1]
    with lb_mpi.distribute(COMM, on_root(graph), **options) as by_cut:
        assert by_cut.cost.objective_s == seconds[0][1]
        assert by_cut.cost_by_cut is None
    with lb_mpi.distribute(COMM, on_root(graph), method="block") as plan:
        assert plan.cost is None


# --- the exchange ---


@pytest.mark.one_mpi
def test_any_dtype_and_shape():
    graph = weighted(50, 100, 3)
    with lb_mpi.distribute(COMM, on_root(graph), method="random", seed=1) as plan:
        numbers = np.concatenate([plan.vertices, plan.ghosts])
        n = len(plan.vertices)
        for dtype in (np.int8, np.uint16, np.float32, np.complex128, bool, "U7", ">f8", "M8[s]"):
            for shape in ((), (3,), (2, 2), (0,), (1, 0, 2)):
                whole = np.empty((len(numbers), *shape), dtype)
                whole[...] = (numbers % 251 if dtype != "M8[s]" else numbers).reshape(-1, *[1] * len(shape)).astype(dtype)
                for _ in range(2):  # made, then started anew
                    around = plan.exchange(whole[:n])
                    assert around.dtype == whole.dtype
                    np.testing.assert_array_equal(around, whole)
        records = np.zeros(n, [("id", "i8"), ("on", "?"), ("at", "f4", (2,))])
        records["id"], records["at"] = plan.vertices, plan.vertices[:, None]
        around = plan.exchange(records)
        np.testing.assert_array_equal(around["id"], numbers)
        np.testing.assert_array_equal(around["at"][:, 1], numbers)
        np.testing.assert_array_equal(plan.exchange(records[["at", "id"]])["id"], numbers)  # fields out of order
        np.testing.assert_array_equal(plan.exchange(plan.vertices.tolist()), numbers)
        fortran = np.asfortranarray(np.stack([numbers, -numbers, numbers], axis=1)[:n])
        np.testing.assert_array_equal(plan.exchange(fortran[:, ::2])[:, 1], numbers)
        assert plan.exchange(fortran).flags.f_contiguous


def test_the_report_is_the_same_on_all_ranks():
    with lb_mpi.distribute(COMM, on_root(mesh(9, 9)), method="block") as plan:
        assert plan.report().n == 0
        for _ in range(3):
            plan.exchange(plan.vertices)
        report = plan.report()
        mine = report.ranks[COMM.rank]
        assert (report.n, mine.owned, mine.received) == (3, len(plan.vertices), len(plan.ghosts))
        assert 0.0 <= mine.busy_s < mine.seconds
        assert np.isnan(report.lower_bound_s)  # nobody knows the ranks' speeds
        assert COMM.allgather(str(report)) == [str(report)] * SIZE
        assert str(report).count("\n") == SIZE + 1
    with lb_mpi.distribute(COMM, on_root(mesh(9, 9)), speeds=on_root(np.ones(SIZE))) as plan:
        plan.exchange(plan.vertices)
        assert plan.report().lower_bound_s >= 0.0


def test_in_place_and_copied():
    graph = mesh(9, 9)
    with lb_mpi.distribute(COMM, on_root(graph), method="block") as plan:
        n, n_all = len(plan.vertices), len(plan.vertices) + len(plan.ghosts)
        heat = np.full(n_all, -1.0)
        for turn in range(5):
            heat[:n] = plan.vertices + 1000.0 * turn
            around = plan.exchange(heat)
            np.testing.assert_array_equal(heat[n:], plan.ghosts + 1000.0 * turn)
            around[:] = -1.0  # also where there are no ghosts, it is no part of `heat`
            np.testing.assert_array_equal(heat, np.concatenate([plan.vertices, plan.ghosts]) + 1000.0 * turn)
        alone = plan.vertices * 1.0
        around = plan.exchange(alone)
        kept = around.copy()
        plan.exchange(-alone)
        np.testing.assert_array_equal(around, kept)  # a result is the caller's
        np.testing.assert_array_equal(alone, plan.vertices)


def test_large_messages():
    """Longer than what the MPI sends without being asked for."""
    graph = parse(f"complete:{SIZE}")
    with lb_mpi.distribute(COMM, on_root(graph), parts=on_root(np.arange(SIZE))) as plan:
        values = np.full((1, 300_000), float(RANK))
        np.testing.assert_array_equal(plan.exchange(values)[:, -1], [RANK, *plan.ghosts])


# --- mistakes ---


def test_values_that_cannot_be_written_to_are_exchanged_by_a_rank_without_ghosts():
    graph = Graph.from_edges(4 * SIZE, [0], [1])  # both on rank 0
    with lb_mpi.distribute(COMM, on_root(graph), method="block") as plan:
        values = np.broadcast_to(7.0, len(plan.vertices))
        around = plan.exchange(values)
        assert around.tolist() == values.tolist()
        assert around.flags.writeable
        assert not np.shares_memory(plan.exchange(plan.vertices), plan.vertices)


@several
def test_different_values_on_ranks_are_an_error():
    plan = lb_mpi.distribute(COMM, on_root(mesh(1, 4 * SIZE)), method="block")
    plan.exchange(np.zeros(4))
    reported = raised_by_all(lambda: [plan.exchange(np.zeros(4, np.float32 if RANK == 0 else np.float64)) for _ in range(9)])
    assert all("another dtype or shape" in text for text in reported)
    plan.close()
