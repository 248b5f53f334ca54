"""What is installed is typed: a program that uses each public name passes `mypy --strict` against it."""

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


def test_the_program_uses_each_public_name() -> None:
    tree = ast.parse(PROGRAM.read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lb_mpi"
    }
    assert used == set(lb_mpi.__all__)


def test_a_typed_program_passes_against_what_a_wheel_has(tmp_path: Path) -> None:
    wheel = tmp_path / "wheel"
    folders = ["egg_info", "--egg-base", str(tmp_path), "build", "--build-base", str(tmp_path), "--build-lib", str(wheel)]
    subprocess.run([sys.executable, "-c", BUILD, "-q", *folders], cwd=ROOT, check=True, capture_output=True)
    program = tmp_path / "program.py"

    def errors(text: str) -> list[str]:
        """Those in the program: mypy says nothing of packages that are installed, of which it sees the sources here."""
        program.write_text(text)
        argv = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path / "cache")]
        env = {**os.environ, "MYPYPATH": str(wheel)}
        done = subprocess.run([*argv, str(program)], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stderr
        return [line for line in done.stdout.splitlines() if line.startswith("program.py")]

    text = PROGRAM.read_text()
    assert errors(text) == []
    assert len(errors(text.replace("-> list[float] | None", "-> list[str] | None"))) == 1
