"""Compare our stealing with GLB, in one simulator.  python -m benchmarks.rivals [--tree T1 --ranks 64,256 --speeds 1]

    --rivals    of walking (ours), ring (ours, the paper's), glb
    --json      one line of JSON for each run, when it ends, instead of the table

Each run counts a published tree exactly.  A message takes 5 us, a node 1 us on a rank of speed 1, and a rank polls for
messages every 50 us; the time includes termination.  Efficiency is all work / (time * sum of the speeds).
The source of GLB and what was assumed are stated above its code.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from lb_mpi.checks import choice, comma_list
from lb_mpi.cli.simulate.search import SimulatedSearch, pause_for, search
from lb_mpi.searching import walking
from lb_mpi.searching.drafting import NOBODY, Kind, Message, Send
from lb_mpi.searching.guard import Options
from lb_mpi.searching.problem import Problem
from lb_mpi.searching.searcher import ROOT, Reason, Searcher, Work
from lb_mpi.searching.termination import Scholten
from lb_mpi.searching.uts import PUBLISHED, TREES, Tree, TreeCount, UnbalancedTreeSearch
from lb_mpi.virtual import Network

# --- GLB: random victims, then lifelines ------------------------------------------------------------------------------
#
# Source: Saraswat, Kambadur, Kodali, Grove, Krishnamoorthy, "Lifeline-based global load balancing" (PPoPP 2011), and
# the workers of X10's and APGAS's GLB libraries.  A rank without work asks `RANDOM` random victims, one after the
# other, then its lifelines, one after the other: its neighbours on the hypercube.  A victim without work to spare
# answers at once that it has none; but it remembers the thieves on its lifelines, and sends half of its work when it has
# some.  A rank that has asked all in vain sleeps until one of its lifelines brings work.
#
# Assumed: requests are answered between two quanta, as GLB's workers do; the answer is a half of what is in hand,
# above the threshold that all have here; in the beginning all but rank 0 hang on their parent in the binomial tree,
# whose edges are lifelines (X10's library has a ternary tree).  Two random victims: X10's usual one is one less; two
# were better here.

RANDOM = 2  # random victims before the lifelines
LIFELINE = 1  # in WORK: it came by a lifeline, which is free again
NOT_ASKED = -1  # in WORK: nobody waits for it


class Tally:
    """A rank in the result of the simulator."""

    received = 0  # parts of work
    seq = 0  # requests for work


class Lifelines:
    """One rank of GLB, in place of a `Searcher`; `ring` counts the ranks."""

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
        self.lifelines = walking.neighbours(rank, self.size)
        self.active = {walking.parent(rank)} if rank else set()  # lifelines that know that this rank waits
        self.hanging = walking.children(rank, self.size)[::-1]  # ranks that wait on a lifeline to this one
        self.asking = 0  # the number of the request that is under way; 0: none
        self.tried = 0  # random victims, since there was work last
        self.asleep = rank > 0
        if rank == ROOT:
            problem.start()

    @property
    def over(self) -> bool:
        """All ranks are done, and this one knows it."""
        return self.reason is not None

    @property
    def job(self) -> Work | None:
        """A quantum, if there is work in hand."""
        return Work() if self.load > 0.0 and not self.over else None

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
                self.termination.receive(message, now)
                continue
            if message.kind is Kind.WORK:
                self.termination.received(message.source)
                self.drafting.received += 1
                self.kept.append(message.payload)
            sends += self._serve(message)
        self.refill()
        sends += self._seek()
        self.refill()
        sends += self.termination.settle(self.load > 0.0, now)
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

    def _serve(self, message: Message) -> list[Send]:
        """Process a request, by chance (DRAFTING) or by a lifeline (STAND), or an answer; work is already in hand."""
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

    def _seek(self) -> list[Send]:
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
        self.termination.sent()
        return to, Message(Kind.WORK, self.rank, seq, pid=LIFELINE if by_lifeline else NOBODY, payload=part)

    def _half(self) -> bytes | None:
        return self.problem.split() if self.problem.load() > self.threshold else None

    def _stop(self) -> list[Send]:
        self.reason = Reason.EXHAUSTED
        return [(rank, Message(Kind.STOP, ROOT)) for rank in walking.children(self.rank, self.size)]


# --- the ways, side by side -----------------------------------------------------------------------------------------

LATENCY_S = 5e-6
THRESHOLD = 4.0  # J, for all


class Way(NamedTuple):
    """One way of stealing."""

    title: str
    rank: type[Any]  # of a Searcher, or what stands for one
    route: str | None = None


WAYS = {
    "walking": Way("ours, walking drafts", Searcher, route="random"),
    "ring": Way("ours, the paper's ring", Searcher, route="ring"),
    "glb": Way("GLB, lifelines", Lifelines),
}


def run(way: str, tree: Tree, ranks: int, speeds: list[float], seed: int = 0, **parameters: Any) -> SimulatedSearch:
    """Count a tree in one way, on ranks of `speeds` in turns; more `parameters` as for `simulate.search.search`."""
    chosen = WAYS[choice("rivals", way, tuple(WAYS))]
    options = Options(threshold=THRESHOLD, pause_s=pause_for(ranks, LATENCY_S), seed=seed, route=chosen.route)
    return search(
        [UnbalancedTreeSearch(tree) for _ in range(ranks)],
        searcher_class=cast(type[Searcher], chosen.rank),
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
    lines = ["| tree, speeds | way | " + " | ".join(f"{size:,}" for size in sizes) + " |", "|---" * (2 + len(sizes)) + "|"]
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
