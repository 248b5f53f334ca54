"""The joblib backend "lb_mpi", registered by `import lb_mpi.joblib`: joblib's calls run on all ranks.

    import joblib
    import lb_mpi.joblib

    with joblib.parallel_config("lb_mpi"):
        GridSearchCV(...).fit(X, y)

for a script that `python -m lb_mpi pool` starts.  A program that runs on all ranks passes the executor of its root:
`parallel_config("lb_mpi", executor=executor)`.

A call uses at most `n_jobs` ranks, by default all.  Its tasks are grouped by joblib's auto-batching.  Numpy arrays of at
least `max_nbytes` (joblib's argument, 1 MB) are sent once to each host, where all ranks read them from shared memory; they
are read-only, as joblib's memmaps are, and are kept until the call ends; with `mmap_mode="c"` or None, each task gets a copy
of its own.  A np.memmap that can be written is opened by each task as the same file, which all hosts must reach.  Calls in
tasks are sequential.  Where a call requires shared memory (`require="sharedmem"`), joblib uses threads.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future
from typing import Any

from joblib.parallel import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
    register_parallel_backend,
)

import lb_mpi
from lb_mpi.adapters.inside import Beginning, ignored, within_task

MAX_NBYTES = 1_000_000


class JoblibBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """Runs joblib's batches as tasks of an `lb_mpi.Executor`: of `executor`, or of its own, one for each call.

    `initializer` is called as initializer(*initargs) once on each rank, for each executor of its own.  Its methods are those
    of joblib's ParallelBackendBase.
    """

    supports_retrieve_callback = supports_inner_max_num_threads = True
    default_n_jobs = -1

    def __init__(
        self,
        *,
        executor: lb_mpi.Executor | None = None,
        initializer: Any = None,
        initargs: Any = (),
        **options: Any,
    ) -> None:
        if executor is not None and initializer is not None:
            raise ValueError("initializer of joblib: expected None with executor=, which has its own")
        super().__init__(**options)
        self._initializer = None if initializer is None else Beginning(initializer, initargs)
        self._given = executor
        self._executor: lb_mpi.Executor | None = None
        self._n_jobs = 0  # of the last call
        self._least_bytes = MAX_NBYTES

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of ranks that a call may use."""
        if n_jobs == 0:
            raise ValueError("n_jobs = 0: expected an integer other than 0, or None")
        if n_jobs is None or within_task():
            return 1
        n_ranks = lb_mpi.Executor.n_ranks() if self._given is None else self._given.num_workers
        return max(1, n_ranks + 1 + n_jobs if n_jobs < 0 else min(n_jobs, n_ranks))

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        max_nbytes: int | None = MAX_NBYTES,
        mmap_mode: str | None = "r",
        **_: Any,
    ) -> int:
        """Begin a call, or a block of several."""
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        ignored("inner_max_num_threads", self.inner_max_num_threads)
        self.parallel = parallel
        self._least_bytes = sys.maxsize if max_nbytes is None or mmap_mode in (None, "c") else max_nbytes
        self._n_jobs = n_jobs
        self._executor = self._made() if self._given is None else self._given
        return n_jobs

    def _made(self) -> lb_mpi.Executor:
        return lb_mpi.Executor(max_workers=self._n_jobs, initializer=self._initializer)

    def submit(self, func: Any, callback: Any = None) -> Future[Any]:
        """Submit a batch."""
        assert self._executor is not None
        if len(func) > 1:  # else the only result is pickled before the next call
            func.items = [(lb_mpi.Executor.run_kept, (function, *args), options) for function, args, options in func.items]
        future: Future[Any] = self._executor.submit_sharing(func, self._least_bytes)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, future: Future[Any]) -> Any:
        """Return the result of a batch, or raise its exception."""
        return future.result()

    def get_nested_backend(self) -> tuple[Any, int | None]:
        """Return the backend of calls within tasks."""
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel the batches not yet begun, after an exception."""
        if self._given is None and self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = self._made() if ensure_ready else None

    def stop_call(self) -> None:
        """End a call: the next one may have changed the arrays."""
        if self._executor is not None:
            self._executor.end_sharing()

    def terminate(self) -> None:
        """End a call, or a block of several."""
        if self._given is None and self._executor is not None:
            self._executor.shutdown()
        self._executor = None
        self.reset_batch_stats()


def replace_processes() -> None:
    """Use it in place of joblib's own processes, also by their names."""
    for name in ("loky", "multiprocessing"):
        register_parallel_backend(name, JoblibBackend)


register_parallel_backend("lb_mpi", JoblibBackend)
