"""The newest Python that is installed: lb_mpi is installed from its sources, imported, and runs on two ranks."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.environment import ROOT, Environment, limited

pytestmark = pytest.mark.one_mpi

SOURCES = ("lb_mpi", "setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
LIMIT_S = 280.0
PROGRAM = """
import sys

import numpy as np
from mpi4py import MPI

import lb_mpi

comm = MPI.COMM_WORLD
with lb_mpi.Pool(comm) as pool:
    squares = pool.map(lambda k: k * k, range(100))
    try:
        pool.map(lambda k: 1 // k, range(100))
    except lb_mpi.TaskError as error:
        assert "Traceback (most recent call last)" in error.traceback
with lb_mpi.Executor(comm) as executor:
    powers = None if executor is None else [*executor.map(pow, range(5), range(5))]
with lb_mpi.Balancer(comm) as balancer:
    rows = balancer.map_rows(np.cos, np.ones((50, 3)))
tree = lb_mpi.TreeSearch(1, lambda node: [2 * node, 2 * node + 1] if node < 512 else [])
nodes = lb_mpi.search(comm, tree).value
with lb_mpi.distribute(comm, "mesh:8x8", method="block") as plan:
    values = plan.exchange(plan.vertices)
assert (rows == np.cos(1.0)).all() and len(values) == len(plan.vertices) + len(plan.ghosts)
if comm.rank == 0:
    print(comm.size, "{}.{}".format(*sys.version_info), sum(squares), sum(powers), nodes)
"""


VERSIONS = ("3.14", "3.13", "3.12")


def found(version):
    """Return the path of this Python: by its name, or one that pyenv has; "" if there is none."""
    asked = [f"python{version}", "-c", "import sys; print(sys.executable)"], ["pyenv", "prefix", version]
    for argv in asked:
        if shutil.which(argv[0]) is not None:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
            if done.returncode == 0:
                place = Path(done.stdout.strip())
                return str(place / "bin" / "python" if place.is_dir() else place)
    return ""


def test_it_runs_on_the_newest_python_here(tmp_path):
    python, version = next(((python, version) for version in VERSIONS if (python := found(version))), ("", ""))
    if not python:
        pytest.skip(f"no Python {', '.join(VERSIONS)} here")
    source, environment = tmp_path / "source", Environment("mpich", tmp_path / "environment")
    source.mkdir()
    for name in SOURCES:  # a copy, since a build writes beside its sources
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--python", str(environment.python), "--disable-pip-version-check", "--no-input"]
    install = [*pip, "install", "--quiet", "--no-compile", f"{source}[mpich]"]
    for argv in ([python, "-m", "venv", "--without-pip", str(environment.path)], install):
        assert limited.run(argv, LIMIT_S, env=environment.variables(), cwd=tmp_path) == 0
    (tmp_path / "program.py").write_text(PROGRAM)
    argv, variables = environment.job(2, [str(environment.python), "-W", "error", "-m", "mpi4py", "program.py"])
    done = subprocess.run(argv, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"2 {version} 328350 289 1023\n")
