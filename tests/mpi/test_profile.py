"""Profiles on real ranks: programs with time stamps put in by hand; results unchanged; what uses mpi4py still works."""

import contextlib
import io
import json
import socket
import sys
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi.__main__ import main
from lb_mpi.cli.profile.profile import ANYBODY, Profile, common, summary
from lb_mpi.cli.profile.script import ProfiledProgram, compared, split_collectives
from lb_mpi.cli.profile.timed import Installed, Recorder
from tests.mpi.sizes import COMM, RANK, SIZE, several

pytestmark = pytest.mark.mpi


@pytest.fixture(autouse=True)
def _as_before():
    argv, path, main = sys.argv, [*sys.path], sys.modules["__main__"]
    yield
    sys.argv, sys.path[:], sys.modules["__main__"] = argv, path, main
    assert type(MPI.COMM_WORLD) is MPI.Intracomm


@pytest.fixture
def recorder():
    """Timed classes in the place of mpi4py's own, for this test."""
    recorder = Recorder(COMM)
    installed = Installed(recorder)
    yield recorder
    installed.remove()


class Ended(NamedTuple):
    """Return the error of a program, its profile (on rank 0), and its output."""

    error: BaseException | None
    profile: Profile | None
    printed: str


def profiled(path, *arguments, **options):
    """How it ended."""
    options, profiles = {"module": False, **options}, []
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        error = ProfiledProgram([str(path), *arguments], profiles.append, **options).run()
    return Ended(error, profiles[0] if profiles else None, printed.getvalue())


def written(folder, text, name="program.py"):
    """A program of these lines, on all ranks."""
    path = folder / name
    if RANK == 0:
        path.write_text(textwrap.dedent(text))
    COMM.Barrier()
    return path


@pytest.fixture
def run(folder):
    """A function that profiles a program of some lines."""
    return lambda text, *arguments, **options: profiled(written(folder, text), *arguments, **options)


@several
def test_the_slow_rank_is_the_one_waited_for(run):
    ended = run("""
        import time
        from mpi4py import MPI
        for _ in range(3):
            time.sleep(0.1 if MPI.COMM_WORLD.rank == 1 else 0.0)  # emulates work
            MPI.COMM_WORLD.Barrier()
        """)
    assert ended.error is None
    if RANK != 0:
        return
    most, part = ended.profile.most_waited_for
    assert most == 1
    assert part > 0.5
    assert ended.profile.balanced_s < 0.7 * ended.profile.seconds
    assert ended.profile.lines()[0].line == 6
    assert ended.profile.efficiency.balance < 0.7


def test_speeds_are_those_of_the_throttle(run, monkeypatch):
    for name, expected in {"from throttle": [*[1.0] * (SIZE - 1), 0.25], "equal": [1.0] * SIZE}.items():
        monkeypatch.setenv("LB_MPI_THROTTLED", str(expected[RANK]))
        profile = run("from mpi4py import MPI").profile
        assert profile is None or (profile.speeds_from, profile.speeds) == (name, expected)


@several
def test_hosts_are_measured(run, monkeypatch):
    monkeypatch.setattr(MPI, "Get_processor_name", lambda: f"h{RANK}")
    profile = run("from mpi4py import MPI").profile
    assert profile is None or (profile.speeds_from == "measured" and max(profile.speeds) == 1.0)


def test_programs_keep_their_names_arguments_and_exit_code(run):
    ended = run("""
        import pickle, sys
        import mpi4py
        from mpi4py import MPI
        from mpi4py.MPI import COMM_WORLD
        class Here: pass
        assert pickle.loads(pickle.dumps(Here())).__class__ is Here
        assert __name__ == "__main__" and __file__ == sys.argv[0]
        assert MPI.COMM_WORLD is COMM_WORLD and isinstance(COMM_WORLD, MPI.Intracomm) and isinstance(COMM_WORLD, MPI.Comm)
        assert pickle.loads(pickle.dumps(COMM_WORLD)) is COMM_WORLD
        if not MPI.Is_initialized():
            MPI.Init()
        print(sys.argv[1:])
        sys.exit(3)
        """, "a", "-b")  # fmt: skip
    assert isinstance(ended.error, SystemExit), ended.error
    assert ended.printed == "['a', '-b']\n"
    assert ended.error.code == 3
    assert (ended.profile is not None) == (RANK == 0)


