"""The allocation of n communicating tasks: how many each of m unequal nodes should run.   (pure)

A node with x of the n tasks is expected to need

    T_i(x) = t_i x + k_i x (n - x),    k_i = e (D_i + q Q)                       computing + communicating and waiting

seconds: t_i for a task; and for each pair of tasks, one here and one elsewhere, with probability e an exchange of D_i,
which with probability q causes a wait of Q.  T_i is concave.  It rises to its peak at (t_i/k_i + n)/2, beyond n/2, and
then falls, because tasks on the same node need no network.  The result is whole numbers 0 <= x_i <= h_i that sum to n,
with the least max_i T_i(x_i); h_i is the smaller of n and the node's capacity.

Let g_i(y) be the most tasks up to the peak with T_i <= y (h_i if the peak is not above y).  At most one node needs to
be past its peak, and then it is best filled to h_u: its own time falls, and the others have less to do.  So a deadline
y can be met exactly if

    G = sum_i g_i(y) >= n,    or some node u has T_u(h_u) <= y and h_u + G - g_u(y) >= n.

Bisection over all floating-point numbers finds the earliest such deadline in 63 probes of O(m).

Chen, Shi, Huang, Chen, "Distribution of Random Workloads in Parallel and Distributed Computing".  Their method solves
the problem for real numbers and rounds; it is method="paper".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi import checks
from lb_mpi.graph import Floats, Ints
from lb_mpi.metrics import as_numbers, check_loads, check_speeds, first_true, usual_arithmetic

METHODS = ("exact", "paper")
SHORTEST = 1e-200  # seconds of a task: squares and quotients of such times do not underflow
MAX_TASKS = 1 << 52  # twice as many are still counted exactly in floating point


@dataclass(frozen=True, eq=False)
class Allocation:
    """The number of tasks of each of m nodes, as `allocate` returns it."""

    counts: Ints  # (m,) number of tasks of each node
    makespan: float  # seconds until the last node is done: max_i T_i(counts_i)
    lower_bound: float  # seconds of the best allocation in whole tasks; "exact" attains it, "paper" not always
    method: str  # "exact" or "paper"


@usual_arithmetic
def allocate(
    tasks: int,
    time: ArrayLike,
    *,
    edge_probability: float = 0.0,
    exchange: ArrayLike = 0.0,
    wait_probability: ArrayLike = 0.0,
    wait: ArrayLike = 0.0,
    cap: ArrayLike | None = None,
    method: str = "exact",
) -> Allocation:
    """Compute how many of the `tasks` each of m nodes should run, so that the last node ends as early as possible.

    Parameters
    ----------
    tasks : number of tasks, >= 0.
    time : (m,) expected seconds of one task on each node, above 0.
    edge_probability : probability, 0 to 1, that two tasks exchange data; in a graph of n tasks and E edges
        2E / (n (n - 1)).
    exchange : (m,) expected seconds, >= 0, that one exchange with a task on another node costs the node.
    wait_probability : (m,) probability, 0 to 1, that such an exchange makes the node wait.
    wait : (m,) expected seconds, >= 0, of such a wait.
    cap : (m,) largest number of tasks that each node can hold: whole numbers, or infinity for no limit; None: no
        limits.
    method : "exact" gives the smallest makespan of all allocations in whole tasks, in O(m) numpy work and memory;
        "paper", the method of Chen et al., is never better.

    A single number in place of an (m,) array is the same for all nodes.  The arrays give the number of nodes; if there
    is no array, there is one node.

    Raises ValueError, which names the node, for numbers out of range, for caps that add up to less than the number of
    tasks, and for times that exceed the range of floating point.

    Examples
    --------
        >>> found = lb_mpi.allocate(100, time=[1, 2, 4])
        >>> found.counts, found.makespan
        (array([58, 28, 14]), 58.0)
    """
    checks.choice("method", method, METHODS)
    nodes = _check(tasks, time, edge_probability, exchange, wait_probability, wait, cap)
    best = _exact(nodes)
    counts = best if method == "exact" else _paper(nodes)
    makespan, least = (float(nodes.needed(x).max()) for x in (counts, best))
    return Allocation(counts.astype(np.int64), makespan, min(makespan, least), method)


class _Nodes:
    """The nodes of the model; counts of tasks are whole numbers stored as floats."""

    def __init__(self, n: float, time: Floats, talk: Floats, limit: Floats) -> None:
        self.n, self.time, self.talk, self.limit = n, time, talk, limit
        self.slope = time + talk * n  # T_i(x) = slope_i x - talk_i x^2
        self.bend = 4.0 * (talk / self.slope)
        with np.errstate(divide="ignore", over="ignore"):
            summit = 0.5 * self.slope / talk  # infinite without communication
        self.peak = np.minimum(limit, np.floor(summit + 0.5))  # where T_i is largest
        self.past = limit > summit  # the paper's R2: nodes that can be filled beyond their peaks
        self.highest, self.full = self.needed(self.peak), self.needed(limit)

    def needed(self, counts: Floats) -> Floats:
        """T_i(counts_i), seconds."""
        return counts * (self.time + self.talk * (self.n - counts))

    def root(self, deadline: float) -> Floats:
        """The smaller root of T_i(x) = deadline; the peak if T_i stays below it."""
        height = deadline / self.slope
        return 2.0 * height / (1.0 + np.sqrt(np.maximum(0.0, 1.0 - self.bend * height)))

    def most(self, deadline: float) -> Floats:
        """g_i(deadline).  The root has rounding errors, so its neighbours are also tested."""
        low = np.minimum(np.floor(self.root(deadline)), self.peak)
        high = np.minimum(low + 1.0, self.peak)
        low -= self.needed(low) > deadline
        most: Floats = np.where(self.needed(high) <= deadline, high, low)
        return np.where(self.highest <= deadline, self.limit, most)

    def without(self, node: int) -> _Nodes:
        """The same nodes, but this one cannot hold a task."""
        limit = self.limit.copy()
        limit[node] = 0.0
        return _Nodes(self.n, self.time, self.talk, limit)


def _exact(nodes: _Nodes) -> Floats:
    """(m,) counts of least makespan."""
    candidates = np.flatnonzero(nodes.past)

    def gains(most: Floats, deadline: float) -> Floats:
        """The tasks beyond `most` that each candidate could do if it were filled."""
        return np.where(nodes.full[candidates] <= deadline, nodes.limit[candidates] - most[candidates], 0.0)

    def holds(deadline: float) -> bool:
        most = nodes.most(deadline)
        missing = nodes.n - most.sum()
        return bool(missing <= 0.0 or (gains(most, deadline) >= missing).any())

    deadline = _lowest(holds, float(nodes.highest.max()))
    most = nodes.most(deadline)
    if most.sum() >= nodes.n:
        return _deal(nodes, nodes.n, deadline)
    one = int(candidates[gains(most, deadline).argmax()])
    rest, others = nodes.n - nodes.limit[one], nodes.without(one)
    counts = _deal(others, rest, _lowest(lambda y: bool(others.most(y).sum() >= rest), deadline))
    counts[one] = nodes.limit[one]
    return counts


def _deal(nodes: _Nodes, tasks: float, deadline: float, least: Floats | None = None) -> Floats:
    """(m,) counts that sum to `tasks`; above `least`, none exceeds `deadline`, the lowest that allows it.

    Each node gets what is possible just below the deadline, and the first nodes get the rest.
    """
    counts, most = nodes.most(float(np.nextafter(deadline, 0.0))), nodes.most(deadline)
    if least is not None:
        counts, most = np.maximum(counts, least), np.maximum(most, least)
    room = np.maximum(most - counts, 0.0)
    before = np.cumsum(room) - room
    dealt: Floats = counts + np.clip(tasks - counts.sum() - before, 0.0, room)
    return dealt


def _paper(nodes: _Nodes) -> Floats:
    """(m,) counts by the method of Chen et al.: the best real numbers, rounded down.

    The remaining tasks go to the nodes that finish them first.  If n lies within a jump of S(y), the node of the jump
    is filled, and the others share the rest at the lowest deadline.  Contrary to the paper, that is above the jump if
    two nodes can be past their peaks and the rest fits neither.
    """

    def rising(nodes: _Nodes, deadline: float) -> Floats:
        roots: Floats = np.where(nodes.highest <= deadline, nodes.limit, np.minimum(nodes.root(deadline), nodes.limit))
        return roots

    def shares(deadline: float) -> Floats:  # the paper's G_i
        roots: Floats = np.where(nodes.past & (nodes.full < deadline), nodes.limit, rising(nodes, deadline))
        return roots

    top = float(nodes.highest.max())
    below = float(np.nextafter(_lowest(lambda y: bool(shares(y).sum() >= nodes.n), top), 0.0))
    jumping = np.flatnonzero(nodes.past & (nodes.full == below))
    if len(jumping):
        one = int(jumping[0])
        rest, others = nodes.n - nodes.limit[one], nodes.without(one)
        deadline = _lowest(lambda y: bool(rising(others, y).sum() >= rest), top)
        counts = np.floor(rising(others, float(np.nextafter(deadline, 0.0))))
        counts[one] = nodes.limit[one]
    else:
        counts = np.floor(shares(below))
    # Each remaining task goes where it is done first; T_i rises there, so this is sharing up to a deadline.
    deadline = _lowest(lambda y: bool(np.maximum(nodes.most(y), counts).sum() >= nodes.n), top)
    return _deal(nodes, nodes.n, deadline, counts)


def _lowest(holds: Callable[[float], bool], top: float) -> float:
    """The smallest float in 0..top for which `holds`; it holds for `top`, and above any number for which it holds."""
    if holds(0.0):
        return 0.0

    def of_bits(bits: int) -> float:  # for numbers >= 0, bits and numbers have the same order
        return float(np.int64(bits).view(np.float64))

    low, high = 0, int(np.float64(top).view(np.int64))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(of_bits(middle)) else (middle, high)
    return of_bits(high)


def _check(
    tasks: int,
    time: ArrayLike,
    edge_probability: float,
    exchange: ArrayLike,
    wait_probability: ArrayLike,
    wait: ArrayLike,
    cap: ArrayLike | None,
) -> _Nodes:
    n = checks.integer("tasks", tasks, 0, MAX_TASKS)
    chance = checks.number("edge_probability", edge_probability, least=0.0, most=1.0)
    limits = np.inf if cap is None else cap
    given = {"time": time, "exchange": exchange, "wait_probability": wait_probability, "wait": wait}
    m = next((n_given for values in (*given.values(), limits) if (n_given := _length(values)) is not None), 1)
    nodes = {name: _per_node(name, values, m) for name, values in given.items()}
    nodes["cap"] = _caps(limits, m, float(n))
    if (node := first_true(nodes["wait_probability"] > 1.0)) is not None:
        raise ValueError(f"wait_probability[{node}] = {nodes['wait_probability'][node]}: expected 0..1")
    room = nodes["cap"].sum()
    if room < n:
        raise ValueError(f"cap adds up to {room:.0f}: expected at least tasks = {n}")
    with np.errstate(over="ignore"):
        talk = chance * (nodes["exchange"] + nodes["wait_probability"] * nodes["wait"])
        beyond = ~np.isfinite(nodes["cap"] * (nodes["time"] + talk * n))
    if (node := first_true(beyond)) is not None:
        raise ValueError(f"time of all tasks on node {node}: exceeds the floating-point range, expected less per task")
    if (node := first_true(nodes["time"] < SHORTEST)) is not None:
        raise ValueError(f"time[{node}] = {nodes['time'][node]}: expected at least {SHORTEST} s")
    return _Nodes(float(n), nodes["time"], talk, nodes["cap"])


def _length(values: Any) -> int | None:
    """The number of values; None: one for all nodes."""
    try:
        return len(values)
    except TypeError:
        return None


def _per_node(name: str, values: ArrayLike, m: int) -> Floats:
    check = check_speeds if name == "time" else check_loads
    return np.repeat(check(np.atleast_1d(values), name=name), m) if _length(values) is None else check(values, m, name=name)


def _caps(cap: ArrayLike, m: int, n: float) -> Floats:
    """(m,) whole numbers of at most n."""
    wanted = cap if _length(cap) is None else as_numbers("cap", cap)
    wanted = np.asarray(wanted)
    if wanted.dtype.kind == "f":
        broken = np.atleast_1d(np.isfinite(wanted) & (wanted != np.floor(wanted)))
        if (node := first_true(broken)) is not None:
            value = np.atleast_1d(wanted)[node]
            raise ValueError(f"cap[{node}] = {value}: expected a whole number, or infinity for no limit")
        wanted = np.where(wanted > n, n, wanted)
    return np.minimum(_per_node("cap", wanted, m), n)
