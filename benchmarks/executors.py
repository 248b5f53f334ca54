"""Run other projects' test suites for executors.  mpiexec -n 3 python -m lb_mpi pool -m benchmarks.executors

CPython's test.test_concurrent_futures, if this Python has its tests, and, with `--mpi4py`, test_futures.py of a clone of
mpi4py, whose folders demo/futures and test are in PYTHONPATH, run against `lb_mpi.Executor`.  The output is one line for
each suite, and for each case that fails, with the reason if it is known.  The exit code is 1 if a case fails without a known
reason, and 77 if no suite was found.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import unittest
from collections.abc import Iterable
from typing import Any

import lb_mpi
from lb_mpi.adapters.mpi4py_futures import CommExecutor

SKIPPED = 77  # exit code
BY_NAME = "starts `python -c`, which imports the executor from concurrent.futures"
INSIDE = "reads attributes of MPIPoolExecutor (_pool, _shutdown)"
NO_COMM = "get_comm_workers: the workers have no communicator without the root"
KNOWN = {
    "test_interpreter_shutdown": BY_NAME,
    "test_submit_after_interpreter_shutdown": BY_NAME,
    "test_hang_gh83386": BY_NAME,
    "test_bootup_shutdown_nowait": INSIDE,
    "test_context_manager_shutdown": INSIDE,
    "test_del_shutdown": INSIDE,
    "test_init_bootup_shutdown": INSIDE,
    "test_shutdown": INSIDE,
    "test_shutdown_cancel": INSIDE,
    "test_get_comm_workers": NO_COMM,
    "test_mpi_serialized_support": "replaces functions within mpi4py.futures",
    "test_run_name": "expects that the file of the suite is the script",
    "test_exc_unpickle": "expects mpi4py's RemoteTraceback as cause; it is a TaskError",
}
CPYTHON = {  # class: module, where they are several
    "ExecutorTest": "executor",
    "WaitTests": "test_wait",
    "AsCompletedTests": "test_as_completed",
    "ExecutorShutdownTest": "test_shutdown",
    "InitializerMixin": "test_init",
    "FailingInitializerMixin": "test_init",
}


class WaitingExecutor(lb_mpi.Executor):
    """Runs no tasks on rank 0 if there are others, as MPIPoolExecutor."""

    def __init__(
        self, max_workers: int | None = None, initializer: Any = None, initargs: Iterable[Any] = (), **_: Any
    ) -> None:
        """Ignore the options of how to start workers."""
        super().__init__(max_workers=max_workers, initializer=initializer, initargs=tuple(initargs), root_works=False)


def cpython() -> list[type[unittest.TestCase]]:
    """Make the cases of CPython's suite; none where it is not there."""
    try:
        package = importlib.import_module("test.test_concurrent_futures")
        importlib.import_module("test.support").verbose = 0  # type: ignore[attr-defined]
    except ImportError:
        return []

    def find(name: str, module: str) -> Any:
        if not hasattr(package, "__path__"):
            return getattr(package, name)
        return getattr(importlib.import_module(f"{package.__name__}.{module}"), name)

    bases = (find("ExecutorMixin", "util"), find("BaseTestCase", "util"))
    return [
        type(name, (find(name, module), *bases), {"executor_type": lb_mpi.Executor}) for name, module in CPYTHON.items()
    ]


def mpi4py() -> list[type[unittest.TestCase]]:
    """Make the cases of mpi4py's suite that concern its executors."""
    from mpi4py import futures

    importlib.import_module("mpi4py.futures._core").SharedPool = object()  # type: ignore[attr-defined]
    futures.MPIPoolExecutor, futures.MPICommExecutor = WaitingExecutor, CommExecutor  # type: ignore[misc, assignment]
    module = importlib.import_module("test_futures")
    found = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, unittest.TestCase)]
    return [one for one in found if one.__name__.startswith(("ProcessPool", "SharedPool", "MPIComm"))]


def run(name: str, cases: list[type[unittest.TestCase]]) -> bool:
    """Run a suite, print what became of it, and return whether nothing unknown has failed."""
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    suite = unittest.TestSuite(map(load, cases))
    n = suite.countTestCases()
    result = unittest.TestResult()
    suite.run(result)
    failed = [*result.failures, *result.errors]
    print(f"{name}: {n - len(failed) - len(result.skipped)} of {n} cases pass, {len(result.skipped)} skipped")
    well = True
    for case, text in failed:
        method = case.id().rpartition(".")[2]
        print(f"    {type(case).__name__}.{method}: {KNOWN.get(method, text)}")
        well = well and method in KNOWN
    return well


def main(arguments: list[str] | None = None) -> int:
    """Run the suites; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi4py", action="store_true", help="also run mpi4py's suite, test_futures in PYTHONPATH")
    parser.add_argument("--only", action="store_true", help="do not run CPython's suite")
    options = parser.parse_args(arguments)
    suites = {} if options.only else {"CPython's test_concurrent_futures": cpython()}
    if options.mpi4py:
        suites["mpi4py's test_futures"] = mpi4py()
    if not any(suites.values()):
        print(f"Python {sys.version.split()[0]} has come without test.test_concurrent_futures")
        return SKIPPED
    results = [run(name, cases) for name, cases in suites.items() if cases]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
