"""Flows that level the ranks' times, computed step by step with messages to neighbours only.   (pure)

The ranks are the vertices of the quotient graph: two are neighbours if an edge of the distributed graph joins their parts.
Rank i has speed s_i, load w_i and time l_i = w_i / s_i.  Work flows as in Jin & Wang's diffusion for heterogeneous systems,
tau_ij (e_i - e_j) units from i to j in one step, with three changes:

- e = max(l - T, 0), with T just above the mean time: only what a rank has above T spills over, and others absorb it up to T.
  Levelling all times sends up to ten times more work through third ranks.
- tau_ij = min(s_i / (deg_i + 1), s_j / (deg_j + 1)).  It is at least the paper's min(s_i, s_j) / (max(deg_i, deg_j) + 1),
  satisfies the same condition sum_j tau_ij < s_i, and needs a single number of each neighbour.
- After PLAIN steps, momentum is added (second order: Muthukrishnan, Ghosh & Schultz 1998).  It increases (Nesterov 1983) up
  to the best value for ranks on a square mesh.  An imbalance of few ranks has gone by then; others have a long way to go.

Law: a flow over an edge is the same number at both ends, with opposite signs, to the bit.  Each step conserves the work.
Without momentum, no time falls below 0; with it, a rank may be asked for more than it has, and gives what it has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

TOLERANCE = 0.02  # imbalance at which the steps end
THRESHOLD = 0.75  # of the tolerance: T is so far above the mean
PLAIN = 16  # steps without momentum
MAX_STEPS = 5_000


def momentum(step: int, size: int) -> float:
    """Return the weight of the previous step's flow in a step, 0, 1, ..., on `size` ranks."""
    if step <= PLAIN:
        return 0.0
    rate = 1.0 - 1.0 / size  # of the slowest mode on a square mesh, roughly
    return min(2.0 / (1.0 + math.sqrt(1.0 - rate * rate)) - 1.0, (step - PLAIN) / (step - PLAIN + 3.0))


class Flow:
    """One rank's side of the levelling.

    flow = Flow(rank, neighbours, load, speed, mean, size=size)
    number = flow.start()                      # send it to all neighbours, receive theirs
    while ...:                                 # until the largest `residual` of all ranks `ends` the `Levelling`
        number = flow.step(received)           # send it to all neighbours, receive theirs

    Parameters
    ----------
    rank, neighbours : this rank, and those with which it shares an edge of the quotient graph, in any order.
    load : its work, >= 0, in any unit.
    speed : its speed, above 0, in units of work per second.
    mean : the mean time of all ranks, sum of loads / sum of speeds: the same bits on all ranks.
    size : the number of ranks.
    tolerance : the imbalance at which the caller ends the steps; it sets T.
    """

    def __init__(
        self, rank: int, neighbours: Sequence[int], load: float, speed: float, mean: float, *, size: int,
        tolerance: float = TOLERANCE,
    ) -> None:  # fmt: skip
        self.rank = rank
        self.flows = dict.fromkeys(sorted(neighbours), 0.0)  # work to send to each; < 0: to receive
        self.time = load / speed  # as if all the flow so far had been moved
        self.steps = 0
        self._speed, self._mean, self._size = speed, mean, size
        self._threshold = (1.0 + THRESHOLD * tolerance) * mean
        self._tau: dict[int, float] | None = None
        self._last = dict.fromkeys(self.flows, 0.0)  # the flow of the previous step

    @property
    def residual(self) -> float:
        """The part by which this rank's time exceeds the mean, after the flow so far: 0.02 means 2 %; at least 0."""
        return max(0.0, self.time / self._mean - 1.0) if self._mean > 0.0 else 0.0

    def start(self) -> float:
        """Return the number for the first message: the most work that may flow over an edge per second of difference."""
        return self._speed / (len(self.flows) + 1.0)

    def step(self, received: Mapping[int, float]) -> float:
        """Process the latest numbers of all neighbours, by rank; return the number for the next message."""
        if self._tau is None:
            self._tau = {other: min(self.start(), received[other]) for other in self.flows}
            return self._excess
        excess, weight, out = self._excess, momentum(self.steps, self._size), 0.0
        for other, tau in self._tau.items():
            flow = (1.0 + weight) * (tau * (excess - received[other])) + weight * self._last[other]
            self._last[other] = flow
            self.flows[other] += flow
            out += flow
        self.time -= out / self._speed
        self.steps += 1
        return self._excess

    @property
    def _excess(self) -> float:
        return max(self.time - self._threshold, 0.0)


class Levelling:
    """The rule when the steps end, the same on all ranks: it knows the largest residual of all ranks after some step.

    They end at the tolerance, or if that residual stays the same in more steps than there are ranks, which a change needs to
    reach them all: a rank beside which there are only stray pieces has no edge for its load in this call.
    """

    def __init__(self, size: int, tolerance: float = TOLERANCE) -> None:
        self._size, self._tolerance = size, tolerance
        self._last, self._since = math.nan, 0  # the residual, and the step since which it is the same

    def ends(self, residual: float, step: int) -> bool:
        """Return whether this step is the last one."""
        if residual != self._last:
            self._last, self._since = residual, step
        return residual <= self._tolerance or step >= MAX_STEPS or step - self._since > self._size


def level(flows: Sequence[Flow], tolerance: float = TOLERANCE) -> None:
    """Let all ranks exchange their numbers in one process, until the steps end."""
    numbers, levelling = [flow.start() for flow in flows], Levelling(len(flows), tolerance)
    while True:
        numbers = [flow.step({other: numbers[other] for other in flow.flows}) for flow in flows]
        if levelling.ends(max(flow.residual for flow in flows), flows[0].steps):
            return
