"""A file is written as a whole or not at all, whatever stands at its path."""

import os
import stat
import threading
from pathlib import Path

import pytest

from lb_mpi.files import write_whole


def test_text_bytes_and_permissions(tmp_path: Path) -> None:
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


def test_links_stay_links(tmp_path: Path) -> None:
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


def test_a_pipe_and_a_device_are_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[str] = []
    listener = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    listener.start()
    write_whole(pipe, "told")
    listener.join()
    assert heard == ["told"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    full = Path("/dev/full")
    if full.is_char_device():
        with pytest.raises(OSError, match=r"No space left.*/dev/full"):
            write_whole(full, "x")
        assert full.is_char_device()


@pytest.mark.parametrize(("name", "kind"), [("nowhere/m", FileNotFoundError), (".", IsADirectoryError)])
def test_errors_name_the_file(tmp_path: Path, name: str, kind: type[OSError]) -> None:
    path = f"{tmp_path}/{name}"
    with pytest.raises(kind, match=path):
        write_whole(path, "x")


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
