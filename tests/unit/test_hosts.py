"""Host lists: what is read, what is refused and where, and that what is written is read again."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb_mpi.cli.run.hosts import MAX_SLOTS, Host, format_hosts, parse_hosts, read_hosts
from lb_mpi.cli.run.watch import advice

LETTERS = string.ascii_letters + string.digits + "._-"
names = st.text(LETTERS, min_size=1, max_size=12).filter(lambda name: not name.startswith("-"))
hosts = st.builds(Host, names, st.integers(1, MAX_SLOTS), st.floats(0, exclude_min=True, allow_infinity=False))


def test_all_ways_to_write_a_host():
    text = """
# our lab
fast   slots=4 speed=2.5   # new
slow-1 speed=.5
slow_2:2\t
10.77.0.3 speed=1e-1 slots=8
n5:3 speed=2\r
"""
    assert parse_hosts(text, "lab") == [
        Host("fast", 4, 2.5),
        Host("slow-1", 1, 0.5),
        Host("slow_2", 2, 1.0),
        Host("10.77.0.3", 8, 0.1),
        Host("n5", 3, 2.0),
    ]


@given(st.lists(hosts, min_size=1, max_size=6, unique_by=lambda host: host.name.lower()))
def test_a_written_host_list_is_read_again(some):
    assert parse_hosts(format_hosts(some), "written") == some


@pytest.mark.parametrize(("line", "says"), [
    ("-oProxyCommand=x", "host name '-oProxyCommand=x'"),
    ("a;b", "host name 'a;b'"),
    ("user@host", "host name 'user@host'"),
    ("h\u00f6st", "host name"),
    ("h1\x00", "host name"),
    ("a:b", "host a: slots = 'b': expected an integer"),
    ("h1:0", "slots = 0"),
    ("h1:2 slots=2", "slots is given twice"),
    ("h1 speed=1 speed=1", "speed is given twice"),
    ("h1 slots=0", "slots = 0"),
    ("h1 slots=1.5", "slots = '1.5'"),
    ("h1 slots=\u0664", "slots = "),
    ("h1 slots=9999999", "slots = 9999999"),
    (f"h1 slots={'9' * 5000}", "slots = "),
    ("h1 speed=0", "speed = 0.0"),
    ("h1 speed=nan", "speed = nan"),
    ("h1 speed=fast", "speed = 'fast'"),
    ("h1 h2", "'h2': expected slots=N or speed=X"),
    ("h1 max_slots=4", "'max_slots=4': expected slots=N or speed=X"),
    ("H0", "host H0 is in line 1 already"),
])  # fmt: skip
def test_mistakes_name_the_line(line, says):
    with pytest.raises(ValueError) as error:
        parse_hosts(f"h0\n\n{line}\nh9\n", "some/hosts.txt")
    assert str(error.value).startswith("some/hosts.txt:3: ")
    assert says in str(error.value)


@pytest.mark.parametrize("text", ["", "\n \n", "# nobody\n"])
def test_a_list_without_hosts_is_refused(text):
    with pytest.raises(ValueError, match="lab:1: no host in this list"):
        parse_hosts(text, "lab")


def test_files_are_read_or_refused_with_their_name(tmp_path):
    path = tmp_path / "hosts.txt"
    path.write_bytes(b"\xef\xbb\xbfh1:2\n")
    assert read_hosts(path) == [Host("h1", 2)]
    path.write_bytes(b"h1\nh\xff\n")
    with pytest.raises(ValueError, match=r"hosts\.txt:2: not UTF-8 text"):
        read_hosts(path)
    with pytest.raises(OSError, match=r"nosuch\.txt"):
        read_hosts(tmp_path / "nosuch.txt")


# --- what launch/run says of a host that can't be reached: the words that OpenSSH 9 and dash print, and what to do ---

CHANGED = ["@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @", "Host key verification failed."]


@pytest.mark.parametrize(("said", "do"), [
    (["Welcome to h2!", "root@h2: Permission denied (publickey)."], "ssh-copy-id h2"),
    (["Host key verification failed."], "`ssh h2` once by hand"),
    (CHANGED, "ssh-keygen -R h2"),
    (["ssh: Could not resolve hostname h2: Name or service not known"], "hostfile"),
    (["ssh: connect to host h2 port 22: Connection refused"], "no ssh server"),
    (["ssh: connect to host h2 port 22: Connection timed out"], "whether it is running"),
    (["ssh: connect to host h2 port 22: No route to host"], "whether it is running"),
    (["ssh: connect to host h2 port 22: Network is unreachable"], "whether it is running"),
    (["sh: 1: cd: can't cd to /home/me/project"], "The folder /home/me/project must exist there"),
    (["bash: line 1: cd: /home/me/project: No such file or directory"], "The folder /home/me/project must"),
    (["sh: 1: exec: /home/me/.venv/bin/python: not found"], "Python and lb_mpi must exist there"),
    (["python: can't open file '/home/me/lb_mpi/cli/run': [Errno 2] No such file or directory"], "Python and lb"),
])  # fmt: skip
def test_advice_follows_from_what_ssh_printed(said, do):
    assert do in advice(said, "h2", "/home/me/project")


def test_unknown_errors_get_no_advice():
    assert advice([], "h2", "/") == ""
    assert advice(["Segmentation fault"], "h2", "/") == ""
