"""Compare our stealing with its rivals, in one simulator.  python -m benchmarks.rivals [--tree T1 --ranks 64,256 --speeds 1]

    --rivals    of walking (ours), ring (ours, the paper's), glb, ctws, a2ws
    --json      one line of JSON for each run, when it ends, instead of the table

Each run counts a published tree exactly.  A message takes 5 us, a node 1 us on a rank of speed 1, and a rank polls for
messages every 50 us; the time includes termination.  Efficiency is all work / (time * sum of the speeds).  A one-sided get
counts as two messages.  The source and the assumptions of each rival are stated above its code.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from lb_mpi.checks import choice, comma_list
from lb_mpi.cli.uts import PUBLISHED, TREES, Tree, TreeCount, UnbalancedTreeSearch
from lb_mpi.searching import walking
from lb_mpi.searching.drafting import Kind, Message, Send
from lb_mpi.searching.guard import Options
from lb_mpi.searching.problem import Problem, shares
from lb_mpi.searching.searcher import ROOT, Reason, Searcher, Work
from lb_mpi.searching.simulate import SimulatedSearch, Simulation, pause_for, search
from lb_mpi.searching.termination import Scholten
from lb_mpi.virtual import Network

# --- what all rivals have in common: one rank that the simulator of searches can drive --------------------------------
#
# All have the same end, Dijkstra and Scholten's tree and STOP down the binomial tree, which is ours.  It flatters CTWS and
# A2WS: their own ends are made for tasks that make no tasks.  So the table compares only how work is found.
#
# A `Windowed` rank keeps a part of its work where others take it by one-sided operations, as CTWS and A2WS do by MPI's RMA.
# A thief takes work without asking: `OneSided`, the simulator with one-sided operations, serves it while the victim
# computes.  A get is counted as two messages, there and back, and takes two latencies.

PARTS = 8  # equal parts, of which all but one lie in the window; a thief takes some of them


class Tally:
    """A rank in the result of the simulator."""

    received = 0  # parts of work
    seq = 0  # requests for work


class Rival:
    """One rank; `ring` counts the ranks.  A rival defines how it processes a message, and how it looks for work."""

    sharing = None  # of a bound: searches here count all nodes
    error: BaseException | None = None

    def __init__(
        self, rank: int, ring: Sequence[int], problem: Problem, options: Options, bound: None = None, saved: None = None
    ) -> None:
        """Begin with the whole problem on rank 0, and nothing on the others."""
        self.rank, self.size, self.problem, self.threshold = rank, len(ring), problem, options.threshold
        self.rng = random.Random(options.seed * 1_000_003 + rank)
        self.units = 0  # of work done so far
        self.reason: Reason | None = None
        self.drafting, self.termination = Tally(), Scholten(rank, self.size)
        self.kept: list[bytes] = []  # parts that came while there was work in hand
        self.load = 0.0  # in hand
        self.wake_at = math.inf
        self.begin()
        if rank == ROOT:
            problem.start()

    def begin(self) -> None:
        """Set up what this kind of rank keeps."""

    def serve(self, message: Message, now: float) -> list[Send]:
        """Process a message of the rival's own kind; work that has arrived is already in hand."""
        raise NotImplementedError

    def seek(self, now: float) -> list[Send]:
        """Give work to waiting ranks, or look for some if there is none; all messages have been processed."""
        raise NotImplementedError

    @property
    def over(self) -> bool:
        """All ranks are done, and this one knows it."""
        return self.reason is not None

    @property
    def job(self) -> Work | None:
        """A quantum, if there is work in hand."""
        return Work() if self.load > 0.0 and not self.over else None

    @property
    def holds_work(self) -> bool:
        """There is work here, in hand or elsewhere."""
        return self.load > 0.0

    def turn(self, now: float, arrived: Iterable[tuple[int, Message]]) -> list[Send]:
        """Process what has arrived, look for work, detect the end; return the messages to send, in order."""
        sends: list[Send] = []
        self.wake_at = math.inf
        if self.over:
            return []
        for _, message in arrived:
            if message.kind is Kind.STOP:
                return self._stop()
            if message.kind is Kind.ACK:
                self.termination.acknowledged(message.pid)
                continue
            if message.kind is Kind.WORK:
                self.termination.received(message.source)
                self.drafting.received += 1
                self.kept.append(message.payload)
            sends += self.serve(message, now)
        self.refill()
        sends += self.seek(now)
        self.refill()
        sends += self.termination.settle(self.holds_work)
        return sends + self._stop() if self.termination.over else sends

    def done(self, _job: Work, units: int) -> list[Send]:
        """Note the units of work done."""
        self.units += units
        return []

    def fail(self, error: BaseException) -> list[Send]:
        """A tree raises nothing."""
        raise error

    def refill(self) -> None:
        """Take a kept part in hand if there is no other work, and estimate its size."""
        self.load = self.problem.load()
        while self.kept and not self.load > 0.0:
            self.problem.absorb(self.kept.pop(0))
            self.load = self.problem.load()

    def give(self, to: int, part: bytes, seq: int = 0) -> Send:
        """Make the message that brings another rank a part of the work."""
        self.termination.sent()
        return to, Message(Kind.WORK, self.rank, seq, payload=part)

    def _stop(self) -> list[Send]:
        self.reason = Reason.EXHAUSTED
        return [(rank, Message(Kind.STOP, ROOT)) for rank in walking.children(self.rank, self.size)]


