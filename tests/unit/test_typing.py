"""What is installed is typed: a program that uses each public name passes `mypy --strict` against it, and mistakes don't."""

import ast
import subprocess
import sys
from pathlib import Path

import lb_mpi
from tools.environment import ROOT

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


def test_the_program_uses_each_public_name():
    tree = ast.parse(PROGRAM.read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lb_mpi"
    }
    assert used == set(lb_mpi.__all__)


def errors(texts: list[str], folder: Path) -> list[list[str]]:
    """Those in each program: mypy says nothing of packages that are installed, of which it sees the sources here."""
    programs = [f"program{n}.py" for n in range(len(texts))]
    for program, text in zip(programs, texts, strict=True):
        (folder / program).write_text(text)
    argv = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(folder / "cache"), *programs]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    return [[line for line in found if line.startswith(f"{program}:")] for program in programs]


def test_a_wheel_has_all_modules_and_says_that_they_are_typed(tmp_path):
    wheel = tmp_path / "wheel"
    folders = ["egg_info", "--egg-base", str(tmp_path), "build", "--build-base", str(tmp_path), "--build-lib", str(wheel)]
    subprocess.run([sys.executable, "-c", BUILD, "-q", *folders], cwd=ROOT, check=True, capture_output=True)
    sources = {path.relative_to(ROOT) for path in (ROOT / "lb_mpi").rglob("*.py")} | {Path("lb_mpi/py.typed")}
    assert {path.relative_to(wheel) for path in wheel.rglob("*") if path.suffix in (".py", ".typed")} == sources


def test_a_type_checker_sees_an_editable_installation_and_mistakes_in_its_use(tmp_path):
    text = PROGRAM.read_text()
    assert [text.count(right) for right, _ in WRONG] == [1] * len(WRONG)
    none, *found = errors([text, *(text.replace(right, wrong) for right, wrong in WRONG)], tmp_path)
    assert none == []
    assert [len(one) for one in found] == [1] * len(WRONG), found
