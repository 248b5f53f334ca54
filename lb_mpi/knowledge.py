"""Knowledge of the ranks and of a function's tasks: speeds, each with its uncertainty, and lengths.   (pure)

The logarithm of a rank's speed is estimated from the tasks that it has run, compared with those of all other ranks, and with
what was known of the tasks.  Its variance is that of a task divided by their number, so

- a few tasks that hardly differ say more than many that differ much, also when that is seen later;
- what one rank alone has run says little of its speed, since its tasks may have been long;
- older tasks count less: a speed is known by the last `MEMORY` tasks;
- a measurement that is off by more than `CLEAR` standard deviations overrules what was known;
- a rank that runs no tasks is known less and less, so that it gets one to try now and then.

A communicator keeps what is known of its ranks (`SpeedSources`), for the next pool, executor, Balancer or `distribute`
there: a weak prior (`KnownSpeeds`).  One clear measurement overrules it, and without any it fades from call to call, so that
a rank which is believed slow soon gets a task to try.

Seconds are a rank's own: in tasks, without the time in which it waited for a core.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

MEMORY = 64.0  # tasks of a rank by which its speed is known
UNSURE, RANKS = 0.2, 2.0  # variance of the logarithms of unknown speeds; it counts as so many ranks
LEAST_SPREAD = 0.02  # of these logarithms, since no two ranks are alike
WEAK = 0.1  # variance of speeds from another pool or Balancer, as a part of that of unknown ones
FADE = 1 / 3  # what is left of such a prior after each call in which the rank has run no task
CLEAR = 3.0  # standard deviations beyond which a speed has changed
CHANGED = math.log(2.0)  # of the logarithm of a speed: then those of ranks that rest may have changed, too
COLD_S = 0.5e-3  # seconds by which the tasks of a rank may take longer, or not, as its caches are cold
MOST_RESTED = 4.0 * MEMORY  # tasks
HOPE = 1.0  # standard deviations by which a speed may be higher than believed
CLOCK = 1e-3  # variance of the logarithm of each measurement, as clocks and caches make it
LENGTH = 0.1  # variance of the logarithm of the length of tasks, which may differ from call to call
VARIATION = 0.25  # of tasks of which little is known: variance / mean**2
VARIATION_OF_COSTS = 0.01  # of seconds for a unit of cost, where costs are known
LEAST_S, LONGEST_S = 1e-9, 1e12  # seconds of work below, and above, which nothing is learned
SLOWEST = math.log(sys.float_info.min)
KEPT = 4  # functions
USUAL, LEAST = 5, 3  # calls over which the median of a rank's speed is taken; those that it needs to be known
JUMP = 1.25  # two calls that differ by this factor from the usual speed are a change, not noise
DOORS = 8  # of a communicator


class Timing(NamedTuple):
    """Tasks that a rank has run; where costs are known, `n` is their cost, in average tasks."""

    epoch: int = -1  # of the map
    n: float = 0
    seconds: float = 0.0
    squares: float = 0.0  # sum of the squares of the seconds of each

    def added(self, seconds: float, n: float = 1) -> Timing:
        """Return the timing with another task, or with `n` equal ones that took `seconds` together."""
        return Timing(self.epoch, self.n + n, self.seconds + seconds, self.squares + seconds * seconds / n)


class RankSpeed(NamedTuple):
    """The logarithm of the speed of a rank: what was believed before any task, and what tasks have shown."""

    prior: float = 0.0
    unsure: float = 1.0  # variance of the prior, in those of ranks of which nothing is known
    log: float = 0.0  # by the tasks alone
    n: float = 0.0  # tasks by which it is known
    rested: float = 0.0  # time since then, in tasks that it could have run

    def known(self, variation: float, spread: float) -> tuple[float, float]:
        """Return the expected logarithm and its variance, if tasks vary like this, and priors are off by that `spread`."""
        spread = max(spread * self.unsure, 1e-12 * self.unsure)
        if not self.n:
            return self.prior, spread
        noise = self.noise(variation)
        gain = spread / (spread + noise)
        return self.prior + gain * (self.log - self.prior), gain * noise + self.drift

    def faded(self, log: float) -> RankSpeed:
        """Return the speed after a call without a task: an unconfirmed prior approaches `log`, the mean of the others."""
        if self.n or not 0.0 < self.unsure < 1.0:
            return self
        return self._replace(prior=log + FADE * (self.prior - log), unsure=1.0 - FADE * (1.0 - self.unsure))

    def noise(self, variation: float) -> float:
        """Return the variance of `log`."""
        return (CLOCK + variation) / self.n

    @property
    def drift(self) -> float:
        """Variance that the time since then has added."""
        return (self.rested / MEMORY) ** 2

    def measured(self, log: float, noise: float, variation: float, extra: float) -> RankSpeed:
        """Return it after tasks that show this logarithm with a variance `noise`; `extra`: more of what was known before."""
        one = CLOCK + variation
        before, n = one / (self.noise(variation) + self.drift + extra) if self.n else 0.0, one / noise
        mean = (before * self.log + n * log) / (before + n)
        prior, unsure = (0.0, 1.0) if extra and self.unsure else (self.prior, self.unsure)  # it was wrong
        return RankSpeed(prior, unsure, mean, min(MEMORY, before + n))


class MeasuredSpeeds(deque[float]):
    """The speeds of a rank in its last calls, work per second."""

    def __init__(self, speeds: Iterable[float] = ()) -> None:
        super().__init__(speeds, USUAL)

    def add(self, speed: float) -> float:
        """Add a speed, and return the median; the second one in a row that is far from the median becomes it at once."""
        changed = False
        if len(self) >= LEAST:
            usual, last = statistics.median(self), self[-1]
            changed = max(last, speed) * JUMP < usual or min(last, speed) > JUMP * usual
        self.append(speed)
        if changed:
            self.extend([speed] * (USUAL // 2))
        return statistics.median(self)

    def moved(self) -> MeasuredSpeeds:
        """Return what is left of these speeds when vertices have moved: the usual one, as a single measurement."""
        return MeasuredSpeeds([self.usual()] if self else [])

    def usual(self, least: int = 1) -> float:
        """Return the median; NaN: there are fewer than `least`."""
        return statistics.median(self) if len(self) >= least else math.nan


class KnownSpeeds(NamedTuple):
    """Speeds of the ranks of a communicator, as known before they do anything in a new pool or another door."""

    speeds: tuple[float, ...]  # above 0, in any unit
    unsure: tuple[float, ...]  # variance of the logarithm of each, as a part of that of unknown ranks; 1: unknown

    @property
    def complete(self) -> bool:
        """True if something is known of each rank."""
        return max(self.unsure) < 1.0

    def agrees(self, speeds: Sequence[float]) -> bool:
        """Return whether the ratios of these speeds, in any unit, to the known ones are less than a factor of two apart."""
        logs = [math.log(its / known) for its, known in zip(speeds, self.speeds, strict=True)]
        return max(logs) - min(logs) < CHANGED


class TaskLength(NamedTuple):
    """The tasks of a function."""

    log_s: float = 0.0  # logarithm of the seconds of an average one at speed 1
    variance: float = math.inf  # of log_s
    variation: float = VARIATION  # of tasks at speed 1: variance / mean**2
    n: float = 1.0  # tasks by which it is known


UNKNOWN = TaskLength()


class Estimate(NamedTuple):
    """The speeds and the tasks of a host, in the middle of a map."""

    speeds: dict[int, float]
    task_s: float  # of an average task at speed 1
    variation: float  # of tasks at speed 1: variance / mean**2
    hopes: dict[int, float]  # speeds that ranks may have, too: one standard deviation above


class Measurement(NamedTuple):
    """A task's length, from the tasks that one rank has run."""

    log_s: float  # at speed 1, by the rank's speed as it was known
    noise: float  # variance, from the tasks
    log: float  # of the rank's speed as it was known, and its variance
    variance: float


