"""The side of launch/run that is on each host: `python lb_mpi/launching host MARK`, in the folder that the program is to
run in.

    it hears    it says
                lb_mpi {...}         at the start: what the host has (lb_mpi.mpi.facts), or {"error": ...}
    ? K         lb_mpi state {...}   of each rank that has said something new, or is quiet
                lb_mpi alive K
    save                             (it lets ranks save and end that can, see lb_mpi.signs)
    stack RANK  lb_mpi stack {...}   its Python stack; if it's stopped, it goes on for that
    look RANK   lb_mpi stack {...}   the same, but a rank that is stopped stays so, and has none
                lb_mpi end {...}     a rank on this host has died, or failed by itself (rank.py tells it so)

When its input ends, or nothing has come for LOST_S, the program is over, or its host is cut off from the others: whatever
bears MARK on this host is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence

from lb_mpi.launching import limit, rank
from lb_mpi.launching.heard import End, Stack, State, told
from lb_mpi.launching.ranks import Rank

LOST_S = 20.0
QUIET_S = 2.0  # a rank is told of that has been quiet for so long


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


class Side:
    """Answers, and keeps what is known of the ranks of this host."""

    def __init__(self) -> None:
        self._ranks: dict[str, Rank] = {}
        self._said: dict[str, State] = {}
        self._text = b""

    def hear_rank(self, from_ranks: socket.socket) -> None:
        """Take in what a rank.py tells: that it starts, or how it has ended."""
        data, files, _, _ = socket.recv_fds(from_ranks, 4096, 1)
        told_of = json.loads(data)
        if files:
            self._ranks[told_of["rank"]] = Rank(told_of["rank"], told_of["pid"], files[0])
            return
        end = End(**told_of)
        if end.rank in self._ranks:
            self._tell_state(self._ranks[end.rank])
        say(f"end {told(end)}")

    def hear(self) -> bool:
        """Take in what the other side says; False when it's gone."""
        data = os.read(0, 4096)
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            word, _, about = line.decode().partition(" ")
            if word == "save":
                for one in self._ranks.values():
                    one.save()
            elif word in ("stack", "look"):
                text = self._ranks[about].stack(wake=word == "stack") if about in self._ranks else ""
                say(f"stack {told(Stack(about, text))}")
            else:
                for one in self._ranks.values():
                    self._tell_state(one)
                say(f"alive {about}")
        return bool(data)

    def _tell_state(self, one: Rank) -> None:
        state = one.look()
        quiet_s, idle_s, waits_s = (s if s >= QUIET_S else 0.0 for s in (state.quiet_s, state.idle_s, state.waits_s))
        if not (quiet_s or idle_s or waits_s):
            state = state._replace(stopped=False, phase="")
        state = state._replace(quiet_s=quiet_s, idle_s=idle_s, waits_s=waits_s)
        if state != self._said.get(state.rank):
            self._said[state.rank] = state
            say(f"state {told(state)}")


def serve(from_ranks: socket.socket) -> None:
    """Answer until the other side is gone."""
    side = Side()
    while ready := select.select([0, from_ranks.fileno()], [], [], LOST_S)[0]:
        if from_ranks.fileno() in ready:
            side.hear_rank(from_ranks)
        elif not side.hear():  # ranks first: what they had to say is said before the answer
            return


def main(arguments: Sequence[str], _prog: str) -> int:
    """Answer, then end what is left."""
    (mark,) = arguments
    with limit.interruptible(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as from_ranks:
        try:
            with contextlib.suppress(OSError):  # two names of one host: the other process listens
                from_ranks.bind(rank.address(mark))
            say(facts())
            serve(from_ranks)
        except BrokenPipeError:
            pass
        finally:
            limit.end(mark)
    return 0
