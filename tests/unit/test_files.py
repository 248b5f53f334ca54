"""A file is written as a whole or not at all, whatever stands at its path; links of others are not followed; frames."""

import contextlib
import errno
import fcntl
import os
import signal
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb_mpi.cli.run.progress import remove_records
from lb_mpi.files import create, frame, lock, read_frame, unlock, write_whole
from lb_mpi.mpi.pool.checkpoint_file import CheckpointFile
from lb_mpi.saving.folder import Folder


def test_text_and_bytes_are_written_and_permissions_kept(tmp_path):
    path = tmp_path / "a"
    old = os.umask(0o027)
    try:
        write_whole(path, "first ü\n")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o604)
    write_whole(str(path), b"\xff\0")
    assert path.read_bytes() == b"\xff\0"
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    assert list(tmp_path.iterdir()) == [path]


def test_links_stay_links(tmp_path):
    target, link, further = tmp_path / "target", tmp_path / "folder" / "link", tmp_path / "further"
    link.parent.mkdir()
    target.write_text("old")
    link.symlink_to("../target")
    further.symlink_to(link)
    write_whole(further, "new")
    assert further.is_symlink()
    assert link.is_symlink()
    assert target.read_text() == "new"
    target.unlink()
    write_whole(further, "again")  # it pointed nowhere
    assert target.read_text() == "again"


def test_a_pipe_and_a_device_are_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    arrived: list[str] = []
    listener = threading.Thread(target=lambda: arrived.append(pipe.read_text()))
    listener.start()
    write_whole(pipe, "text")
    listener.join()
    assert arrived == ["text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    full = Path("/dev/full")
    if full.is_char_device():
        with pytest.raises(OSError, match=r"No space left.*/dev/full"):
            write_whole(full, "x")
        assert full.is_char_device()


@pytest.mark.parametrize(("name", "kind"), [("nowhere/m", FileNotFoundError), (".", IsADirectoryError)])
def test_errors_name_the_file(tmp_path, name, kind):
    path = f"{tmp_path}/{name}"
    with pytest.raises(kind, match=path):
        write_whole(path, "x")


def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError("full")

    for name in ("replace", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(OSError, match="full"):
                write_whole(path, "new")
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_takes_the_place_of_a_link_and_leaves_alone_what_that_leads_to(tmp_path):
    precious, link = tmp_path / "precious", tmp_path / "link"
    precious.write_text("kept")
    for target in (precious, tmp_path / "nosuch"):
        link.symlink_to(target)
        file = create(link)
        os.write(file, b"new")
        os.close(file)
        assert not link.is_symlink()
        assert link.read_text() == "new"
        link.unlink()
    assert precious.read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_record_takes_the_place_of_an_earlier_one_and_leaves_alone_what_links_lead_to(tmp_path):
    other, record = tmp_path / "other", tmp_path / "record"
    for folder in (other, record):
        folder.mkdir()
        (folder / "rank000001.lbrec").write_text("kept")
    (record / "rank000000.lbrec").symlink_to(other / "rank000001.lbrec")
    remove_records(str(record))
    assert list(record.iterdir()) == []
    assert (other / "rank000001.lbrec").read_text() == "kept"


def test_saves_empty_no_folder_that_a_link_leads_to(tmp_path):
    precious, saves = tmp_path / "precious", tmp_path / "saves"
    for folder in (precious, saves):
        folder.mkdir()
    for name in ("a", "manifest"):
        (precious / name).write_text("kept")
    (saves / "save-00000001").symlink_to(precious)
    (saves / "save-00000004").symlink_to(precious)
    folder = Folder(saves, "rows")
    folder.lock()
    for number in (2, 3):
        folder.begin(number)
        folder.commit(number, {}, [])
    with pytest.raises(OSError, match="save-00000004"):
        folder.begin(4)
    assert [save.number for save in folder.saves().whole] == [3, 2]
    assert sorted(path.name for path in precious.iterdir()) == ["a", "manifest"]
    folder.close()
    (saves / "lock").unlink()
    (saves / "lock").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="lock"):
        folder.lock()
    assert not (tmp_path / "made").exists()


def test_a_forked_child_keeps_no_lock(tmp_path):
    """A daemon or a data loader outlives a process that is killed, and would keep its next run from writing."""
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    until_end, end = os.pipe()
    is_ready, ready = os.pipe()
    holder = os.fork()
    if not holder:
        try:
            lock(first, "first")
            if not os.fork():
                os.close(end)
                os.write(first, b"nowhere")
                os.write(ready, b".")
                os.read(until_end, 1)  # until the test has closed `end`
                os._exit(0)
            os.read(is_ready, 1)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(first)
    assert os.waitpid(holder, 0)[1] == signal.SIGKILL
    lock(second, "second")  # while the child lives
    assert os.fstat(second).st_size == 0
    unlock(second)
    third = os.open(tmp_path / "lock", os.O_RDWR)
    lock(third, "third")  # before the second is closed
    unlock(third)
    for file in (second, third, until_end, end, is_ready, ready):
        os.close(file)


@given(st.lists(st.binary(max_size=20), max_size=4), st.binary(max_size=9))
def test_frames_come_back_one_after_the_other(payloads, before):
    view, at = memoryview(before + b"".join(map(frame, payloads))), len(before)
    for payload in payloads:
        found, at = read_frame(view, at)
        assert found == payload
    assert read_frame(view, at) == (None, at == len(view) and at)


@given(st.binary(max_size=20), st.integers(0), st.integers(0, 7))
def test_a_truncated_or_corrupt_frame_is_none(payload, at, bit):
    whole = frame(payload)
    at %= len(whole)
    flipped = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
    assert read_frame(memoryview(flipped), 0) == (None, 0)
    assert read_frame(memoryview(whole[:at]), 0) == (None, 0)


def test_a_file_system_without_locks_is_named_and_written_to(tmp_path, monkeypatch):
    """On Lustre without flock, each save and each map with a checkpoint was "Function not implemented"."""

    def flock(_file, _how):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with open(tmp_path / "log", "w") as file:
        with pytest.warns(RuntimeWarning, match="log: its file system has no locks .*: expected no other run that writes"):
            lock(file.fileno(), tmp_path / "log")
        unlock(file.fileno())


def test_the_name_of_a_new_checkpoint_is_on_disk_before_its_results(tmp_path, monkeypatch):
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino) or sync(file))
    for _ in range(2):
        with contextlib.closing(CheckpointFile(tmp_path / "log", abs, range(3), star=False, key=None)) as file:
            file.write([1], [1])
    log, folder = (tmp_path / "log").stat().st_ino, tmp_path.stat().st_ino
    assert synced == [log, folder, log, log, log]
