"""The machine as measured on real ranks, and the command that tells it; never how fast this machine is."""

import io
import json
import signal
import sys
import time
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
from mpi4py import MPI

from lb_mpi import Balancer, Pool, distribute, throttle
from lb_mpi.__main__ import main
from lb_mpi.knowledge import KnownSpeeds, Timing
from lb_mpi.machine import read_machine
from lb_mpi.mpi.common import speeds
from lb_mpi.mpi.common.collective import opened
from lb_mpi.mpi.common.communicator import presence_of
from lb_mpi.mpi.graph import speed
from lb_mpi.mpi.graph.speed import _calibrate, _round, measure, multiply_add
from tests.mpi.doors import raised_by_all
from tests.mpi.sizes import COMM, LAST, RANK, SIZE, several
from tests.protocol.mutate import mutated, rejects

pytestmark = pytest.mark.mpi


def test_a_machine_is_measured():
    machine = measure(COMM, rounds=1, round_s=0.02)
    assert machine.hosts == tuple(COMM.allgather(MPI.Get_processor_name()))
    assert machine.speeds.min() > 0
    off = ~np.eye(SIZE, dtype=bool)
    assert np.all((machine.latency_s + machine.s_per_byte)[off] > 0)
    np.testing.assert_array_equal(machine.latency_s, machine.latency_s.T)
    np.testing.assert_array_equal(machine.wait_probability > 0, machine.wait_s > 0)
    assert SIZE > 1 or not machine.wait_s.any()
    for field in (machine.speeds, machine.latency_s, machine.s_per_byte, machine.wait_probability, machine.wait_s):
        np.testing.assert_array_equal(field, COMM.bcast(field))  # the same on all ranks


@several
@pytest.mark.parametrize(("name", "rank"), [("_ping", 0), ("_pong", LAST), ("_pass", LAST)])
def test_a_handler_that_raises_while_messages_are_measured_ends_it_on_all_ranks(monkeypatch, name, rank):
    class Alarm(Exception):
        pass

    def handler(*_):
        raise Alarm

    def interrupted(*args):
        signal.raise_signal(signal.SIGUSR2)
        return plain(*args)

    plain, before = getattr(speed, name), signal.signal(signal.SIGUSR2, handler)
    if rank == RANK:
        monkeypatch.setattr(speed, name, interrupted)
    words = raised_by_all(lambda: measure(COMM, lambda n: time.sleep(1e-4 * n), rounds=1, round_s=1e-3))
    signal.signal(signal.SIGUSR2, before)
    for k, text in enumerate(words):
        assert text.startswith("Alarm" if k == rank else f"Error: rank {rank}: Alarm"), words


def test_messages_can_be_left_out():
    machine = measure(COMM, messages=False, rounds=1, round_s=0.01)
    assert not machine.latency_s.any()
    assert not machine.s_per_byte.any()
    assert not machine.wait_probability.any()


def test_an_emulated_slow_rank_is_measured_as_one():
    """It rests three times as long as it computes, whatever else this machine does."""
    rate, alone, _ = _round(multiply_add, 1, throttle(0.25), 0.02)
    assert 0.0 < rate < 1e6
    assert 0.0 < alone <= 0.25


def test_speeds_are_in_units_of_the_users_kernel():
    asked = []

    def kernel(n):
        asked.append(n)
        multiply_add(3 * n)

    ours = measure(COMM, messages=False, rounds=3, round_s=0.05)
    theirs = measure(COMM, kernel, messages=False, rounds=3, round_s=0.05)
    assert asked[0] == 1
    assert set(asked[-3:]) == {asked[-1]}  # calibrated, then always as many
    assert np.all(theirs.speeds < ours.speeds)


def test_a_unit_that_takes_long_is_one():
    assert _calibrate(lambda n: multiply_add(20 * n)) == 1


# --- python -m lb_mpi info ---


