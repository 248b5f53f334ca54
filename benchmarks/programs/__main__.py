"""Programs that use other packages, before and after a change to lb_mpi.   python -m benchmarks.programs [--only NAME ...]

    python -m benchmarks.programs --speeds 1,1      # two ranks that nothing stops: what balancing itself costs

    pip install ".[programs]"

Each program is a file beside this one; its docstring names its source.  It runs on ranks of emulated speeds
(launch/throttle), before and after in turn, and once on one rank of full speed.

lines       changed lines of the function that uses MPI, with what it alone needs, and one for the import
same        whether all runs have the same result
bound       CPU seconds of the tasks in the run "after" / sum of the speeds: no ranks of these speeds can need less
achievable  seconds of a list schedule: the tasks of each call of the library, whose costs are known, begin in the order of
            their costs on the rank that ends them first; before, between and after the calls, rank 0 computes alone at its
            speed.  Serial parts and the costs of the tasks, relative to each other, come from the run on one rank
emulation   mean CPU time of a task in the run "after" / on one rank: what caches that are cold after each rest cost.  Bound
            and achievable time contain it
before / achievable, after / achievable, before / after: medians of the rounds, with the least and the greatest
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measuring import command, known, percent, words
from lb_mpi.checks import comma_list, emulated_speed
from tools.environment import here
from tools.others import Watch

HERE = Path(__file__).parent
SPEEDS = "0.4,0.2,0.1,0.1"
LIMIT_S = 600.0  # of one run


class Source(NamedTuple):
    """The description of a program, from its file."""

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


class Tasks(NamedTuple):
    """CPU seconds of a run: of the tasks of all ranks, by rank; and on rank 0, outside of calls of the library."""

    of_ranks: list[list[float]]
    calls: list[tuple[float, int]]  # seconds before a call, and number of rank 0's tasks before it
    after_s: float  # after the last call

    @property
    def seconds(self) -> float:
        """Of all tasks together."""
        return sum(map(sum, self.of_ranks))

    @property
    def mean_s(self) -> float:
        """Of a task."""
        return self.seconds / sum(map(len, self.of_ranks))


def list_schedule(tasks: Sequence[float], speeds: Sequence[float]) -> float:
    """Seconds of tasks (CPU seconds) that begin in the order of their costs, each on the rank that ends it first."""
    free = [0.0] * len(speeds)
    for cost in sorted(tasks, reverse=True):
        ends = [at + cost / speed for at, speed in zip(free, speeds, strict=True)]
        first = ends.index(min(ends))
        free[first] = ends[first]
    return max(free)


def achievable(alone: Tasks, speeds: Sequence[float], emulation: float) -> float:
    """Seconds of a run on ranks of these speeds, from that on one rank; tasks need `emulation` times as much there."""
    tasks, first = alone.of_ranks[0], [begin for _, begin in alone.calls]
    serial_s = sum(seconds for seconds, _ in alone.calls) + alone.after_s
    calls = [tasks[begin:end] for begin, end in zip(first, [*first[1:], len(tasks)], strict=True)]
    return serial_s / speeds[0] + emulation * sum(list_schedule(call, speeds) for call in calls)


class Run(NamedTuple):
    """The times of a run."""

    seconds: float
    result: Any
    tasks: Tasks


def run(program: Source, ranks: int, which: str, throttle: Sequence[str] = ()) -> Run:
    """Run one version of a program."""
    with tempfile.TemporaryDirectory() as folder:
        module = f"benchmarks.programs.{program.name}"
        figures = here().answer(ranks, [*throttle, "-m", module, which, "--tasks", folder], LIMIT_S)
        written = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]
    tasks = Tasks([one["tasks"] for one in written], written[0]["calls"], written[0]["after_s"])
    return Run(figures["seconds"], figures["result"], tasks)


class Round(NamedTuple):
    """Seconds of a round."""

    bound_s: float
    achievable_s: float
    emulation: float  # times
    before_s: float
    after_s: float


class Figures(NamedTuple):
    """The measurements of a program."""

    name: str
    lines: int
    same: bool
    rounds: list[Round]
    others: float  # share of the machine

    def __str__(self) -> str:
        """Format as a row of the table."""
        bound_s, achievable_s, emulation, _, _ = map(statistics.median, zip(*self.rounds, strict=True))
        cells = (
            spread([one.before_s / one.achievable_s for one in self.rounds]),
            spread([one.after_s / one.achievable_s for one in self.rounds]),
            spread([one.before_s / one.after_s for one in self.rounds]),
        )
        row = f"{self.name:<10} {self.lines:5} {'yes' if self.same else 'NO':>4} {bound_s:7.2f} {achievable_s:10.2f} "
        return row + f"{emulation:9.2f}  " + "  ".join(f"{cell:>19}" for cell in cells) + f"  {percent(self.others)}"


def spread(values: Sequence[float]) -> str:
    """The median, with the least and the greatest."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


