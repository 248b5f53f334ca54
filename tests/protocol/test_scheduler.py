"""The scheduler of executors: its law in every state of small ones, known-wrong variants, and its time in simulation."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from lb_mpi.cli.simulate.tasks import bound_s
from lb_mpi.errors import ProtocolError
from lb_mpi.knowledge import RankKnowledge, Timing
from lb_mpi.pooling import copies, scheduler
from lb_mpi.pooling.scheduler import Scheduler, Task, TaskQueue
from tests.protocol.few_tasks import Round, scheduled_s
from tests.protocol.mutate import rejects
from tests.protocol.scheduler_law import Small, explore

SMALL = [
    Small([0], ["", "", ""], cancels=True),
    Small([0, 0], ["", "", ""], cancels=True),
    Small([0, 0], ["", "", "", ""], most=3),
    Small([0, 0, 0], ["", ""], initializes=True, fails=True),
    Small([0, 0], ["", ""], initializes=True, fails=True, cancels=True),
    Small([0, 1], ["a", "a"], cancels=True, fails=True),
    Small([0, 1], ["", "", "a"], most=1, cancels=True),
    Small([0, 1, 1], ["a", "ab"], most=1),
    Small([0, 1], ["a", "b", ""], initializes=True),
    Small([0, 0], ["a", "b", ""]),
    Small([0], [""] * 6, buffersize=2),
    Small([0, 0], [""] * 8, buffersize=1),
    Small([0, 0], [""] * 6, most=3, buffersize=5),
    Small([0, 0, 0], [""] * 5, buffersize=4, two=False),
]


@pytest.mark.parametrize("small", SMALL, ids=range(len(SMALL)))
def test_the_law_holds_in_every_reachable_state(small):
    assert explore(small) > 20


MUTANTS = [
    (scheduler, "Scheduler.finish", "give_back(batch.tasks[n:])", "give_back(batch.tasks[n - 1 :])"),  # sent twice
    (scheduler, "Scheduler.finish", "batch._replace(tasks=batch.tasks[n:])", "batch"),  # awaited twice
    (scheduler, "Scheduler.finish", "batch._replace(tasks=batch.tasks[:n])", "batch"),  # given back, and run, too
    (scheduler, "TaskQueue.give_back", "if not self.broken:", "if False:"),  # lost
    (scheduler, "TaskQueue.drop", "[*self.waiting]", "[*self.waiting, *self.due]; self.due.clear()"),  # begun, and cancelled
    (scheduler, "Scheduler._next", "one.kind != BatchKind.TASKS", "False"),  # tasks behind an initializer that may fail
    (scheduler, "TaskQueue.upkeep", "return Batch(self, BatchKind.INITIALIZE)", "pass"),
    (scheduler, "TaskQueue.free", "self.forgets.setdefault(rank, []).extend(keys)", "pass"),
    (scheduler, "Scheduler.wants", "if room <= 0:", "if False:"),  # more than there is room for
    (scheduler, "Scheduler.wants", "max(1, room // len(self.at))", "max(2, room // len(self.at))"),
    (scheduler, "Scheduler.wants", "max(1, room // len(self.at))", "room // len(self.at)"),  # never any
    (scheduler, "Scheduler.wants", "if not len(queue) or", "if not queue.n_sent or"),  # only when all is done
    (scheduler, "Scheduler._free", "self._blocks and rank == root", "rank != root"),  # before others have some
    (scheduler, "Scheduler._free", "sorted(self.at,", "sorted({*self.at} - {root} or {root},"),  # the root has none
    (scheduler, "Scheduler._free", "n == 0 or self._may_have_more(rank)", "True"),  # too many
    (scheduler, "Scheduler._free", "n == 0 or self._may_have_more(rank)", "n > 0 and self._may_have_more(rank)"),
    (copies, "Copies.missing", "if not self._hosts[key].get(host)", "if host not in self._hosts[key]"),  # on its way
    (copies, "Copies.need", "self._needed[key] += 1", "pass"),  # freed while tasks need it
]


def find_fault() -> None:
    for small in sorted(SMALL, key=lambda one: (len(one.hosts) > 2 or not one.buffersize, len(one.hosts) * len(one.tasks))):
        explore(small)


test_known_wrong_variants_are_caught = rejects(find_fault, MUTANTS, KeyError, right=False)


def pair(begins: Callable[[Task], bool] = lambda _: True) -> tuple[Scheduler, TaskQueue]:
    """A scheduler of two ranks on a host, with one queue."""
    scheduler, queue = Scheduler(2, 0, RankKnowledge(2)), TaskQueue([0, 0], range(2), 0, begins)
    scheduler.queues.append(queue)
    return scheduler, queue


def test_results_that_nobody_awaits_are_an_error():
    scheduler, queue = pair()
    with pytest.raises(ProtocolError, match="results from rank 1, which has no batch"):
        scheduler.finish(1, 1, 0.0)
    queue.add(Task("one"))
    ((rank, _),) = scheduler.batches(0.0)
    with pytest.raises(ProtocolError, match=f"2 results from rank {rank}: expected 1 to 1"):
        scheduler.finish(rank, 2, 0.0)


# --- in simulation ----------------------------------------------------------------------------------------------------


class Eager(Scheduler):
    """Sends every rank a second batch, and lets slow ones begin the last tasks."""

    def _may_have_more(self, rank: int) -> bool:
        return rank != self._root and sum(map(len, self.queues)) > len(self.at)

    def _leaves(self, rank: int, queue: TaskQueue, now: float) -> bool:
        return False


def ratio(
    rounds: Sequence[Sequence[float]], speeds: Sequence[float], scheduler_class: type[Scheduler] = Scheduler, *,
    costs: bool = False,
) -> float:  # fmt: skip
    """Virtual time / lower bound of rounds of tasks, given by their seconds at speed 1; `costs`: they are known."""
    drawn = [Round(np.array(tasks), np.array(speeds)) for tasks in rounds]
    return sum(scheduled_s(drawn, costs=costs, scheduler_class=scheduler_class)) / sum(bound_s(*one) for one in drawn)


UNEQUAL, EQUAL = [0.4, 0.2, 0.1, 0.1], [1.0] * 4
GRID = [0.15] * 4 + [0.55, 0.8, 1.6, 0.45, 0.45, 0.8, 0.4, 0.4, 0.45, 0.4, 0.35, 0.4]  # as a grid search of vector machines


def draw(seed: int, n_rounds: int, n: int, spread: float) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    return [rng.lognormal(-0.5 * spread**2, spread, n).tolist() for _ in range(n_rounds)]


def test_long_tasks_are_sent_ahead_while_many_wait():
    scheduler, queue = pair()
    for number in range(40):
        queue.add(Task(number))
    left_with_two = set[int]()  # number of tasks not sent while rank 1 has a second one
    while len(queue) or any(scheduler.at.values()):
        scheduler.batches(0.0)
        if len(scheduler.at[1]) == 2:
            left_with_two.add(len(queue))
        for rank in [one for one in scheduler.at if scheduler.at[one]]:
            scheduler.finish(rank, 1, 0.1)
    assert max(left_with_two) > 30
    assert 5 < min(left_with_two) < 15


def test_a_task_of_a_new_function_is_alone_at_its_rank():
    """Tasks behind one that waited for them hung for ever."""
    scheduler, queue = pair()
    for function in [*["short"] * 40, "new", "new", *["short"] * 40]:
        queue.add(Task(0, function=function))
    at, sent = scheduler.at, list[tuple[str, ...]]()
    for _ in range(200):
        for _, batch in scheduler.batches(0.0):
            sent.append(tuple(str(task.function) for task in batch.tasks))
        assert all(len(at[rank]) == 1 for rank in at if at[rank] and at[rank][0].tasks[0].function == "new")
        for rank in [rank for rank in at if at[rank] and at[rank][0].tasks[0].function == "short"]:
            scheduler.finish(rank, len(at[rank][0].tasks), 1e-3 * len(at[rank][0].tasks))
        if all(one and one[0].tasks[0].function == "new" for one in at.values()):
            scheduler.finish(1, 1, 1e-3)
    assert sent.count(("new",)) == 2
    assert sum(map(len, sent)) == 82
    assert max(map(len, sent)) >= 5


def test_no_task_is_behind_one_of_another_function_or_that_was_submitted_later():
    """A known function may wait for another one, too; and the next task may be a cancelled one, of a known function."""
    scheduler, queue = pair(lambda task: task.payload != "cancelled")
    two = 0
    for function in [*["f"] * 20, *["g"] * 20, *["f", "g"] * 20, *["f"] * 20]:
        queue.add(Task(0, function=function))
    while len(queue) or any(scheduler.at.values()):
        scheduler.batches(0.0)
        for rank, at in scheduler.at.items():
            two += len(at) == 2
            assert len({task.function for batch in at for task in batch.tasks}) <= 1
            if at:
                scheduler.finish(rank, 1, 1e-3, more=len(at[0].tasks) > 1)
    assert two > 20
    for number in range(40):
        queue.add(Task(number, function="f"))
    while len(queue):  # rank 0 gives most of them back
        scheduler.batches(0.0)
        payloads = [task.payload for batch in scheduler.at[1] for task in batch.tasks]
        assert payloads == sorted(payloads)
        scheduler.finish(0, 1, 1e-3)
        if len(scheduler.at[1]) == 2:
            scheduler.finish(1, len(scheduler.at[1][0].tasks), 1e-3)
    for rank, at in scheduler.at.items():
        while at:
            scheduler.finish(rank, len(at[0].tasks), 1e-3)
    for payload, function in [("cancelled", "f"), *[("begins", "new")] * 20]:
        queue.add(Task(payload, function=function))
    assert [len(batch.tasks) for _, batch in scheduler.batches(0.0)] == [1, 1]


def test_a_rank_of_unknown_speed_begins_with_a_cheap_task():
    for speeds in itertools.permutations(UNEQUAL):  # else the longest task may be the first of the slowest rank
        assert ratio([GRID], speeds, costs=True) < 1.2
    assert ratio([GRID], EQUAL, costs=True) < 1.1
    scheduler, queue = pair(lambda task: task.payload != "cancelled")
    for payload, cost in (("long", 8.0), ("even", 4.0), ("cheap", 0.5), ("cancelled", 0.1)):
        queue.add(Task(payload, cost=cost))
    assert [batch.tasks[0].payload for _, batch in scheduler.batches(0.0)] == ["long", "cheap"]
    assert queue.units == 4.0


@pytest.mark.parametrize(("n", "gain"), [(4, 0.75), (12, 0.85)])
def test_slow_ranks_leave_the_last_long_tasks_to_fast_ones(n, gain):
    rounds = draw(1, 60, n, 0.7)
    assert ratio(rounds, UNEQUAL) < gain * ratio(rounds, UNEQUAL, Eager)
    assert ratio(rounds, EQUAL) < 1.03 * ratio(rounds, EQUAL, Eager)


def test_short_tasks_are_sent_in_batches_and_ahead():
    for speeds in (UNEQUAL, EQUAL):
        found = [ratio([[1e-3 * s for s in tasks]], speeds) for seed in range(1, 5) for tasks in draw(seed, 1, 2000, 1.0)]
        assert np.mean(found) < 1.02


def test_one_task_one_rank_and_equal_tasks():
    assert ratio([[1.0]], [1.0]) == 1.0
    assert ratio([[0.5] * 64], UNEQUAL) == pytest.approx(1.0)
    assert ratio([[1.0]] * 20, [0.1, 1.0]) < 1.5  # after the first task, which meets one of them by chance


@pytest.mark.parametrize("begin", [0.0, 1e5])
def test_a_slow_rank_leaves_the_first_tasks_of_a_stream_whenever_it_begins(begin):
    knowledge = RankKnowledge(2)
    for _ in range(3):
        knowledge.observe("f", {rank: Timing(0, 4, 4 * s, 4 * s * s) for rank, s in enumerate((0.05, 0.5))})
    one = Scheduler(2, 0, knowledge, "f", blocks=True)
    queue = TaskQueue([0, 0], range(2), 0, lambda _: True, more=True)
    one.queues.append(queue)
    sent = list[int]()
    for _ in range(4):
        while one.wants(queue, 8 - len(queue)):
            queue.add(Task(0))
        sent += [rank for rank, _ in one.batches(begin)]
    assert sent == [0]


def test_a_rank_leaves_a_task_for_a_limited_time():
    scheduler, queue = pair()
    now = 0.0
    for _ in range(8):  # rank 1 is ten times slower
        for number in range(2):
            queue.add(Task(number))
        scheduler.batches(now)
        now += 10.0
        for rank, seconds in 2 * ((0, 1.0), (1, 10.0)):
            while scheduler.at[rank]:
                scheduler.finish(rank, 1, seconds)
            scheduler.batches(now)
    for number in range(2):
        queue.add(Task(number))
    assert [rank for rank, _ in scheduler.batches(now)] == [0]
    assert now < scheduler.wake_at < now + 1000.0
    assert scheduler.batches((now + scheduler.wake_at) / 2) == []
    assert [rank for rank, _ in scheduler.batches(scheduler.wake_at)] == [1]  # rank 0 has not come back
