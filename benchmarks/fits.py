"""Compare the joblib backend with loky.  mpiexec -n 2 python -m lb_mpi pool -m benchmarks.fits [--repeat N]

scikit-learn cross-validates 200 fits of unequal cost (random forests of 1 to 40 trees, five folds), with lb_mpi's backend
and with loky on as many processes as ranks, in turn; the scores must be those of n_jobs=1.  Prints seconds, and the median
of the rounds' ratios.  Needs scikit-learn.  Set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import joblib

import lb_mpi
import lb_mpi.joblib


def main() -> None:
    """Compare scores, measure in turn, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="rounds (default: %(default)s)")
    options = parser.parse_args()

    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import GridSearchCV

    x, y = make_classification(2000, 70, random_state=0)  # 1.1 MB: is shared
    n_ranks = lb_mpi.Executor.n_ranks()

    def seconds(backend: str | None) -> tuple[float, Any]:
        forest = RandomForestClassifier(random_state=1, max_samples=0.1)
        began = time.perf_counter()
        with joblib.parallel_config(backend or "sequential", n_jobs=n_ranks if backend else 1):
            search = GridSearchCV(forest, {"n_estimators": [*range(1, 41)]}, cv=5, refit=False).fit(x, y)
        return time.perf_counter() - began, search.cv_results_["mean_test_score"].tolist()

    alone_s, scores = seconds(None)
    print(f"n_jobs=1: {alone_s:.2f} s", flush=True)
    ratios = []
    for _ in range(options.repeat):
        (loky_s, theirs), (ours_s, ours) = seconds("loky"), seconds("lb_mpi")
        same = scores == theirs == ours
        print(f"{n_ranks} ranks: loky {loky_s:.2f} s, lb_mpi {ours_s:.2f} s; same scores: {same}", flush=True)
        ratios.append(loky_s / ours_s)
    print(f"loky / lb_mpi: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
