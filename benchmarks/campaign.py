"""Kill ranks, and check that nothing is lost or wrong.  python -m benchmarks.campaign --runs 40 --mpi both

A run starts a program with `launch/run --restarts` on two to four ranks of this machine: a search (UTS, a walled maze), a
pool of 2,000 tasks, the weather, rows whose results have another form, or a mesh whose vertices move in each step.  Each of
them saves its state.  Some time after
the first save, one of these happens, once or also in the restarts:

    kill      one to n - 1 ranks get SIGKILL, rank 0 in 40 % of the cases
    stop      such ranks get SIGSTOP, and stay stopped
    full      a rank can no longer write, as on a full disk, and later a rank is killed
    torn      when there are two saves, a file of the newest one is truncated, and ranks are killed
    flipped   the same with one flipped bit
    signal    a rank, or any process that starts, watches or ends ranks, gets a signal, of which some ask for a stop

Allowed results: "exact", the result of a run without failure, from this one command; "named", a non-zero exit code and a
cause in words.  Errors: "wrong"; "silent", an end without a cause, or no end and no save for a minute; and "leftovers" of
any run: a process, shared memory, a temporary file.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measuring import campaign_parser, environments_of
from lb_mpi.cli.run import processes
from tools.environment import ROOT, Environment

LIMIT_S = 60.0  # without a new save, for a run that nothing happens to any more
HANG_S = 4.0
LATEST_S = 0.5  # after the first save of a start
MISFORTUNES = ("kill", "kill", "kill", "kill", "stop", "full", "torn", "flipped", "signal", "signal")
SIGNALS = (*(getattr(signal, f"SIG{name}") for name in ("HUP", "INT", "QUIT", "TERM", "KILL", "USR1", "SEGV", "ABRT")),)
NUMBER = (b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK=")  # of a rank, in its environment


def ranks(run_id: str, program: str) -> dict[int, int]:
    """Return the process of each rank that runs `program`, without what stands before it."""
    found = {}
    for pid in processes.of_run(run_id):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = [value.partition(b"=")[2] for value in variables if value.startswith(NUMBER)]
        if rank and words[1:3] == [b"-m", program.encode()]:
            found[int(rank[0])] = pid
    return found


class Program(NamedTuple):
    """A program to run; `folder` stands for the folder of its saves."""

    name: str
    words: str  # with {speeds} for ranks that rest most of the time: so it takes a while, on few cores, too
    answer: Callable[[dict[str, Any]], Any]  # of the JSON that it prints: what must be the same whatever happens


PROGRAMS = (
    Program(
        "uts",
        "-m apps.uts --tree T1L --speeds {speeds} --save {folder} --save-every 0.3 --json",
        lambda found: (found["nodes"], found["leaves"], found["depth"]),
    ),
    Program(
        "maze",
        "-m apps.maze --dim 4000 --walled --speeds {speeds} --save {folder} --save-every 0.2 --json",
        lambda found: (found["found"], found["visited"] - found["visited_twice"]),
    ),
    Program("pool", "-m benchmarks.campaign --ranks-of tasks {folder}", lambda found: found["results"]),
    Program(
        "weather",
        "-m apps.weather --shape 48x72 --steps 80 --save {folder} --save-every 5 --json",
        lambda found: found["checksum"],
    ),
    Program("rows", "-m benchmarks.campaign --ranks-of rows {folder}", lambda found: found["results"]),
    Program("mesh", "-m benchmarks.campaign --ranks-of mesh {folder}", lambda found: found["results"]),
)


class Run(NamedTuple):
    """The outcome of one run."""

    program: str
    misfortune: str
    n: int  # ranks
    happened: int  # how often
    outcome: str  # "exact", "named", "wrong", "silent"
    left: list[str]
    errors: str  # its stderr
    signals: list[str]


class Start:
    """A run that is under way."""

    def __init__(self, environment: Environment, program: Program, n: int, folder: Path) -> None:
        """Start it on `n` ranks, with a scratch folder of its own in `folder`."""
        self.saves, self.scratch = folder / "saves", folder / "tmp"
        self.scratch.mkdir()
        self.run_id, env = processes.with_run_id({**environment.variables(), "TMPDIR": str(self.scratch)})
        self._out, self._err = open(folder / "out", "w+"), open(folder / "err", "w+")  # noqa: SIM115  (closed by `end`)
        words = [word.format(folder=self.saves, speeds=",".join(["0.1"] * n)) for word in program.words.split()]
        python = str(environment.python)
        options = ["-n", str(n), "--restarts", "3", "--hang-s", f"{HANG_S:g}"]
        self.process = subprocess.Popen(
            [python, "launch/run", *options, "--", python, *words],
            cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err,
        )  # fmt: skip
        self.used: set[Path] = set()  # shared memory
        self.signals: list[str] = []  # that were sent, and to which process
        self.module = words[1]

    def newest(self) -> list[Path]:
        """Return the files of the newest save; none before the first."""
        if self.saves.is_file():
            return [self.saves] if self.saves.stat().st_size > 100 else []
        whole = sorted(path.parent for path in self.saves.glob("save-*/manifest"))
        return sorted(whole[-1].iterdir()) if whole else []

    def n_saves(self) -> int:
        """Return the number of whole saves; 2 for a log."""
        return 2 if self.saves.is_file() else len(list(self.saves.glob("save-*/manifest")))

    def state(self) -> tuple[Any, ...]:
        """Return a value that changes with each save."""
        with contextlib.suppress(OSError):
            return tuple((path, path.stat().st_size) for path in self.newest())
        return ()

    def end(self) -> tuple[str, str]:
        """End all processes of the run; return its stdout and stderr."""
        processes.end(self.run_id)
        self.process.wait()
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read())
            file.close()
        return texts[0], texts[1]


def suffer(start: Start, misfortune: str, n: int, chance: random.Random) -> bool:
    """Wait for a new save and a little longer, then cause the failure; False if the run has ended before."""
    before = start.state()
    deadline = time.monotonic() + LIMIT_S
    damages = misfortune in ("torn", "flipped")
    while start.state() == before or not start.newest() or (damages and start.n_saves() < 2):
        if start.process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    time.sleep(chance.uniform(0.0, LATEST_S))
    found = ranks(start.run_id, start.module)
    start.used |= {path for pid in processes.of_run(start.run_id) for path in processes.mapped(Path(f"/proc/{pid}"))}
    if len(found) < n:
        return False
    if misfortune == "signal":
        victim, number = chance.choice(sorted(processes.of_run(start.run_id))), chance.choice(SIGNALS)
        if victim == start.process.pid and number not in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            return False  # nobody could tell its end
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{victim}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            start.signals.append(f"{number.name} to {words}")
            os.kill(victim, number)
        return True
    several = chance.sample(range(n), chance.randint(1, n - 1))
    victims = [0, *several[1:]] if chance.random() < 0.4 else several
    if misfortune == "full":
        with contextlib.suppress(OSError):
            resource.prlimit(found[victims[0]], resource.RLIMIT_FSIZE, (0, 0))
        time.sleep(chance.uniform(0.0, LATEST_S))
    with contextlib.suppress(OSError, IndexError):
        damage(misfortune, chance.choice(start.newest()), chance)
    for rank in set(victims):
        with contextlib.suppress(ProcessLookupError):
            os.kill(found[rank], signal.SIGSTOP if misfortune == "stop" else signal.SIGKILL)
    return True


def damage(misfortune: str, path: Path, chance: random.Random) -> None:
    """Truncate the file, or flip one of its bits."""
    size = path.stat().st_size
    if misfortune == "torn":
        os.truncate(path, chance.randrange(size))
    elif misfortune == "flipped":
        with open(path, "r+b") as file:
            at = chance.randrange(size)
            file.seek(at)
            byte = file.read(1)[0] ^ 1 << chance.randrange(8)
            file.seek(at)
            file.write(bytes([byte]))


def comes_to_its_end(start: Start) -> bool:
    """Wait for the end; False if nothing has been saved for LIMIT_S seconds.  On a busy machine everything takes longer."""
    before, deadline = start.state(), time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            start.process.wait(1.0)
            return True
        if start.state() != before:
            before, deadline = start.state(), time.monotonic() + LIMIT_S
    return False


def campaign(
    environment: Environment, chance: random.Random, answers: dict[str, Any], programs: Iterable[Program],
    misfortunes: Sequence[str] = MISFORTUNES,
) -> Run:  # fmt: skip
    """Make one run, and return its outcome."""
    program, misfortune = chance.choice(list(programs)), chance.choice(misfortunes)
    n, times = chance.randint(2, 4), chance.randint(1, 2)
    with tempfile.TemporaryDirectory(prefix="lb_mpi-") as folder:
        start = Start(environment, program, n, Path(folder))
        happened, ended = 0, False
        try:
            while happened < times and suffer(start, misfortune, n, chance):
                happened += 1
            ended = comes_to_its_end(start)
            left = ["a process"] * bool(processes.of_run(start.run_id))
        finally:
            out, errors = start.end()
        left += ["shared memory"] * any(path.exists() for path in start.used)
        left += ["a temporary file"] * bool(os.listdir(start.scratch))
        right = answers[program.name]
        outcome = outcome_of(start.process.returncode, out, errors, ended, lambda found: program.answer(found) == right)
    return Run(program.name, misfortune, n, happened, outcome, left, errors, start.signals)


def outcome_of(code: int, out: str, errors: str, ended: bool, is_right: Callable[[dict[str, Any]], bool]) -> str:
    """Return the outcome of a run."""
    if not ended:
        return "silent"
    if code == 0:
        try:
            lines = [line for line in out.splitlines() if line.startswith("{")]  # MPICH's UCX logs there after a SIGHUP
            return "exact" if is_right(json.loads(lines[-1])) else "wrong"
        except (ValueError, IndexError, KeyError, TypeError):
            return "silent"
    causes = ("signal", "SIG", "hangs", "can't be read", "failed:", "error:", "No space", "File too large", "interrupted")
    more = ("SystemExit", "saved", "was killed", "no rank has reported why")
    return "named" if any(cause in errors for cause in causes + more) else "silent"


def undisturbed(environment: Environment, program: Program) -> Any:
    """Return the answer of a run without a failure."""
    with tempfile.TemporaryDirectory(prefix="lb_mpi-") as folder:
        start = Start(environment, program, 2, Path(folder))
        try:
            start.process.wait(10 * LIMIT_S)
        finally:
            out, errors = start.end()
        if start.process.returncode:
            raise RuntimeError(f"{program.name} fails without any misfortune: {errors}")
        return program.answer(json.loads(out.splitlines()[-1]))


# --- the pool of tasks ------------------------------------------------------------------------------------------------

N_TASKS = 2000


def task(number: int) -> int:
    """Some hundred microseconds of work, whose result depends on all of it."""
    value = number
    for _ in range(4000):
        value = (value * 6364136223846793005 + 1442695040888963407) % 2**64
    return value >> 32


def map_tasks(log: str) -> None:
    """Map all tasks on these ranks; print the number of results, their sum, and the sum of place * result."""
    from mpi4py import MPI  # late: only this begins MPI

    import lb_mpi

    with lb_mpi.Pool(MPI.COMM_WORLD) as pool:
        results = pool.map(task, N_TASKS, checkpoint=log)
    if results is not None:
        numbers = [len(results), sum(results), sum(place * result for place, result in enumerate(results)) % 2**64]
        print(json.dumps({"results": numbers}), flush=True)


# --- the rows --------------------------------------------------------------------------------------------------------

N_ROWS, N_STEPS = 24, 60


def digits(rows: Any) -> Any:
    """Of (n, 3) integers: (n,) booleans, and (n, 2, 2) small integers, some milliseconds for each row."""
    for row in rows[:, 0].tolist():
        for k in range(5):
            task(row + k)
    return rows[:, 0] % 3 == 0, (rows[:, 1:, None] >> [0, 8]).astype("u1")


def map_rows(folder: str) -> None:
    """Map rows in steps, of which rank 0 has one and the last rank sometimes none; print the sums of all results."""
    import numpy as np
    from mpi4py import MPI

    import lb_mpi

    comm = MPI.COMM_WORLD
    state = np.zeros((N_ROWS, 2), dtype=np.int64)
    step, saved = lb_mpi.load(comm, folder, index=np.arange(N_ROWS)) or (0, {"state": state})
    state = saved["state"].copy()
    scheme, speed = "fos" if comm.size % 2 else "direct", 0.5 if comm.rank else 0.2
    with lb_mpi.Balancer(comm, scheme=scheme, emulated_speed=speed) as balancer:
        while step < N_STEPS:
            cuts = np.linspace(min(1, N_ROWS), N_ROWS, comm.size).astype(int)  # rank 0 has one row
            cuts[-2:] = cuts[-2:] if step % 2 else N_ROWS
            mine = np.arange(0 if comm.rank == 0 else cuts[comm.rank - 1], cuts[comm.rank])
            flags, small = balancer.map_rows(digits, np.stack([mine + step, mine * step, mine + 300 * step], axis=1))
            state += comm.allreduce(_at(mine, flags, small.reshape(-1, 4).sum(axis=1)))
            step += 1
            if step % 5 == 0:
                lb_mpi.save(comm, folder, step, state=state if comm.rank == 0 else state[:0])
    if comm.rank == 0:
        print(json.dumps({"results": (state * np.arange(1, N_ROWS + 1)[:, None]).sum(axis=0).tolist()}), flush=True)


def _at(mine: Any, *columns: Any) -> Any:
    """(N_ROWS, 2) these columns at the places of a rank's rows."""
    import numpy as np

    places = np.zeros((N_ROWS, 2), dtype=np.int64)
    places[mine] = np.stack(columns, axis=1)
    return places


