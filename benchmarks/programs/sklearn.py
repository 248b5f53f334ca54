"""A grid search: cross-validated scores of a support vector machine for all combinations of parameters.

Source: scikit-learn's user guide, "Tuning the hyper-parameters of an estimator", on its digits.
"""

from __future__ import annotations

from typing import Any

from mpi4py.futures import MPICommExecutor
from sklearn.datasets import load_digits
from sklearn.model_selection import ParameterGrid, cross_val_score
from sklearn.svm import SVC

import lb_mpi
from benchmarks.programs.script import main, task

NEEDS = {"sklearn": "scikit-learn"}
GRID = [
    {"C": [1, 10, 100, 1000], "kernel": ["linear"]},
    {"C": [1, 10, 100, 1000], "gamma": [0.01, 0.001, 0.0001], "kernel": ["rbf"]},
]
X, Y = load_digits(return_X_y=True)


@task
def score(parameters: dict[str, Any]) -> float:
    """Mean score of five folds."""
    return float(cross_val_score(SVC(**parameters), X / 16.0, Y, cv=5).mean())


def before(comm: Any) -> Any:
    """With mpi4py's executor."""
    with MPICommExecutor(comm, root=0) as executor:
        if executor is not None:
            return list(executor.map(score, ParameterGrid(GRID)))  # type: ignore[attr-defined]
    return None


def after(comm: Any) -> Any:
    """With lb_mpi."""
    with lb_mpi.Executor(comm) as executor:
        if executor is not None:
            return list(executor.map(score, ParameterGrid(GRID)))
    return None


if __name__ == "__main__":
    main(before, after)
