"""Chen, Shi, Huang & Chen: its equations as they are printed, and its method beside the exact one and brute force."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from benchmarks.papers.page import Evidence, Item, Run, Section, claim, left_out, table
from lb_mpi.distributing.allocation import Allocation, allocate
from lb_mpi.graph import Floats, Ints

SOURCE = (
    'Chen, Shi, Huang, Chen, "Distribution of Random Workloads in Parallel and Distributed Computing", '
    "Computer Science, USTC. "
    "Here: `lb_mpi.allocate`, `python -m lb_mpi allocate`, and in `lb_mpi.distribute`."
)
INSTANCES, FULL = 300, 10_000
DRAWS = 400  # of the tasks of an instance
MOST_NODES, MOST_TASKS = 5, 15
WORSE = 1e-9  # makespans that are nearer to each other, relatively, are equal


class Instance(NamedTuple):
    """Drawn tasks and nodes."""

    tasks: int
    time: Floats  # (m,) seconds of a task
    chance: float  # e
    exchange: Floats  # (m,) D + q Q
    cap: Ints  # (m,)

    def solve(self, method: str) -> Allocation:
        """Allocate the tasks."""
        some: dict[str, Any] = {
            "edge_probability": self.chance,
            "exchange": self.exchange,
            "cap": self.cap,
            "method": method,
        }
        return allocate(self.tasks, self.time, **some)

    @property
    def talk(self) -> Floats:
        """(m,) e (D + q Q)."""
        return self.chance * self.exchange

    def needed(self, node: int, counts: Any) -> Floats:
        """T(x) of a node for each x of counts."""
        x = np.asarray(counts, dtype=float)
        return np.asarray(x * (self.time[node] + self.talk[node] * (self.tasks - x)))

    def brute_force(self) -> float:
        """The least makespan of all allocations in whole tasks."""
        best = np.full(self.tasks + 1, math.inf)  # with so many tasks on the nodes so far
        best[0] = 0.0
        for node in range(len(self.time)):
            following = np.full_like(best, math.inf)
            for x, seconds in enumerate(self.needed(node, range(min(int(self.cap[node]), self.tasks) + 1)).tolist()):
                following[x:] = np.minimum(following[x:], np.maximum(best[: len(best) - x], seconds))
            best = following
        return float(best[-1])


def instance(seed: int) -> Instance:
    """A drawn instance with a solution: up to five nodes and 15 tasks, all kinds of talk and caps."""
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(1, MOST_NODES + 1)), int(rng.integers(1, MOST_TASKS + 1))
    cap = np.where(rng.random(m) < 0.4, n, rng.integers(0, n + 2, m))
    cap[rng.integers(m)] += max(0, n - int(np.minimum(cap, n).sum()))
    return Instance(
        n, rng.uniform(0.01, 4.0, m), float(rng.choice([0.0, 1.0, rng.random()])), rng.uniform(0.0, 3.0, m), cap
    )


class Nodes(NamedTuple):
    """All nodes of all drawn instances that talk, and whose T is not flat."""

    slope: Floats  # b, without its sign: t + e n (D + q Q)
    bend: Floats  # a, without its sign: e (D + q Q)
    limit: Floats  # h
    tasks: Floats  # n
    time: Floats  # t

    @property
    def rising(self) -> Any:
        """Whether T rises on all of [0, h], by its values at the end."""
        before = self.limit * (1.0 - 1e-6)  # T is concave
        return self.limit * (self.slope - self.bend * self.limit) > before * (self.slope - self.bend * before)


def nodes(some: list[Instance]) -> Nodes:
    """Collect the nodes."""
    rows = [
        (one.time[k] + one.talk[k] * one.tasks, one.talk[k], min(one.cap[k], one.tasks), one.tasks, one.time[k])
        for one in some
        for k in range(len(one.time))
        if one.talk[k] > 0.0 and one.cap[k] > 0
    ]
    return Nodes(*np.array(rows, dtype=float).T)


def monte_carlo(some: list[Instance], draws: int = DRAWS) -> list[Item]:
    """Equations 1 to 4: the expected seconds of a node, beside the mean of drawn tasks, exchanges and waits.

    A node with x tasks computes each for an exponential time; each pair of a task here and one elsewhere exchanges with
    probability e, which costs an exponential time of mean D, and with probability q a wait of mean Q.
    """
    names = ["eq. 1: computing, t x", "the number of exchanges, e x (n - x)", "eq. 2: communication, D of each"]
    names += ["eq. 3: waiting, q Q of each", "eq. 4: T(x), the sum"]
    errors: list[list[float]] = [[] for _ in names]  # in standard errors
    exact = [True for _ in names]  # what isn't random is as expected
    for seed, one in enumerate(some):
        rng = np.random.default_rng(seed)
        node = int(rng.integers(len(one.time)))
        x, q, wait = int(rng.integers(one.tasks + 1)), float(rng.random()), float(one.exchange[node] * rng.random())
        pairs = x * (one.tasks - x)
        cost = float(one.exchange[node]) - q * wait  # D, of D + q Q
        computing = one.time[node] * rng.standard_gamma(x, draws) if x else np.zeros(draws)
        number = rng.binomial(pairs, one.chance, draws)
        talking = cost * rng.standard_gamma(number)
        waiting = wait * rng.standard_gamma(rng.binomial(number, q))
        mean, spread = one.chance * pairs, one.chance * (1.0 - one.chance) * pairs  # of the number
        waits = mean * q
        talked, waited = cost**2 * (mean + spread), wait**2 * waits * (2.0 - one.chance * q)
        computed = float(one.time[node]) ** 2 * x
        expected = (  # drawn, mean, variance
            (computing, one.time[node] * x, computed),
            (number, mean, spread),
            (talking, mean * cost, talked),
            (waiting, waits * wait, waited),
            (
                computing + talking + waiting,
                float(one.needed(node, x)),
                computed + talked + waited + 2.0 * cost * wait * q * spread,
            ),
        )
        for k, (drawn, wanted, variance) in enumerate(expected):
            error = abs(float(np.mean(drawn)) - wanted)
            if variance > 0.0:
                errors[k].append(error / math.sqrt(variance / draws))
            else:
                exact[k] &= error <= WORSE * (1.0 + wanted)
    items = []
    for k, (name, found) in enumerate(zip(names, errors, strict=True)):
        square = float(np.mean(np.square(found)))  # about 1 in standard errors: less would say that nothing was drawn
        text = f"mean square error {square:.2f}, in standard errors, of {len(found)} instances"
        near = abs(square - 1.0) < 4.0 * math.sqrt(2.0 / len(found))
        items.append(claim(name, "the expected value", text, exact[k] and near))
    return items


def jumps(one: Instance) -> bool:
    """Tell if S(y) never falls, and jumps below S = n at most at the two smallest y_i of R2."""
    slope, bend = one.time + one.talk * one.tasks, one.talk
    limit = np.minimum(one.cap, one.tasks).astype(float)
    y_i = limit * (slope - bend * limit)
    past = limit * 2.0 * bend > slope

    def total(y: float) -> float:  # S(y), of G_i as the paper has it
        inside = slope**2 - 4.0 * bend * y
        root = 2.0 * y / (slope + np.sqrt(np.maximum(inside, 0.0)))
        return float(np.where(y > y_i, limit, np.minimum(root, limit)).sum())

    levels = np.linspace(0.0, 1.1 * float(y_i.max()) + 1e-9, 200)
    levels = np.sort(np.concatenate([levels, y_i, y_i * (1.0 + 1e-9)]))
    values = np.array([total(float(y)) for y in levels])
    allowed = np.sort(y_i[past])[:2]
    for y in y_i:
        before, after = total(float(y)), total(float(y) * (1.0 + 1e-9) + 1e-300)
        jump = after - before > 1e-3 and before < one.tasks * (1.0 - WORSE)
        if jump and not (np.abs(allowed - y) <= WORSE * y).any():
            return False
    return bool((np.diff(values) >= -1e-9 * (1.0 + values[1:])).all())


def section(run: Run) -> Section:
    """The part of the page about this paper."""
    conclusion = (
        "The model is what it says, and S(y) jumps where it says. The five steps are right for real numbers, but rounding "
        "afterwards misses the best allocation in whole tasks now and then, which the paper doesn't say."
    )
    result = Section("Allocation: how many tasks for each node", SOURCE, conclusion)
    count = FULL if run.full else INSTANCES
    run.say(f"allocation: {count:,} drawn instances, against brute force")
    drawn = [instance(seed) for seed in range(count)]
    result.show(
        "Equations",
        equations(nodes(drawn[:INSTANCES])),
        "The paper prints no table. Its equations, at the nodes of drawn instances (at most "
        f"{MOST_NODES} nodes and {MOST_TASKS} tasks):",
    )
    several = sum(jumps(one) for one in drawn)
    where = "at most at the two smallest y_i of R2"
    jumping = claim("S(y) never falls, and jumps", where, f"so in {several} of {count} instances", several == count)
    result.show(
        "Equations 1 to 4, by Monte Carlo, and S(y)",
        [*monte_carlo(drawn[:INSTANCES]), jumping],
        f"Tasks, exchanges and waits are drawn {DRAWS} times for each instance, with the node, its tasks, q and Q.",
    )
    least = np.array([one.brute_force() for one in drawn])
    found = {method: np.array([one.solve(method).makespan for one in drawn]) for method in ("paper", "exact")}
    ratios = {method: values / least for method, values in found.items()}
    rows = [[f"`{method}`", int((values > 1.0 + WORSE).sum()), f"{values.max():.3f}"] for method, values in ratios.items()]
    result.lines += [
        "",
        f"The method in whole tasks, of {count:,} drawn instances against brute force (`paper`: its method, step by step):",
        *table(["method", "instances in which the best is missed", "greatest makespan / the best"], rows),
    ]
    worst = int(ratios["paper"].argmax())
    result.lines += _example(drawn[worst], worst)
    result.lines += left_out("allocation")
    return result


def equations(some: Nodes) -> list[Item]:
    """The printed equations, and what holds."""
    rising, early = some.rising, some.limit <= some.slope / (2.0 * some.bend)
    text = (
        f"T rises on all of [0, h] in {int((rising & early).sum())} of {int(early.sum())} nodes with h <= b/(2a), "
        f"and in {int((rising & ~early).sum())} of the {int((~early).sum())} others"
    )
    cases = Evidence(text, bool((rising == early).all()))
    half = 0.5 * np.minimum(some.limit, some.slope / (2.0 * some.bend))  # before the summit
    slopes = some.slope - 2.0 * some.bend * half
    grown = 1.01 * half * (some.slope - 1.01 * some.bend * half) > half * (some.slope - some.bend * half)
    text = f"before its peak T grows in {int(grown.sum())} of {len(grown)} nodes, with T' > 0 in {int((slopes > 0).sum())}"
    derivative = Evidence(text, bool(grown.all() and (slopes > 0).all()))
    height = 0.999 * np.where(early, some.limit * (some.slope - some.bend * some.limit), some.slope**2 / (4.0 * some.bend))
    root = (some.slope - np.sqrt(some.slope**2 - 4.0 * some.bend * height)) / (2.0 * some.bend)
    error = float(np.abs(root * (some.slope - some.bend * root) / height - 1.0).max())
    return [
        claim("T rises on all of [0, h]", "h >= b/(2a), in one place", "h <= b/(2a)", False, error=cases),
        claim("T is rising where", "T' < 0, in one place", "T' > 0", False, error=derivative),
        _integer_adjust(),
        claim("G(y), the smaller root", "(b + sqrt(b^2 + 4 a y)) / (2 a)", f"T(G(y)) = y to {error:.0e}", error < 1e-8),
    ]


def _integer_adjust() -> Item:
    """Whether shares are rounded, or cut to their integer parts, before the missing tasks are handed out."""
    rng = np.random.default_rng(0)
    tasks = rng.integers(1, MOST_TASKS + 1, INSTANCES)
    shares = [n * rng.dirichlet(np.ones(MOST_NODES)) for n in tasks]
    over = sum(bool(np.round(one).sum() > n) for one, n in zip(shares, tasks, strict=True))
    cut = sum(bool(np.floor(one + WORSE).sum() > n) for one, n in zip(shares, tasks, strict=True))
    text = (
        f"rounded, the shares of n tasks add up to more than n in {over} of {len(shares)} draws; "
        f"their integer parts, as the text has it, in {cut}"
    )
    return claim("integer_adjust", "round", "the integer part", False, error=Evidence(text, cut == 0 < over))


def _example(worst: Instance, seed: int) -> list[str]:
    """The instance in which the paper's method is furthest from the best."""
    paper, exact = worst.solve("paper"), worst.solve("exact")
    rows = [
        [k, f"{worst.time[k]:.3f}", f"{worst.talk[k]:.3f}", worst.cap[k], paper.counts[k], exact.counts[k]]
        for k in range(len(worst.time))
    ]
    rows.append(["makespan", "", "", "", f"{paper.makespan:.3f}", f"{exact.makespan:.3f}"])
    title = f"The instance that it misses by most (seed {seed}, {worst.tasks} tasks):"
    return ["", title, *table(["node", "t, s", "e (D + q Q), s", "cap", "the paper's method", "exact"], rows)]
