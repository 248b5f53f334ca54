"""The papers' methods once more, literally and slowly, as the oracle for those of lb_mpi.

Many instances that the papers drew are not printed, so their numbers can't be compared.  But the equations are printed:
here they are implemented a second time, on dense arrays and plain lists, and lb_mpi must give the same numbers on drawn
instances.  The first half of this file uses nothing of lb_mpi, so that a fault there can't hide itself; the second half has
the lines of the page, each of which is "same" or "differs".  `tests/unit/test_papers_second.py` breaks lb_mpi in many ways,
one at a time, and each is noticed.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import permutations, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apps import lockstep
from apps.maze_search import MazeSearch, random_maze
from benchmarks import convergence
from benchmarks.papers import allocation
from benchmarks.papers.page import OURS, Item, Run, Section, claim
from lb_mpi import graph as graphs
from lb_mpi.actor import Story
from lb_mpi.arranging import arrange as arranging
from lb_mpi.balancing import neighbours
from lb_mpi.balancing.decider import Planned
from lb_mpi.balancing.deciding import Trigger
from lb_mpi.balancing.knowledge import Knowledge
from lb_mpi.balancing.neighbours import NEAR as TO_NEIGHBOURS
from lb_mpi.cli.simulate.rows import plan_together
from lb_mpi.diffusion import diffusion
from lb_mpi.partitioning import quality, spectral
from lb_mpi.searching import drafting
from lb_mpi.searching.drafting import State
from lb_mpi.virtual import Network

Floats = NDArray[np.float64]
Edges = Sequence[tuple[int, int]]
MOST = 2000  # steps of a scheme, which none needs
NEAR = 1e-8  # relatively, numbers of two implementations are equal
SHORTEST_S, LONGEST_S = 1e-3, 8e-3  # pauses between drafts
NETWORK = Network((1e-7, 1e-7))

# --- Diffusion: Jin & Wang; sos of Muthukrishnan et al., chebyshev of Golub & Varga, cg of Hu & Blake -----------------


class Levelled(NamedTuple):
    """What a scheme did until the imbalance was within the tolerance."""

    steps: int
    flow: Floats  # (E,) from the first end of each edge to the second


def incidence(n: int, edges: Edges) -> Floats:
    """(n, E) A: +1 at the tail of an edge, -1 at its head."""
    matrix = np.zeros((n, len(edges)))
    for k, (tail, head) in enumerate(edges):
        matrix[tail, k], matrix[head, k] = 1.0, -1.0
    return matrix


def conductances(edges: Edges, speeds: Floats, rule: str) -> Floats:
    """(E,) tau of the paper, or 1 for "uniform"."""
    if rule == "uniform":
        return np.ones(len(edges))
    degree = [sum(k in edge for edge in edges) for k in range(len(speeds))]
    tau = [min(speeds[i], speeds[j]) * min(1 / (degree[i] + 1), 1 / (degree[j] + 1)) for i, j in edges]
    return np.array(tau)


def both_ends(edges: Edges, speeds: Floats, tau: Floats) -> tuple[float, float]:
    """lambda_2 and lambda_P of S^-1 A W A^T, by the eigenvalues of the matrix as it is, which isn't symmetric."""
    a = incidence(len(speeds), edges)
    values = np.sort(np.linalg.eigvals(np.diag(1.0 / speeds) @ a @ np.diag(tau) @ a.T).real)
    return float(values[1]), float(values[-1])


def level(
    edges: Edges, speeds: Floats, times: Floats, scheme: str, rule: str, tolerance: float, most: int = MOST
) -> Levelled:
    """Level the times by a scheme, step by step; the flow is that by which loads have really been moved."""
    a, tau = incidence(len(speeds), edges), conductances(edges, speeds, rule)
    mean = float(speeds @ times / speeds.sum())
    if scheme == "direct":
        weighted = a * np.sqrt(tau)
        flow = np.sqrt(tau) * (np.linalg.pinv(weighted) @ (speeds * (times - mean)))
        return Levelled(1, flow)
    flows = _gradients(a, tau, speeds, times, mean) if scheme == "cg" else _flows(a, tau, speeds, times, scheme, rule)
    moved, steps, now = np.zeros(len(edges)), 0, times
    while (now.max() / mean - 1.0 > tolerance or now.min() < 0.0) and steps < most:
        moved = moved + next(flows)
        now = times - a @ moved / speeds
        steps += 1
    return Levelled(steps, moved)


