"""What the virtual carrier records of calls of the Balancer, so that a thousand ranks can be looked at.   (pure)"""

from __future__ import annotations

import random
from collections.abc import Sequence

from lb_mpi.balancing.recorded import Loans
from lb_mpi.balancing.round import Arrival, Job, Kind, Round, Send
from lb_mpi.balancing.rowsets import count
from lb_mpi.balancing.simulate import Cluster, Seconds, World
from lb_mpi.balancing.times import Call
from lb_mpi.record.events import Driver, Phase, Step
from lb_mpi.record.record import Record
from lb_mpi.virtual import Network


class Rows:
    """Records calls of a `Cluster` of `size` ranks that was made with world_class=this.world; `called` after each."""

    def __init__(self, size: int) -> None:
        self.records = [Record(0.0) for _ in range(size)]
        self.loans = [Loans(record, list(range(size))) for record in self.records]
        self.now = 0.0  # virtual seconds, when the call began that is under way
        self._world: _World | None = None
        self._used = False  # the settings are recorded

    def world(
        self, rounds: Sequence[Round], seconds: Seconds, network: Network, rng: random.Random, row_bytes: int
    ) -> World:
        """Make the world of one call."""
        self._world = _World(rounds, seconds, network, rng, row_bytes)
        self._world.rows, self._world.done = self, [0] * len(rounds)
        return self._world

    def called(self, cluster: Cluster, call: Call) -> None:
        """A call is over."""
        assert self._world is not None
        if not self._used:
            self._used = True
            trigger = cluster.judge.trigger
            how = {"scheme": cluster.scheme, "tolerance": trigger.tolerance, "when": trigger.when, "every": trigger.every}
            for rank, record in enumerate(self.records):
                record.use("map_rows", {**how, "neighbours": cluster.graph.neighbours(rank).tolist()})
        began, self.now = self.now, self.now + call.seconds
        after = float(self._world.busy_s.max()) / call.bound_s - 1.0 if call.bound_s else 0.0
        before = call.alone_s / call.bound_s - 1.0 if call.bound_s else 0.0
        speeds = cluster.speeds / cluster.speeds.mean()
        for rank, record in enumerate(self.records):
            record.enter(Phase.WAITING, self.now)
            costs, worth = cluster.courses[rank].costs, cluster.courses[rank].ranks.worth
            home_s = cluster.told[rank].took / float(cluster.courses[rank].ranks.speeds[rank])
            home = 0 if costs is None else len(costs)
            if costs is not None and costs.known:
                record.know(self.now, lambda costs=costs, worth=worth: costs.work(worth))  # type: ignore[misc]
            reason = record.reason(call.reason.partition(";")[0])
            busy_s, speed, done = float(self._world.busy_s[rank]), float(speeds[rank]), self._world.done[rank]
            step = Step(Driver.ROWS, began, self.now, busy_s, done, speed, before, after, call.rows_moved, int(call.acted))
            record.step(step._replace(reason=reason, home=home, home_s=home_s))


class _World(World):
    """One call, of which phases and loans are recorded."""

    rows: Rows
    done: list[int]  # rows that each rank has computed

    def arrive(self, rank: int, number: int) -> bool:
        source, _, message = self.under_way[number]
        if message.kind is Kind.DONE:
            self.rows.loans[rank].back(source, self.rows.now + self.now, message.payload * self.row_bytes)
        return super().arrive(rank, number)

    def finish(self, rank: int, job: Job) -> list[Send]:
        self.done[rank] += count(job.rows)
        return super().finish(rank, job)

    def turned(self, rank: int, arrived: Sequence[Arrival], sends: Sequence[Send]) -> None:
        for destination, message in sends:
            if message.kind in (Kind.PLANNED, Kind.HELP) and message.rows is not None:
                n = count(message.rows)
                self.rows.loans[rank].lent(destination, self.rows.now + self.now, n, n * self.row_bytes)
        job = self.rounds[rank].job
        phase = Phase.WAITING if job is None else Phase.OWN if job.owner == rank else Phase.FOREIGN
        self.rows.records[rank].enter(phase, self.rows.now + self.now)
