"""A program of the user's, found by file or by module name, to be run as `__main__` under another name or twice."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType
from typing import Any

Load = Callable[[str], tuple[CodeType, dict[str, Any]]]


def find_script(target: str, *, module: bool) -> Load:
    """How to get the code of a script (or a module), and what its module begins with, by what `__name__` is to be.

    ValueError, SyntaxError or OSError when there is none.
    """
    if module:
        spec = _find(target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = _find(f"{target}.__main__")
        if spec is None or spec.loader is None or (code := spec.loader.get_code(spec.name)) is None:  # type: ignore[attr-defined]
            raise ValueError(f"-m {target}: expected the name of a module")
        path, package = spec.origin, spec.parent
    else:
        path, package, spec = target, None, None
        code = compile(Path(target).read_bytes(), target, "exec")

    def load(name: str) -> tuple[CodeType, dict[str, Any]]:
        return code, {"__name__": name, "__file__": path, "__package__": package, "__spec__": spec}

    return load


def _find(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:  # a package above it
        if not name.startswith(error.name or " "):
            raise
        return None


def folder_of(target: str, *, module: bool) -> str:
    """Where a script (or a module) imports from: sys.path[0]."""
    return str(Path.cwd()) if module else str(Path(target).resolve().parent)
