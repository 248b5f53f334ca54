"""Run CPython's test.test_concurrent_futures against `lb_mpi.Executor`, under `python -m lb_mpi pool`.

A line for each case that fails, with the reason if it is known; the exit code is 1 if it is not.
"""

import importlib
import sys
import unittest

import lb_mpi

BY_NAME = "starts `python -c`, which imports the executor from concurrent.futures"
KNOWN = {
    "test_interpreter_shutdown": BY_NAME,
    "test_submit_after_interpreter_shutdown": BY_NAME,
    "test_hang_gh83386": BY_NAME,
}
CASES = {  # class: module, where they are several
    "ExecutorTest": "executor",
    "WaitTests": "test_wait",
    "AsCompletedTests": "test_as_completed",
    "ExecutorShutdownTest": "test_shutdown",
    "InitializerMixin": "test_init",
    "FailingInitializerMixin": "test_init",
}


def cases():
    package = importlib.import_module("test.test_concurrent_futures")
    importlib.import_module("test.support").verbose = 0

    def find(name, module):
        if not hasattr(package, "__path__"):
            return getattr(package, name)
        return getattr(importlib.import_module(f"{package.__name__}.{module}"), name)

    bases = (find("ExecutorMixin", "util"), find("BaseTestCase", "util"))
    return [type(name, (find(name, module), *bases), {"executor_type": lb_mpi.Executor}) for name, module in CASES.items()]


def main():
    suite = unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, cases()))
    n, result = suite.countTestCases(), unittest.TestResult()
    suite.run(result)
    failed = [*result.failures, *result.errors]
    print(f"{n - len(failed) - len(result.skipped)} of {n} cases pass, {len(result.skipped)} skipped")
    methods = [case.id().rpartition(".")[2] for case, _ in failed]
    for method, (case, text) in zip(methods, failed, strict=True):
        print(f"    {type(case).__name__}.{method}: {KNOWN.get(method, text)}")
    return int(not {*methods} <= {*KNOWN})


if __name__ == "__main__":
    sys.exit(main())