def _flows(a: Floats, tau: Floats, speeds: Floats, times: Floats, scheme: str, rule: str) -> Iterator[Floats]:
    """What flows over the edges in each step of fos, sos and chebyshev."""
    matrix = np.diag(1.0 / speeds) @ a @ np.diag(tau) @ a.T
    values = np.sort(np.linalg.eigvals(matrix).real)
    low, high = float(values[1]), float(values[-1])
    scale = 1.0 if scheme == "fos" and rule == "paper" else 2.0 / (low + high)
    gamma = (high - low) / (high + low)  # the second largest eigenvalue of the scaled M
    now, last, k = times, np.zeros(len(tau)), 0
    while True:
        if scheme == "fos" or k == 0:
            omega = 1.0
        elif scheme == "sos":
            omega = 2.0 / (1.0 + math.sqrt(1.0 - gamma**2))
        else:  # omega of Chebyshev's polynomials: 2 T_k(1/gamma) / (gamma T_k+1(1/gamma))
            angle = math.acosh(1.0 / gamma)
            omega = 2.0 * math.cosh(k * angle) / (gamma * math.cosh((k + 1) * angle))
        last = omega * scale * tau * (a.T @ now) + (omega - 1.0) * last
        now = now - a @ last / speeds
        k += 1
        yield last


def _gradients(a: Floats, tau: Floats, speeds: Floats, times: Floats, mean: float) -> Iterator[Floats]:
    """What each step of conjugate gradients on A W A^T d = w - s lbar adds to the flow, as in a textbook."""
    matrix = a @ np.diag(tau) @ a.T
    residual = speeds * (times - mean)
    direction = residual
    while True:
        alpha = (residual @ residual) / (direction @ matrix @ direction)
        yield tau * (a.T @ (alpha * direction))
        after = residual - alpha * matrix @ direction
        direction = after + (after @ after) / (residual @ residual) * direction
        residual = after


class Exchanged(NamedTuple):
    """The messages of ranks that know only their neighbours, and their loads in the end."""

    times: list[Floats]  # (P,) sent in each step
    sums: Floats  # (P,) d, sent at the end
    loads: Floats  # (P,) after the transfer


def by_neighbours(edges: Edges, speeds: Floats, times: Floats, *, second: bool, tolerance: float) -> Exchanged:
    """Section 4 of Jin & Wang, rank by rank; with the optimal second order of equal speeds, if asked for.

    Each log2 P steps all ranks ask for the imbalance, and log2 P steps later they know it.
    """
    n, tau = len(speeds), conductances(edges, speeds, "paper")
    near: list[list[tuple[int, float]]] = [[] for _ in range(n)]
    for (i, j), weight in zip(edges, tau.tolist(), strict=True):
        near[i].append((j, weight))
        near[j].append((i, weight))
    omega = 1.0
    if second:
        a = incidence(n, edges)
        matrix = np.eye(n) - a @ np.diag(conductances(edges, np.ones(n), "paper")) @ a.T
        omega = 2.0 / (1.0 + math.sqrt(1.0 - np.sort(np.linalg.eigvals(matrix).real)[-2] ** 2))
    mean, period = float(speeds @ times / speeds.sum()), math.ceil(math.log2(n))
    now, before, d, d_before = times, times, np.zeros(n), np.zeros(n)
    sent: list[Floats] = []
    while True:
        level = now.max() / mean - 1.0 <= tolerance and now.min() >= 0.0
        for _ in range(period):
            factor = omega if sent else 1.0
            sent.append(now)
            after = np.array(
                [now[i] - sum(weight * (now[i] - now[j]) for j, weight in near[i]) / speeds[i] for i in range(n)]
            )
            d, d_before = factor * (d + now - mean) + (1.0 - factor) * d_before, d
            now, before = factor * after + (1.0 - factor) * before, now
        if level:
            break
    out = np.array([sum(weight * (d[i] - d[j]) for j, weight in near[i]) for i in range(n)])
    return Exchanged(sent, d, speeds * times - out)


