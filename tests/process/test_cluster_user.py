"""launch/cluster for an ordinary user: in a user namespace."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lb_mpi.cli.cluster.cluster import missing as missing_setting
from tests.process.emulation import HERE, NAME, ROOT, needs_mpiexec

# Root tries it as one who has no rights beyond its own files: user 1000 in a user namespace is that.
ORDINARY = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []


def missing() -> str:
    """Why an ordinary user can have no emulated cluster here."""
    if sys.platform != "linux":
        return "needs Linux"
    if said := missing_setting(Path("/proc/sys")):
        return said
    made = ["unshare", "--user", "--map-root-user", "--mount", "--net", "mount", "-t", "tmpfs", "tmpfs", "/run"]
    done = subprocess.run([*ORDINARY, *made], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"no user namespaces here: {done.stderr.strip()}"


needs_user_namespaces = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
CLUSTER = [sys.executable, str(ROOT / "launch" / "cluster"), "--name", NAME]


def as_a_user(script: str, *before: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script, in which "$@" is launch/cluster."""
    argv = [*(before or ORDINARY), "sh", "-c", script, "sh", *CLUSTER]
    return subprocess.run(argv, cwd=ROOT, env=HERE, capture_output=True, text=True, timeout=120)


@pytest.mark.one_mpi
@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns is 1"),
        ("user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=10000"),
        ("user/max_user_namespaces", "31000", ""),
        ("kernel/unprivileged_userns_clone", "1", ""),
    ],
)
def test_the_setting_that_forbids_namespaces_is_found(tmp_path: Path, setting: str, value: str, says: str) -> None:
    (tmp_path / setting).parent.mkdir()
    (tmp_path / setting).write_text(f"{value}\n")
    found = missing_setting(tmp_path)
    assert says in found
    assert bool(says) == bool(found)


@pytest.mark.one_mpi
@needs_user_namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to forbid it for itself")
def test_an_error_names_the_setting_that_forbids_namespaces() -> None:
    no_more = "echo 0 >/proc/sys/user/max_user_namespaces"  # of this namespace's own
    drop = "exec setpriv --inh-caps=-all --ambient-caps=-all"
    done = as_a_user(f'{no_more} && {drop} "$@" up --hosts 2', *ORDINARY, "--keep-caps")
    assert done.returncode == 1
    assert done.stderr.startswith("launch/cluster: error: needs root, or user namespaces, which are not allowed here: ")
    assert "sudo sysctl -w user.max_user_namespaces=10000" in done.stderr


HOSTS = """
import json, os, socket; from mpi4py import MPI; comm = MPI.COMM_WORLD; name = socket.gethostname()
told = comm.gather((name, socket.gethostbyname(name), comm.Split_type(MPI.COMM_TYPE_SHARED).size))
if told: print(json.dumps(told))
"""


@needs_user_namespaces
@needs_mpiexec
@pytest.mark.parametrize("delay_ms", [pytest.param("0", marks=pytest.mark.one_mpi), "1"])
def test_a_program_runs_on_its_hosts(tmp_path: Path, delay_ms: str) -> None:
    if delay_ms != "0" and not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("no /dev/net/tun")
    (tmp_path / "hosts.py").write_text(HOSTS)
    done = as_a_user(
        f'"$@" up --hosts 3 --delay-ms {delay_ms} && "$@" run -- python {tmp_path}/hosts.py; '
        f'code=$?; "$@" down; "$@" run -- true; pgrep -f \'[k]eeper {NAME}\'; exit $code'
    )
    assert done.returncode == 0, done.stderr
    up, told = done.stdout.splitlines()  # and no keeper
    assert "h1, h2, h3" in up
    assert json.loads(told) == [[f"h{k}", f"10.77.0.{k}", 1] for k in (1, 2, 3)]
    assert f"no cluster {NAME}: start one with" in done.stderr


@pytest.mark.one_mpi
@needs_user_namespaces
def test_one_cluster_of_a_name_and_nothing_left_of_one_that_fails() -> None:
    done = as_a_user(
        '"$@" up --hosts 65; "$@" run -- true; "$@" up --hosts 1 && "$@" up --hosts 1; '
        f'kill -9 $(pgrep -f \'[k]eeper {NAME}\'); "$@" down; "$@" run -- true'
    )
    said = done.stderr.splitlines()
    assert "--hosts 65: expected 1 to 64" in said[0]
    assert "no cluster" in said[1]
    assert "there is a cluster" in said[2]
    assert "no cluster" in said[3]


@pytest.mark.one_mpi
@needs_user_namespaces
@needs_mpiexec
def test_shared_memory_of_other_jobs_is_not_there() -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="mpich_shm_test") as other:  # no process can be seen to use it
        done = as_a_user('"$@" up --hosts 1 && "$@" run -- ls /dev/shm; "$@" down')
        assert Path(other.name).exists()
    assert "h1" in done.stdout, done.stderr
    assert Path(other.name).name not in done.stdout


@pytest.mark.one_mpi
@needs_user_namespaces
def test_a_signal_arrives_at_the_run(tmp_path: Path) -> None:
    program = "trap 'echo told >&2; exit 3' TERM; echo $$ >$0.pid; while :; do sleep 0.05; done"
    (tmp_path / "program").write_text(program)
    done = as_a_user(
        f'"$@" up --hosts 1 && {{ "$@" run -- sh {tmp_path}/program & }}; run=$!; '
        f'while kill -0 $run && [ ! -s {tmp_path}/program.pid ]; do sleep 0.05; done; '
        'kill $run; wait $run; echo $?; "$@" down'
    )
    assert done.stdout.splitlines()[-1] == "143", done.stderr
