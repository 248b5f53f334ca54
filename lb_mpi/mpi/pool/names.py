"""Other packages' pools and executors, replaced by ours: `python -m lb_mpi pool --as multiprocessing script.py`.

The script still imports them by their own names.  Each class accepts the arguments of the one that it replaces; how many
processes it asks for is ignored, since there are as many ranks as mpiexec has started.
"""

from __future__ import annotations

import importlib
import multiprocessing.context
import multiprocessing.pool
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from lb_mpi import checks
from lb_mpi.mpi.pool.executor import Executor
from lb_mpi.mpi.pool.pool import Callback, Pool

Function = Callable[..., Any]


# --- multiprocessing ----------------------------------------------------------------------------------------------------


class ProcessPool(Pool):
    """Replaces multiprocessing.Pool: raises a task's own exception, and accepts `chunksize` by position."""

    _own_errors = True

    def __init__(
        self,
        processes: int | None = None,
        initializer: Function | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
    ) -> None:
        super().__init__(initializer=initializer, initargs=initargs)
        self._processes = self.size  # which samplers read

    def map(  # type: ignore[override]
        self, func: Function, iterable: Iterable[Any], chunksize: int | None = None, callback: Callback | None = None
    ) -> Any:
        """See multiprocessing; `callback` is called with each result, as in schwimmbad's MultiPool."""
        return super().map(func, iterable, chunksize=chunksize, callback=callback)

    def starmap(self, func: Function, iterable: Iterable[Any], chunksize: int | None = None) -> Any:  # type: ignore[override]
        """See multiprocessing."""
        return super().starmap(func, iterable, chunksize=chunksize)

    def imap(  # type: ignore[override]
        self, func: Function, iterable: Iterable[Any], chunksize: int | None = None
    ) -> Iterator[Any]:
        """See multiprocessing; the results come from a generator, without its method next(timeout)."""
        return super().imap(func, iterable, chunksize=chunksize)

    def imap_unordered(  # type: ignore[override]
        self, func: Function, iterable: Iterable[Any], chunksize: int | None = None
    ) -> Iterator[Any]:
        """See `imap`."""
        return super().imap_unordered(func, iterable, chunksize=chunksize)


def _context_pool(_context: Any, *arguments: Any, **options: Any) -> ProcessPool:
    return ProcessPool(*arguments, **options)


def _for_multiprocessing() -> None:
    multiprocessing.Pool = multiprocessing.pool.Pool = ProcessPool  # type: ignore[assignment, misc]
    multiprocessing.context.BaseContext.Pool = _context_pool  # type: ignore[method-assign, assignment]


# --- schwimmbad ---------------------------------------------------------------------------------------------------------


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

    def map(self, worker: Function, tasks: Iterable[Any], callback: Callback | None = None) -> Any:  # type: ignore[override]
        """See schwimmbad."""
        return super().map(worker, tasks, callback=callback)


def _for_schwimmbad() -> None:
    schwimmbad = importlib.import_module("schwimmbad")
    mpi, processes = importlib.import_module("schwimmbad.mpi"), importlib.import_module("schwimmbad.multiprocessing")
    schwimmbad.MPIPool = mpi.MPIPool = SchwimmbadMPIPool  # type: ignore[attr-defined]
    schwimmbad.MultiPool = processes.MultiPool = SchwimmbadPool  # type: ignore[attr-defined]


# --- mpi4py.futures -----------------------------------------------------------------------------------------------------


class PoolExecutor(Executor):
    """Replaces MPIPoolExecutor."""

    def __init__(
        self, max_workers: int | None = None, initializer: Function | None = None, initargs: Iterable[Any] = (), **_: Any
    ) -> None:
        """Ignore the options of how to start workers."""
        super().__init__(max_workers=max_workers, initializer=initializer, initargs=tuple(initargs))


class CommExecutor:
    """Replaces MPICommExecutor, which makes an executor at each `with`."""

    def __init__(self, comm: Any = None, root: int = 0, **options: Any) -> None:
        self._make: Callable[[], Executor] = lambda: PoolExecutor(**options)
        self._executor: Executor | None = None

    def __enter__(self) -> Executor | None:
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


def _for_mpi4py() -> None:
    futures = importlib.import_module("mpi4py.futures")
    futures.MPIPoolExecutor, futures.MPICommExecutor = PoolExecutor, CommExecutor  # type: ignore[attr-defined]


# --- all ----------------------------------------------------------------------------------------------------------------


def _for_joblib() -> None:
    importlib.import_module("lb_mpi.joblib").replace_processes()


NAMES: dict[str, Callable[[], None]] = {
    "joblib": _for_joblib,
    "mpi4py.futures": _for_mpi4py,
    "multiprocessing": _for_multiprocessing,
    "schwimmbad": _for_schwimmbad,
}


def replace(names: Sequence[str]) -> None:
    """Replace what these packages have, in this process; ValueError for other names, ImportError where one is missing."""
    for name in names:
        checks.choice("--as", name, tuple(NAMES))
    for name in names:
        NAMES[name]()
