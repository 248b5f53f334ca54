"""Commands that tests start, send signals to, and never leave behind."""

import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools.environment import here

LIMIT_S = 120.0
needs_mpiexec = pytest.mark.skipif(not (Path(sys.prefix) / "bin" / "mpiexec").exists(), reason="no mpiexec here")


def on_ranks(n, *arguments, text="", env=None):
    """Run python with `arguments`, the last of which is then the file of a `text`; its exit code and all that it prints."""
    if text:
        Path(arguments[-1]).write_text(text)
    with tempfile.TemporaryFile() as output:
        code = here().mpiexec(n, [sys.executable, *arguments], LIMIT_S, env=env, stdout=output, stderr=output)
        output.seek(0)
        return code, output.read().decode(errors="replace")


def _heed():
    """What a script starts in the background, or nohup, inherits SIGINT or SIGHUP as ignored."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def started(argv, **options):
    """Start `argv`, which heeds Ctrl-C whoever runs the tests; killed at the end of the block if it has not ended."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    with subprocess.Popen(argv, preexec_fn=_heed, **options) as process:
        try:
            yield process
        finally:
            process.kill()
