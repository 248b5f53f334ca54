"""Ctrl-C is raised at once in the user's code of any kind, and all ranks learn where it was raised."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi import handlers
from lb_mpi.kernels import held_interrupts
from lb_mpi.mpi.common import calls, carrier, communicator, saves
from lb_mpi.mpi.common.calls import call
from lb_mpi.mpi.common.communicator import Presence
from lb_mpi.mpi.common.parcels import Parcels
from lb_mpi.mpi.common.reducing import Reducing
from lb_mpi.mpi.common.waiting import Nap
from lb_mpi.mpi.pool import maps
from lb_mpi.mpi.pool.running import Alarm
from lb_mpi.mpi.rows import migrating
from lb_mpi.mpi.rows import rows as rows_module
from lb_mpi.mpi.rows.rows import Results, Rows
from lb_mpi.saving import folder as saving_folder
from tests.mpi.sizes import COMM, LAST, RANK, SIZE, several
from tests.pile import Pile

LAST_EVENTS = 24  # of a call, at which Ctrl-C comes, on the first rank and the last one in turn
OTHER = MPI.get_vendor()[0] != "MPICH"  # with the other MPI, in the other turn
pytestmark = pytest.mark.mpi


class Endless:
    """The user's code on rank 0 that doesn't end by itself, and in which Ctrl-C comes."""

    def __init__(self):
        self.began = self.raised = False

    def __call__(self):
        if RANK or self.began:
            return
        self.began = True
        try:
            signal.raise_signal(signal.SIGINT)
            for _ in range(100):
                time.sleep(0.01)
        except KeyboardInterrupt:
            self.raised = True
            raise


class Answer:
    """A result of a task whose pickling or unpickling, by `kind`, is the user's code."""

    def __init__(self, kind):
        self.kind = kind

    def __reduce__(self):
        if self.kind == "dumping":
            self.endless()
        return answer, (self.kind,)


def answer(kind):
    if kind == "loading":
        Answer.endless()
    return Answer(kind)


def task(endless, kind):
    Answer.endless = endless

    def compute(item):
        COMM.Barrier()  # each rank runs one task
        if kind == "task":
            endless()
        return Answer(kind) if kind in ("dumping", "loading") else item

    def call(_, *__):
        endless()

    options = {kind: call} if kind in ("callback", "progress") else {}
    with lb_mpi.Pool(COMM) as pool:
        pool.map(compute, SIZE, chunksize=1, **options)


def rows(endless, kind):
    def pack(item):
        if kind == "pack":
            endless()
        return item

    def unpack(item):
        if kind == "unpack":
            endless()
        return item

    def compute(items):
        if kind == "function":
            endless()
        time.sleep(2e-3 * len(items))
        return items

    mine = [b"row"] * (60 if RANK == 0 else 0)
    with lb_mpi.Balancer(COMM) as balancer:
        while not (endless.began and RANK == 0):
            balancer.map_rows(compute, mine, pack=pack, unpack=unpack)


class Value:
    """A result whose pickling is the user's code, too."""

    def __init__(self, endless, kind):
        self.endless, self.kind = endless, kind

    def __reduce__(self):
        if self.kind == "pickling":
            self.endless()
        return int, (0,)


class Calling(Pile):
    """A problem whose method `kind` is such code."""

    def __init__(self, endless, kind):
        super().__init__(2**15)
        self.endless, self.kind = endless, kind

    def on_call(self, method):
        if method == self.kind:
            self.endless()

    def work(self, units):
        if self.kind == "split" and RANK == 0 and not self.endless.began and len(self.items) > 1:
            time.sleep(1e-3)
            return 0
        return super().work(units)

    def result(self):
        super().result()
        return Value(self.endless, self.kind)


def search(endless, kind):
    lb_mpi.search(COMM, Calling(endless, kind))


CASES = [
    *[(task, kind) for kind in ("task", "dumping", "loading", "callback", "progress")],
    *[(rows, kind) for kind in ("function", "pack", "unpack")],
    *[(search, kind) for kind in ("start", "work", "load", "split", "result", "pickling", "merge")],
]
OF_SEVERAL = ("pack", "unpack", "split", "merge")  # on one rank, they are not called


