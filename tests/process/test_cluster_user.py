"""launch/cluster for an ordinary user: in a shell of unshare."""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lb_mpi.cli.cluster.cluster import SHELL
from tests.process.emulation import HERE, NAME, PING, ROOT, needs_mpiexec, seen

# Root tries it as one who has no rights beyond its own files: user 1000 in a user namespace is that.
ORDINARY = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
OPENED = [*ORDINARY, *shlex.split(SHELL.replace("exec bash", 'exec "$@"')), "sh"]


def missing():
    """Why an ordinary user can have no emulated cluster here."""
    if sys.platform != "linux":
        return "needs Linux"
    done = subprocess.run([*OPENED, "true"], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"no user namespaces here: {done.stderr.strip()}"


needs_user_namespaces = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
CLUSTER = [sys.executable, str(ROOT / "launch" / "cluster"), "--name", NAME]


def in_shell(script, shell=OPENED):
    """Run a shell script, in which "$@" is launch/cluster."""
    argv = [*shell, "sh", "-c", script, "sh", *CLUSTER]
    return subprocess.run(argv, cwd=ROOT, env=HERE, capture_output=True, text=True, timeout=120)


@needs_user_namespaces
@needs_mpiexec
@pytest.mark.parametrize("delay_ms", [pytest.param("0", marks=pytest.mark.one_mpi), "1"])
def test_a_program_runs_on_its_hosts(tmp_path, delay_ms):
    if delay_ms != "0" and not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("no /dev/net/tun")
    (tmp_path / "hosts.py").write_text(PING)
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="mpich_shm_test") as other:  # no process can be seen to use it
        done = in_shell(
            f'"$@" up --hosts 3 --delay-ms {delay_ms} && "$@" run -- python {tmp_path}/hosts.py; '
            'code=$?; ls /dev/shm; "$@" up --hosts 1; "$@" down; "$@" run -- true; exit $code'
        )
        assert Path(other.name).exists()
    assert done.returncode == 0, done.stderr
    up, found, *shared = done.stdout.splitlines()
    assert "h1, h2, h3" in up
    assert seen(found) >= 2 * float(delay_ms) * 1e-3
    assert Path(other.name).name not in shared
    assert f"there is a cluster {NAME} already" in done.stderr
    assert f"no cluster {NAME}: start one with" in done.stderr


@pytest.mark.one_mpi
@needs_user_namespaces
def test_without_such_a_shell_the_error_has_it():
    done = in_shell('"$@" up --hosts 2', ORDINARY)
    assert done.returncode == 1
    assert done.stderr == f"launch/cluster: error: needs root, or a shell in which you are: {SHELL}\n"