class Windowed(Rival):
    """A rank whose window others take work from, without asking it.

    After each quantum it puts new parts there, if the window is empty and there is enough in hand; when it has nothing in
    hand it takes them back, one by one.
    """

    def begin(self) -> None:
        """Set up what this kind of rank keeps."""
        self.window: list[bytes] = []
        self.asked: int | None = None  # the rank that this one is taking work from

    @property
    def holds_work(self) -> bool:
        """There is work in hand or in the window."""
        return self.load > 0.0 or bool(self.window)

    @property
    def waiting(self) -> float:
        """Estimate the work in hand and in the window, whose parts were as large as the work in hand when they were made."""
        return self.load * (1 + len(self.window))

    def refill(self) -> None:
        """Refill as any rank does; then move parts from the window, and into it."""
        super().refill()
        while self.window and not self.load > 0.0:
            self.kept.append(self.window.pop())
            super().refill()
        if not self.window and self.load > self.threshold:
            self.window = shares(self.problem, [1] * PARTS)
            self.load = self.problem.load()

    def touch(self, message: Message, now: float) -> list[Send]:
        """Process a one-sided operation of another rank: it takes parts of the window, and learns how much there was."""
        n = self.taken_by(message)
        parts, self.window = self.window[:n], self.window[n:]
        if not parts:
            return [(message.source, Message(Kind.REJECT, self.rank))]
        return [self.give(message.source, b"".join(parts))]  # nodes: as many parts as there are make one

    def taken_by(self, message: Message) -> int:
        """Return the number of parts that a thief takes from the window: half of them, rounded up."""
        return (len(self.window) + 1) // 2

    def take(self, victim: int, load: float = 0.0) -> list[Send]:
        """Begin to take work from a victim's window."""
        self.drafting.seq += 1
        self.asked = victim
        return [(victim, Message(Kind.DRAFTING, self.rank, self.drafting.seq, load=load))]


class OneSided(Simulation):
    """The simulator, where requests for a `Windowed` rank's work, and news for it, don't wait for the end of its quantum."""

    def arrive(self, rank: int, number: int) -> bool:
        """Process a message; return True if it was one of this kind."""
        message = self.under_way[number][2]
        if not self.is_busy(rank) or message.kind not in (Kind.DRAFTING, Kind.REPORT):
            return super().arrive(rank, number)
        del self.under_way[number]
        for to, reply in cast(Windowed, self.searchers[rank]).touch(message, self.now):
            self.post(rank, to, reply)
        return True


# --- GLB: random victims, then lifelines ------------------------------------------------------------------------------
#
# Source: Saraswat, Kambadur, Kodali, Grove, Krishnamoorthy, "Lifeline-based global load balancing" (PPoPP 2011), and
# the workers of X10's and APGAS's GLB libraries.  A rank without work asks `RANDOM` random victims, one after the
# other, then its lifelines, one after the other: its neighbours on the hypercube.  A victim without work to spare
# answers at once that it has none; but it remembers the thieves on its lifelines, and sends half of its work when it has
# some.  A rank that has asked all in vain sleeps until one of its lifelines brings work.
#
# Assumed: requests are served between two quanta, as GLB's workers do; each is served by a half of what is in hand,
# above the threshold that all have here; in the beginning all but rank 0 hang on their parent in the binomial tree,
# whose edges are lifelines (X10's library has a ternary tree).  Two random victims: X10's usual one is one less; two
# were better here.

