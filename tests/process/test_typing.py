"""What is installed is typed: a program that uses each public name passes `mypy --strict` against it, and mistakes don't."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lb_mpi

pytestmark = pytest.mark.one_mpi

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "programs" / "typed.py"
BUILD = "import setuptools; setuptools.setup()"
WRONG = [  # a mistake in a call of each door
    ("-> list[float] | None", "-> list[str] | None"),
    ("pool.map(square, range(10))", "pool.map(square, range(10), cost=range(10))"),
    ("costs=range(10), chunksize=2", "cost=range(10), chunksize=2"),
    ("executor.submit(square, 3)", "executor.submit(square, 3, 4)"),
    ("range(10), unordered=True", "range(10), unorderd=True"),
    ("costs=np.ones(10)", "cost=np.ones(10)"),
    ("speeds=machine.speeds", "speed=machine.speeds"),
    ("plan.exchange(", "plan.exchanged("),
    ('save=folder / "search"', 'saves=folder / "search"'),
]


def test_the_program_uses_each_public_name() -> None:
    tree = ast.parse(PROGRAM.read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lb_mpi"
    }
    assert used == set(lb_mpi.__all__)


def errors(text: str, folder: Path, **variables: str) -> list[str]:
    """Those in the program: mypy says nothing of packages that are installed, of which it sees the sources here."""
    (folder / "program.py").write_text(text)
    cache = str(folder.parent / "cache")  # one for all tests: of the packages that lb_mpi imports
    argv = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", cache, "program.py"]
    done = subprocess.run(argv, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("program.py") and ": error: " in line]


def test_a_typed_program_passes_against_what_a_wheel_has(tmp_path: Path) -> None:
    wheel = tmp_path / "wheel"
    folders = ["egg_info", "--egg-base", str(tmp_path), "build", "--build-base", str(tmp_path), "--build-lib", str(wheel)]
    subprocess.run([sys.executable, "-c", BUILD, "-q", *folders], cwd=ROOT, check=True, capture_output=True)
    assert errors(PROGRAM.read_text(), tmp_path, MYPYPATH=str(wheel)) == []


def test_a_type_checker_sees_an_editable_installation_and_mistakes_in_its_use(tmp_path: Path) -> None:
    text = PROGRAM.read_text()
    assert errors(text, tmp_path) == []
    for right, wrong in WRONG:
        assert text.count(right) == 1, right
        assert len(errors(text.replace(right, wrong), tmp_path)) == 1, wrong
