"""Rows saved by some ranks and loaded by others: the same rows in their global order, or a clear error on all ranks."""

import contextlib
import os
import signal
import warnings

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi import signs
from lb_mpi.mpi.common import saves
from lb_mpi.mpi.save import save as module
from lb_mpi.saving.folder import Folder
from tests.mpi.limits import largest_file
from tests.mpi.sizes import COMM, several

N = 23
pytestmark = pytest.mark.mpi
ONE = np.zeros(3)
HERE = COMM.rank == COMM.size - 1  # where an argument is another one: on one rank only


@pytest.fixture
def folder(folder):
    """One that all ranks see, and that isn't there yet."""
    return folder / "saves"


@contextlib.contextmanager
def first_ranks(size):
    """A communicator of the first ranks; None on the others, who wait for them at the end of the block."""
    comm = COMM.Split(0 if COMM.rank < size else MPI.UNDEFINED)
    yield comm if comm != MPI.COMM_NULL else None
    if comm != MPI.COMM_NULL:
        comm.Free()
    COMM.Barrier()


def whole(kind="<f8", trailing=(), n=N):
    """All rows; all different."""
    dtype = np.dtype(kind)
    if dtype.names:
        found = np.zeros((n, *trailing), dtype)
        found["id"] = np.arange(found.size).reshape(found.shape)
        return found
    return np.arange(n * int(np.prod(trailing)), dtype="i8").reshape(n, *trailing).astype(dtype)


def share(rows, comm):
    """This rank's rows, when all have as many."""
    return np.array_split(rows, comm.size)[comm.rank]


@pytest.mark.parametrize("size", sorted({1, COMM.size // 2 or 1, max(COMM.size - 1, 1), COMM.size}))
@pytest.mark.every_size
def test_rows_come_back_on_any_number_of_ranks(folder, size):
    rows = {"heat": whole("<f8", (2, 3)), "label": whole("U5"), "none": whole("f4", (0,))}
    with first_ranks(size) as comm:
        if comm is not None:
            assert lb_mpi.load(comm, folder) is None
            lb_mpi.save(comm, folder, 7, **{name: share(array, comm) for name, array in rows.items()})
    step, arrays = lb_mpi.load(COMM, str(folder)) or (0, {})
    assert step == 7
    assert list(arrays) == ["heat", "label", "none"]
    wanted = np.random.default_rng(COMM.rank).integers(0, N, 3 * COMM.rank)
    _, chosen = lb_mpi.load(COMM, folder, index=wanted) or (0, {})
    for name, array in rows.items():
        for found, expected in ((arrays, share(array, COMM)), (chosen, array[wanted])):
            assert (found[name].dtype, found[name].shape) == (expected.dtype, expected.shape)
            np.testing.assert_array_equal(found[name], expected)
            found[name][:] = found[name][::-1]  # it's the caller's
        together = [np.load(path) for path in sorted(folder.glob(f"*/{name}-*.npy"))]
        assert len(together) == size
        np.testing.assert_array_equal(np.concatenate(together), array)


def test_no_rows_at_all(folder):
    lb_mpi.save(COMM, folder, 0, heat=np.zeros((0, 4), "f4"), index=[])
    step, arrays = lb_mpi.load(COMM, folder) or (-1, {})
    assert step == 0
    assert (arrays["heat"].shape, arrays["heat"].dtype) == ((0, 4), np.float32)


def test_two_are_kept_and_one_runs_on_from_the_last(folder):
    for _ in range(3):
        step, arrays = lb_mpi.load(COMM, folder) or (0, {"heat": np.zeros(4)})
        for step in range(step + 1, step + 3):  # noqa: B020  (as in the documentation)
            arrays["heat"] = arrays["heat"] + 1
            lb_mpi.save(COMM, folder, step, **arrays)
    step, arrays = lb_mpi.load(COMM, folder) or (0, {})
    assert step == 6
    assert arrays["heat"].tolist() == [6.0] * 4
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "save-00000005", "save-00000006"]
    if COMM.rank == 0:
        assert signs.read(bytes(signs._page.bytes)).saved == 6


def saved_twice(folder):
    """Steps 1 and 2; the parts of step 2."""
    for step in (1, 2):
        lb_mpi.save(COMM, folder, step, heat=np.full(5, step + COMM.rank / 10))
    COMM.Barrier()
    return sorted((folder / "save-00000002").glob("*.npy"))


def damage(path, how):
    data = path.read_bytes()
    if how == "lost":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if how == "truncated" else data[:-9] + bytes([data[-9] ^ 16]) + data[-8:])


@pytest.mark.parametrize("how", ["truncated", "corrupt", "lost", "manifest"])
def test_a_damaged_save_is_passed_over_and_then_all_are(folder, how):
    parts = saved_twice(folder)
    if COMM.rank == 0:
        path = parts[-1].with_name("manifest") if how == "manifest" else parts[-1]
        damage(path, "truncated" if how == "manifest" else how)
    COMM.Barrier()
    expected = pytest.warns(UserWarning, match=r"save-00000002.*: going on from step 1, which was saved before")
    with expected if COMM.rank == 0 else contextlib.nullcontext():
        step, arrays = lb_mpi.load(COMM, folder) or (0, {})
    assert step == 1
    assert arrays["heat"].tolist() == [1 + COMM.rank / 10] * 5
    lb_mpi.save(COMM, folder, 2, heat=arrays["heat"])  # again, in place of the damaged one
    step, _ = lb_mpi.load(COMM, folder) or (0, {})
    assert step == 2
    COMM.Barrier()
    if COMM.rank == 0:
        for path in folder.glob("*/heat-0000.npy"):
            damage(path, "corrupt")
    COMM.Barrier()
    with pytest.raises(lb_mpi.SaveError, match=r"no save in .*saves can be read: .*corrupt.*; .*corrupt"):
        lb_mpi.load(COMM, folder)


def test_a_warning_that_is_an_error_is_one_on_all_ranks(folder):
    parts = saved_twice(folder)
    if COMM.rank == 0:
        damage(parts[0], "truncated")
    COMM.Barrier()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning if COMM.rank == 0 else lb_mpi.Error, match="going on from step 1"):
            lb_mpi.load(COMM, folder)