RANDOM = 2  # random victims before the lifelines
LIFELINE = 1  # in WORK: it came by a lifeline, which is free again
NOT_ASKED = -1  # in WORK: nobody waits for it


class Lifelines(Rival):
    """One rank of GLB."""

    def begin(self) -> None:
        """Set up what this kind of rank keeps."""
        self.lifelines = walking.neighbours(self.rank, self.size)
        self.active = {walking.parent(self.rank)} if self.rank else set()  # lifelines that know that this rank waits
        self.hanging = walking.children(self.rank, self.size)[::-1]  # ranks that wait on a lifeline to this one
        self.asking = 0  # the number of the request that is under way; 0: none
        self.tried = 0  # random victims, since there was work last
        self.asleep = self.rank > 0

    def serve(self, message: Message, now: float) -> list[Send]:
        """Requests, by chance (DRAFTING) or by a lifeline (STAND), and answers to them."""
        source, by_lifeline = message.source, message.kind is Kind.STAND
        if message.kind in (Kind.WORK, Kind.REJECT):
            if message.seq == self.asking:
                self.asking = 0
            if message.kind is Kind.WORK:
                self.tried, self.asleep = 0, False
                if message.pid == LIFELINE:
                    self.active.remove(source)
            return []
        part = self._half()
        if part is not None:
            return [self._give(source, part, message.seq, by_lifeline)]
        if by_lifeline:
            self.hanging.append(source)
        return [(source, Message(Kind.REJECT, self.rank, message.seq))]

    def seek(self, now: float) -> list[Send]:
        """Send work to the ranks that wait on a lifeline to this one; without work, ask the next victim."""
        sends: list[Send] = []
        while self.hanging and (part := self._half()) is not None:
            sends.append(self._give(self.hanging.pop(0), part, NOT_ASKED, True))
        self.load = self.problem.load()
        if self.load > 0.0 or self.asking or self.asleep or self.size == 1:
            return sends
        if self.tried < RANDOM:
            self.tried += 1
            victim = self.rng.randrange(self.size - 1)
            victim, kind = victim + (victim >= self.rank), Kind.DRAFTING
        else:
            left = [rank for rank in self.lifelines if rank not in self.active]
            if not left:
                self.asleep = True
                return sends
            victim, kind = left[0], Kind.STAND
            self.active.add(victim)
        self.drafting.seq += 1
        self.asking = self.drafting.seq
        return [*sends, (victim, Message(kind, self.rank, self.asking))]

    def _give(self, to: int, part: bytes, seq: int, by_lifeline: bool) -> Send:
        _, message = self.give(to, part, seq)
        return to, message._replace(pid=LIFELINE) if by_lifeline else message

    def _half(self) -> bytes | None:
        return self.problem.split() if self.problem.load() > self.threshold else None


# --- CTWS: a token goes round the ring, and the rank that holds it may steal ------------------------------------------
#
# Source: Assis, Oliveira, Barros, Sardina, Bianchini, Xavier-de-Souza, "Distributed-memory load balancing with cyclic
# token-based work-stealing applied to reverse time migration" (IEEE Access 2019, arXiv 1907.00879).  Implemented from its
# abstract: one token in a cycle, one thief at a time, victims in cyclic order, one-sided operations.
#
# Assumed: the token names the next victim, so each thief continues where the last one stopped; a thief takes
# half of the victim's window, keeps the token until it has found something or has tried `TRIES` victims, and passes it on; a
# rank that computes looks for the token between two quanta.  Their tasks take minutes and make no tasks, on some dozens of
# nodes: that is what it was made for.

TRIES = 8  # victims that a thief tries while it holds the token


class CyclicToken(Windowed):
    """One rank of CTWS."""

    def begin(self) -> None:
        """Set up what this kind of rank keeps."""
        super().begin()
        self.token: int | None = 0 if self.rank == 0 else None  # the next victim, if this rank holds the token
        self.tries = 0

    def serve(self, message: Message, now: float) -> list[Send]:
        """The token, requests, and answers to them."""
        if message.kind is Kind.TOKEN:
            self.token, self.tries = message.pid, 0
        elif message.kind is Kind.DRAFTING:
            return self.touch(message, now)
        else:
            self.asked = None
        return []

    def seek(self, now: float) -> list[Send]:
        """Steal with the token, or pass it on."""
        if self.token is None or self.asked is not None or self.size == 1:
            return []
        if not self.holds_work and self.tries < TRIES:
            self.tries += 1
            victim = self.token if self.token != self.rank else (self.token + 1) % self.size
            self.token = (victim + 1) % self.size
            return self.take(victim)
        victim, self.token = self.token, None
        return [((self.rank + 1) % self.size, Message(Kind.TOKEN, self.rank, pid=victim))]


