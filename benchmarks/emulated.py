"""An emulated cluster (launch/cluster) for a benchmark, with 1 ms between its hosts."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.stealing import LIMIT_S
from tools.environment import ROOT, here

DELAY_MS = 1
Answer = Callable[[Sequence[str]], dict[str, Any]]


@contextlib.contextmanager
def hosts(speeds: str) -> Iterator[Answer]:
    """Hosts of these speeds, "0.8,0.4,0.2": what runs `python argv` with a rank on each, and reads its last line as JSON.

    RuntimeError where they can't be had, and when a program fails.
    """

    def cluster(*argv: str) -> str:
        words = [sys.executable, "launch/cluster", "--name", "benchmark", *argv]
        done = subprocess.run(words, capture_output=True, text=True, env=here().variables(), cwd=ROOT, timeout=LIMIT_S)
        if done.returncode:
            raise RuntimeError(f"launch/cluster {shlex.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def answer(argv: Sequence[str]) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(cluster("run", "--", sys.executable, *argv).splitlines()[-1])
        return told

    cluster("up", "--hosts", str(len(speeds.split(","))), "--speeds", speeds, "--delay-ms", str(DELAY_MS))
    try:
        yield answer
    finally:
        cluster("down")