@pytest.mark.parametrize(("door", "kind"), CASES, ids=[kind for _, kind in CASES])
def test_control_c_is_raised_at_once_in_the_users_code(monkeypatch, door, kind):
    if SIZE == 1 and kind in OF_SEVERAL:
        pytest.skip("needs several ranks")
    monkeypatch.setattr(maps, "REPORT_S", 0.0)  # so that progress is also reported before the end
    endless, error = Endless(), None
    try:
        door(endless, kind)
    except (KeyboardInterrupt, lb_mpi.Error) as caught:
        error = caught
    assert (endless.began, endless.raised) == (RANK == 0, RANK == 0)
    assert isinstance(error, KeyboardInterrupt if RANK == 0 else lb_mpi.Error), error
    if RANK:
        assert "KeyboardInterrupt" in str(error)
        assert f"{__name__.rpartition('.')[2]}.py" in str(error)
    assert np.all(COMM.allgather(signal.getsignal(signal.SIGINT) is signal.default_int_handler))


# --- Ctrl-C at each of the last events of a call ------------------------------------------------------------------------


class Press:
    """Ctrl-C at event `at` of this rank: the begin or end of a wait, messages in a turn, a send; then it hears late."""

    def __init__(self, monkeypatch):
        self.n, self.at, self.deaf = 0, 0, 0
        monkeypatch.setattr(communicator, "QUICK_S", 0.0)
        monkeypatch.setattr(communicator, "PATIENCE_S", 0.0)
        monkeypatch.setattr(carrier, "PATIENCE_S", 0.0)
        self._count(monkeypatch, Presence, "wait")
        self._count(monkeypatch, Parcels, "send")
        self._count(monkeypatch, Nap, "reset")  # of a turn with messages
        self._count(monkeypatch, saving_folder.Folder, "commit")
        wait, reduced = Presence.wait, Reducing.done
        monkeypatch.setattr(Reducing, "done", lambda one: not self._is_deaf() and reduced(one))

        def deferred(presence, done, *args, **options):
            wait(presence, lambda: not self._is_deaf() and done(), *args, **options)

        monkeypatch.setattr(Presence, "wait", deferred)

    def _event(self):
        self.n += 1
        if self.n == self.at:
            self.deaf = 3 * communicator.POLLS
            signal.raise_signal(signal.SIGINT)

    def _is_deaf(self):
        self.deaf -= self.deaf > 0
        return self.deaf > 0

    def _count(self, monkeypatch, kind, name):
        plain = getattr(kind, name)

        def counted(*args, **options):
            self._event()
            found = plain(*args, **options)
            self._event()
            return found

        monkeypatch.setattr(kind, name, counted)


OLD = [f"{RANK}.{k}" for k in range(0 if RANK else 6 * SIZE)]  # rows of all are on rank 0


class Handing:
    """A call that hands over: after it all ranks have the new state, or all have the old one."""

    door = None

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(lb_mpi.Error):
            if self.door is not None:
                self.door.close()


class Migrating(Handing):
    order, off = "appended", 0

    def __enter__(self):
        self.door, self.rows = lb_mpi.Balancer(COMM, when="always"), OLD
        return self

    def call(self):
        costs = np.ones(len(self.rows))
        self.rows = self.door.migrate(self.rows, costs=costs, order=self.order, pack=str.encode, unpack=bytes.decode)

    def check(self, *, returned):
        assert sorted(itertools.chain(*COMM.allgather(self.rows))) == sorted(COMM.bcast(OLD))
        assert (abs(len(self.rows) - 6) <= self.off) if returned else (self.rows == OLD)


class Keeping(Migrating):
    order, off = "kept", 1  # a row, on more than four ranks: each rank rounds its own ends


