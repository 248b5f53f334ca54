"""Does a start hang: a program has been started, and nothing comes of it?   (pure)

The law
-------
- A program owes nobody a sign.  One that never comes to lb_mpi may be silent, and wait, for as long as it likes.
- Before the program of a rank begins, rank.py has told that it is there.  Where ranks are missing, the last one came
  `limit_s` ago, and mpiexec goes on, those ranks hang.  Their programs have not begun.
- A program that is started again has said something in the start before, or it would not be: it has saved.  When no rank
  has said anything `limit_s` after the time at which the first one had before, ranks that have not computed for `limit_s`
  hang.  Those that wait for them in MPI_Init are not named: both MPIs use CPU time there.
- From the first word of any rank on nothing of this holds.  What a rank does in a call of lb_mpi is judged in ranks.py.

What is not seen: a first start in which each rank is there and silent, and ranks that all turn in MPI_Init for ever.
Neither can be told from a program that waits, or computes.
"""

from __future__ import annotations

from collections.abc import Sequence

from lb_mpi.launching.heard import State

START_S = 30.0  # a start is given so long at least: Python is read from a file server by all hosts at once


class Start:
    """What has been heard of a start of ranks on `hosts` (of each rank, its name).

    `hang_s`: after so long a rank hangs (0: never).  `before_s`: so long after its begin something was said in the start
    before; None when this is the first one.
    """

    def __init__(self, hosts: Sequence[str], hang_s: float, before_s: float | None = None) -> None:
        self._hosts, self._before_s = hosts, before_s
        self._limit_s = max(hang_s, START_S) if hang_s else float("inf")
        self._n_came, self._came_s = 0, 0.0
        self._word_s: float | None = None

    @property
    def n_ranks(self) -> int:
        """How many ranks there should be."""
        return len(self._hosts)

    @property
    def first_word_s(self) -> float | None:
        """Seconds after which something was said, here or, when nothing was, in the start before."""
        return self._before_s if self._word_s is None else self._word_s

    @property
    def lost_nothing(self) -> bool:
        """It's a restart in which nothing was said: all that was saved is still all that was done."""
        return self._before_s is not None and self._word_s is None

    def stuck(self, now: float, states: Sequence[State]) -> list[State]:
        """Return the ranks that hang, `now` seconds after the begin, when `states` are known; as they are to be told."""
        if len(states) != self._n_came:
            self._n_came, self._came_s = len(states), now
        if self._word_s is None and any(state.spoke for state in states):
            self._word_s = now
        came = {state.rank for state in states}
        numbers = [str(rank) for rank in range(len(self._hosts))]
        if self._word_s is not None or not came <= set(numbers):  # an mpiexec that numbers its ranks in another way
            return []
        missing_s = now - self._came_s
        if len(came) < len(numbers):
            missing = [(rank, host) for rank, host in zip(numbers, self._hosts, strict=True) if rank not in came]
            words = "its start, before its program"
            return [State(*one, missing_s, phase=words) for one in missing if missing_s >= self._limit_s]
        if self._before_s is None or now < self._before_s + self._limit_s:
            return []
        idle = [state for state in states if state.idle_s >= self._limit_s]
        return [state._replace(quiet_s=state.idle_s, phase="its start") for state in idle]