# --- A2WS: loads and speeds go round the ring, and a rank without work steals from one that is late -------------------
#
# Source: Fernandes, de Assis, Martins, Barros, Xavier-de-Souza, "Adaptive asynchronous work-stealing for distributed
# load-balancing in heterogeneous systems" (arXiv 2401.04494).  Implemented from its abstract: nodes collect information
# about others and use it to choose victims and the size of what they take; no thread of its own, all one-sided.
#
# Assumed: a rank knows of others up to `radius` places away on the ring.  It puts what it knows into both neighbours' memory
# when its own load has changed by `CHANGE` or when it has received something new, but at most once in `EVERY_S`.  A thief
# draws a victim, weighted by the time that each is known to need, and takes the share of its work that the thief's speed is
# of both speeds.  If it knows of no rank with work, the radius doubles, up to `MOST_RADIUS`.  Speeds are measured.

RADIUS, MOST_RADIUS = 4, 64  # at first, at most
CHANGE = 2.0  # of a load, up or down, that is worth telling
EVERY_S = 50e-6  # at least so long from one telling to the next
ENTRY = struct.Struct("<iddd")  # rank and Known


class Known(NamedTuple):
    """The knowledge of a rank about another one."""

    at: float  # when it was so
    load: float
    speed: float  # units of work per second


