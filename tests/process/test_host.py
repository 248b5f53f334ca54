"""host.py of a run: whom it believes, what it makes of junk, and what it sends no signal to."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from lb_mpi import signs
from lb_mpi.cli import run as commands
from lb_mpi.cli.run import processes, rank
from lb_mpi.cli.run.lines import End, RankState, line_of, printable, read
from tests.process.started import LIMIT_S, started
from tools.environment import ROOT

pytestmark = pytest.mark.one_mpi

NOBODY = 65534
DEATH = End("0", "here", -9)

# Tells host.py of a run_id: as rank.py does, or as the user `uid`.
SEND = """
import array, os, socket, sys
sys.path.insert(0, sys.argv[1])
from lb_mpi import signs
from lb_mpi.cli.run.rank import address
run_id, uid, data, with_file = sys.argv[2], int(sys.argv[3]), sys.argv[4].encode("utf-8", "surrogateescape"), sys.argv[5]
file = os.memfd_create(signs.NAME)
os.ftruncate(file, signs.BYTES)
page = memoryview(bytearray(signs.BYTES)).cast("Q")
page[3] = page[4] = int(with_file or 0)  # it writes its stack, and saves at a signal
os.pwrite(file, page, 0)
if uid:
    os.setuid(uid)
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
out.connect(address(run_id))
given = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))] if with_file else []
out.sendmsg([data], given)
print("sent", flush=True)
sys.stdin.read()
"""


class Host:
    """A host.py, and who speaks to it."""

    def __init__(self, process, run_id, env):
        self._process, self.run_id, self.env = process, run_id, env
        self._asked = 0

    def answers(self, *questions):
        """What it says until it has answered once more that it is alive."""
        self._asked += 1
        for line in (*questions, f"? {self._asked}"):
            self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        said = []
        while not said or said[-1] != f"lb_mpi alive {self._asked}\n":
            said.append(self._process.stdout.readline())
            assert said[-1], said  # it has ended
        return said[:-1]

    @contextmanager
    def sent(self, data, *, uid=0, saves=0):
        """Let a process tell it `data`, with a page that names the process `saves`, and live on for the block."""
        argv = [sys.executable, "-c", SEND, str(ROOT), self.run_id, str(uid), data, str(saves or "")]
        with started(argv, env=self.env, stdin=subprocess.PIPE) as process:
            assert process.stdout.readline() == "sent\n"
            yield process.pid


@pytest.fixture
def host():
    run_id, env = processes.with_run_id(os.environ)
    with started(commands.argv(sys.executable, "host"), cwd=ROOT, stdin=subprocess.PIPE) as process:
        process.stdin.write(f"{run_id}\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith("lb_mpi {")
        yield Host(process, run_id, env)
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0
    assert processes.of_run(run_id) == set()


def begun(number):
    return json.dumps({"rank": number})


def test_a_rank_is_believed(host):
    with host.sent(begun("3"), saves=1) as pid:
        assert pid
        (line,) = host.answers()
        assert read(RankState, line.removeprefix("lb_mpi state ")).rank == "3"
    env = {**host.env, "PMI_RANK": "4"}
    done = subprocess.run([*commands.argv(sys.executable, "rank"), sys.executable, "-c", "raise SystemExit(7)"], env=env)
    assert done.returncode == 7
    assert f"lb_mpi end {line_of(End('4', socket.gethostname(), 7))}\n" in host.answers()


@pytest.mark.parametrize("saves", [0, 1])
def test_junk_is_ignored(host, saves):
    for junk in ("", "{", "[[" * 900, "7", "{}", '{"rank": 3}', '{"rank": "3", "host": 1, "code": {}}', "\udcff"):
        with host.sent(junk, saves=saves):
            assert host.answers("save", "stack 3") == ['lb_mpi stack {"rank": "3", "text": ""}\n'], junk


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_user_is_not_believed(host):
    with host.sent(line_of(DEATH), uid=NOBODY):
        assert host.answers() == []
    with host.sent(begun("0"), uid=NOBODY, saves=1):
        assert host.answers() == []


def test_no_signal_goes_to_a_process_that_a_message_names(host):
    with started(["sleep", "60"]) as other:
        with host.sent(json.dumps({"rank": "0", "pid": os.getpid()}), saves=other.pid):
            host.answers("save", "stack 0")
        with host.sent(begun("0"), saves=other.pid):
            host.answers("save", "stack 0")
        assert other.poll() is None


def test_a_name_that_another_process_could_foresee_is_not_used():
    run_id, _ = processes.with_run_id({})
    assert run_id not in " ".join(commands.argv(sys.executable, "host"))
    assert processes.with_run_id({})[0].rpartition("-")[2] != run_id.rpartition("-")[2]
    assert len(run_id.rpartition("-")[2]) == 16
    assert run_id in rank.address(run_id)


def test_printed_lines_contain_no_control_characters():
    assert printable("\x1b[2Jrank\r\n\x00\u202e é") == "\\x1b[2Jrank\\r\\n\\x00\\u202e é"
    assert "\x1b" not in str(read(End, line_of(End("0", "\x1b[2J", 1))))
    assert str(End("1", "here", -signal.SIGXFSZ)).endswith(": a file has reached the limit of `ulimit -f`")
    assert "\n" not in read(RankState, line_of(RankState("0", "here", phase="x\nrun: y"))).phase


def test_a_page_is_no_file_of_somebodys(tmp_path, monkeypatch):
    file = tmp_path / "precious"
    file.write_bytes(b"x" * signs.BYTES)
    monkeypatch.setenv(signs.VARIABLE, str(file))
    monkeypatch.setattr(signs, "_page", signs._Page())
    monkeypatch.setattr("faulthandler.register", lambda *_, **__: None)
    signs.begin()
    signs.saved(3)
    assert file.read_bytes() == b"x" * signs.BYTES
