"""What launch/run says of a host that can't be reached: the words that OpenSSH 9 and dash print, and what to do."""

import pytest

from lb_mpi.cli.run.watch import advice

CHANGED = ["@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @", "Host key verification failed."]


@pytest.mark.parametrize(
    ("said", "do"),
    [
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
    ],
)
def test_advice_follows_from_what_ssh_printed(said: list[str], do: str) -> None:
    assert do in advice(said, "h2", "/home/me/project")


def test_unknown_errors_get_no_advice() -> None:
    assert advice([], "h2", "/") == ""
    assert advice(["Segmentation fault"], "h2", "/") == ""
