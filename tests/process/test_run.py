"""launch/run: options for both MPIs, what is wrong with hosts, what is left when one dies; MPI itself is not started."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from lb_mpi.cli import run as commands
from lb_mpi.cli.run import mpiexec, processes, start, watch
from lb_mpi.cli.run.hosts import Host
from lb_mpi.cli.run.mpiexec import Mpiexec, command, identify
from lb_mpi.cli.run.start import fill
from tests.process.lab import MPIEXEC, ROOT, Lab, gone, mpi_library, script, until
from tests.process.started import LIMIT_S

pytest.importorskip("mpi4py", reason="launch/run compares mpi4py with mpiexec")

pytestmark = pytest.mark.one_mpi

HOSTS = [Host("fast", 2), Host("mid"), Host("slow", 3)]
MPICH, OPEN_MPI = Mpiexec("/bin/mpiexec", "MPICH 5.0.2"), Mpiexec("/bin/mpiexec", "Open MPI 5.0.8")


# --- the command line of mpiexec -------------------------------------------------------------------------------------


def test_slots_are_filled_in_order():
    assert fill(HOSTS, None) == [0, 0, 1, 2, 2, 2]
    assert fill(HOSTS, 3) == [0, 0, 1]
    for n, says in ((0, "at least 1"), (-1, "at least 1"), (7, "1 to 6, the slots of these hosts")):
        with pytest.raises(ValueError, match=f"-n {n}: expected {says}"):
            fill(HOSTS, n)


def test_options_of_mpich():
    assert command(MPICH, HOSTS, [0, 0, 1, 2], {}) == (
        ["/bin/mpiexec", "-launcher", "ssh", "-hosts", "fast:2,mid:1,slow:1", "-n", "4"]
    )
    link = Path("/tmp/lb_mpi-word/ssh")  # its path is in the command lines of the daemons
    other = command(MPICH, HOSTS, [0, 2, 2], {}, link)
    assert other[3:] == ["-launcher-exec", str(link), "-hosts", "fast:1,slow:2", "-n", "3"]


def test_options_of_open_mpi():
    exported = {"PATH": "p", "HOME": "h", "OMP_NUM_THREADS": "1", "LB_MPI_LAUNCH": "m", "SECRET_KEY": "k"}
    x = ["-x", "LB_MPI_LAUNCH", "-x", "OMP_NUM_THREADS", "-x", "PATH"]
    ssh = ["--prtemca", "plm", "^slurm", "--prtemca", "ras", "^slurm"]
    in_order = ["/bin/mpiexec", *ssh, "--host", "fast:2,mid:1,slow:1", "--map-by", "slot", *x, "-n", "4"]
    assert command(OPEN_MPI, HOSTS, [0, 0, 1, 2], exported) == in_order
    ssh += ["--prtemca", "lb_mpi_run", "lb_mpi-word"]
    other = ["/bin/mpiexec", *ssh, "--host", "fast:1,slow:2", "--map-by", "slot", "-n", "3"]
    assert command(OPEN_MPI, HOSTS, [0, 2, 2], {}, Path("/tmp/lb_mpi-word/ssh")) == other


@pytest.mark.parametrize(("says", "library"), [
    ("HYDRA build details:\n    Version:                                 5.0.2\n", "MPICH 5.0.2"),
    ("mpiexec (Open MPI) 5.0.8\n\nReport bugs", "Open MPI 5.0.8"),
])  # fmt: skip
def test_mpiexec_is_identified_by_its_version(tmp_path, says, library):
    assert identify(script(tmp_path / "mpiexec", f"print({says!r})")).library == library


@pytest.mark.parametrize(("says", "error"), [
    ("mpiexec (Open MPI) 4.1.6", "expected version 5 or newer"),
    ("Intel(R) MPI Library", "says 'Intel"),
    ("", "expected MPICH's"),
])  # fmt: skip
def test_another_mpiexec(tmp_path, says, error):
    with pytest.raises(ValueError) as raised:
        identify(script(tmp_path / "mpiexec", f"print({says!r})"))
    assert error in str(raised.value)
    with pytest.raises(ValueError, match="nosuch"):
        identify(str(tmp_path / "nosuch"))


def test_the_python_that_is_checked():
    assert start.interpreter([sys.executable, "-m", "apps.uts"]) == os.path.abspath(sys.executable)
    assert start.interpreter(["./launch/throttle", "--speed", "1", sys.executable]) == os.path.abspath(sys.executable)
    assert start.interpreter(["hostname"]) == sys.executable


# --- hosts that are programs of the test -----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def library():
    return mpi_library()


@pytest.fixture
def lab(tmp_path, library, monkeypatch):
    monkeypatch.chdir(ROOT)
    yield Lab(tmp_path, library, monkeypatch)
    for path in (tmp_path / "pids").iterdir():
        assert gone(int(path.read_text())), path.name


def test_a_check_and_a_run(lab, library):
    code, out, err = lab.run("one:2 chatty", "--check")
    assert (code, out) == (0, "")
    assert "one (2 ranks), chatty (1 rank)" in err
    assert f"MPI library {library}" in err
    words = ["a b", ";exit 9", "$HOME", "-n", ":", "\\:", ":x"]
    program = [sys.executable, "-c", "import os, sys; os.write(1, (repr(sys.argv[1:]) + '\\n').encode()); sys.exit(3)"]
    code, out, err = lab.run("one:2 chatty", "-n", "2", "--", *program, *words)
    assert code == 3
    assert out == f"{words!r}\n" * 2
    assert lab.mpiexec in err
    assert "mpiexec ended with exit code 3" in err


@pytest.mark.parametrize(("host", "says"), [
    ("unreachable", ["host unreachable: ssh: connect to host unreachable port 22: No route to host"]),
    ("old", ["host old: Python 3.11.0, here ", "mpi4py 3.0.0, here "]),
    ("elsewhere", ["host elsewhere: ", "/nosuch/folder"]),
    ("bare", ["host bare: ", "/nosuch/python"]),
])  # fmt: skip
def test_a_host_that_will_not_do_is_named(lab, host, says):
    code, out, err = lab.run(f"one {host} two", "--", sys.executable, "-c", "print('started')")
    assert (code, out) == (1, "")
    assert all(words in err for words in says), err
    assert "Traceback" not in err
    assert "host one" not in err
    assert "host two" not in err


def test_a_host_that_does_not_answer_is_named(lab, monkeypatch, capsys):
    monkeypatch.setattr(watch, "REACH_S", 3.0)
    monkeypatch.setattr(watch, "CLOSE_S", 0.5)
    assert commands.main("run", lab.arguments("one mute", "--check"), "run") == 1
    assert "host mute: no answer within 3 s" in capsys.readouterr().err


def test_mpiexec_of_another_library(lab, library):
    says = "HYDRA build details:\n Version: 1.0" if "Open MPI" in library else "mpiexec (Open MPI) 99.0"
    script(Path(lab.mpiexec), MPIEXEC.format(says=says))
    code, _, err = lab.run("one", "--check")
    assert code == 1
    assert f"{lab.mpiexec} belongs to " in err
    assert "expected the same" in err


@pytest.mark.parametrize(("hosts", "more", "says"), [
    ("one -oProxyCommand=x", ["--check"], "hosts.txt:2: host name '-oProxyCommand=x'"),
    ("a;b", ["--check"], "hosts.txt:1: host name 'a;b'"),
    ("one:2", ["-n", "3", "--check"], "-n 3: expected 1 to 2"),
    ("one", ["nosuchprogram"], "error: nosuchprogram: not found: expected a command\n"),
    ("one", ["apps/maze.py"], "apps/maze.py: Permission denied: expected a command, as in `python apps/maze.py`\n"),
    ("one", [], "expected a PROGRAM, or --check"),
    ("one", ["--progress", "true"], "--progress with --hosts: expected also --record FOLDER, which all hosts see"),
])  # fmt: skip
def test_mistakes(lab, hosts, more, says):
    code, out, err = lab.run(hosts, *more)
    assert (code, out) == (127 if "expected a command" in says else 2, "")
    assert says in err
    assert "Traceback" not in err
    assert list(lab.pids.iterdir()) == []  # nobody was asked


def test_an_mpiexec_beside_the_interpreter_is_found_without_a_path(tmp_path, monkeypatch):
    beside, other = tmp_path / "bin", tmp_path / "other"
    for folder in (beside, other):
        folder.mkdir()
    (beside / "mpiexec").touch(0o755)
    monkeypatch.setattr("sys.executable", str(beside / "python"))
    monkeypatch.setenv("PATH", str(other))
    assert mpiexec.find("mpiexec") == str(beside / "mpiexec")
    (other / "mpiexec").touch(0o755)
    assert mpiexec.find("mpiexec") == str(other / "mpiexec")  # what the user has chosen
    with pytest.raises(ValueError, match="nosuch: not found"):
        mpiexec.find("nosuch")
    for folder in (beside, other):
        (folder / "mpiexec").unlink()
    with pytest.raises(ValueError, match=r"^no mpiexec beside python or in PATH: pip install 'PATH/TO/CLONE\[mpich\]' or "):
        mpiexec.find("mpiexec")


# Two ranks, which note their pids and compute; each has a child in a session of its own.
BUSY = (
    "import os, sys, time\nif os.fork() == 0: os.setsid()\n"
    "open(os.path.join(sys.argv[1], f'rank{os.getpid()}'), 'w').write(str(os.getpid()))\nwhile True: time.sleep(0.01)"
)


@contextmanager
def busy(lab):
    def ranks():
        found = [path.read_text() for path in lab.pids.glob("rank*")]
        return [int(text) for text in found if text] if len([text for text in found if text]) == 4 else []

    with lab.start("one two", "--", sys.executable, "-c", BUSY, str(lab.pids)) as process:
        yield process, until(ranks)


def test_a_host_that_dies_ends_the_run_and_is_named(lab):
    with busy(lab) as (process, ranks):
        os.kill(int((lab.pids / "two").read_text()), signal.SIGKILL)
        out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (1, "")
    assert "host two is gone: the connection ended (exit code -9)" in err
    assert all(map(gone, ranks))


def test_a_host_that_falls_silent_ends_the_run_and_is_named(lab, monkeypatch, capfd):
    monkeypatch.setattr(watch, "SIGN_S", 4.0)
    monkeypatch.setattr(watch, "CLOSE_S", 1.0)
    # the program stops the other side of host two, which then still holds the connection, but says nothing
    stop = (
        f"import os, signal, time; os.kill(int(open({str(lab.pids / 'two')!r}).read()), signal.SIGSTOP); time.sleep(60)"
    )
    assert commands.main("run", lab.arguments("one two", "-n", "2", "--", sys.executable, "-c", stop), "run") == 1
    assert "host two is gone: no sign of life for 4 s" in capfd.readouterr().err


def test_other_output_of_a_host_is_not_an_answer(monkeypatch):
    monkeypatch.chdir(ROOT)
    lines = ["lb_mpi {", "lb_mpi {}", 'lb_mpi end {"rank": 1}', "lb_mpi alive x", "lb_mpi state []"]
    lines += [r"lb_mpi \377", r"\033[2Jhi"]
    script = "".join(f"printf '%b\\n' {shlex.quote(line)}; " for line in lines)
    with watch.Watch(["far"], ["sh", "-c", f"{script}exit 3"], sys.executable, "run-id") as one:
        assert one.reach() == {"far": r"host far: \x1b[2Jhi (exit code 3)"}
        assert one.ends() == one.states() == []


def test_this_machine_is_not_gone_when_it_is_silent(monkeypatch):
    monkeypatch.chdir(ROOT)
    with watch.Watch([socket.gethostname()], ["false"], sys.executable, "run-id") as one:
        assert list(one.reach().values()) == []
        monkeypatch.setattr(watch, "SIGN_S", -1.0)
        assert one.lost() == []


def test_while_launch_run_was_stopped_no_host_was_silent(monkeypatch):
    monkeypatch.chdir(ROOT)
    mute = ["sh", "-c", """echo 'lb_mpi {"host": "far"}'; cat > /dev/null"""]
    with watch.Watch(["far"], mute, sys.executable, "run-id") as one:
        one.reach()
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 1000.0)
        assert one.lost() == []


@pytest.mark.parametrize("code", [6, 0])  # Open MPI's mpiexec ends with 0 when a host has died
def test_a_host_that_is_gone_when_mpiexec_has_ended_is_named(lab, code):
    kill = f"os.kill(int(open({str(lab.pids / 'two')!r}).read()), 9)"
    program = f"import os, sys\nif os.environ['PMI_RANK'] == '0': {kill}\nsys.exit({code})"
    ended, _, err = lab.run("one two", "--", sys.executable, "-c", program)
    assert ended in (1, code or 1)  # whoever notices first
    assert "host two is gone: the connection ended (exit code -9)" in err
    assert "host one is gone" not in err


@pytest.mark.parametrize(("kill", "said"), [
    ("os.kill(os.getpid(), 9)", "rank 1 on host HOST was killed by signal 9 (Killed)"),
    ("os.kill(os.getppid(), 15)", "rank 1 on host HOST was killed by signal 15 (Terminated)"),  # rank.py
])  # fmt: skip
def test_a_rank_that_is_killed_is_named_with_its_host_and_signal(lab, monkeypatch, kill, said):
    monkeypatch.setenv("MPI_ENDS_OTHERS", "1")  # rank 0 is then ended by mpiexec, which is not asked
    program = f"import os, time\nif os.environ['PMI_RANK'] == '1': {kill}\ntime.sleep(60)"
    code, _, err = lab.run("one two", "--", sys.executable, "-c", program)
    assert code != 0
    assert f"run: {said.replace('HOST', socket.gethostname())}\n" in err
    assert "rank 0" not in err


def test_exit_code_0_does_not_count_if_a_rank_has_not_reported_its_end(lab):
    program = "import os\nif os.environ['PMI_RANK'] == '1': os.kill(os.getppid(), 9)"  # rank.py
    code, _, err = lab.run("one two", "--", sys.executable, "-c", program)
    assert code == 1
    assert "run: rank 1 on host two has not reported its end, but mpiexec has ended with code 0\n" in err
    assert "rank 0" not in err


def test_a_stopped_mpiexec_is_named_when_all_ranks_have_ended(lab):
    program = "import os, signal\nif os.environ['PMI_RANK'] == '1': os.kill(MPIEXEC, signal.SIGSTOP)"
    parent = "int(open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1])"
    more = ["--hang-s", "1", "--", sys.executable, "-c", program.replace("MPIEXEC", parent)]
    code, _, err = lab.run("one two", *more)
    assert code == processes.HUNG
    assert re.search("^run: all ranks have ended, but mpiexec has not for", err, re.MULTILINE)


def test_the_program_has_the_signals_and_files_that_mpiexec_gives_it(lab):
    argv = [*commands.argv(sys.executable, "rank"), sys.executable, "-c"]
    read_end, write_end = os.pipe()
    program = f"import os, signal; assert not signal.pthread_sigmask(0, []); os.write({write_end}, b'here'); os.abort()"
    done = subprocess.run([*argv, program], pass_fds=[write_end], capture_output=True)
    assert (done.returncode, os.read(read_end, 9)) == (-signal.SIGABRT, b"here")
    for end in (read_end, write_end):
        os.close(end)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_it_is_ended(lab, tmp_path, monkeypatch, number):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    with busy(lab) as (process, ranks):
        (folder,) = scratch.glob("lb_mpi-*")  # of the link to what stands for ssh
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "ssh").resolve() == Path(lab.ssh).resolve()
        process.send_signal(number)
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in err
    assert ("\nrun: interrupted\n" in err) == (number == signal.SIGINT)
    assert ("\nrun: ended by SIGTERM\n" in err) == (number == signal.SIGTERM)
    hosts = [int(path.read_text()) for path in lab.pids.iterdir()]
    until(lambda: all(map(gone, [*ranks, *hosts])))
    assert folder.exists() == (number == signal.SIGKILL)


def test_a_link_to_ssh_is_where_a_shell_needs_no_quotes(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "my files"))
    with mpiexec.link_to("/usr/bin/ssh") as link:
        assert str(link) == shlex.quote(str(link))
        assert os.readlink(link) == "/usr/bin/ssh"
    assert not link.parent.exists()