def spread_of(ranks: Iterable[RankSpeed], variation: float) -> float:
    """Return the variance by which the logarithms of speeds differ from their priors, beyond what chance explains."""
    n, sum_ = RANKS, RANKS * UNSURE
    for one in ranks:
        if one.n and one.unsure:
            n, sum_ = n + 1.0, sum_ + (one.log - one.prior) ** 2 - one.noise(variation) - one.drift
    return max(LEAST_SPREAD, sum_ / n)


def updated(
    ranks: Mapping[int, RankSpeed], tasks: TaskLength, timings: Mapping[int, Timing]
) -> tuple[dict[int, RankSpeed], TaskLength]:
    """Return the speeds of the ranks that have run tasks, and what is known of the tasks, after these timings."""
    found, spread = dict[int, Measurement](), spread_of(ranks.values(), tasks.variation)
    for rank, timing in timings.items():
        if timing.n > 0.0 and LEAST_S < timing.seconds < LONGEST_S:
            noise = min((CLOCK + tasks.variation) / timing.n + (COLD_S / timing.seconds) ** 2, LONGEST_S)
            log, variance = ranks[rank].known(tasks.variation, spread)
            found[rank] = Measurement(math.log(timing.seconds / timing.n) + log, noise, log, variance)
    if not found:
        return {}, tasks
    extra = dict.fromkeys(found, 0.0)  # by rank: variance, as its speed has changed
    for _ in range(2):  # again, with less trust in ranks whose speeds have changed
        weights = {rank: 1.0 / (one.variance + extra[rank] + one.noise) for rank, one in found.items()}
        weight = 1.0 / (tasks.variance + LENGTH)
        total = weight + sum(weights.values())
        log_s = (weight * tasks.log_s + sum([weights[rank] * one.log_s for rank, one in found.items()])) / total
        changed = False
        for rank, one in found.items():
            others = total - weights[rank]
            if one.variance and others > 1e-9 * total:
                off = (log_s - one.log_s) * total / others  # from all others
                more = (off / CLEAR) ** 2 - one.variance - one.noise - 1.0 / others
                if more > 0.0:
                    extra[rank], changed = more, True
        if not changed:
            break
    speeds = dict[int, RankSpeed]()
    for rank, one in found.items():
        if not one.variance or (len(found) == 1 and not weight):
            speeds[rank] = ranks[rank]
            continue
        log = log_s - one.log_s + one.log
        speeds[rank] = ranks[rank].measured(max(SLOWEST, log), one.noise, tasks.variation, extra[rank])
    gains = sum([one.variance / (one.variance + one.noise) for one in found.values()])
    spread = spread_of({**ranks, **speeds}.values(), tasks.variation)
    logs = {rank: one.known(tasks.variation, spread)[0] for rank, one in speeds.items()}
    return speeds, _length(tasks, log_s, 1.0 / total, logs, timings, gains)