def test_a_full_disk_on_one_rank_is_an_error_on_all(folder):
    saved_twice(folder)
    last = COMM.size - 1
    says = rf"rank {last}: .*File too large.*heat-{last:04d}\.npy"
    with largest_file(30_000, here=HERE), pytest.raises(OSError, match=says):
        lb_mpi.save(COMM, folder, 3, heat=np.zeros(10_000))
    COMM.Barrier()  # rank 0 has cleared away what was written
    assert [path.name for path in sorted(folder.glob("save-*"))] == ["save-00000001", "save-00000002"]
    assert (lb_mpi.load(COMM, folder) or (0,))[0] == 2
    lb_mpi.save(COMM, folder, 3, heat=np.zeros(10_000))
    assert (lb_mpi.load(COMM, folder) or (0,))[0] == 3


def test_a_save_that_cannot_be_committed_is_an_error_on_all_ranks(folder, monkeypatch):
    saved_twice(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left on device"):
            lb_mpi.save(COMM, folder, 3, heat=np.zeros(4))
    assert (lb_mpi.load(COMM, folder) or (0,))[0] == 2


def test_another_run_that_saves_there_is_an_error(folder):
    other = Folder(folder, "rows")
    if COMM.rank == 0:
        other.lock()
    with pytest.raises(OSError, match=r"another run saves to .*saves"):
        lb_mpi.save(COMM, folder, 1, heat=np.zeros(3))
    other.close()
    lb_mpi.save(COMM, folder, 1, heat=np.zeros(3))


@several
def test_what_is_equal_on_two_ranks_may_be_written_in_two_ways(folder):
    nan = float("nan")
    options = {"a": 1, "b": [nan, 2.5]} if HERE else {"b": (np.float32(nan), 2.5), "a": 1.0}
    for step in (1, np.int64(2)):
        where = f"{folder}/" if HERE else folder
        lb_mpi.save(COMM, where, step if HERE else int(step), options=options, given=ONE, arguments=ONE)
        found, arrays = lb_mpi.load(COMM, where, options=options) or (0, {})
        assert (found, sorted(arrays)) == (step, ["arguments", "given"])


def test_only_the_last_folders_stay_locked(folder, monkeypatch):
    monkeypatch.setattr(module, "_LOCKED", 2)
    for name in "abca":
        before = lb_mpi.load(COMM, folder / name) or (0,)
        lb_mpi.save(COMM, folder / name, before[0] + 1, heat=np.zeros(3))
    if COMM.rank == 0:
        for name in "abc":
            with contextlib.nullcontext() if name == "b" else pytest.raises(OSError, match=r"another run saves"):
                other = Folder(folder / name, "rows")
                other.lock()
                other.close()
    COMM.Barrier()


def test_other_options_another_kind_and_earlier_steps_are_refused(folder):
    folder = folder.with_name("saves\udcff")  # of which no rank can send the name as it is
    lb_mpi.save(COMM, folder, 3, heat=np.zeros(3), options={"shape": (4, 5), "seed": 7})
    assert lb_mpi.load(COMM, folder, options={"seed": 7, "shape": [4, 5]}) is not None
    for options, says in (
        ({"shape": (4, 5), "seed": 8}, r"seed = 8: expected 7, as in what is saved in .*saves.* \(choose another folder\)"),
        ({"seed": 7}, r"shape = not given: expected \[4, 5\]"),
        (None, "seed = not given: expected 7"),
        ({"shape": (4, 5), "seed": 7, "wind": 1.5}, "wind = 1.5: expected none"),
    ):
        with pytest.raises(ValueError, match=says):
            lb_mpi.load(COMM, folder, options=options)
        with pytest.raises(ValueError, match=says):
            lb_mpi.save(COMM, folder, 4, heat=np.zeros(3), options=options)
    for step in (2, 3):
        with pytest.raises(ValueError, match=rf"step = {step}: expected more than 3, which is saved in .*saves.* already"):
            lb_mpi.save(COMM, folder, step, heat=np.zeros(3), options={"shape": (4, 5), "seed": 7})
    searches = Folder(folder.with_name("searches"), "search")
    if COMM.rank == 0:
        searches.begin(1)
        searches.commit(1, {}, [])
    COMM.Barrier()
    for call in (lambda: lb_mpi.load(COMM, searches.path), lambda: lb_mpi.save(COMM, searches.path, 2, heat=np.zeros(3))):
        with pytest.raises(ValueError, match="is a save of search: expected a save of rows"):
            call()


@pytest.mark.every_size
def test_an_index_has_each_row_once(folder):
    n = 3 * COMM.size
    right = 3 * COMM.rank + np.arange(3)
    for row, says in (
        (n, rf"index\[1\] = {n}: expected a row from 0 to {n - 1}"),
        (-1, r"index\[1\] = -1: expected a row from 0"),
        (0, rf"index: row (0 occurs 2|{n - 2} occurs 0) times on all ranks together: expected once"),
    ):
        wrong = right.copy()
        if HERE:
            wrong[1] = row
        with pytest.raises(ValueError, match=says):
            lb_mpi.save(COMM, folder, 1, heat=ONE, index=wrong)
    with pytest.raises(ValueError, match="index has 4 numbers: expected 3, one for each row"):
        lb_mpi.save(COMM, folder, 1, heat=ONE, index=[0, 1, 2, 3] if HERE else right)
    lb_mpi.save(COMM, folder, 1, heat=ONE, index=right)
    with pytest.raises(ValueError, match=rf"index\[0\] = {n}: expected a row from 0 to {n - 1}"):
        lb_mpi.load(COMM, folder, index=[n] if HERE else [0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.every_size
def test_a_signal_reaches_all_ranks_in_the_same_step(number):
    received = []
    with lb_mpi.asked_to_stop(COMM) as asked:
        with lb_mpi.asked_to_stop(COMM):
            pass
        assert signs.read(bytes(signs._page.bytes)).saves_pid == (os.getpid() if COMM.rank == 0 else 0)
        for step in range(6):
            if step == 2 and HERE:
                os.kill(os.getpid(), number)
            received.append(asked())
    assert received == [None, None, None, number, number, number]
    late = COMM.rank == 0 and number == signs.SAVE_SIGNAL  # from the launcher, which learns of the end a moment later
    assert signal.getsignal(number) is (saves.ignore if late else signal.SIG_DFL)
    assert signs.read(bytes(signs._page.bytes)).saves_pid == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_after_the_last_step_ends_the_process_or_is_kept_for_the_next_block(monkeypatch, number):
    raised = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    with lb_mpi.asked_to_stop(COMM) as asked:
        assert asked() is None
        if HERE:
            os.kill(os.getpid(), number)
    ends = number is signal.SIGTERM
    assert raised == ([number] if HERE and ends else [])
    for expected in (None if ends else number, None):  # a block that has returned it does not keep it
        with lb_mpi.asked_to_stop(COMM) as asked:
            assert [asked() for _ in range(2)] == [None, expected]


def test_a_signal_before_an_error_is_kept_for_the_next_block():
    with contextlib.suppress(ZeroDivisionError), lb_mpi.asked_to_stop(COMM):
        if HERE:
            os.kill(os.getpid(), signal.SIGTERM)
        raise ZeroDivisionError
    with lb_mpi.asked_to_stop(COMM) as asked:
        assert [asked() for _ in range(2)] == [None, signal.SIGTERM]


def test_a_handler_of_the_users_stays_and_errors_pass_through():
    came = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    try:
        with contextlib.suppress(ZeroDivisionError), lb_mpi.asked_to_stop(COMM) as asked:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert asked() is None
            raise ZeroDivisionError
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert came == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
