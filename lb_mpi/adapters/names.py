"""Names of packages whose pools and executors are replaced: `python -m lb_mpi pool --as multiprocessing script.py`.

The script still imports them by their own names.  Each class accepts the arguments of the one that it replaces; how many
processes it asks for is ignored, since there are as many ranks as mpiexec has started.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from lb_mpi import checks

NAMES = {  # by package: the module here whose function `replace_processes` replaces its classes
    "concurrent.futures": "futures",
    "joblib": "joblib",
    "mpi4py.futures": "mpi4py_futures",
    "multiprocessing": "multiprocessing",
    "schwimmbad": "schwimmbad",
}


def replace(names: Sequence[str]) -> None:
    """Replace what these packages have, in this process; ValueError for other names, ImportError where one is missing."""
    for name in names:
        checks.choice("--as", name, tuple(NAMES))
    for name in names:
        importlib.import_module(f"lb_mpi.adapters.{NAMES[name]}").replace_processes()