# --- the mesh -----------------------------------------------------------------------------------------------------

MESH, N_HOT = "mesh:20x40", 200  # and its expensive vertices


def pack(number: int) -> bytes:
    """An object as bytes, after a while: so much of the time, vertices are moving."""
    task(number)
    return str(number).encode()


def rebalance_mesh(folder: str) -> None:
    """Rebalance a mesh in steps whose expensive vertices wander; print what all values add up to."""
    import numpy as np
    from mpi4py import MPI

    import lb_mpi

    comm = MPI.COMM_WORLD
    with lb_mpi.distribute(comm, MESH if comm.rank == 0 else None, method="block") as plan:
        values = plan.vertices + 1
        step, saved = lb_mpi.load(comm, folder, index=plan.vertices) or (0, {"values": values})
        values = saved["values"].copy()
        while step < N_STEPS:
            around = plan.exchange(values)
            sums = np.array(
                [around[plan.indices[a:b]].sum() for a, b in itertools.pairwise(plan.indptr.tolist())], np.int64
            )
            values = (3 * values + sums) % (2**31 - 1)
            costs = np.where((plan.vertices - 13 * step) % (4 * N_HOT) < N_HOT, 5.0, 1.0)
            objects = values.tolist()
            values, objects = plan.rebalance(values, objects, costs=costs, when="always", pack=pack, unpack=int)
            if objects != values.tolist():
                raise RuntimeError("objects and values are of other vertices")
            step += 1
            if step % 5 == 0:
                lb_mpi.save(comm, folder, step, index=plan.vertices, values=values)
        total = comm.allreduce(int((values * (plan.vertices + 1)).sum()))
        moves = sum(one.acted for one in plan.history)
    if comm.rank == 0:
        print(json.dumps({"results": total, "moves": moves}), flush=True)


