"""In place of concurrent.futures.ProcessPoolExecutor: lb_mpi.Executor, with its arguments."""

from __future__ import annotations

import concurrent.futures.process
from collections.abc import Callable, Iterable
from typing import Any

import lb_mpi


class RanksExecutor(lb_mpi.Executor):
    """Replaces ProcessPoolExecutor; it uses all ranks."""

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: Any = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
        *,
        max_tasks_per_child: int | None = None,
    ) -> None:
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        super().__init__(initializer=initializer, initargs=tuple(initargs))


def replace_processes() -> None:
    """Use it in place of Python's own executor of processes."""
    futures = concurrent.futures
    futures.ProcessPoolExecutor = futures.process.ProcessPoolExecutor = RanksExecutor  # type: ignore[misc, assignment]
