"""The digest by which a log knows its function and its tasks again, in another run of the program.   (no MPI)

It is a digest of what pickle makes of them, but for what differs between two runs of the same program:

- The elements of a set come in the order of their hashes, which Python draws anew for each run: they are sorted.
- A function that has no name to be found by (a lambda, a function in a function) can't be pickled: it is described by its
  code without line numbers, its defaults and what it encloses.
- Padding in structured arrays is whatever was in memory: it is left out.
- Equal texts may be one object or two: they count as two.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from types import CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.recfunctions import repack_fields

from lb_mpi.checks import show

PROTOCOL = 4  # of pickle: a later one tells whether an array may be written to


def digest(function: Callable[..., Any], items: Any, *, star: bool) -> bytes:
    """Tell function(item), or with `star` function(*item), of all items from others; TypeError where that can't be done.

    What is changed in the body of a function with a name, or in the globals that a function uses, is not noticed: one may
    want to mend it and go on.
    """
    if type(items) is np.ndarray:
        items = np.ascontiguousarray(items)
    parts = [_digest(part, name) for name, part in (("function", function), ("items", items))]
    return hashlib.blake2b(b"".join([bytes([star]), *parts]), digest_size=16).digest()


def _digest(value: Any, name: str) -> bytes:
    try:
        return _of(value)
    except Exception as error:  # the user's classes may do anything when they are pickled
        why = f"{type(error).__name__}: {error}"
        raise TypeError(f"{name} = {show(value)}: expected what a log can tell from others ({why})") from error


def _of(value: Any) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    _Pickler(SimpleNamespace(write=found.update), PROTOCOL).dump(value)
    return found.digest()


class _Pickler(pickle.Pickler):
    """Pickle what `digest` describes in its own way as another object instead."""

    def __init__(self, file: Any, protocol: int) -> None:
        super().__init__(file, protocol)
        self._described: dict[int, tuple[int, FunctionType]] = {}  # by id; the function is kept, so that the id is its own

    def persistent_id(self, value: Any) -> Any:
        """Return what stands for the value; None: what pickle makes of it."""
        if isinstance(value, str):
            return value.encode("utf-8", "surrogatepass") if type(value) is str else None
        if isinstance(value, set | frozenset):
            return type(value), sorted(map(_of, value)), getattr(value, "__dict__", None)
        if isinstance(value, np.ndarray | np.void) and value.dtype.names is not None:
            return _without_padding(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, CodeType):
            return _code(value)
        if isinstance(value, ModuleType):
            return "module", value.__name__
        return None

    def _function(self, function: FunctionType) -> Any:
        if id(function) in self._described:  # it encloses itself
            return "function", self._described[id(function)][0]
        if _has_name(function):
            return None
        self._described[id(function)] = len(self._described), function
        cells = [_content(cell) for cell in function.__closure__ or ()]
        names = function.__module__, function.__qualname__
        return names, function.__code__, function.__defaults__, function.__kwdefaults__, function.__dict__, cells


def _has_name(function: FunctionType) -> bool:
    try:
        pickle.dumps(function, PROTOCOL)
    except Exception:
        return False
    return True


def _content(cell: CellType) -> Any:
    try:
        return [cell.cell_contents]
    except ValueError:  # empty
        return None


def _code(code: CodeType) -> Any:
    """What code does: nothing of where it was written."""
    arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return arguments, code.co_code, getattr(code, "co_exceptiontable", b""), code.co_consts, names


def _without_padding(value: Any) -> Any:
    dtype = repack_fields(value.dtype, recurse=True)
    if dtype.itemsize == value.dtype.itemsize:
        return None
    return type(value), value.dtype, value.astype(dtype)