# --- Arrangement: Jin & Wang 2003 -------------------------------------------------------------------------------------


def ratio(edges: Edges, layout: Floats) -> float:
    """p = lambda_P / lambda_2 of S^-1 A A^T."""
    low, high = both_ends(edges, layout, np.ones(len(edges)))
    return high / low


def greedy(edges: Edges, speeds: Floats) -> float:
    """p of the paper's greedy; of equally good positions the first."""
    layout, free = np.full(len(speeds), speeds.min()), list(range(len(speeds)))
    for speed in sorted(speeds.tolist(), reverse=True):
        tried = []
        for position in free:
            candidate = layout.copy()
            candidate[position] = speed
            tried.append(ratio(edges, candidate))
        choice = next(k for k, p in enumerate(tried) if p <= min(tried) * (1.0 + NEAR))
        layout[free.pop(choice)] = speed
    return ratio(edges, layout)


def least_ratio(edges: Edges, speeds: Floats) -> float:
    """The smallest p of all arrangements."""
    return min(ratio(edges, speeds[list(order)]) for order in permutations(range(len(speeds))))


def swappable(edges: Edges, layout: Floats) -> bool:
    """Tell if a swap of two nodes makes p smaller."""
    here = ratio(edges, layout)
    for i in range(len(layout)):
        for j in range(i):
            order = np.arange(len(layout))
            order[[i, j]] = j, i
            if ratio(edges, layout[order]) < here * (1.0 - NEAR):
                return True
    return False


# --- Drafting: Xu, Zhang & Sun, the maze in lock step -----------------------------------------------------------------

DIRECTIONS = ((0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1), (1, 0), (1, 1))