class Adaptive(Windowed):
    """One rank of A2WS."""

    def begin(self) -> None:
        """Set up what this kind of rank keeps."""
        super().begin()
        self.known: dict[int, Known] = {}  # of others
        self.radius = min(RADIUS, self.size // 2)
        self.speed = 0.0  # 0: not measured yet
        self._told, self._told_at, self._has_news = 0.0, -EVERY_S, False
        self._before: tuple[float, int] | None = None  # when the quantum under way began, and the units done until then

    def serve(self, message: Message, now: float) -> list[Send]:
        """News, requests, and answers to them."""
        if message.kind in (Kind.REPORT, Kind.DRAFTING):
            return self.touch(message, now)
        self.asked = None
        load = 0.0 if message.kind is Kind.REJECT else self._load_of(message.source) / 2
        self.known[message.source] = Known(now, load, message.load)
        return []

    def touch(self, message: Message, now: float) -> list[Send]:
        """Process a one-sided operation: news from another rank, or a thief."""
        if message.kind is not Kind.REPORT:
            return [(to, answer._replace(load=self.speed)) for to, answer in super().touch(message, now)]
        for rank, *fields in ENTRY.iter_unpack(message.payload):
            news = Known(*fields)
            if rank != self.rank and (rank not in self.known or news.at > self.known[rank].at):
                self.known[rank] = news
                self._has_news = True
        return []

    def taken_by(self, message: Message) -> int:
        """Return the share of all work here that the thief's speed is of both speeds; at least one part."""
        both = self.speed + message.load
        part = message.load / both if both else 0.5
        return min(len(self.window), max(1, round(PARTS * part)))

    def seek(self, now: float) -> list[Send]:
        """Send news; look for a victim."""
        self._measure(now)
        sends = self._tell(now) if self.size > 1 else []
        if self.holds_work or self.asked is not None or self.size == 1:
            return sends
        near = [(rank, known) for rank, known in self.known.items() if known.load > self.threshold]
        if near:
            late = [known.load / (known.speed or 1.0) for _, known in near]
            return sends + self.take(self.rng.choices(near, late)[0][0], self.speed)
        self.radius = min(2 * self.radius, MOST_RADIUS, self.size // 2)
        return sends

    def _measure(self, now: float) -> None:
        if self._before is not None and now > self._before[0]:
            self.speed = (self.units - self._before[1]) / (now - self._before[0])
        self._before = (now, self.units) if self.load > 0.0 else None

    def _load_of(self, rank: int) -> float:
        return self.known[rank].load if rank in self.known else 0.0

    def _tell(self, now: float) -> list[Send]:
        low, high = sorted((self.waiting, self._told))
        if not (self._has_news or high > CHANGE * low):
            return []
        if now < self._told_at + EVERY_S:
            self.wake_at = self._told_at + EVERY_S
            return []
        self._told, self._told_at, self._has_news = self.waiting, now, False
        mine = ENTRY.pack(self.rank, now, self.waiting, self.speed)
        sends = []
        for step in (1, -1):
            behind = [(self.rank - step * k) % self.size for k in range(1, self.radius)]
            entries = [ENTRY.pack(rank, *self.known[rank]) for rank in behind if rank in self.known]
            report = Message(Kind.REPORT, self.rank, payload=mine + b"".join(entries))
            sends.append(((self.rank + step) % self.size, report))
        return sends


# --- the ways, side by side -----------------------------------------------------------------------------------------

LATENCY_S = 5e-6
THRESHOLD = 4.0  # J, for all


class Way(NamedTuple):
    """One way of stealing."""

    title: str
    rank: type[Any]  # of a Searcher, or what stands for one
    world: type[Simulation] = Simulation
    route: str | None = None


WAYS = {
    "walking": Way("ours, walking drafts", Searcher, route="random"),
    "ring": Way("ours, the paper's ring", Searcher, route="ring"),
    "glb": Way("GLB, lifelines", Lifelines),
    "ctws": Way("CTWS", CyclicToken, OneSided),
    "a2ws": Way("A2WS", Adaptive, OneSided),
}


def run(way: str, tree: Tree, ranks: int, speeds: list[float], seed: int = 0, **parameters: Any) -> SimulatedSearch:
    """Count a tree in one way, on ranks of `speeds` in turns; more `parameters` as for `searching.simulate.search`."""
    chosen = WAYS[choice("rivals", way, tuple(WAYS))]
    options = Options(threshold=THRESHOLD, pause_s=pause_for(ranks, LATENCY_S), seed=seed, route=chosen.route)
    return search(
        [UnbalancedTreeSearch(tree) for _ in range(ranks)],
        simulation_class=chosen.world,
        searcher_class=cast(type[Searcher], parameters.pop("rank_class", chosen.rank)),
        speeds=[speeds[rank % len(speeds)] for rank in range(ranks)],
        options=options,
        seed=seed,
        **{"network": Network((LATENCY_S, LATENCY_S)), **parameters},
    )


def measure(way: str, tree: str, ranks: int, speeds: list[float], seed: int) -> dict[str, Any]:
    """One run, as numbers; AssertionError when the count is wrong."""
    began = time.process_time()
    found = run(way, TREES[tree], ranks, speeds, seed)
    count: TreeCount = found.value
    if count != PUBLISHED[tree]:
        raise AssertionError(f"{way} on {ranks} ranks counted {count}: {tree} has {PUBLISHED[tree]}")
    return {
        "tree": tree,
        "ranks": ranks,
        "speeds": speeds,
        "way": way,
        "efficiency": found.efficiency,
        "messages": found.messages / ranks,
        "most_messages": found.most_messages,
        "virtual_seconds": found.virtual_seconds,
        "detection_s": found.detection_s,
        "cpu_seconds": time.process_time() - began,
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Lines of Markdown: efficiency (messages a rank), a line for each way, a column for each number of ranks."""
    sizes = sorted({row["ranks"] for row in rows})
    lines = [
        "| tree, speeds | way | " + " | ".join(f"{size:,}" for size in sizes) + " |",
        "|---" * (2 + len(sizes)) + "|",
    ]
    cells = {(row["tree"], tuple(row["speeds"]), row["way"], row["ranks"]): row for row in rows}
    for name, speeds, way in dict.fromkeys(key[:3] for key in cells):
        found = [cells.get((name, speeds, way, size)) for size in sizes]
        shown = [f"{one['efficiency']:.3f} ({one['messages']:,.0f})" if one else "-" for one in found]
        unequal = ", unequal" if len(speeds) > 1 else ""
        lines.append(f"| {name}{unequal} | {WAYS[way].title} | " + " | ".join(shown) + " |")
    return lines


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument("--tree", choices=sorted(PUBLISHED), default="T1")
    parser.add_argument("--ranks", default="64,256", help="numbers of virtual ranks (%(default)s)")
    parser.add_argument("--speeds", default="1", help="speeds of the ranks, repeated: 1,.5,.25,.25 (%(default)s)")
    parser.add_argument("--rivals", default=",".join(WAYS), help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for ranks in comma_list("ranks", options.ranks):
        for way in options.rivals.split(","):
            rows.append(measure(way, options.tree, int(ranks), comma_list("speeds", options.speeds), options.seed))
            if options.json:
                print(json.dumps(rows[-1]), flush=True)
    if not options.json:
        print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
