"""Code that Python runs at the start of each rank of launch/run (rank.py puts this folder first in PYTHONPATH).

It guards the start of MPI (lb_mpi/signs.py), removes its folder from the path again, and runs the sitecustomize that it has
hidden, if there is one.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path


def _main() -> None:
    folder = os.path.dirname(__file__)
    sys.path[:] = [path for path in sys.path if path != folder]
    left = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join(left)
    if not any(left):
        del os.environ["PYTHONPATH"]
    spec = importlib.util.spec_from_file_location("_lb_mpi_signs", Path(folder).parents[2] / "signs.py")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.guard()
    mine = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = mine  # no other one exists; an import of a module must find it


if __name__ == "sitecustomize":
    _main()
