"""launch/throttle: the account on times that the test makes, and real programs: how they end, and that nothing is left."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from lb_mpi.cli.throttle import CREDIT_S, Activity, RestAccount, UsageWatch, own_speed
from lb_mpi.emulate import VARIABLE, Stops
from tests.process.lab import until
from tests.process.started import LIMIT_S, started

ROOT = Path(__file__).resolve().parents[2]
THROTTLE = str(ROOT / "launch" / "throttle")

pytestmark = [pytest.mark.one_mpi, pytest.mark.skipif(sys.platform != "linux", reason="launch/throttle needs Linux")]


# --- the account -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speed", [0.05, 0.2, 0.4, 0.8])
@pytest.mark.parametrize("late_s", [0.0, 0.7e-3, 9e-3])
def test_cpu_time_by_wall_time_is_the_speed_however_late_it_wakes(speed, late_s):
    account, wall_s, cpu_s, passed_s = RestAccount(speed), 0.0, 0.0, 0.0
    while wall_s < 10.0:
        cpu_s += 2e-3
        wall_s += 2e-3
        rest_s = account.rest(2e-3, passed_s + 2e-3)
        passed_s = rest_s + late_s if rest_s > 0 else 0.0
        wall_s += passed_s
    best = 2e-3 / (2e-3 + late_s)  # resting is at most as rare as once in two slices
    assert cpu_s / wall_s == pytest.approx(speed, rel=0.01) or (best < speed and cpu_s / wall_s > 0.9 * best)


def test_time_of_other_programs_counts_as_rest_within_bounds():
    account = RestAccount(0.5)
    assert account.rest(0.0, 20e-3) == pytest.approx(-20e-3)
    assert account.rest(10e-3, 10e-3) == pytest.approx(-10e-3)
    assert account.rest(0.0, 100.0) == -CREDIT_S
    assert account.rest(1.0, 1.0) == pytest.approx(1.0 - CREDIT_S)


def test_a_machine_that_is_too_busy_for_the_speed_is_warned_of():
    account = RestAccount(0.8)
    for _ in range(100):
        account.rest(10e-3, 12e-3)
    assert account.warning() == ""
    for _ in range(100):
        account.rest(10e-3, 30e-3)
    assert account.warning() == (
        "speed 0.8: the machine was too busy: while it wanted to compute, it had 0.48 of a core"
    )


class Fake:
    """A program that did what the test says."""

    def __init__(self, monkeypatch):
        self.now = self.used = 0.0
        self.is_now = Activity(True, 0, 0.0)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.watch = UsageWatch(self)

    def cpu_s(self):
        return self.used

    def activity(self):
        return self.is_now

    def measure(self, now, used, is_now, stopped_s=0.0, n_stops=0):
        self.now, self.used, self.is_now = now, used, is_now
        return self.watch.measure(stopped_s, n_stops)


def test_a_program_that_never_waited_wanted_to_run_all_the_time(monkeypatch):
    fake = Fake(monkeypatch)
    assert fake.measure(10.0, 3.0, Activity(True, 0, 0.0)) == (3.0, 10.0)
    assert fake.measure(20.0, 4.0, Activity(True, 1, 0.0), 5.0, 1) == (1.0, 10.0)  # the one wait was our own stop


def test_waiting_is_no_rest(monkeypatch):
    fake = Fake(monkeypatch)
    assert fake.measure(10.0, 3.0, Activity(True, 1, 2.0)) == (3.0, 5.0)  # waited once; ran 3, stood in line 2
    assert fake.measure(20.0, 4.0, Activity(False, 2, 2.0), 4.0, 1) == (1.0, 5.0)
    assert fake.measure(30.0, 4.0, Activity(False, 2, 2.0)) == (0.0, 0.0)  # asleep all the time
    assert fake.measure(31.0, 8.0, Activity(False, 2, 2.0)) == (4.0, 1.0)  # four threads


@pytest.mark.parametrize(("variables", "speed"), [
    ({"PMI_RANK": "0", "PMI_SIZE": "3"}, 0.8),
    ({"OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, 0.2),
    ({"PMIX_RANK": "1"}, 0.4),
])  # fmt: skip
def test_ranks(variables, speed):
    assert own_speed("0.8,0.4,0.2", variables) == speed


# --- real programs ---------------------------------------------------------------------------------------------------


def throttle(*arguments, **options):
    """Run launch/throttle."""
    command = [sys.executable, THROTTLE, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **options)


def python(script):
    return [sys.executable, "-c", script]


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def numbers(path, n):
    """The `n` pids that processes have written, a file each."""
    return until(lambda: len(found := [int(file.name) for file in path.iterdir()]) == n and found)


NOTE = "import os, sys, time, signal\ndef note(): open(os.path.join(sys.argv[1], str(os.getpid())), 'w').close()\n"
BUSY = "\nwhile True: pass"
FAMILY = (  # a child in the group, one in a session of its own, and one that has lost its parent; all of them compute
    NOTE
    + """
