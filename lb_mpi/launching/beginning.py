"""The start of MPI in a rank: Ctrl-C kills it during MPI_Init; later, launch/run sees when its program ends.

`from mpi4py import MPI` calls MPI_Init.  A KeyboardInterrupt raised afterwards would end the program only after
MPI_Finalize, which waits for the other ranks, while those wait for this one.  A killed process, however, ends the job, and
launch/run names it.

A rank whose program ends early, for example by an error before its first call of lb_mpi, waits in MPI_Finalize for the other
ranks, which wait for it in lb_mpi.  So its page (../signs.py) records the end of the program, even without lb_mpi.

Only the standard library is needed: site/sitecustomize.py loads this file by its path, as this file loads signs.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

MODULE = "mpi4py.MPI"


@contextlib.contextmanager
def _deadly() -> Iterator[None]:
    """A block in which SIGINT kills the process, unless the user has replaced Python's handler."""
    main = threading.current_thread() is threading.main_thread()
    ours = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class _Finder:
    """Find MODULE once, with the other finders, and guard its execution, which calls MPI_Init."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            plain = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with _deadly():
                    _attend()
                    plain(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
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