def test_a_file_has_the_json_whatever_the_program_prints(folder, capsys):
    text = "import sys, time; from mpi4py import MPI; print(1, file=sys.stderr); time.sleep(0.01); MPI.COMM_WORLD.Barrier()"
    path = written(folder, text)
    file = folder / "profile.json"
    code = main(["profile", "-o", str(file), str(path)])
    said = capsys.readouterr()
    assert (code, said.out) == (0, "")
    assert (f"\n{file} (" in said.err) == (RANK == 0)
    if RANK == 0:
        assert json.loads(file.read_text())["parallel_efficiency"] < 1.0
    assert main(["profile", "-o", str(folder / "nosuch" / "file"), str(path)]) == 2
    assert ("nosuch/file: No such file" in capsys.readouterr().err) == (RANK == 0)


@pytest.mark.parametrize(("line", "says"), [
    ("profile python walks.py", "profile: error: PROGRAM = 'python': expected a Python file, as in `profile walks.py`"),
    ("pool python walks.py", "pool: error: SCRIPT = 'python': expected a Python file, as in `pool walks.py`"),
    ("pool nosuch.py data.py", "SCRIPT = 'nosuch.py': No such file or directory: expected a Python file"),
    ("pool zipped.pyz", "SCRIPT = 'zipped.pyz': a binary file: expected a Python file"),
])  # fmt: skip
def test_what_is_no_python_file_is_a_mistake(line, says, folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.chdir(folder)
    written(folder, "PK\0\0", "zipped.pyz")
    assert main(line.split()) == 2
    assert (f"{says}\n" in capsys.readouterr().err) == (RANK == 0)


@pytest.mark.parametrize(("program", "module"), [("nosuch.py", False), ("no.such.module", True)])
def test_mistakes_are_errors_on_all_ranks(program, module):
    with pytest.raises((ValueError, OSError)):
        ProfiledProgram([program], print, module=module)


def lines(recorder):
    """What has been recorded, by call."""
    return {line.call: line for line in recorder.calls.lines}


def test_objects_made_from_a_timed_communicator_are_timed(recorder):
    world = MPI.COMM_WORLD
    assert world == COMM
    assert world == COMM
    made = [world.Dup(), world.Clone(), world.Split(0, world.rank), world.Create(world.Get_group())]
    made += [world.Create_group(world.Get_group()), world.Split_type(MPI.COMM_TYPE_SHARED), MPI.Intracomm(world)]
    dup, request = world.Idup()
    request.Wait()
    grid = world.Create_cart([SIZE, 1], [True, False])
    graph = world.Create_dist_graph_adjacent([(RANK - 1) % SIZE], [(RANK + 1) % SIZE])
    made += [dup, grid, grid.Sub([True, False]), graph, grid.Dup()]
    for comm in made:
        assert type(comm).__name__ in ("Intracomm", "Cartcomm", "Distgraphcomm")
        assert isinstance(comm, MPI.Intracomm)
        before = sum(line.calls for line in recorder.calls.lines if line.call == "allreduce")
        assert comm.allreduce(1) == comm.size
        assert sum(line.calls for line in recorder.calls.lines if line.call == "allreduce") == before + 1
    assert isinstance(grid, MPI.Cartcomm)
    assert isinstance(grid, MPI.Topocomm)
    assert not isinstance(graph, MPI.Cartcomm)
    assert world.Split(MPI.UNDEFINED) == MPI.COMM_NULL
    for comm in made:
        if comm != world:
            comm.Free()


@several
def test_an_intercommunicator(recorder):
    world = MPI.COMM_WORLD
    half = world.Split(RANK % 2, RANK)
    inter = half.Create_intercomm(0, world, 1 - RANK % 2)
    assert isinstance(inter, MPI.Intercomm)
    assert inter.allgather(RANK) == list(range(1 - RANK % 2, SIZE, 2))
    if half.rank == 0:
        assert inter.sendrecv(RANK, 0, source=0) == 1 - RANK
        assert lines(recorder)["sendrecv"].waited_s.keys() == {1 - RANK}
    both = inter.Merge(high=RANK % 2 == 1)
    assert both.allreduce(1) == SIZE
    for comm in (both, inter, half):
        comm.Free()


def test_messages_of_all_kinds(recorder):
    """From each rank to the next on the ring: what arrives, and from whom."""
    world, left, right = MPI.COMM_WORLD, (RANK - 1) % SIZE, (RANK + 1) % SIZE
    out, into, status = np.arange(5.0) + RANK, np.zeros(5), MPI.Status()
    pickled = world.isend({"from": RANK}, right)
    assert world.recv(source=MPI.ANY_SOURCE) == {"from": left}
    pickled.wait()
    request = world.irecv(source=MPI.ANY_SOURCE)
    world.send("abc", dest=right)
    assert request.wait() == "abc"
    requests = [world.Irecv(into, left), world.Isend([out, 5, MPI.DOUBLE], right)]
    MPI.Request.Waitall(requests, [status, MPI.Status()])
    assert into.tolist() == (np.arange(5.0) + left).tolist()
    assert status.source == left
    asked = [world.irecv(source=left), world.isend((1, 2), right)]
    assert MPI.Request.waitall(requests=asked)[0] == (1, 2)
    world.Sendrecv(out, right, 0, into, left, 0)
    assert world.sendrecv(RANK, right, source=left) == left
    sent = world.isend([RANK], right)
    message = world.mprobe()
    assert isinstance(message, MPI.Message)
    assert message.recv() == [left]
    assert MPI.Request.waitany([sent])[0] == 0
    if SIZE > 1:
        found = lines(recorder)
        for call in ("sendrecv", "Sendrecv", "Waitall", "waitall"):
            assert set(found[call].waited_s) <= {left, right}, call
        assert set(found["sendrecv"].waited_s) == {left}
        for call in ("mprobe", "wait", "waitany"):  # of MPI.ANY_SOURCE, and of one of several
            assert ANYBODY in found[call].waited_s, call


@several
def test_the_first_rank_of_a_chain_waits_for_the_next(recorder):
    """It has nobody before it, and the last one nobody behind."""
    left, right = (rank if 0 <= rank < SIZE else MPI.PROC_NULL for rank in (RANK - 1, RANK + 1))
    MPI.COMM_WORLD.sendrecv(RANK, right, source=left)
    assert recorder.calls.lines[0].waited_s.keys() == {right if RANK == 0 else left}


def test_persistent_messages_and_collectives_that_are_begun(recorder):
    world, left, right = MPI.COMM_WORLD, (RANK - 1) % SIZE, (RANK + 1) % SIZE
    out, into, total = np.zeros(3), np.zeros(3), np.zeros(3)
    requests = [world.Recv_init(into, left), world.Send_init(out, right)]
    for step in range(3):
        out[:] = step + RANK
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        assert into.tolist() == [step + left] * 3
        summing = world.Iallreduce(out, total)
        summing.Wait()
        assert total[0] == SIZE * step + SIZE * (SIZE - 1) / 2
    for request in requests:
        request.Free()
    near = world.Create_dist_graph_adjacent([left], [right])
    near.Neighbor_allgather(out, into)
    near.Free()
    found = lines(recorder)
    assert found["Startall"].calls == found["Waitall"].calls == found["Wait"].calls == 3
    for call in ("Send_init", "Startall", "Waitall", "Neighbor_allgather"):  # of which it is not found who is awaited
        assert (found[call].waiting_s, found[call].communication_s > 0.0) == (0.0, True)


@several
def test_the_profile_names_the_rank_that_others_waited_for(recorder):
    """The last rank comes 0.1 s later to a collective of each sort, and to messages; the sleeps emulate work."""
    world, late = MPI.COMM_WORLD, SIZE - 1
    row = world.Split(0, -RANK)

    def later():
        world.Barrier()
        time.sleep(0.1 if late == RANK else 0.0)

    buffer, others = np.zeros(1), np.zeros(SIZE)
    ways = {
        "allreduce": lambda: row.allreduce(1),
        "bcast": lambda: world.bcast(1, root=late),
        "Gather": lambda: world.Gather(buffer, others if RANK == 0 else None, root=0),
        "Wait": lambda: world.Ibarrier().Wait(),
    }
    for way in ways.values():
        later()
        way()
    later()
    if late == RANK:
        for rank in range(late):
            world.Send(buffer, rank, 7)
    else:
        requests = [
            world.Irecv(buffer, late, 7),
            world.Isend(buffer.copy(), RANK, 8),
            world.Irecv(others, RANK, 8),
        ]
        MPI.Request.Waitall(requests)
    recorder.stop()
    split_collectives(COMM, recorder.calls, (compared(COMM), compared(COMM)))
    found = lines(recorder)
    for call in (*ways, "Waitall"):
        if late != RANK and not (call == "Gather" and RANK > 0):
            assert found[call].waited_s[late] >= 0.5 * found[call].waiting_s > 0.0, (call, found[call])
        elif late == RANK and call in found:
            assert late not in found[call].waited_s, (call, found[call])
    row.Free()


@several
def test_clocks_of_different_hosts_are_set_side_by_side(monkeypatch):
    offset_s = 1000.0 * RANK  # as if each rank had been started at another time
    plain, plain_ns = time.perf_counter, time.perf_counter_ns
    monkeypatch.setattr(socket, "gethostname", lambda: f"host {RANK}")
    monkeypatch.setattr(time, "perf_counter", lambda: plain() + offset_s)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: plain_ns() + int(1e9 * offset_s))
    clocks = compared(COMM), compared(COMM)
    now = plain_ns()
    by_root = int(common(np.array([now + int(1e9 * offset_s)]), clocks)[0])
    assert abs(by_root - now) <= 1e9 * clocks[1].error_s + 1_000_000
    assert (clocks[1].error_s > 0) == (RANK > 0)


