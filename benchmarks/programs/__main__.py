"""Programs that use other packages, before and after a change to lb_mpi.   python -m benchmarks.programs [--only NAME ...]

    pip install "lb_mpi[programs]"

Each program is a file beside this one; its docstring names its source.  It runs on four ranks of emulated speeds
(launch/throttle), before and after in turn, and once on one rank of full speed.

lines    changed lines of the function that uses MPI, with what it alone needs, and one for the import
same     whether all runs have the same result
bound    CPU seconds on one rank / sum of the speeds: no four ranks of these speeds can need less
before / bound, after / bound, before / after: medians of the rounds, with the least and the greatest
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measuring import command, known, percent, words
from tools.environment import here
from tools.others import Watch

HERE = Path(__file__).parent
SPEEDS = "0.4,0.2,0.1,0.1"
LIMIT_S = 600.0  # of one run
RANKS = len(SPEEDS.split(","))


class Source(NamedTuple):
    """What the file of a program says of it."""

    name: str
    title: str  # the first line of its docstring
    needs: dict[str, str]  # modules, and the packages that have them
    lines: int  # changed

    @property
    def missing(self) -> list[str]:
        """Packages that aren't installed."""
        return [package for module, package in self.needs.items() if importlib.util.find_spec(module) is None]


def source(path: Path) -> Source:
    """Read a program's file."""
    text = path.read_text()
    tree, needs = ast.parse(text), dict[str, str]()
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if ast.unparse(targets[0]) == "NEEDS":
                needs = ast.literal_eval(node.value)
    title = (ast.get_docstring(tree) or "").partition("\n")[0]
    return Source(path.stem, title, needs, changed(*versions(text)) + 1)


def versions(text: str) -> tuple[list[str], list[str]]:
    """Lines of the functions `before` and `after`, each with the definitions that it alone needs; without docstrings."""
    defined = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}

    def needed(name: str) -> set[str]:
        found, todo = {name}, [name]
        while todo:
            used = {node.id for node in ast.walk(defined[todo.pop()]) if isinstance(node, ast.Name)}
            todo += (used & set(defined)) - found
            found |= used & set(defined)
        return found

    of_before, of_after = needed("before"), needed("after")

    def lines(name: str, others: set[str]) -> list[str]:
        functions = [node for one, node in defined.items() if one == name or one in others]
        return [line for node in functions for line in ast.unparse(_bare(node)).splitlines()[node.name == name :] if line]

    return lines("before", of_before - of_after), lines("after", of_after - of_before)


def _bare(node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
    """Remove the docstrings."""
    for one in ast.walk(node):
        if isinstance(one, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(one) is not None:
            one.body = one.body[1:] or [ast.Pass()]
    return node


def changed(before: Sequence[str], after: Sequence[str]) -> int:
    """Number of lines that one has to touch: the new ones, or the old ones if these are more."""
    marks = [line[0] for line in difflib.ndiff(before, after)]
    return max(marks.count("+"), marks.count("-"))


def sources() -> dict[str, Source]:
    """All programs, by name."""
    paths = [path for path in sorted(HERE.glob("*.py")) if path.stem not in ("__init__", "__main__", "script")]
    return {path.stem: source(path) for path in paths}


class Figures(NamedTuple):
    """What was measured of a program."""

    name: str
    lines: int
    same: bool
    bound_s: float  # median
    before: list[float]  # seconds / bound, by round
    after: list[float]
    others: float  # share of the machine

    def __str__(self) -> str:
        """As a row of the table."""
        gains = [one / other for one, other in zip(self.before, self.after, strict=True)]
        cells = [spread(values) for values in (self.before, self.after, gains)]
        same = "yes" if self.same else "NO"
        row = f"{self.name:<10} {self.lines:5} {same:>4} {self.bound_s:7.2f}  "
        return row + "  ".join(f"{cell:>18}" for cell in cells) + f"  {percent(self.others)}"


def spread(values: Sequence[float]) -> str:
    """The median, with the least and the greatest."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


HEADER = (
    f"{'program':<10} {'lines':>5} {'same':>4} {'bound s':>7}  {'before / bound':>18}  {'after / bound':>18}  "
    f"{'before / after':>18}  others"
)


def run(program: Source, repeat: int) -> Figures:
    """Measure one, before and after in turn."""
    module, environment, watch = f"benchmarks.programs.{program.name}", here(), Watch()
    speeds = [float(speed) for speed in SPEEDS.split(",")]
    throttle = ["launch/throttle", "--speeds", SPEEDS, sys.executable]
    seconds: dict[str, list[float]] = {"before": [], "after": []}
    bounds, results = list[float](), list[Any]()
    for _ in range(repeat):
        alone = environment.answer(1, ["-m", module, "after"], LIMIT_S)
        bounds.append(alone["cpu_s"] / sum(speeds))
        results.append(alone["result"])
        for which, times in seconds.items():
            told = environment.answer(RANKS, [*throttle, "-m", module, which], LIMIT_S)
            times.append(told["seconds"])
            results.append(told["result"])
    bound = statistics.median(bounds)
    before, after = ([one / bound for one in times] for times in seconds.values())
    same = all(result == results[0] for result in results)
    return Figures(program.name, program.lines, same, bound, before, after, watch.others())


def main() -> int:
    """Run the programs; the exit code is 1 if one fails, results differ, or nothing could be run."""
    programs = sources()
    parser = command("programs", __doc__, repeat=(3, "rounds"))
    parser.add_argument("--only", nargs="+", choices=sorted(programs), metavar="NAME", help=", ".join(programs))
    options = parser.parse_args()
    found, failed, watch = list[Figures](), False, Watch()
    if not options.json:
        print(f"{RANKS} ranks of speeds {SPEEDS}\n\n{HEADER}")
    for name in options.only or programs:
        if missing := programs[name].missing:
            needed = f"needs {', '.join(missing)}: pip install 'lb_mpi[programs]'"
            print(f"{name:<10} {needed}", file=sys.stderr if options.json else sys.stdout)
            continue
        try:
            found.append(run(programs[name], options.repeat))
        except RuntimeError as caught:  # the others are measured all the same
            failed = True
            print(f"{name:<10} {caught}", file=sys.stderr if options.json else sys.stdout, flush=True)
            continue
        if not options.json:
            print(found[-1], flush=True)
    others = watch.others()
    if options.json:
        rows = [{**one._asdict(), "others": known(one.others)} for one in found]
        print(json.dumps({"speeds": SPEEDS, "programs": rows, "others": known(others)}))
    else:
        print(f"\n{words(others)}")
    return int(failed or not found or not all(one.same for one in found))


if __name__ == "__main__":
    sys.exit(main())