# --- the command -------------------------------------------------------------------------------------------------------


def main() -> int:
    """Run the campaign, and print the counts."""
    parser = campaign_parser("campaign", __doc__, runs=(40, "how many, in all"))
    parser.add_argument("--only", choices=[program.name for program in PROGRAMS], help="one program only")
    options = parser.parse_args()
    environments = environments_of(options.mpi)
    programs = [program for program in PROGRAMS if options.only in (None, program.name)]
    chance = random.Random(options.seed)
    answers = {program.name: undisturbed(environments[0], program) for program in programs}
    outcomes, left, happened = Counter[str](), Counter[str](), Counter[str]()
    for k in range(options.runs):
        environment = environments[k % len(environments)]
        run = campaign(environment, chance, answers, programs)
        outcomes[run.outcome] += 1
        left.update(run.left)
        happened[run.misfortune] += run.happened
        if run.outcome != "exact" or run.left:
            head = f"run {k}, {environment.mpi}: {run.program} on {run.n} ranks, {run.misfortune} x {run.happened}"
            head += f": {run.outcome}, left: {run.left or 'nothing'}"
            print(head, *run.signals, run.errors, sep="\n", file=sys.stderr)
        if k % 10 == 9:
            print(f"{k + 1} of {options.runs}: {dict(outcomes)}", file=sys.stderr, flush=True)
    counts = {name: outcomes[name] for name in ("exact", "named", "wrong", "silent")}
    if options.json:
        answer = {"mpi": [one.mpi for one in environments], "runs": options.runs, "seed": options.seed}
        print(json.dumps({**answer, "happened": dict(happened), **counts, "leftovers": dict(left)}))
    else:
        mpis = " and ".join(one.mpi for one in environments)
        print(f"{options.runs} runs on {mpis}, in which it happened: {dict(happened)}")
        print(", ".join(f"{name} {n}" for name, n in counts.items()) + f"; leftovers: {dict(left) or 'none'}")
    return int(bool(outcomes["wrong"] or outcomes["silent"] or left))


RANKS = {"tasks": map_tasks, "rows": map_rows, "mesh": rebalance_mesh}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--ranks-of"]:  # one of the programs, with the folder of its saves
        RANKS[sys.argv[2]](sys.argv[3])
        sys.exit()
    with processes.interruptible():
        sys.exit(main())
