"""Commands that tests start, send signals to, and never leave behind."""

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def _heed() -> None:
    """What a script starts in the background, or nohup, inherits SIGINT or SIGHUP as ignored."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def started(argv: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start `argv`, which heeds Ctrl-C whoever runs the tests; killed at the end of the block if it has not ended."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    with subprocess.Popen(argv, preexec_fn=_heed, **options) as process:
        try:
            yield process
        finally:
            process.kill()
