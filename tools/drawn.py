"""Run all tests that draw examples (hypothesis) with examples drawn at random, and large explorations, again and again.

    python -m tools.drawn [--hours 1] [FILE ...]

In all other runs the examples are the same each time, so that no drawn one decides about a change.  Ends at the first
failure, with pytest's output and the words that reproduce it, and exit code 1.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
DRAWN = re.compile(r"^from hypothesis import|marks=\[?large", re.MULTILINE)


def main() -> int:
    """Run them until the time is up."""
    parser = argparse.ArgumentParser("python -m tools.drawn", description=__doc__.partition("\n")[0])
    parser.add_argument("--hours", type=float, default=1.0, help="stop after so many hours (%(default)s)")
    parser.add_argument("files", nargs="*", type=Path, help="only these; otherwise all that draw, or have large cases")
    args = parser.parse_args()
    files = args.files or [path for path in sorted(ROOT.glob("tests/*/test_*.py")) if DRAWN.search(path.read_text())]
    until = time.monotonic() + 3600.0 * args.hours
    for number, file in enumerate(itertools.cycle(files)):
        if time.monotonic() > until:
            print(f"nothing found: {number // len(files)} whole runs and {number % len(files)} of {len(files)} files")
            break
        # A new seed for each process, where hypothesis is not given one.
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(file)]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | {"LB_MPI_DRAWN": "1"}, capture_output=True, text=True)
        if done.returncode:
            print(done.stdout + done.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
