"""The start of MPI in a rank: Ctrl-C kills it during MPI_Init; later, launch/run sees when its program ends.

`from mpi4py import MPI` calls MPI_Init.  A KeyboardInterrupt raised afterwards would end the program only after
MPI_Finalize, which waits for the other ranks, while those wait for this one.  A killed process, however, ends the job, and
launch/run names it.

A rank whose program ends early, for example by an error before its first call of lb_mpi, waits in MPI_Finalize for the other
ranks, which wait for it in lb_mpi.  So its page (../signs.py) records the end of the program, even without lb_mpi.

Only the standard library is needed: site/sitecustomize.py loads this file by its path, as this file loads signs.py.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "mpi4py.MPI"


class Deadly:
    """A block in which SIGINT kills the process, unless the user has replaced Python's handler."""

    def __enter__(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        self._ours = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def __exit__(self, *_: object) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class _Loader(importlib.abc.Loader):
    """Load a module with `loader`, inside `Deadly`."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        with Deadly():
            module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        with Deadly():
            _attend()
            self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader


class _Finder:
    """Find MODULE once, with the other finders, and wrap its loader."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _attend() -> None:
    """Call `signs.attend` in a private copy of that module: the program may have another lb_mpi."""
    spec = importlib.util.spec_from_file_location("_lb_mpi_signs", Path(__file__).parent.parent / "signs.py")
    if spec is not None and spec.loader is not None:
        signs = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(signs)
        signs.attend()


def guard() -> None:
    """Let Ctrl-C kill the process while it imports mpi4py.MPI; do nothing if that is already imported."""
    if MODULE not in sys.modules:
        sys.meta_path.insert(0, _Finder())
