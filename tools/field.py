"""Run programs after reports of other tools' users, and print a line for each: works, or why not.

    python -m tools.field [--folder FOLDER] [--only WORD] [--ranks 3]

FOLDER is ../shared/cases/field by default; where it is missing, nothing is run.  Some programs need further packages: those
that are missing are named.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lb_mpi.cli.run import limit
from lb_mpi.table import counted
from tools import limited
from tools.environment import ROOT, here

LIMIT_S = 150.0
SIZES = (1, 2, 3, 4)
ALL = ("-m", "mpi4py")  # all ranks run the program
POOL = ("-m", "lb_mpi", "pool")  # rank 0 does


class Situation(NamedTuple):
    """A program, how it is started, and what it prints if it works."""

    file: str
    arguments: tuple[str, ...]
    right: str  # a regular expression in what all its starts have printed
    how: tuple[str, ...] = ALL
    starts: tuple[tuple[str, ...], ...] = ((),)  # more arguments of each start; all in one folder
    sizes: tuple[int, ...] = SIZES  # numbers of ranks
    other: int = 0  # of the last start; 0: the same
    needs: str = ""  # a package
    stopped_s: float = 0.0  # the first start gets SIGTERM after this time
    then: str = ""  # Python code that is run at the end
    renamed: tuple[str, str] = ("", "")  # a name that the program has from an earlier version
    known: str = ""  # why it does not work


def as_(name: str) -> tuple[str, ...]:
    """Start with `pool --as NAME`."""
    return (*POOL, "--as", name)


SITUATIONS = [
    *(Situation("01-lazy-input.py", (how,), r"came: \d\d? of 150; results 150")
        for how in ("imap", "unordered", "executor")),
    Situation("01b-memory.py", (), r"rank 0 peak growth [345]\d\d MB", sizes=(2, 3, 4),
        known="a map of a list has the items, and the pickles of those that other ranks get, at once; imap has not"),
    Situation("02-groups.py", ("leaders",), "39 tasks on 2 groups of 2 right", sizes=(4,), renamed=("r.tasks", "r.done")),
    Situation("02-groups.py", ("futures",), "get_comm_workers.*expected", as_("mpi4py.futures"), sizes=(4,)),
    Situation("03-resumed-function.py", (), "step after resume -", POOL, (("save",), ("resume",)), needs="cloudpickle"),
    Situation("04-second-pool.py", (), r"three few workers: \d\n20\n", as_("mpi4py.futures")),
    Situation("05-adaptive.py", ("ours",), r"points; loss 0\.0", POOL, needs="adaptive"),
    Situation("05-adaptive.py", ("theirs",), r"points; loss 0\.0", as_("mpi4py.futures"), needs="adaptive"),
    Situation("06-walk.py", (str(ROOT / "lb_mpi"),), "same: True"),
    Situation("07b-empty-parts.py", (), r"12 best \[.*\] empty 0\n", sizes=(1,), needs="networkx"),
    Situation("08-cheap-rows.py", (), r"sos, shrinking: lent \d+ rows in 30 calls, speeds finite True, rows after"),
    Situation("09-daynight.py", (), "balanced: .*barrier(?s:.*)60 calls"),
    Situation("09-daynight.py", ("freeze",), "balanced: .*barrier(?s:.*)31 calls"),
    Situation("10-pipeline.py", (), "all 120: .*first end result", POOL),
    Situation("11-deadline.py", ("executor",), r"late after \d(?s:.*)a later task: 3(?s:.*)left", POOL, sizes=(3,)),
    Situation("11-deadline.py", ("map",), r"timeout after \d+ results, [2-5](?s:.*)left the block", POOL, sizes=(3,)),
    Situation("11-deadline.py", ("pool",), "40 results after [4-9]", POOL, sizes=(3,)),
    Situation("11b-alarm.py", ("pool",), r"\[Late\('task 7'\)\]", POOL),
    Situation("11b-alarm.py", ("ex",), r"\[Late\('task 7'\)\]", POOL, sizes=(2, 3, 4)),
    Situation("11b-alarm.py", ("exroot",), r"\[Late\('task 7'\)\]", POOL,
        known="an executor's tasks on rank 0 run in a thread of it, where Python allows no signal handlers"),
    Situation("11c-leave.py", (), r"1\d \d+ [2-9](?s:.*)shutdown returned \d\.", POOL, sizes=(2, 3, 4)),
    Situation("11d-term.py", (), r"19900\n2\d\d tasks", POOL, ((), ()), sizes=(3,), stopped_s=6.0,
        then="print(sum(1 for line in open('did.txt')), 'tasks')"),
    Situation("12-random.py", ("spawned",), r"3 ranks: 60 different of 60; digest (\w+)\n2 ranks: 60 .* digest \1\n",
        starts=((), ()), sizes=(3,), other=2),
    *(Situation("14-subprocess.py", (what,), right, sizes=(2, 3))
        for what, right in (("plain", ", 22, 23]"), ("mpi", r"\(0, '2', ''\)\]"), ("spawn", r"\[0, 1, 8\]"))),
    Situation("15-tiny-tasks.py", ("20000",), "20000 tasks: .*lb_mpi"),
    Situation("16-asyncio.py", (), "timeout of 0.3 s seen\nafter it: 1 5", POOL),
    Situation("17-progress.py", ("own",), "300"),
    Situation("17-progress.py", ("tqdm",), "300/300", needs="tqdm"),
    Situation("17-progress.py", ("callback",), "300 callbacks"),
    Situation("18-branch-limit.py", ("3",), r"best \d{8} .*(not )?proved"),
    Situation("21-balance-number.py", (), '"load_balance": 0', ("-m", "lb_mpi", "profile", "--json"), sizes=(2, 3, 4)),
    Situation("23-priority.py", (), "window 90: .*\nwindow 6: ", POOL),
    Situation("24-local-gpu.py", (), "{'0': "),
    Situation("25-rng-restart.py", (), r"from step 20 to 40 (\w+)\n(?s:.*)from step 0 to 40 \1\n",
        starts=(("20", "one"), ("40", "one"), ("40", "two")), sizes=(3,), other=2),
    Situation("26-joblib-generator.py", (), "list True\ngenerator True\n(?s:.*)timeout: TimeoutError", POOL, sizes=(2, 3, 4),
        needs="joblib"),
    Situation("27-process-pool.py", (), r"\] lb_mpi\.", as_("concurrent.futures")),
    Situation("27-process-pool.py", (), "no other rank has run a task of", as_("multiprocessing"), sizes=(2, 3, 4)),
    Situation("28-shared-lock.py", (), "190\n", as_("multiprocessing"),
        known="ranks, perhaps on several hosts, share no lock of multiprocessing; the error names it"),
    Situation("29-futures-as-arguments.py", (), r"pass .*result\(\)", POOL),
    Situation("30-endless.py", (), "fifty results", as_("multiprocessing")),
    Situation("30b-endless-pool.py", (), "five results"),
    Situation("31-ipyparallel.py", (), r"\[328350, None, None\] 30", (), sizes=(1,), needs="ipyparallel"),
]


def outcome(one: Situation, program: Path, n: int, folder: Path) -> str:
    """Run the program in an empty folder; return "works", or why it does not."""
    if one.needs and importlib.util.find_spec(one.needs) is None:
        return f"not run: no {one.needs} here"
    text = program.read_text()
    copy = folder / program.name
    copy.write_text(text.replace(*one.renamed) if one.renamed[0] else text)
    environment, log = here(), folder / "log"
    with log.open("wb") as output:
        for k, more in enumerate(one.starts):
            size = one.other if one.other and k == len(one.starts) - 1 else n
            argv = [str(environment.python), *one.how, copy.name, *one.arguments, *more]
            argv, variables = environment.job(size, argv) if one.how else (argv, environment.variables())
            stopped = ["timeout", "--signal=TERM", f"{one.stopped_s:g}"] if one.stopped_s and k == 0 else []
            code = limited.run([*stopped, *argv], LIMIT_S, env=variables, cwd=folder, stdout=output, stderr=output)
            if code == limit.HUNG and not stopped:
                return f"hangs for {LIMIT_S:g} s"
        if one.then:
            limited.run([str(environment.python), "-c", one.then], LIMIT_S, env=variables, cwd=folder, stdout=output)
    said = log.read_text(errors="replace")
    lines = [line for line in said.splitlines() if line.strip()]
    if re.search(one.right, said):
        return "works"
    return f"does not work: {one.known}" if one.known else f"fails: {lines[-1] if lines else 'it prints nothing'}"


def wanted(options: argparse.Namespace) -> Iterator[tuple[Situation, int]]:
    """Return the situations that the command line asks for, with numbers of ranks."""
    for one in SITUATIONS:
        sizes = [n for n in one.sizes if options.ranks in (None, n)]
        if options.only is None or options.only in one.file:
            yield from ((one, n) for n in sizes)


def main() -> int:
    """Print a line for each situation and number of ranks; return 1 if one does not work."""
    parser = argparse.ArgumentParser(prog="python -m tools.field", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT.parent / "shared" / "cases" / "field", help="of the programs")
    parser.add_argument("--only", metavar="WORD", help="only programs whose names contain it")
    parser.add_argument("--ranks", type=int, metavar="N", help="only this number of ranks")
    options = parser.parse_args()
    if not options.folder.is_dir():
        print(f"nothing to run: no folder {options.folder}")
        return 0
    works = True
    for one, n in wanted(options):
        with tempfile.TemporaryDirectory(prefix="lb_mpi-") as folder:
            began = time.monotonic()
            said = outcome(one, options.folder / one.file, n, Path(folder))
        works = works and not said.startswith(("fails", "hangs"))
        name = " ".join([one.file, *one.arguments, *(one.how[3:])])
        print(f"{name}, {counted(n, 'rank')}: {said} ({time.monotonic() - began:.0f} s)", flush=True)
    return 0 if works else 1


if __name__ == "__main__":
    sys.exit(main())
