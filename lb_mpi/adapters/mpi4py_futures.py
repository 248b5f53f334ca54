"""In place of the executors of mpi4py.futures: lb_mpi.Executor, with their arguments."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import lb_mpi


class PoolExecutor(lb_mpi.Executor):
    """Replaces MPIPoolExecutor."""

    def __init__(
        self,
        max_workers: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
        **_: Any,
    ) -> None:
        """Ignore the options of how to start workers."""
        super().__init__(max_workers=max_workers, initializer=initializer, initargs=tuple(initargs))


class CommExecutor:
    """Replaces MPICommExecutor, which makes an executor at each `with`."""

    def __init__(self, comm: Any = None, root: int = 0, **options: Any) -> None:
        self._make: Callable[[], lb_mpi.Executor] = lambda: PoolExecutor(**options)
        self._executor: lb_mpi.Executor | None = None

    def __enter__(self) -> lb_mpi.Executor | None:
        """Make it; RuntimeError within its own block."""
        if self._executor is not None:
            raise RuntimeError("the executor is open already: expected to enter it once")
        self._executor = self._make()
        return self._executor.__enter__()

    def __exit__(self, *error: Any) -> None:
        """Shut it down."""
        executor, self._executor = self._executor, None
        assert executor is not None
        executor.__exit__(*error)


def no_comm_workers() -> NoReturn:
    """Raise the error of a task that wants to use several ranks."""
    how = 'a pool of the first ranks of groups (in docs/howto/pools.md: "Tasks that need several ranks")'
    raise lb_mpi.Error(f"get_comm_workers(): each task of lb_mpi has one rank: expected {how}")


def replace_processes() -> None:
    """Use them in place of mpi4py's own."""
    futures = importlib.import_module("mpi4py.futures")
    futures.MPIPoolExecutor, futures.MPICommExecutor = PoolExecutor, CommExecutor  # type: ignore[attr-defined]
    futures.get_comm_workers = no_comm_workers  # type: ignore[attr-defined]
