"""In place of concurrent.futures.ProcessPoolExecutor: lb_mpi.Executor, with its arguments."""

from __future__ import annotations

import concurrent.futures.process
from collections.abc import Callable, Iterable
from typing import Any

import lb_mpi
from lb_mpi.adapters.inside import Beginning, begin_thread, ignored, within_task


class RanksExecutor(lb_mpi.Executor):
    """Replaces ProcessPoolExecutor; it uses all ranks, and within a task a thread of its own."""

    def __new__(
        cls,
        max_workers: int | None = None,
        mp_context: Any = None,
        initializer: Any = None,
        initargs: Iterable[Any] = (),
        *,
        max_tasks_per_child: int | None = None,
    ) -> Any:
        """Return a new one."""
        if within_task():
            return concurrent.futures.ThreadPoolExecutor(1, initializer=begin_thread, initargs=(initializer, initargs))
        return super().__new__(cls)

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
        ignored("max_tasks_per_child", max_tasks_per_child)
        super().__init__(initializer=Beginning(initializer, initargs))


def replace_processes() -> None:
    """Use it in place of Python's own executor of processes."""
    futures = concurrent.futures
    futures.ProcessPoolExecutor = futures.process.ProcessPoolExecutor = RanksExecutor  # type: ignore[misc, assignment]