class Explorer:
    """One rank in a set of free cells: a path of [cell, directions that are left to it]."""

    def __init__(self, free: set[tuple[int, int]]) -> None:  # noqa: D107
        self.free = free
        self.path: list[tuple[tuple[int, int], list[int]]] = []

    def open(self, k: int) -> list[int]:
        """The directions of a record that lead to free cells."""
        (x, y), left = self.path[k]
        return [one for one in left if (x + DIRECTIONS[one][0], y + DIRECTIONS[one][1]) in self.free]

    def load(self) -> float:
        """The paper's Q: top - level + n(level) / 8."""
        levels = [k for k in range(len(self.path)) if self.open(k)]
        return levels[-1] - levels[0] + len(self.open(levels[0])) / 8 if levels else 0.0

    def unit(self) -> tuple[int, int]:
        """Mark one cell."""
        while not self.open(len(self.path) - 1):
            self.path.pop()
        (x, y), left = self.path[-1]
        one = self.open(len(self.path) - 1)[0]
        del left[: left.index(one) + 1]
        cell = x + DIRECTIONS[one][0], y + DIRECTIONS[one][1]
        self.free.remove(cell)
        self.path.append((cell, list(range(8))))
        return cell

    def split(self) -> tuple[tuple[int, int], list[int]] | None:
        """Half of the directions of the shallowest record with two or more, else the only one of the shallowest."""
        levels = [k for k in range(len(self.path)) if self.open(k)]
        wide = [k for k in levels if len(self.open(k)) >= 2]
        if not wide and len(levels) < 2:
            return None
        level = wide[0] if wide else levels[0]
        some = self.open(level)
        given = some[-max(1, len(some) // 2) :]
        cell, left = self.path[level]
        part = left[left.index(given[0]) :]
        del left[left.index(given[0]) :]
        return cell, part


def in_lock_step(cells: Any, size: int, threshold: float) -> tuple[int, int]:
    """Steps until the exit is marked (or all is), and balances, on a ring of `size` ranks in Gray-code order."""
    free = {(int(x), int(y)) for x, y in np.argwhere(np.asarray(cells) == 0)}
    entry, way_out = min(free), max(free)
    bits = (size - 1).bit_length()
    gray = {0: [0], 1: [0, 1], 2: [0, 1, 3, 2], 3: [0, 1, 3, 2, 6, 7, 5, 4]}[bits]
    ring = [rank for rank in gray if rank < size]
    ranks = [Explorer(free) for _ in ring]
    steps = balances = 0
    while True:
        loads = [one.load() for one in ranks]
        if steps and not any(loads):
            return steps, balances
        steps += 1
        for thief in range(size):
            if steps == 1 or loads[thief]:
                continue
            index = ring.index(thief)
            around = ring[index + 1 :] + ring[:index]
            while around:
                victim = max(around, key=lambda rank: loads[rank])  # of equal ones the first
                if not loads[victim] > threshold:
                    break
                if (part := ranks[victim].split()) is not None:
                    ranks[thief].path = [part]
                    balances += 1
                    loads = [one.load() if k in (thief, victim) else loads[k] for k, one in enumerate(ranks)]
                    break
                around.remove(victim)
        marked = []
        for rank in range(size):
            if steps == 1 and rank == 0:
                free.remove(entry)
                ranks[0].path = [(entry, list(range(8)))]
                marked.append(entry)
            elif loads[rank] and ranks[rank].load():
                marked.append(ranks[rank].unit())
        if way_out in marked:
            return steps, balances


Said = tuple[str, int, int, int, float, bytes]  # kind, source, number, pid (-1: nobody), load, work


class Units:
    """Work that counts its units, half of which can be given away."""

    def __init__(self, units: int = 0) -> None:  # noqa: D107
        self.units = units

    def load(self) -> float:
        """Q."""
        return float(self.units)

    def split(self) -> bytes | None:
        """Half of it."""
        given = self.units // 2
        self.units -= given
        return b"%d" % given if given else None

    def absorb(self, payload: bytes) -> None:
        """Take what was given."""
        self.units += int(payload)


class Processor:
    """A processor of Xu, Zhang & Sun, rules 1 to 4, and what the paper leaves open as `left_out.md` has it."""

    def __init__(self, rank: int, after: int, work: Units, threshold: float, rng: random.Random) -> None:  # noqa: D107
        self.rank, self.after, self.work, self.threshold, self.rng = rank, after, work, threshold, rng
        self.state = "IDLE"
        self.number = 0  # of its last DRAFTING
        self.promised = (0, 0)  # source and number for which it has volunteered
        self.passed: dict[int, int] = {}  # source: how often its DRAFTING had to pass a better volunteer
        self.free_at, self.pause = 0.0, SHORTEST_S

    def receive(self, said: Said, now: float) -> list[tuple[int, Said]]:
        """Answer a message."""
        kind, source, number, pid, load, payload = said
        if kind == "DRAFTING" and source != self.rank:
            q = self.work.load()
            if self.state not in ("BUSY", "WAIT_FOR_ADMISSION") or q <= load or q <= self.threshold:
                return [(self.after, said)]
            mine = self.passed.get(source, 0)
            if self.state == "WAIT_FOR_ADMISSION" or any(other >= mine + 4 for other in self.passed.values()):
                self.passed[source] = mine + 1
                return [(self.after, said)]
            reject = [(pid, ("REJECT", source, number, -1, 0.0, b""))] if pid != -1 else []
            self.state, self.promised = "WAIT_FOR_ADMISSION", (source, number)
            return [*reject, (self.after, ("DRAFTING", source, number, self.rank, q, b""))]  # rule 2
        if kind == "DRAFTING" and pid == -1:
            self.state, self.free_at = "IDLE", now + self.pause * (0.5 + 0.5 * self.rng.random())
            self.pause = min(2.0 * self.pause, LONGEST_S)
            return []
        if kind == "DRAFTING":
            self.state = "READY_FOR_ACCEPT"
            return [(pid, ("ADMISSION", self.rank, number, -1, 0.0, b""))]  # rule 3
        if kind == "REJECT":
            self.state = "BUSY"
        elif kind == "ADMISSION":
            self.state = "READY_FOR_SPLIT"  # rule 4
        elif kind == "NOWORK":
            self.state, self.free_at = "IDLE", now
        else:
            self.work.absorb(payload)
            self.state, self.pause = "BUSY", SHORTEST_S
        return []

    def turn(self, now: float) -> list[tuple[int, Said]]:
        """Split and draft, after all messages are answered."""
        sends: list[tuple[int, Said]] = []
        if self.state == "READY_FOR_SPLIT":
            source, number = self.promised
            part = self.work.split() if self.work.load() > self.threshold else None
            self.state = "BUSY"
            self.passed.pop(source, None)
            kind, payload = ("NOWORK", b"") if part is None else ("WORK", part)
            sends.append((source, (kind, source, number, -1, 0.0, payload)))
        if self.state == "BUSY" and not self.work.load():
            self.state, self.free_at = "IDLE", now
        if self.state == "IDLE" and now >= self.free_at:
            self.state, self.number = "WAIT_FOR_ACK", self.number + 1
            sends.append((self.after, ("DRAFTING", self.rank, self.number, -1, 0.0, b"")))  # rule 1
        return sends


# --- Allocation: Chen, Shi, Huang & Chen ------------------------------------------------------------------------------


def chen(tasks: int, time: Floats, talk: Floats, cap: Any) -> float:
    """The makespan of the paper's five steps."""
    limit = np.minimum(cap, tasks).astype(float)

    def needed(i: int, x: float) -> float:
        return float(x * (time[i] + talk[i] * (tasks - x)))

    def root(i: int, y: float) -> float:
        slope = time[i] + talk[i] * tasks
        inside = slope**2 - 4.0 * talk[i] * y
        return math.inf if inside < 0.0 else float(2.0 * y / (slope + math.sqrt(inside)))

    nodes = range(len(time))
    level_of = [needed(i, limit[i]) for i in nodes]

    def share(i: int, y: float) -> float:  # G_i
        return float(limit[i]) if y > level_of[i] else min(root(i, y), float(limit[i]))

    def least(total: Callable[[float], float], wanted: float) -> float:
        low, high = 0.0, 1.0 + max(float(limit[i] * (time[i] + talk[i] * tasks)) for i in nodes)
        for _ in range(200):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if total(middle) >= wanted else (middle, high)
        return high

    top = least(lambda y: sum(share(i, y) for i in nodes), tasks)
    jumping = [
        i
        for i in nodes
        if talk[i] > 0.0
        and limit[i] > (time[i] + talk[i] * tasks) / (2.0 * talk[i])
        and abs(level_of[i] - top) <= 1e-12 * top
    ]
    if jumping:
        one = jumping[0]
        others = [i for i in nodes if i != one]
        rest = least(lambda y: sum(min(root(i, y), float(limit[i])) for i in others), tasks - limit[one])
        real = [float(limit[i]) if i == one else min(root(i, rest), float(limit[i])) for i in nodes]
    else:
        real = [share(i, top) for i in nodes]
    counts = [math.floor(x * (1.0 - 1e-12) if x < h else x) for x, h in zip(real, limit, strict=True)]
    while sum(counts) < tasks:
        room = [i for i in nodes if counts[i] < limit[i]]
        counts[min(room, key=lambda i: needed(i, counts[i] + 1))] += 1
    return max(needed(i, counts[i]) for i in nodes)


# --- The lines of the page: lb_mpi beside the above -------------------------------------------------------------------

SCHEMES = (
    ("fos", "paper"), ("fos", "scaled"), ("fos", "uniform"), ("sos", "paper"), ("chebyshev", "paper"), ("cg", "uniform"),
    ("cg", "paper"), ("direct", "uniform"),
)  # fmt: skip


def edges_of(graph: graphs.Graph) -> list[tuple[int, int]]:
    """The edges of a graph of lb_mpi, as the above needs them."""
    return list(zip(*(ends.tolist() for ends in graph.edges()), strict=True))


def _equal(one: float, other: float) -> bool:
    return abs(one - other) <= NEAR * max(abs(one), abs(other), 1.0)


Claims = Iterator[tuple[str, bool]]  # what is compared, and whether both implementations agree on a drawn instance


def lines(claims: Claims) -> list[Item]:
    """A line for each claim: on how many of the drawn instances both agree; all must."""
    found: dict[str, list[bool]] = {}
    for name, agreed in claims:
        found.setdefault(name, []).append(bool(agreed))
    counts = {name: (sum(some), len(some)) for name, some in found.items()}
    return [claim(name, f"{n} of {n}", f"{ours} of {n}", ours == n) for name, (ours, n) in counts.items()]


def diffusion_claims(meshes: Sequence[str], seeds: int) -> Claims:
    """The steps to 5 % and 0.1 %, and the flow, of each scheme."""
    for (scheme, rule), name, seed, tolerance in product(SCHEMES, meshes, range(seeds), (0.05, 0.001)):
        case = convergence.draw(name, seed)
        loads = case.speeds * case.times
        want = level(edges_of(case.graph), case.speeds, case.times, scheme, rule, tolerance)
        options: dict[str, Any] = {"scheme": scheme, "tau": rule, "tolerance": tolerance, "max_steps": MOST}
        ours = diffusion.balance(case.graph, loads, case.speeds, **options)
        yield f"steps of {scheme}, {rule} tau", ours.steps == want.steps
        yield f"flow of {scheme}, {rule} tau", _close(ours.flow, want.flow, 1e-7 * float(loads.mean()))


def arrangement_claims(some: Sequence[str], seeds: int) -> Claims:
    """The greedy, the least p of all arrangements, p as it is reported, and that swaps end where none helps."""
    for name, seed in product(some, range(seeds)):
        graph = graphs.parse(name)
        edges = edges_of(graph)
        speeds = np.random.default_rng(seed).uniform(1.0, 10.0, graph.n)
        paper, swap = (arranging.arrange(graph, speeds, method=method) for method in ("paper", "swap"))
        placed = ratio(edges, speeds[paper.positions])
        yield "p of the greedy", _equal(placed, greedy(edges, speeds))
        yield "p as reported, by all eigenvalues", _equal(paper.p, placed)
        yield "no swap of two nodes makes p of `swap` smaller", not swappable(edges, speeds[swap.positions])
        if graph.n <= 6:
            best = arranging.arrange(graph, speeds, method="exhaustive")
            yield "least p of all arrangements", _equal(ratio(edges, speeds[best.positions]), least_ratio(edges, speeds))


def allocation_claims(count: int) -> Claims:
    """The exact method beside brute force, and the paper's beside its five steps."""
    for seed in range(count):
        one = allocation.instance(seed)
        least = one.brute_force()
        best, theirs = one.solve("exact"), one.solve("paper")
        for name, ours, want in (
            ("makespan of `exact`, by brute force", best, least),
            ("makespan of `paper`, by its five steps", theirs, chen(one.tasks, one.time, one.talk, one.cap)),
        ):
            real = max(float(one.needed(k, x)) for k, x in enumerate(ours.counts.tolist()))
            whole = int(ours.counts.sum()) == one.tasks and bool((ours.counts <= one.cap).all())
            yield name, whole and _equal(real, want) and _equal(ours.makespan, real)
        yield "lower bound, by brute force", _equal(theirs.lower_bound, least)


def drafting_claims(dims: Sequence[int], seeds: int) -> Claims:
    """L and the balances of mazes in lock step, for two thresholds J."""
    for size, dim, seed, threshold in product((1, 2, 4, 8), dims, range(seeds), (0.125, 0.25)):
        cells = random_maze(dim, 0.7, seed)
        shared = cells.copy()
        problems = [MazeSearch(shared, rank, "half") for rank in range(size)]
        ours = lockstep.lockstep(problems, graphs.ring_order(size), threshold)
        yield f"L and balances on {size}", (ours.steps, ours.balances) == in_lock_step(cells, size, threshold)


def neighbours_claims(meshes: Sequence[str], seeds: int) -> Claims:
    """The messages of ranks without a root to their neighbours, and the loads after their transfers; fos and sos."""
    for scheme, name, seed in product(("fos", "sos"), meshes, range(seeds)):
        case = convergence.draw(name, seed)
        times = np.where(np.arange(case.graph.n) % 3 == 1, 0.0, case.times) if seed % 2 else case.times
        want = by_neighbours(edges_of(case.graph), case.speeds, times, second=scheme == "sos", tolerance=0.01)
        sent, after = _planned(case.graph, case.speeds, times, scheme)
        degrees = np.stack([case.speeds, case.graph.degrees], axis=1)
        steps = len(sent) == len(want.times) + 2 and bool((sent[0] == degrees).all())
        near = NEAR * float(case.times.max())
        each = zip(sent[1:], want.times, strict=False)
        same = steps and all(_close(ours[:, 0], theirs, near) for ours, theirs in each)
        yield f"what is sent in the steps of {scheme}, and their number", same
        d, scale = sent[-1][:, 0], 100.0 * len(want.times) * near
        yield f"d of {scheme}, up to a constant", _close(d - d.mean(), want.sums - want.sums.mean(), scale)
        yield f"loads after the transfers of {scheme}", _close(after, want.loads, scale * float(case.speeds.max()))


def _close(one: Floats, other: Floats, near: float) -> bool:
    return one.shape == other.shape and bool((np.abs(one - other) <= near).all())


class _Noted(Story[Planned]):
    """Notes the numbers that a rank sends to its neighbours."""

    def turn(self, now: float, arrived: Iterable[tuple[int, Any]] = ()) -> list[tuple[int, Any]]:
        sends = super().turn(now, arrived)
        self.sent = [*getattr(self, "sent", ()), *(numbers.copy() for to, numbers in sends if to == TO_NEIGHBOURS)]
        return sends


def _planned(graph: graphs.Graph, speeds: Floats, times: Floats, scheme: str) -> tuple[list[Floats], Floats]:
    """The messages to neighbours, (P, n) in each exchange, and (P,) the loads after the transfers."""
    deciders = []
    omega = neighbours.momentum(graph, scheme)
    for rank in range(graph.n):
        near = graph.neighbours(rank).tolist()
        knowledge = Knowledge(rank, [rank, *near], near)
        knowledge.tick_work = np.array([speeds[rank], *(1.0 for _ in near)])
        deciders.append(neighbours.NeighbourPlanner(knowledge, graph.n, Trigger("always"), omega))

    loads = speeds * times
    given = zip(deciders, loads, strict=True)
    making = [_Noted(one._plan(float(load))) for one, load in given]
    plans = [plan for plan, _ in plan_together(making, graph, NETWORK)[0]]
    sent = [one.sent for one in making]
    for rank, plan in enumerate(plans):
        loads[rank] -= plan.of(rank).amounts.sum()
        loads[plan.of(rank).destinations] += plan.of(rank).amounts
    return [np.array(one) for one in zip(*sent, strict=True)], loads


def rules_claims(sizes: Sequence[int], seeds: int) -> Claims:
    """The reaction of `lb_mpi.searching.drafting` to each message, beside the rules, in drawn orders of events."""
    for size, seed in product(sizes, range(seeds)):
        yield f"each message and state, on {size} processors", _follows_the_rules(size, seed)


def _follows_the_rules(size: int, seed: int, events: int = 600) -> bool:
    rng, threshold = random.Random(seed), 2.0
    ours, theirs = [], []
    for rank in range(size):
        after = (rank + 1) % size
        pause = drafting.Pause(SHORTEST_S, LONGEST_S, random.Random(rank))
        one = drafting.Drafting(rank, after, Units(), drafting.Terms(threshold, pause))  # type: ignore[arg-type]
        other = Processor(rank, after, Units(), threshold, random.Random(rank))
        if rank == 0:
            one.problem.absorb(b"90")
            other.work.absorb(b"90")
            one.start()
            other.state = "BUSY"
        ours.append(one)
        theirs.append(other)
    wires: dict[tuple[int, int], deque[drafting.Message]] = {}
    now = 0.0
    for _ in range(events):
        now += rng.random() * SHORTEST_S
        rank = min(rng.randrange(size), rng.randrange(size))  # the last ones are slow
        one, other = ours[rank], theirs[rank]
        waiting = [wire for (_, to), wire in wires.items() if to == rank and wire]
        sends: list[drafting.Send] = []
        want: list[tuple[int, Said]] = []
        if waiting and rng.random() < 0.8:
            message = rng.choice(waiting).popleft()
            sends += one.receive(message, now)
            want += other.receive(_said(message), now)
        elif one.state in (State.BUSY, State.WAIT_FOR_ADMISSION):
            left = int(one.problem.load())
            done, grown = min(left, rng.choice((0, 0, 1, 9))), 14 if 0 < left < 9 and rng.random() < 0.2 else 0
            for work in (one.problem, other.work):
                work.units += grown - done  # type: ignore[union-attr]
        sends += one.settle(now)
        want += other.turn(now)
        for to, message in sends:
            wires.setdefault((rank, to), deque()).append(message)
        same = [(to, _said(message)) for to, message in sends] == want and one.state.name == other.state
        if not same or one.wake_at != (other.free_at if other.state == "IDLE" else math.inf):
            return False
    return True


def _said(message: drafting.Message) -> Said:
    return message.kind.name, *message[1:]


def partition_claims(some: Sequence[str]) -> Claims:
    """lambda_2, v_2, and the cut of the two halves."""
    for name in some:
        graph = graphs.parse(name)
        edges = edges_of(graph)
        a = incidence(graph.n, edges)
        laplacian = a @ a.T
        want = float(np.sort(np.linalg.eigvals(laplacian).real)[1])
        found = spectral.fiedler(graph)
        vector = found.vector
        yield "lambda_2, by all eigenvalues", _equal(found.value, want)
        faults = [*(laplacian @ vector - want * vector), vector.sum(), vector @ vector - 1.0]
        yield "v_2: L v = lambda_2 v", float(np.abs(faults).max()) < 1e-6
        part = spectral.spectral_bisection(graph)
        halves = 2 * int((part == 0).sum()) == graph.n
        ordered = float(vector[part == 0].max()) <= np.sort(vector)[graph.n // 2 - 1] + 1e-6
        crossing = sum(bool(part[i] != part[j]) for i, j in edges)
        yield "halves by v_2, and their cut", halves and ordered and quality.cut(graph, part, 2) == crossing


def section(run: Run) -> Section:
    """The part of the page in which lb_mpi stands beside a second implementation."""
    conclusion = (
        "lb_mpi does what the papers' equations and rules say, also where ranks know their neighbours only, and message by "
        "message. `tests/unit/test_papers_second.py` breaks it in many ways, one at a time, and the lines below notice each."
    )
    title = "The methods, implemented twice"
    result = Section(title, "Here: `benchmarks/papers/second.py`; no number of print.", conclusion)
    more = 3 if run.full else 1
    run.say("second: each method beside a second implementation")
    note = "Expected: all drawn instances.  Ours: those in which lb_mpi and the second implementation agree."
    for heading, claims in (
        ("Diffusion of a whole graph", diffusion_claims(("mesh:4x5", "ring:9", "mesh:8x8"), 3 * more)),
        ("Arrangement", arrangement_claims(("mesh:2x3", "ring:6", "mesh:3x3", "mesh:4x4"), 3 * more)),
        ("Diffusion by neighbours, without a root", neighbours_claims(("mesh:4x5", "ring:9", "cube:11"), 2 * more)),
        ("Drafting: the maze in lock step", drafting_claims((6, 10, 16), 4 * more)),
        ("Drafting: the rules, message by message", rules_claims((2, 4, 7), 20 * more)),
        ("Allocation", allocation_claims(300 * more)),
        ("Partition", partition_claims(("mesh:3x4", "mesh:5x8", "mesh:2x7"))),
    ):
        result.show(heading, lines(claims), note, kind=OURS)
    return result
