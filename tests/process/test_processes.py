"""What can't be ended, what is interrupted while it starts, and what an MPI that is killed leaves behind."""

import mmap
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from lb_mpi.cli.run import processes
from tests.process.lab import until
from tests.process.started import LIMIT_S, started
from tools import limited
from tools.environment import ROOT

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]

pytestmark = [pytest.mark.one_mpi, pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and /dev/shm")]


def test_a_file_that_is_longer_than_a_read_returns_is_read_whole(tmp_path):
    (tmp_path / "children").write_bytes(whole := b"1234567 " * 2000)
    assert processes.read_at_once(str(tmp_path / "children")) == whole


def test_processes_that_cannot_be_ended_are_named_and_not_awaited(monkeypatch, capsys):
    monkeypatch.setattr(processes, "GRACE_S", 0.05)
    monkeypatch.setattr(processes, "LEFT_S", 0.1)
    run_id, env = processes.with_run_id(os.environ)
    with started(SLEEP, env=env) as process:
        with monkeypatch.context() as patch:  # as in state D: no signal has an effect
            patch.setattr(os, "kill", lambda pid, number: None)
            processes.end(run_id)
        assert process.poll() is None
    said = capsys.readouterr().err
    assert f"left behind: process {process.pid} is still there " in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_interrupted_while_it_starts_is_ended(monkeypatch, number):
    started = []

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            started.append(self)
            signal.raise_signal(number)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as raised, processes.interruptible():
            limited.run(SLEEP, 60.0, env=os.environ)
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])
    assert raised.value.code == 128 + number
    assert started[0].returncode == -signal.SIGTERM


@pytest.fixture
def segment():
    """Shared memory with a name of MPICH's."""
    path = Path(f"/dev/shm/mpich_shm_{os.getpid():x}_0")
    path.write_bytes(bytes(4096))
    yield path
    path.unlink(missing_ok=True)


def test_segments_in_use_stay_and_others_go(segment):
    with segment.open("r+b") as file:
        processes.remove_orphans()
        assert segment.exists()  # somebody has it open
        mapped = mmap.mmap(file.fileno(), 4096)
    processes.remove_orphans()
    assert segment.exists()  # somebody has it mapped
    mapped.close()
    until(lambda: processes.remove_orphans() or not segment.exists())  # another process may look at it for a moment


def test_files_of_the_user_and_segments_of_earlier_runs_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_FOLDER", tmp_path)
    names = "mpich_shm_c4ac3b79_0", "sm_segment.a.de-b.0.e4790001.1", "osc_sm.vm.e4790001.0.4", "ucx_shm_posix_8310561"
    mine = "osc_amplitudes.npy", "osc_sm.npy", "sm_segment.results.npy", "mpich_shm_data", "ucx_shm_x"
    for name in (*names, *mine):
        (tmp_path / name).touch()
    with monkeypatch.context() as patch:
        patch.setattr(processes, "_BEGAN_S", processes.time.time() + 1.0)
        processes.remove_orphans()
        assert len([*tmp_path.iterdir()]) == len(names) + len(mine)
    processes.remove_orphans()
    assert {path.name for path in tmp_path.iterdir()} == set(mine)


@pytest.mark.parametrize("more", [[], ["--pid", "--fork", "--mount-proc"]])
def test_a_segment_stays_where_it_cannot_be_known_who_uses_it(segment, more):
    inside = ["unshare", "--user", "--map-root-user", *more]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    with segment.open():
        remove = "from lb_mpi.cli.run import processes; processes.remove_orphans()"
        subprocess.run([*inside, sys.executable, "-c", remove], cwd=ROOT, check=True)
        assert segment.exists()


@pytest.mark.parametrize(("pid", "ipc", "removed"), [
    (0xEFFFFFFC, 0xEFFFFFFF, True), (1, 1, True), (1, 0xEFFFFFFF, False), (0xEFFFFFFC, 1, True),
])  # fmt: skip
def test_in_a_container_segments_are_removed_unless_the_machine_shares_them(segment, monkeypatch, pid, ipc, removed):
    found, plain = {f"/proc/self/ns/{name}": SimpleNamespace(st_ino=n) for name, n in (("pid", pid), ("ipc", ipc))}, os.stat
    monkeypatch.setattr(os, "stat", lambda path, **how: found.get(path) or plain(path, **how))
    processes.remove_orphans()
    assert segment.exists() != removed


def test_the_segment_of_a_rank_that_was_killed_is_removed(segment):
    make = f"import os; f = open({str(segment)!r}, 'w+b'); f.truncate(4096)"  # in one go: it may have been removed by others
    maps = make + "; import mmap; m = mmap.mmap(f.fileno(), 0); os.kill(os.getpid(), 9)"
    assert limited.run([sys.executable, "-c", maps], 60.0, env=os.environ) == -signal.SIGKILL
    assert not segment.exists()


COMMANDS = "run --hosts x", "cluster down", "throttle --speed 0.5 sleep 60", "test", "demo", "-m info", "lb_mpi info"


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_ends_a_command_however_early_it_comes(tmp_path, command):
    name, *arguments = command.split()
    script = Path(sys.executable).parent / name if name == "lb_mpi" else ROOT / "launch" / name
    start = "run_module('lb_mpi'" if name == "-m" else f"run_path({str(script)!r}"
    stop = f"""
import os, runpy, signal, sys
class Early:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("lb_mpi.cli", "tools")):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Early())
sys.argv = {[str(script), *arguments]!r}
runpy.{start}, run_name="__main__")
"""
    with started([sys.executable, "-c", stop], cwd=tmp_path) as process:
        _, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said) == (-signal.SIGINT, "")


@pytest.mark.parametrize("by_others", [False, True])
def test_the_folder_of_an_mpiexec_that_was_killed_is_removed(tmp_path, monkeypatch, by_others):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    run_id, env = processes.with_run_id(os.environ)
    with subprocess.Popen([sys.executable, "-c", stubborn], env=env, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / f"ompi.{process.pid}").mkdir()
        (tmp_path / f"ompi.{process.pid}" / "file").touch()
        (tmp_path / f"ompi.{process.pid}" / "link").symlink_to(tmp_path / "elsewhere")
        (tmp_path / f"prted.{process.pid}" / "0").mkdir(parents=True)
        (tmp_path / f"ompi.{os.getpid()}").mkdir()
        if by_others:
            process.kill()
            process.wait()
        processes.end(run_id, process)
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", f"ompi.{os.getpid()}"}