class Rebalancing(Handing):
    method = "block"

    def __enter__(self):
        self.door = lb_mpi.distribute(COMM, f"mesh:8x{8 * SIZE}", method=self.method, speeds=np.ones(SIZE))
        self.values, self.before, speeds = self.door.vertices, self.door.vertices, np.resize([1.0, 0.25], SIZE)
        for _ in range(3):
            self.door._balance.speeds.recent.add(float(speeds[RANK]))
        return self

    def call(self):
        (self.values,) = self.door.rebalance(self.values, when="always")

    def check(self, *, returned):
        assert np.array_equal(self.values, self.door.vertices)
        owned = np.concatenate(COMM.allgather(self.values))
        assert np.array_equal(np.sort(owned), np.arange(64 * SIZE))
        assert (returned and SIZE > 1) == any(COMM.allgather(len(self.values) != len(self.before)))
        if not COMM.allreduce(self.door._presence.failed, MPI.MAX):
            assert np.array_equal(self.door.exchange(self.values)[len(self.values) :], self.door.ghosts)


class Slabs(Rebalancing):
    method = "slabs"


class Saves(Handing):
    def __enter__(self):
        self.step = 1 + (lb_mpi.load(COMM, self.folder) or (0, {}))[0]
        return self

    def call(self):
        lb_mpi.save(COMM, self.folder, self.step, x=np.full(RANK + 1, self.step))

    def check(self, *, returned):
        step, arrays = lb_mpi.load(COMM, self.folder) or (0, {})
        assert step == self.step - (not returned)
        assert set(arrays.get("x", [step])) == {step}


class Values(Handing):
    """A call that returns the same value on all ranks."""

    expected = 2**12 - 1
    value = None

    def call(self):
        self.value = lb_mpi.search(COMM, lb_mpi.TreeSearch(1, lambda n: [2 * n, 2 * n + 1] if n < 2**11 else [])).value

    def check(self, *, returned):
        assert self.value == (self.expected if returned else None)


class Loads(Values):
    expected = 0

    def __enter__(self):
        if not list(self.folder.glob("save*")):
            COMM.Barrier()
            lb_mpi.save(COMM, self.folder, 3, x=np.arange(10))
        return self

    def call(self):
        self.value = int((lb_mpi.load(COMM, self.folder) or (0, {"x": [1]}))[1]["x"][0]) * (RANK == 0)


class Maps(Values):
    expected = tuple((k, bytes(4000)) for k in range(40))  # more than an order holds

    def __enter__(self):
        self.door = lb_mpi.Pool(COMM)
        return self

    def call(self):
        self.value = tuple(self.door.map(lambda k: (k, bytes(4000)), 40, to="all", chunksize=1))


HANDING = [Migrating, Keeping, Rebalancing, Slabs, Saves, Loads, Values, Maps]
STEADY = [Migrating, Keeping, Slabs, Saves, Loads]  # as many events in each call: some before the commit, some after


class Trial:
    """One call, interrupted at one of its last events; all ranks have the same outcomes."""

    def __init__(self, press, one, at):
        communicator.duplicate(COMM).Free()  # in the first call on a communicator, ranks can't tell each other
        press.n, press.at = 0, at
        self.error = None
        try:
            one.call()
        except (KeyboardInterrupt, lb_mpi.Error) as caught:
            self.error = caught
        self.came, press.at, press.deaf = press.n >= press.at > 0, 0, 0
        self.waits, self.returned = calls._interrupts.pending, self.error is None
        self.outcomes = COMM.allgather((self.returned, self.came, self.waits))
        self.agreed = len({returned for returned, *_ in self.outcomes}) == 1
        if self.waits:
            with pytest.raises(KeyboardInterrupt):
                lb_mpi.Pool(MPI.COMM_SELF)


def events(press, door, folder):
    """Return how many events each rank has in a call, at least: where ranks wait for cores, messages come in more turns."""
    counts = []
    for _ in range(3):
        with door(folder) as one:
            press.n = 0
            one.call()
            counts.append(press.n)
    return COMM.allgather(min(counts))