HEADER = (
    f"{'program':<10} {'lines':>5} {'same':>4} {'bound s':>7} {'achievable':>10} {'emulation':>9}  "
    f"{'before / achievable':>19}  {'after / achievable':>19}  {'before / after':>19}  others"
)


def measure(program: Source, speeds: Sequence[float], repeat: int) -> Figures:
    """Measure one, before and after in turn, on ranks of these speeds."""
    throttle = ["launch/throttle", "--speeds", listed(speeds), sys.executable]
    watch, rounds, results = Watch(), list[Round](), list[Any]()
    for _ in range(repeat):
        alone = run(program, 1, "after")
        before, after = (run(program, len(speeds), which, throttle) for which in ("before", "after"))
        results += [one.result for one in (alone, before, after)]
        emulation = after.tasks.mean_s / alone.tasks.mean_s
        best_s = achievable(alone.tasks, speeds, emulation)
        rounds.append(Round(after.tasks.seconds / sum(speeds), best_s, emulation, before.seconds, after.seconds))
    same = all(result == results[0] for result in results)
    return Figures(program.name, program.lines, same, rounds, watch.others())


def listed(speeds: Sequence[float]) -> str:
    """Return "0.4,0.2" for these speeds."""
    return ",".join(f"{speed:g}" for speed in speeds)


def given(text: str) -> list[float]:
    """Return the speeds of "0.4,0.2"."""
    try:
        return [emulated_speed(speed, f"rank {rank}") for rank, speed in enumerate(comma_list("--speeds", text))]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main() -> int:
    """Run the programs; the exit code is 1 if one fails, results differ, or nothing could be run."""
    programs = sources()
    parser = command("programs", __doc__, repeat=(3, "rounds"))
    parser.add_argument("--only", nargs="+", choices=sorted(programs), metavar="NAME", help=", ".join(programs))
    parser.add_argument("--speeds", type=given, default=SPEEDS, metavar="F,F,...",
        help="speed of each rank, above 0 and at most 1 (default: %(default)s)")  # fmt: skip
    options = parser.parse_args()
    found, failed, watch = list[Figures](), False, Watch()
    if not options.json:
        print(f"{len(options.speeds)} ranks of speeds {listed(options.speeds)}\n\n{HEADER}")
    for name in options.only or programs:
        if missing := programs[name].missing:
            needed = f"needs {', '.join(missing)}: pip install '.[programs]'"
            print(f"{name:<10} {needed}", file=sys.stderr if options.json else sys.stdout)
            continue
        try:
            found.append(measure(programs[name], options.speeds, options.repeat))
        except RuntimeError as caught:  # the others are measured all the same
            failed = True
            print(f"{name:<10} {caught}", file=sys.stderr if options.json else sys.stdout, flush=True)
            continue
        if not options.json:
            print(found[-1], flush=True)
    others = watch.others()
    if options.json:
        rows = [
            {**one._asdict(), "rounds": [once._asdict() for once in one.rounds], "others": known(one.others)}
            for one in found
        ]
        print(json.dumps({"speeds": listed(options.speeds), "programs": rows, "others": known(others)}))
    else:
        print(f"\n{words(others)}")
    return int(failed or not found or not all(one.same for one in found))


if __name__ == "__main__":
    sys.exit(main())