def test_libraries_on_a_timed_communicator(recorder):
    world = MPI.COMM_WORLD
    with lb_mpi.Pool(world) as pool:
        assert pool.map(abs, range(-20, 0), to="all") == list(range(20, 0, -1))
    with lb_mpi.Balancer(world) as balancer:
        rows = np.arange(40.0).reshape(20, 2)
        assert balancer.map_rows(lambda block: block + 1.0, rows).tolist() == (rows + 1.0).tolist()
    from mpi4py.futures import MPICommExecutor
    from mpi4py.util import pkl5

    assert pkl5.Intracomm(world).allgather(RANK) == list(range(SIZE))
    if SIZE > 1:
        with MPICommExecutor(world) as executor:
            if executor is not None:
                assert list(executor.map(abs, range(-5, 5))) == [5, 4, 3, 2, 1, 0, 1, 2, 3, 4]
    assert {line.file for line in recorder.calls.lines} == {__file__.removeprefix(f"{Path.cwd()}/")}
    inside = [line.call for line in recorder.calls.lines if line.call.startswith("lb_mpi.")]
    if SIZE > 1:
        for call in ("lb_mpi.Pool", "lb_mpi.Pool.map", "lb_mpi.Balancer", "lb_mpi.Balancer.map_rows"):
            assert inside.count(call) in (1, 2), inside  # a block begins and ends in its line