@pytest.mark.filterwarnings("ignore:.*incomplete, without a manifest")  # of a save that was interrupted
@pytest.mark.parametrize("door", HANDING)
def test_ctrl_c_at_each_of_the_last_events_changes_all_ranks_or_none(monkeypatch, tmp_path, door):
    folder = COMM.bcast(tmp_path)
    press, ended = Press(monkeypatch), []
    n_events = events(press, door, folder)
    assert min(n_events) > 1
    for back in range(LAST_EVENTS):
        victim = (back + OTHER) % 2 * LAST
        with door(folder) as one:
            trial = Trial(press, one, n_events[victim] - back if victim == RANK else 0)
            ended.append(trial.returned)
            assert trial.agreed, (victim, back, trial.outcomes, trial.error)
            assert trial.waits == (trial.came and trial.returned), (victim, back, trial.outcomes, trial.error)
            assert not isinstance(trial.error, KeyboardInterrupt) or trial.came
            one.check(returned=trial.returned)
    if SIZE > 1 and door in STEADY:
        assert {*ended} == {False, True}


def released_at_once(one, installed, *, failed, last=False):
    """Raise Ctrl-C at the end of the call that it came too late to stop."""
    RELEASE(one, installed, failed=failed, last=True)


RELEASE = calls.Interrupts.release


@several
@pytest.mark.filterwarnings("ignore:.*incomplete, without a manifest")
@pytest.mark.parametrize("door", [Migrating, Saves])
def test_a_call_that_ends_well_on_some_ranks_only_is_caught(monkeypatch, tmp_path, door):
    folder = COMM.bcast(tmp_path)
    press = Press(monkeypatch)
    n_events = events(press, door, folder)
    monkeypatch.setattr(calls.Interrupts, "release", released_at_once)
    for back in range(LAST_EVENTS):
        victim = (back + OTHER) % 2 * LAST
        with door(folder) as one:
            if not Trial(press, one, n_events[victim] - back if victim == RANK else 0).agreed:
                return
    raise AssertionError("no event at which one rank raises, and another one returns")


def test_one_ctrl_c_is_raised_once(monkeypatch):
    """It waits after a call; a second one, in the user's code, counts as the same."""
    reduced = migrating._reduce

    def press(comm, sums=(), maxima=()):
        if len(sums) and len(maxima):  # the last reduction
            signal.raise_signal(signal.SIGINT)
        return reduced(comm, sums, maxima)

    for root in range(min(SIZE, 2)):
        with lb_mpi.Balancer(COMM, when="always") as balancer:  # a new one knows no speeds, by which rows may stay
            mine = np.arange(9.0 if root == RANK else 0.0)
            monkeypatch.setattr(migrating, "_reduce", press)
            rows = balancer.migrate(mine, costs=np.ones(len(mine)))
            monkeypatch.undo()
            assert calls._interrupts.pending == (len(rows) != len(mine)) == (SIZE > 1)
            if SIZE > 1:
                with pytest.raises(KeyboardInterrupt):
                    balancer.map_rows(np.copy, rows) if root else signal.raise_signal(signal.SIGINT)
            assert np.array_equal(balancer.map_rows(np.copy, rows), rows)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_results_still_arrive_after_a_ctrl_c_while_the_first_ones_are_allocated(monkeypatch):
    """A rank that is interrupted in its function takes part until the end; it failed in another way instead."""
    rows = Rows(np.ones((3, 2)), ())
    results, others = Results(rows, np.copy), Results(rows, np.copy)
    parcel = others.parcel(others.check(np.ones((3, 2)), 3), 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(rows_module, "ordered", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            results.check(np.ones((3, 2)), 3)
    results.receive(slice(0, 3), parcel)


def test_a_forked_child_takes_our_handlers_back():
    """multiprocessing ends its workers by SIGTERM, and waits until they have died."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM]
    # The program's: that of SIGUSR1 may have been ours since an earlier test.
    before = [(handlers._replaced.get(number) or [signal.getsignal(number)])[0] for number in numbers]

    def forked():
        if (child := os.fork()) == 0:
            os._exit(int([signal.getsignal(number) for number in numbers] != before))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with saves.noted(COMM), call("test"), Alarm(60.0), held_interrupts():
        assert not set(before) & {signal.getsignal(number) for number in numbers}
        assert forked() == 0
    assert forked() == 0
    assert [signal.getsignal(number) for number in numbers] == before or RANK == 0  # where SIGUSR1 may still come
    with saves.noted(COMM):
        assert forked() == 0
    assert forked() == 0