def _length(
    tasks: TaskLength, log_s: float, variance: float, logs: Mapping[int, float], timings: Mapping[int, Timing],
    gains: float,
) -> TaskLength:  # fmt: skip
    """Return what is known of tasks, by speeds to which the timings have contributed as `gains` tasks would."""
    n = seconds = squares = 0.0
    for rank, log in logs.items():
        timing, factor = timings[rank], math.exp(min(log - log_s, 300.0))
        n += timing.n
        seconds += timing.seconds * factor
        squares += timing.squares * factor * factor
    free = n - 1.0 - gains
    if free <= 0.0 or not 0.0 < seconds < math.inf:
        return TaskLength(log_s, variance, tasks.variation, tasks.n)
    found = max(0.0, n * squares / seconds**2 - 1.0)
    variation = (tasks.n * tasks.variation + n * found) / (tasks.n + free)
    return TaskLength(log_s, variance, variation, min(tasks.n + free, 4.0 * MEMORY))


class RankKnowledge:
    """Speeds of the ranks of a pool, or of another door, and lengths of tasks; `given` speeds are not measured."""

    def __init__(self, size: int, given: Sequence[float] | None = None) -> None:
        self.ranks = [RankSpeed()] * size
        if given is not None:
            largest = max(given)
            self.ranks = [RankSpeed(math.log(max(one / largest, sys.float_info.min)), 0.0) for one in given]
        self.tasks = UNKNOWN  # of the function under way
        self._functions = dict[tuple[Hashable, bool], TaskLength]()  # with costs, or without

    @property
    def speeds(self) -> list[float]:
        """Speeds of the ranks relative to the fastest, above 0, with finite inverses."""
        return self._relative(0.0)

    @property
    def hopes(self) -> list[float]:
        """Speeds that ranks may have, in the unit of `speeds`: so a rank of which little is known gets tasks."""
        return self._relative(HOPE)

    def _relative(self, hope: float) -> list[float]:
        spread = spread_of(self.ranks, self.tasks.variation)
        known = [one.known(self.tasks.variation, spread) for one in self.ranks]
        fastest = max([log for log, _ in known])
        return [math.exp(max(SLOWEST, log - fastest + hope * math.sqrt(variance))) for log, variance in known]

    def believe(self, speeds: Sequence[float], unsure: Sequence[float] | None = None) -> None:
        """Believe these speeds, in any unit, until tasks show others; `unsure`: see `KnownSpeeds`; None: each is WEAK."""
        logs = [math.log(one) for one in speeds]
        mean = math.fsum(logs) / len(logs)
        self.ranks = [RankSpeed(log - mean, sure) for log, sure in zip(logs, unsure or [WEAK] * len(logs), strict=True)]

    def learned(self) -> KnownSpeeds | None:
        """Return what the next door may begin from; None: no speed has been measured."""
        if not any(one.n and one.unsure for one in self.ranks):
            return None
        spread, found = spread_of(self.ranks, self.tasks.variation), list[float]()
        for one in self.ranks:
            _, variance = one.known(self.tasks.variation, spread)
            found.append(min(1.0, max(WEAK, variance / spread)))
        return KnownSpeeds(tuple(self.speeds), tuple(found))

    def begin(self, function: Hashable, *, with_costs: bool = False) -> None:
        """Begin a call of a function; `with_costs`: those of its tasks are known."""
        unknown = TaskLength(variation=VARIATION_OF_COSTS) if with_costs else UNKNOWN
        self.tasks = self._functions.get((function, with_costs), unknown)

    def observe(self, function: Hashable, timings: Mapping[int, Timing], *, with_costs: bool = False) -> None:
        """Learn from tasks of the function that was begun last, as ranks have run them; see `Timing`."""
        self.begin(function, with_costs=with_costs)
        speeds, self.tasks = updated(dict(enumerate(self.ranks)), self.tasks, timings)
        longest_s = max([timing.seconds for timing in timings.values()], default=0.0)
        befores = [(self.ranks[rank], one.log) for rank, one in speeds.items()]
        changed = any(old.n > 1.0 and not old.rested and abs(log - old.log) > CHANGED for old, log in befores)
        usual = math.fsum([one.log for one in speeds.values()]) / len(speeds) if speeds else 0.0
        for rank, old in enumerate(self.ranks):
            if rank in speeds:
                self.ranks[rank] = speeds[rank]
            else:
                tasks = longest_s * math.exp(min(old.log - self.tasks.log_s, 300.0))
                rested = old.rested + tasks + MEMORY * changed  # where one has changed, others may have
                self.ranks[rank] = old._replace(rested=min(MOST_RESTED, rested)).faded(usual)
        self._functions.pop((function, with_costs), None)
        self._functions[function, with_costs] = self.tasks
        if len(self._functions) > KEPT:
            del self._functions[next(iter(self._functions))]

    def estimate(self, ranks: Sequence[int], timings: Mapping[int, Timing]) -> Estimate | None:
        """Return what is known of ranks in the middle of a call, in which they have these timings; None: no length."""
        speeds, tasks = updated({rank: self.ranks[rank] for rank in ranks}, self.tasks, timings)
        if tasks.variance == math.inf:
            return None
        after = {rank: speeds.get(rank, self.ranks[rank]) for rank in ranks}
        spread = spread_of(after.values(), tasks.variation)
        known = {rank: one.known(tasks.variation, spread) for rank, one in after.items()}
        fastest = max([log for log, _ in known.values()])
        relative = {rank: math.exp(max(SLOWEST, log - fastest)) for rank, (log, _) in known.items()}
        hopes = {rank: relative[rank] * math.exp(HOPE * math.sqrt(variance)) for rank, (_, variance) in known.items()}
        return Estimate(relative, math.exp(tasks.log_s - fastest), tasks.variation, hopes)

    def knows(self, rank: int) -> bool:
        """Return whether anything is known of a rank."""
        return self.ranks[rank].n > 0.0

    def numbers(self) -> list[float]:
        """Return what other ranks need to know in a call, `n_numbers` numbers."""
        return [*self.tasks, *[number for one in self.ranks for number in one]]

    def adopt(self, numbers: Sequence[float]) -> None:
        """Know what the root knows, by its `numbers`."""
        n, width = len(TaskLength._fields), len(RankSpeed._fields)
        self.tasks = TaskLength(*numbers[:n])
        self.ranks = [RankSpeed(*numbers[at : at + width]) for at in range(n, len(numbers), width)]