@several
def test_waits_in_lb_mpi_are_one_line(run):
    ended = run("""
        import time
        import numpy as np
        import lb_mpi
        from mpi4py import MPI
        def work(rows):
            time.sleep(0.003 * len(rows))
            return rows
        with lb_mpi.Balancer(MPI.COMM_WORLD) as balancer:
            for step in range(4):
                time.sleep(0.1 if MPI.COMM_WORLD.rank == 1 else 0.0)  # emulates work
                rows = balancer.map_rows(work, np.zeros((3, 2)))
        """)
    assert ended.error is None
    if RANK != 0:
        return
    assert ended.profile.is_balanced_by_lb_mpi
    (line,) = [line for line in ended.profile.lines() if line.line == 12]
    assert line.call == "lb_mpi.Balancer.map_rows"
    assert line.waited_s[ANYBODY] > 0.5 * line.waiting_s > 0.1
    assert not [text for text in summary(ended.profile) if "perfect balance" in text]


def test_windows_and_files_are_timed(recorder, folder):
    window = MPI.Win.Allocate(8, comm=MPI.COMM_WORLD)
    assert isinstance(window, MPI.Win)
    own = np.frombuffer(window.tomemory(), np.int64)
    window.Fence()
    window.Put(np.array([RANK]), (RANK + 1) % SIZE)
    window.Fence()
    assert own.tolist() == [(RANK - 1) % SIZE]
    window.Lock(RANK)
    window.Rget(got := np.empty(1, np.int64), RANK).Wait()
    window.Unlock(RANK)
    assert got.tolist() == own.tolist()
    window.Free()
    mapped = MPI.Win.Create(got, comm=MPI.COMM_WORLD)
    assert np.frombuffer(mapped.tomemory(), np.int64).tolist() == got.tolist()
    mapped.Free()
    file = MPI.File.Open(MPI.COMM_WORLD, str(folder / "out"), MPI.MODE_CREATE | MPI.MODE_WRONLY)
    assert isinstance(file, MPI.File)
    file.Write_at_all(8 * RANK, got)
    file.Close()
    assert np.fromfile(folder / "out", np.int64).tolist() == [(rank - 1) % SIZE for rank in range(SIZE)]
    assert {"Allocate", "Create", "Fence", "Put", "Rget", "Wait", "Open", "Write_at_all", "Close"} <= lines(recorder).keys()
    assert all(line.waiting_s == 0.0 for line in recorder.calls.lines)