def info(*arguments):
    """Exit code (the same on all ranks), and what all ranks together have printed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(["info", *arguments])
        except SystemExit as ended:
            code = int(str(ended.code))
    assert COMM.allgather(code) == [code] * SIZE
    return code, "".join(COMM.allgather(out.getvalue())), "".join(COMM.allgather(err.getvalue()))


def test_info():
    code, out, err = info()
    assert (code, err) == (0, "")
    assert f"{SIZE} rank" in out
    assert "mpi4py" in out
    given = json.loads(info("--json")[1])
    assert given["ranks"] == len(given["hosts"]) == SIZE
    assert given["versions"]["python"] == sys.version.split()[0]
    assert given["thread_level"] in ("single", "funneled", "serialized", "multiple")


def test_info_measures_and_writes_a_file(tmp_path):
    path = COMM.bcast(tmp_path / "machine.json")
    code, out, err = info("--measure", "-o", str(path), "--json")
    assert (code, err) == (0, "")
    given = json.loads(out)
    machine = read_machine(path)
    assert given["machine"]["speeds"] == machine.speeds.tolist()
    assert given["output"] == str(path)
    assert machine.size == SIZE
    speeds = ",".join(["0.5"] * SIZE)
    code, out, err = info("--measure", "--speeds", speeds)
    assert (code, err) == (0, "")
    assert "mult-adds" in out
    assert ("messages within" in out) == (SIZE > 1)


@pytest.mark.one_mpi
@pytest.mark.parametrize(("arguments", "says"), [
    (["--speeds", "1"], "--speeds without --measure"),
    (["-o", "m.json"], "-o without --measure"),
    (["--unknown"], "unrecognized arguments"),
    (["--measure", "--speeds", ",".join(["1"] * (SIZE + 1))], f"--speeds has {SIZE + 1} numbers"),
    (["--measure", "--speeds", ",".join(["2"] * SIZE)], "--speeds: rank 0 = 2.0"),
    (["--measure", "--speeds", "fast"], "--speeds = 'fast'"),
    (["--measure", "-o", "nosuch/folder/m.json"], "nosuch/folder/m.json"),
])  # fmt: skip
def test_info_says_what_is_wrong_once(arguments, says):
    code, out, err = info(*arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


# --- what is known from one door to the next ---------------------------------------------------------------------------


def known(comm, emulated_speed=1.0, learned=None):
    """Open a door that learns this, and return what each rank knew before."""
    with opened(comm, "lb_mpi.measure") as own:
        found = speeds.known_speeds(own, emulated_speed)
        presence_of(own).speeds.add(lambda: learned)
    return comm.allgather(found)


def find_fault():
    """What one rank has learned all know in the next door of these ranks; others, or slower ones, are not known."""
    slow = KnownSpeeds((1.0,) * (SIZE - 1) + (0.1,), (0.1,) * SIZE)
    comm, emulated = COMM.Dup(), 0.5 if RANK == SIZE - 1 else 1.0
    assert known(comm, learned=slow if RANK == SIZE - 1 else None) == [None] * SIZE
    assert known(comm) == [slow] * SIZE
    assert known(comm, learned=slow._replace(speeds=(1.0,) * SIZE) if RANK == 0 else None) == [slow] * SIZE
    assert known(comm)[0] == slow._replace(speeds=(1.0,) * SIZE)
    reverse = comm.Split(0, -RANK)
    assert known(reverse) == [None] * SIZE
    assert known(comm, emulated) == [None] * SIZE
    assert known(comm, emulated) == [None] * SIZE
    assert known(comm, emulated, slow) == [None] * SIZE
    assert known(comm, emulated) == [slow] * SIZE
    for one in (reverse, comm):
        one.Free()
    comm = COMM.Dup()
    assert known(comm) == [None] * SIZE
    comm.Free()


MUTANTS = [
    ("bcast(comm, known, newest % comm.size)", "known"),  # only the root knows
    ("changed, newest = most.tolist()", "changed, newest = 0, most.tolist()[1]"),  # of ranks at other speeds
    ("presence_of(comm).speeds", "presence_of(MPI.COMM_SELF).speeds"),  # nothing is kept
]
test_what_one_rank_knows_of_the_speeds_all_know_in_the_next_door = several(
    rejects(find_fault, [(speeds, "known_speeds", *one) for one in MUTANTS])
)


@several
def test_a_second_pool_begins_from_what_the_first_has_learned():
    comm, last = COMM.Dup(), SIZE - 1
    with Pool(comm) as pool:
        if RANK == 0:
            timings = {rank: Timing().added(1.0 if rank == last else 0.1, 8) for rank in range(SIZE)}
            pool._maps.knowledge.observe("f", timings)
    with Pool(comm, root=last) as pool:
        if pool is not None:
            believed = pool._maps.knowledge.speeds
            assert believed[last] < 0.3 < 0.9 < min(believed[:last])
            assert pool.map(abs, range(-5, 0)) == [5, 4, 3, 2, 1]
    comm.Free()


@several
def test_a_plan_begins_from_known_speeds_unless_a_short_measurement_denies_them():
    comm, slow = COMM.Dup(), KnownSpeeds((1.0,) * (SIZE - 1) + (0.05,), (0.1,) * SIZE)
    law = "known.agrees(speeds)"
    for expected, confirms, unsure in ((True, "True", 0.1), (False, "True", 1.0), (False, law, 0.1)):
        known(comm, learned=slow._replace(unsure=(unsure,) * SIZE))
        with mutated(speed, "confirmed", law, confirms), distribute(comm, "mesh:20x20", method="slabs") as plan:
            n_vertices = comm.allgather(len(plan.vertices))
        assert (n_vertices[-1] < 0.1 * n_vertices[0]) is expected
    comm.Free()


@several
def test_the_first_call_of_a_balancer_lends_rows_by_known_speeds():
    comm, slow = COMM.Dup(), KnownSpeeds((1.0,) * (SIZE - 1) + (0.05,), (0.1,) * SIZE)
    rows = np.arange(200.0) + 1000.0 * RANK
    for first in (rows, None):
        known(comm, learned=slow)
        with Balancer(comm) as balancer:
            if first is None:  # the plan is made all the same, and the next call has none
                raised_by_all(lambda: balancer.map_rows(np.sqrt, rows if RANK else "rows"))
            else:
                np.testing.assert_array_equal(balancer.map_rows(np.sqrt, rows), np.sqrt(rows))
                assert balancer.last.rows_moved > 100
            for _ in range(3):
                np.testing.assert_array_equal(balancer.map_rows(np.sqrt, rows), np.sqrt(rows))
    comm.Free()
