"""In place of the pools of schwimmbad: lb_mpi.Pool, with their arguments."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lb_mpi.adapters.multiprocessing import ProcessPool

Function = Callable[..., Any]


class SchwimmbadPool(ProcessPool):
    """Replaces schwimmbad's MultiPool."""

    rank = 0  # the script runs on no other rank

    def __init__(self, *_: Any, initializer: Function | None = None, initargs: Iterable[Any] = (), **__: Any) -> None:
        super().__init__(initializer=initializer, initargs=initargs)

    @staticmethod
    def enabled() -> bool:
        """Return True."""
        return True

    def is_worker(self) -> bool:
        """Return False, since workers do not run the script."""
        return False

    def wait(self, callback: Function | None = None) -> None:
        """Do nothing."""

    def batched_map(self, worker: Function, tasks: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Return worker(batch) for as many batches of tasks as ranks."""
        batches = importlib.import_module("schwimmbad.utils").batch_tasks(n_batches=self.size, data=tasks)
        return self.map(worker, batches, *args, **kwargs)


class SchwimmbadMPIPool(SchwimmbadPool):
    """Replaces schwimmbad's MPIPool, whose `map` has other arguments."""

    def map(self, worker: Function, tasks: Iterable[Any], callback: Function | None = None) -> Any:  # type: ignore[override]
        """See schwimmbad."""
        return super().map(worker, tasks, callback=callback)


def replace_processes() -> None:
    """Use them in place of schwimmbad's own."""
    schwimmbad = importlib.import_module("schwimmbad")
    mpi, processes = importlib.import_module("schwimmbad.mpi"), importlib.import_module("schwimmbad.multiprocessing")
    schwimmbad.MPIPool = mpi.MPIPool = SchwimmbadMPIPool  # type: ignore[attr-defined]
    schwimmbad.MultiPool = processes.MultiPool = SchwimmbadPool  # type: ignore[attr-defined]