def test_errors_are_mpis_own(recorder):
    world = MPI.COMM_WORLD
    with pytest.raises(MPI.Exception):
        world.Send(np.zeros(1), SIZE + 5)
    with pytest.raises(TypeError):
        world.send()
    with pytest.raises(MPI.Exception):
        MPI.COMM_NULL.Barrier()
    assert world.allreduce(1) == SIZE  # and goes on being timed
    assert lines(recorder)["allreduce"].calls == 1


def test_classes_are_as_strict_as_mpi4pys(recorder):
    class Own(MPI.Intracomm):
        def __new__(cls, comm=None):
            return MPI.Intracomm.__new__(cls, comm)

    own = Own(MPI.COMM_WORLD)
    assert own.allreduce(1) == SIZE
    assert isinstance(own, Own)
    assert not isinstance(MPI.COMM_WORLD, Own)
    dup = own.Dup()
    assert type(dup) is Own
    dup.Free()
    for kind in (MPI.Intercomm, MPI.Cartcomm, MPI.Graphcomm):
        with pytest.raises(TypeError):
            kind(MPI.COMM_WORLD)
    assert isinstance(COMM, MPI.Intracomm)  # mpi4py's own
    assert issubclass(type(COMM), MPI.Comm)
    assert not isinstance(COMM, MPI.Cartcomm)
    MPI.COMM_WORLD.free()  # does nothing
    assert MPI.COMM_WORLD == COMM
