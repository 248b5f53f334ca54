"""The side of launch/run that is on each host: `python lb_mpi/launching/host.py MARK`, in the folder that the
program is to run in.

    it says                          after
    lb_mpi {...}                     the start: what the host has (lb_mpi.mpi.facts), or {"error": ...}
    lb_mpi alive                     each line of its input

When its input ends, or nothing has come for LOST_S, the program is over, or its host is cut off from the others: whatever
bears MARK on this host is ended.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))

from lb_mpi.launching import limit

LOST_S = 20.0


def facts() -> str:
    """Return a JSON object in one line."""
    argv = [sys.executable, "-m", "lb_mpi.mpi.facts"]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode == 0 and done.stdout.startswith("{"):
        return done.stdout.splitlines()[-1]
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return json.dumps({"error": f"{sys.executable}: {said[-1]}"})


def say(text: str) -> None:
    """Tell the other side; what others print here may stand between."""
    os.write(1, f"lb_mpi {text}\n".encode())


def main(mark: str) -> None:
    """Answer until the other side is gone."""
    with limit.interruptible():
        try:
            say(facts())
            while select.select([0], [], [], LOST_S)[0]:
                lines = os.read(0, 4096).count(b"\n")
                if not lines:
                    break
                for _ in range(lines):
                    say("alive")
        except BrokenPipeError:
            pass
        finally:
            limit.end(mark)


if __name__ == "__main__":
    main(sys.argv[1])
