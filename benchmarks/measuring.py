"""Measurements: rounds in turn, the CPU time of other programs, ranks under mpiexec, rows of a table.

watch = Watch()
run(4, ["-m", "apps.uts", "--json"])    # its last line, a JSON object
others = watch.others()                 # fraction of the cores' time that other programs used
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tools.environment import FOLDERS, ROOT, Environment, here, wanted
from tools.others import MUCH, Watch

T = TypeVar("T")

LIMIT_S = 300.0  # of one program
DELAY_MS = 1  # between emulated hosts
MARK = "*"
JOB_S = 0.2  # no job is shorter


class Meant(ArithmeticError):
    """An error of a user's function that a campaign means to fail."""


def spin(seconds: float) -> float:
    """Use so much CPU time; return it."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return seconds


def percent(others: float) -> str:
    """Return six characters for a table: "  3 % ", with a mark if it is much."""
    return f"{100.0 * others:3.0f} %{MARK if others > MUCH else ' '}"


def known(others: float) -> float | None:
    """Return None for NaN and infinity, which JSON does not have."""
    return others if math.isfinite(others) else None


def words(others: float) -> str:
    """Return a line below the table."""
    much = f"  {MARK} above {MUCH:.0%}: figures say less" if others > MUCH else ""
    return f"others took {others:.0%} of this machine's cores{much}"


# --- programs on ranks of this machine, and on emulated hosts ---------------------------------------------------------


def run(n: int, argv: Sequence[str]) -> dict[str, Any]:
    """Run `python argv` on n ranks; return its last line, a JSON object."""
    return here().answer(n, argv, LIMIT_S)


Answer = Callable[[Sequence[str]], dict[str, Any]]


@contextlib.contextmanager
def hosts(speeds: str, slots: int = 1) -> Iterator[Answer]:
    """Create hosts of these speeds ("0.8,0.4,0.2") with launch/cluster; yield a function that runs `python argv` on them.

    `slots` : ranks on each host.  RuntimeError if the hosts cannot be created, and if a program fails.
    """

    def cluster(*argv: str) -> str:
        words = [sys.executable, "launch/cluster", "--name", "benchmark", *argv]
        done = subprocess.run(words, capture_output=True, text=True, env=here().variables(), cwd=ROOT, timeout=LIMIT_S)
        if done.returncode:
            raise RuntimeError(f"launch/cluster {shlex.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def answer(argv: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(cluster("run", "--", sys.executable, *argv).splitlines()[-1])
        return found

    n_hosts = str(len(speeds.split(",")))
    cluster("up", "--hosts", n_hosts, "--slots", str(slots), "--speeds", speeds, "--delay-ms", str(DELAY_MS))
    try:
        yield answer
    finally:
        cluster("down")


# --- the command line, and the rows of a table ------------------------------------------------------------------------


def command(name: str, doc: str | None, **counts: tuple[int, str]) -> argparse.ArgumentParser:
    """Make the parser of `python -m benchmarks.NAME`: --json, and for each of `counts` an option (its default, its help)."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option, (default, text) in counts.items():
        parser.add_argument(f"--{option}", type=_count, default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def campaign_parser(name: str, description: str | None, runs: tuple[int, str]) -> argparse.ArgumentParser:
    """Return the `command` of a campaign, with its MPI and its seed."""
    parser = command(name, description, runs=runs)
    parser.add_argument(
        "--mpi", choices=[*FOLDERS, "both"],
        help="the MPI to use; both: in turn (default: the variable MPI, or mpich)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices (default: %(default)s)")
    return parser


def environments_of(mpi: str | None) -> list[Environment]:
    """Return the environments of the `--mpi` of a campaign."""
    names = list(FOLDERS) if mpi == "both" else [mpi] if mpi else []
    return [wanted({**os.environ, "MPI": name}) for name in names] or [wanted()]


def pyplot(parser: argparse.ArgumentParser) -> Any:
    """Return matplotlib.pyplot, which draws into files; the parser ends the program where there is none."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        parser.error('pictures need matplotlib: pip install ".[plot]" in the clone, or give --no-plots')
    mpl.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected an integer >= 1")
    return int(text)


class Row(NamedTuple):
    """One line of a table: `values` are those of the rounds, or the one."""

    name: str
    values: list[float]
    unit: str = ""
    wanted: str = ""  # ">= 3"; "~ 0.1": within 0.1 of 1; empty: nothing is
    others: float = 0.0  # share of the machine that other programs took

    @property
    def seen(self) -> float:
        """The value that counts."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """True if the goal is met; None without a goal."""
        if not self.wanted:
            return None
        sign, number = self.wanted.split()
        if sign == "~":
            return abs(self.seen - 1.0) <= float(number)
        return self.seen >= float(number) if sign == ">=" else self.seen <= float(number)

    def __str__(self) -> str:
        """Format the value, its spread, the goal, and the share of other programs."""
        spread = f"{min(self.values):.3g} .. {max(self.values):.3g}" if len(self.values) > 1 else ""
        met = {None: "", True: "yes", False: "no"}[self.met]
        others = percent(self.others)
        return f"{self.name:72} {self.seen:9.4g} {self.unit:5} {spread:17} {self.wanted:8} {met:3}  others {others}"

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        numbers = {
            "values": [known(value) for value in self.values],
            "seen": known(self.seen),
            "others": known(self.others),
        }
        return {**self._asdict(), **numbers, "met": self.met}


def in_turn(ways: Mapping[str, Callable[[], T]], repeat: int) -> tuple[dict[str, list[T]], float]:
    """Run all ways in turn (A B A B), `repeat` times; return what each gave, and the largest share that others took."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    watch, most = Watch(), 0.0
    for k in range(repeat):
        for name, way in ways.items():
            print(f"round {k + 1} of {repeat}: {name}", file=sys.stderr, flush=True)
            watch.others()
            found[name].append(way())
            most = max(most, watch.others())
    return found, most


def table(sections: Sequence[str], measure: Callable[[str], Iterator[Row]], as_json: bool) -> None:
    """Measure the sections; print each row as soon as it is measured, or one JSON object at the end.

    Rows of the same job have the same share of other programs.
    """
    rows, watch, looked_at, others = [], Watch(), time.perf_counter(), 0.0
    for name in sections:
        if not as_json:
            print(f"{name}:", flush=True)
        for row in measure(name):
            if time.perf_counter() - looked_at > JOB_S:
                looked_at, others = time.perf_counter(), watch.others()
            rows.append(row._replace(others=row.others or others))
            if not as_json:
                print(f"  {rows[-1]}", flush=True)
    if as_json:
        print(json.dumps([row.as_json() for row in rows]))
    elif any(row.others > MUCH for row in rows):
        print(f"{MARK} others took more than {MUCH:.0%} of the machine: this row says little")
