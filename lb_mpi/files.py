"""Files that are written as a whole or not at all, and new files, which follow no link that has their name."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file: whoever opens it finds what was there before, or all of `content` (text as UTF-8).

    It is written aside, forced to the disk, and renamed.  A link stays one: what it points to is replaced, and keeps its
    permissions.  What is no regular file (a device, a pipe) is written to directly.  OSError, naming `path`.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        mode = os.stat(path).st_mode if os.path.exists(path) else None
        if mode is not None and not stat.S_ISREG(mode):
            Path(path).write_bytes(data)
        else:
            _replace(Path(os.path.realpath(path)), data, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from None


def create(path: str | os.PathLike[str]) -> int:
    """Open a new file for writing, in place of a file or a link that has its name.  OSError, naming `path`.

    In a folder that others may write to, a link could lead to a file of this user's that is not meant.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def _replace(target: Path, data: bytes, mode: int | None) -> None:
    draft = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}")
    try:
        with open(draft, "xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        raise
