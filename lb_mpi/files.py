"""Files written completely or not at all, locked by one process, and new files that never follow an existing link.

A frame is bytes with their length and CRC, which reveals truncated or corrupt files:

    frame: bytes of the payload (8 bytes, little-endian) | CRC-32 of these 8 and the payload (4) | payload

A corrupt frame does not say where the next one begins, so it ends the reading.

`find_script` loads a user's program, to be run as `__main__`, under another name, or twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import os
import secrets
import stat
import struct
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file: a reader finds the previous content, or all of `content` (text as UTF-8).

    It is written beside the file, forced to the disk, and renamed.  A link stays a link: its target is replaced, and keeps
    its permissions.  A path that is no regular file (a device, a pipe) is written to directly.  OSError, naming `path`.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    with naming(path):
        mode = os.stat(path).st_mode if os.path.exists(path) else None
        if mode is not None and not stat.S_ISREG(mode):
            Path(path).write_bytes(data)
        else:
            _replace(Path(os.path.realpath(path)), data, mode)


def create(path: str | os.PathLike[str]) -> int:
    """Open a new file for writing, replacing a file or a link of that name.  OSError, naming `path`.

    In a folder that others may write to, a link could lead to another of this user's files.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the path to an OSError: one that is raised while a file is open has none.  A limit of files is named, too."""
    try:
        yield
    except OSError as error:
        limit = " (the limit of `ulimit -f`)" if error.errno == errno.EFBIG else ""
        raise OSError(error.errno, f"{error.strerror or error}{limit}", os.fspath(path)) from None


def is_at(path: str | os.PathLike[str], file: int) -> bool:
    """Return whether a path still leads to the open file of a descriptor: it was not removed, nor replaced."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except OSError:
        return False


def warn(text: str) -> None:
    """Issue a RuntimeWarning, also where warnings are errors: an error would end a run that can go on."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(text, RuntimeWarning, stacklevel=3)


NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_locked: set[int] = set()  # descriptors of files that this process has locked, as far as they are open


def lock(file: int, path: str | os.PathLike[str]) -> None:
    """Lock the file of a descriptor until `unlock` or the end of this process; BlockingIOError if another one holds it.

    A file system without locks, as Lustre often is, is a RuntimeWarning.  A lock belongs to the open file, so a forked child
    (a daemon, a data loader) would keep it.  There, the descriptor leads to /dev/null.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        warn(f"{os.fspath(path)}: its file system has no locks ({error.strerror}): expected no other run that writes there")
        return
    _locked.add(file)


def unlock(file: int) -> None:
    """Release a lock, before the descriptor is closed."""
    if file in _locked:
        _locked.discard(file)
        fcntl.flock(file, fcntl.LOCK_UN)


def sync_dir(path: str | os.PathLike[str]) -> None:
    """Force the names in a directory to the disk."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(path):
            os.fsync(opened)
    except OSError as error:
        if error.errno != errno.EINVAL:  # this file system cannot sync directories, and writes names at once
            raise
    finally:
        os.close(opened)


def _give_up_locks() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in _locked:
        os.dup2(nothing, file, inheritable=False)
    os.close(nothing)
    _locked.clear()


os.register_at_fork(after_in_child=_give_up_locks)


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


# --- frames -----------------------------------------------------------------------------------------------------------


_FRAME = struct.Struct("<QI")  # bytes of the payload, CRC-32
FRAME_BYTES = _FRAME.size  # before the payload


def frame(payload: bytes) -> bytes:
    """Put bytes into a frame."""
    return _FRAME.pack(len(payload), _crc(payload)) + payload


def read_frame(view: memoryview, at: int) -> tuple[memoryview | None, int]:
    """Return the payload of the frame at byte `at` and its end; (None, at) if it is truncated or corrupt."""
    begin = at + _FRAME.size
    if begin > len(view):
        return None, at
    n_bytes, crc = _FRAME.unpack(view[at:begin])
    if n_bytes > len(view) - begin:
        return None, at
    payload = view[begin : begin + n_bytes]
    if _crc(payload) != crc:
        return None, at
    return payload, begin + n_bytes


def _crc(payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(8, "little")))


# --- script -----------------------------------------------------------------------------------------------------------


Load = Callable[[str], tuple[CodeType, dict[str, Any]]]


def find_script(target: str, *, module: bool) -> Load:
    """Return a function from `__name__` to a script's (or module's) code and names; ValueError, SyntaxError, OSError."""
    if module:
        spec = _find(target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = _find(f"{target}.__main__")
        if spec is None or spec.loader is None or (code := spec.loader.get_code(spec.name)) is None:  # type: ignore[attr-defined]
            raise ValueError(f"-m {target}: expected the name of a module")
        path, package = spec.origin, spec.parent
    else:
        path, package, spec = os.path.join(os.getcwd(), target), None, None
        if b"\0" in (text := Path(target).read_bytes()):  # such as a zipapp
            raise OSError(errno.ENOEXEC, "a binary file", target)
        code = compile(text, path, "exec", dont_inherit=True)  # without this file's __future__

    def load(name: str) -> tuple[CodeType, dict[str, Any]]:
        return code, {"__name__": name, "__file__": path, "__package__": package, "__spec__": spec}

    return load


def as_main(load: Load) -> tuple[CodeType, ModuleType]:
    """Return a script's code, and the new module `__main__` to run it in; sys.argv[0] of a module becomes its file."""
    code, names = load("__main__")
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(names)
    if names["__spec__"] is not None:
        sys.argv[0] = names["__file__"]
    return code, main


def _find(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:  # a parent package is missing
        if not name.startswith(error.name or " "):
            raise
        return None


def import_as(target: str, *, module: bool) -> None:
    """Import from the folder of a script (of a module: the current one) first, as python does, unless -P forbids it."""
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd()) if module else str(Path(target).resolve().parent)