def n_numbers(size: int) -> int:
    """Return how many numbers `RankKnowledge.numbers` has for so many ranks."""
    return len(TaskLength._fields) + size * len(RankSpeed._fields)


class SpeedSources:
    """Sources of what one rank knows of the speeds of a communicator's ranks: the doors that it has opened there.

    A door is a pool, a Balancer, and so on.  All ranks open the same ones, and begin each from what the newest source of any
    rank has learned (`lb_mpi.mpi.common.speeds`): often, only the root has learned something.
    """

    def __init__(self) -> None:
        self._n_opened, self._emulated = 0, 1.0
        self._sources = deque[tuple[int, Callable[[], KnownSpeeds | None]]](maxlen=DOORS)  # newest first

    def open(self, emulated_speed: float) -> bool:
        """Open a door; return whether this rank has another emulated speed than in the last one."""
        changed, self._emulated = emulated_speed != self._emulated, emulated_speed
        self._n_opened += 1
        return changed

    def forget(self) -> None:
        """Forget all, since some rank has another emulated speed."""
        self._sources.clear()

    def newest(self) -> tuple[int, KnownSpeeds | None]:
        """Return the number of the newest door here that has learned something, and what; (0, None): none has."""
        found = ((door, source()) for door, source in self._sources)
        return next(((door, known) for door, known in found if known is not None), (0, None))

    def add(self, source: Callable[[], KnownSpeeds | None]) -> None:
        """Note that the door that was opened last learns; `source` returns what it knows whenever another one is opened."""
        self._sources.appendleft((self._n_opened, source))