if os.fork() == 0: note(); sys.argv.append("child")
elif os.fork() == 0: os.setsid(); note(); sys.argv.append("child")
elif os.fork() == 0:
    if os.fork(): os._exit(0)
    note(); sys.argv.append("child")
else: os.wait(); note()
"""
)


@pytest.fixture
def start():
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(started([sys.executable, THROTTLE, *arguments]))


def test_a_program_with_its_threads_and_children_gets_no_more_than_its_speed():
    script = """
import os, time
began = time.perf_counter()
if child := os.fork(): pass
elif os.fork() == 0: os.setsid()
while time.perf_counter() < began + 1.0: pass
used = time.process_time()
if child: os.wait()
os.write(1, b"%f " % used)  # in one piece, since all three write
"""
    done = throttle("--speed", "0.25", "--report", *python(script))
    assert done.returncode == 0
    assert "throttle: speed 0.25: " in done.stderr
    assert len(done.stdout.split()) == 3
    assert sum(map(float, done.stdout.split())) < 0.4


def test_input_output_variables_and_arguments_pass():
    script = "import os, sys; print(sys.argv[1:], sys.stdin.read(), os.environ['WORD']); print('said', file=sys.stderr)"
    done = throttle(
        "--speed", "0.5", *python(script), "--speed", "-h", input="given", env={**os.environ, "WORD": "here"}
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "['--speed', '-h'] given here\n", "said\n")


def test_a_rank_takes_its_own_speed():
    done = throttle("--speeds", "1,0.5", "--report", "--", *python(""), env={**os.environ, "PMI_RANK": "1"})
    assert "speed 0.5: " in done.stderr


@pytest.mark.parametrize(("script", "code"), [("raise SystemExit(7)", 7), ("os.kill(os.getpid(), 9)", -9)])
def test_it_ends_as_the_program_ended(script, code):
    assert throttle("--speed", "0.5", *python("import os\n" + script)).returncode == code


def test_a_program_that_cannot_be_run_has_the_exit_code_of_a_shell(tmp_path):
    missing = str(tmp_path / "nosuch")
    done = throttle("--speed", "0.5", missing)
    assert (done.returncode, done.stderr) == (127, f"throttle: error: {missing}: not found: expected a command\n")
    (tmp_path / "walks.py").touch()
    done = throttle("--speed", "0.5", "walks.py", cwd=tmp_path)
    assert done.returncode == 127
    assert done.stderr == "throttle: error: walks.py: not found: expected a command, as in `python walks.py`\n"
    done = throttle("--speed", "0.5", "./walks.py", cwd=tmp_path)
    assert done.returncode == 126
    assert done.stderr.endswith(": Permission denied: expected a command, as in `python ./walks.py`\n")
    assert throttle("--speed", "0.5", str(tmp_path)).returncode == 126


def test_a_wrong_speed_of_a_throttle_around_it_is_a_mistake():
    done = throttle("--speed", "0.5", "true", env={**os.environ, "LB_MPI_THROTTLED": "-1"})
    assert done.returncode == 2
    assert "error: LB_MPI_THROTTLED = -1.0: expected a finite number above 0 and at most 1" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_sent_on(tmp_path, start, number):
    # such a speed rests nearly all the time: a signal that isn't acted on at once would wait for long
    script = NOTE + f"signal.signal({number}, lambda *_: sys.exit(5)); note()" + BUSY
    process = start("--speed", "0.05", *python(script), str(tmp_path))
    numbers(tmp_path, 1)
    process.send_signal(number)
    assert process.wait(LIMIT_S) == 5


def test_the_whole_family_is_stopped_and_continued(tmp_path, start):
    start("--speed", "0.05", *python(FAMILY + BUSY), str(tmp_path))
    pids = numbers(tmp_path, 4)
    for wanted in "TRTR":
        for pid in pids:
            until(lambda pid=pid, wanted=wanted: state(pid) == wanted)


def test_nothing_is_left_when_it_is_killed_itself(tmp_path, start):
    process = start("--speed", "0.05", *python(FAMILY + BUSY), str(tmp_path))
    pids = numbers(tmp_path, 4)
    process.kill()
    for pid in pids:
        until(lambda pid=pid: state(pid) in "ZX")


def test_nothing_is_left_of_a_descendant_that_forgets_its_variables():
    done = throttle("--speed", "0.5", "sh", "-c", "env -i setsid sleep 100 & echo $!")
    assert done.returncode == 0
    assert state(int(done.stdout)) in "ZX"


def test_nothing_is_left_when_the_program_ends(tmp_path, start):
    stays = FAMILY + "\nif sys.argv[-1] == 'child':\n    while True: pass\nwhile len(os.listdir(sys.argv[1])) < 4: pass"
    process = start("--speed", "0.2", *python(stays), str(tmp_path))
    assert process.wait(LIMIT_S) == 0
    assert all(state(pid) in "ZX" for pid in numbers(tmp_path, 4))


# What a call takes by itself, as the Balancer measures it: again and again it computes for 3 ms, 0.1 ms, sleeps for 30 ms.
MEASURED = """
import json, time
from lb_mpi.emulate import throttled
from lb_mpi.mpi.common.waiting import Clocks, own_s
clocks, found = Clocks(), {"speed": throttled()}
clocks.begin()
def spin(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until: pass
for name, n, what in (
    ("long", 30, lambda: spin(3e-3)), ("short", 900, lambda: spin(1e-4)), ("sleep", 30, lambda: time.sleep(0.03))
):
    sums = [0.0, 0.0]
    for _ in range(n):
        before = clocks.read()
        what()
        after = clocks.read()
        sums[0] += own_s(before, after)
        sums[1] += after.cpu_s - before.cpu_s
    found[name] = sums
print(json.dumps(found))
"""


@pytest.mark.parametrize("around", [[], [THROTTLE, "--speed", "0.5", "--"]])
def test_a_stop_does_not_count_as_waiting(around):
    pytest.importorskip("mpi4py", reason="lb_mpi.mpi needs it")
    argv = [sys.executable, *around, THROTTLE, "--speed", "0.4", "--", sys.executable, "-c", MEASURED]
    if around:
        argv[1 + len(around) : 1 + len(around)] = [sys.executable]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    found = json.loads(done.stdout)
    assert found["speed"] == (0.2 if around else 0.4)
    for name in ("long", "short"):
        own_s, cpu_s = found[name]
        assert own_s < 1.5 * cpu_s, name  # with the time in which it was stopped: 2.5 and more
    own_s, cpu_s = found["sleep"]
    assert own_s > 10 * cpu_s  # it's all of the sleep but queueing, and what it was stopped for


def test_a_page_that_is_somebody_elses_file_is_left_alone(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file:
        for name in (str(path), f"/proc/{os.getpid()}/fd/{file.fileno()}"):
            stops = Stops({VARIABLE: name})
            assert stops.variables[VARIABLE] != name
            stops.add(1.0)
    assert path.read_bytes() == bytes(4096)
