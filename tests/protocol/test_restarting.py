"""What to do after an end of a run: the table of cli/run/restarting.py, and its law over all small outcomes."""

import pytest

from lb_mpi.cli.run.hosts import Host
from lb_mpi.cli.run.lines import End
from lb_mpi.cli.run.restarting import SETTLE_S, How, Outcome, assign_ranks, decide, how

KILLED, SEGV, FAILED, SAVED = End("1", "b", -9), End("2", "a", -11), End("0", "a", 1), End("0", "a", 75)
UNFINALIZED = End("2", "a", 0)
GONE = ("b",)


@pytest.mark.parametrize(("outcome", "found"), [
    (Outcome(0), How.DONE),
    (Outcome(75, [(1.0, SAVED)]), How.STOPPED),
    (Outcome(75, [(1.0, SAVED), (1.1, SEGV)]), How.STOPPED),  # what mpiexec ends may end badly
    (Outcome(1, [(1.0, FAILED)]), How.FAILED),
    (Outcome(1, [(1.0, FAILED), (1.0 + 2 * SETTLE_S, KILLED)]), How.FAILED),
    (Outcome(1, [(1.0, FAILED), (1.0 + SETTLE_S / 2, KILLED)]), How.DIED),  # it failed of the death
    (Outcome(9, [(1.0, KILLED), (1.1, FAILED)]), How.DIED),
    (Outcome(9, [(1.0, KILLED), (1.1, SAVED)]), How.DIED),
    (Outcome(0, [(1.0, KILLED)]), How.DIED),  # mpiexec may say 0 all the same
    (Outcome(0, [(1.0, UNFINALIZED)]), How.FAILED),
    (Outcome(9, [(1.0, UNFINALIZED), (1.1, KILLED)]), How.DIED),
    (Outcome(0, unreported=[2]), How.DIED),
    (Outcome(0, [(1.0, FAILED)], unreported=[2]), How.FAILED),
    (Outcome(1, unreported=[0, 1, 2]), How.FAILED),
    (Outcome(75), How.STOPPED),
    (Outcome(1), How.FAILED),  # MPI_Abort: nobody had the time to tell
    (Outcome(15), How.FAILED),
    (Outcome(9), How.DIED),
    (Outcome(137), How.DIED),
    (Outcome(0, gone=GONE), How.GONE),
    (Outcome(1, [(1.0, FAILED)], gone=GONE), How.GONE),
    (Outcome(1, hung=True), How.HUNG),
    (Outcome(1, [(1.0, KILLED)], gone=GONE, hung=True), How.HUNG),
])  # fmt: skip
def test_the_cause_of_an_end_is_found(outcome, found):
    assert how(outcome) is found


DIED, FROM_SAVE_7 = Outcome(9, [(1.0, KILLED)]), (False, 75, "saved (7) and stopped: the same command continues from there")
ANEW = "after 0.0 s, from the last save, if there is one"
ALL_MADE, FAILURE = "no restart: all 3 allowed restarts were made", "no restart: the program has failed"


@pytest.mark.parametrize(("outcome", "n_restarts", "allowed", "said"), [
    (Outcome(0), 0, 3, (False, 0, "")),
    (DIED, 0, 0, (False, 9, "")),
    (DIED, 0, 3, (True, 9, f"restart 1 of 3, {ANEW}")),
    (DIED._replace(n_saved=2, saved=12, seconds=3.21), 1, 3, (True, 9, "restart 2 of 3, after 3.2 s, from save 12")),
    (DIED._replace(n_saved=2), 3, 3, (False, 9, ALL_MADE)),
    (DIED._replace(n_saved=2), 1, 1, (False, 9, "no restart: the one allowed restart was made")),
    (DIED, 3, 3, (False, 9, ALL_MADE)),
    (Outcome(1, [(1.0, FAILED)], n_saved=2), 0, 3, (False, 1, FAILURE)),
    (Outcome(0, [(1.0, UNFINALIZED)]), 0, 0, (False, 1, "")),
    (Outcome(75, n_saved=1, saved=7), 0, 3, FROM_SAVE_7),
    (Outcome(0, n_saved=1, saved=7, saved_on_request=True), 0, 3, FROM_SAVE_7),
    (Outcome(75, [(1.0, SAVED)], n_saved=1, saved=7), 0, 0, FROM_SAVE_7),
    (Outcome(0, unreported=[1], n_saved=1, saved_on_request=True), 0, 0, (False, 1, "")),
    (Outcome(0, unreported=[1], n_saved=1, saved=7), 0, 3, (True, 1, "restart 1 of 3, after 0.0 s, from save 7")),
    (Outcome(0, unreported=[1]), 0, 0, (False, 1, "")),
    (Outcome(0, gone=GONE), 0, 0, (False, 1, "")),
    (Outcome(1, gone=GONE), 0, 3, (True, 1, f"restart 1 of 3, {ANEW}")),
    (Outcome(255, gone=GONE, seconds=0.5), 1, 3, (True, 255, f"restart 2 of 3, {ANEW.replace('0.0', '0.5')}")),
    (Outcome(255, gone=GONE), 3, 3, (False, 255, ALL_MADE)),
    (Outcome(1, hung=True), 0, 0, (False, 124, "")),
    (Outcome(1, hung=True), 1, 3, (False, 124, "no restart: nothing was saved since the last start")),
    (Outcome(1, hung=True, n_saved=1), 0, 3, (True, 124, "restart 1 of 3, after 0.0 s, from save 0")),
    (Outcome(1), 0, 3, (False, 1, FAILURE)),
])  # fmt: skip
def test_the_cause_decides_what_follows(outcome, n_restarts, allowed, said):
    assert decide(outcome, n_restarts, allowed) == said


def test_without_a_save_the_same_death_twice_ends_the_run():
    elsewhere = KILLED._replace(host="c")  # the rank is on another host by then
    for before, after, n_saved, again in (
        (KILLED, elsewhere, 0, False),
        (KILLED, elsewhere, 1, True),
        (KILLED, SEGV, 0, True),  # another signal in another rank
        (KILLED, KILLED._replace(code=-15), 0, True),
        (KILLED, KILLED._replace(rank="0"), 0, True),
        (KILLED, None, 0, True),
        (None, None, 0, False),  # mpiexec has died: nobody knows more
    ):
        first, second = (Outcome(9, [(1.0, end)] if end else []) for end in (before, after))
        assert decide(first, 0, 3).again
        assert decide(second._replace(n_saved=n_saved), 1, 3, first).again == again
    first = Outcome(9, [(1.0, KILLED)])
    assert decide(first, 1, 3, Outcome(9, [(1.0, KILLED)], gone=GONE)).again
    why = "no restart: it died as the last time, and nothing was saved in between"
    assert decide(first, 1, 3, first._replace(n_saved=1)) == (False, 9, why)  # the second start has not come as far


def test_ranks_are_placed_on_what_is_left():
    hosts = [Host("a", 2), Host("b", 1), Host("c", 2)]
    assert assign_ranks(hosts, {}, 3) == ([0, 0, 1], [])
    assert assign_ranks(hosts, {1: "host b: dead"}, 3) == ([0, 0, 2], ["left out: host b: dead"])
    less = ["left out: host a: dead", "3 ranks instead of 5: there are no more slots"]
    assert assign_ranks(hosts, {0: "host a: dead"}, 5) == ([1, 2, 2], less)
    ranks, words = assign_ranks(hosts, {0: "x", 2: "y"}, 2)
    assert ranks == [1]
    assert words[-1] == "1 rank instead of 2: there are no more slots"
    ranks, words = assign_ranks(hosts, dict.fromkeys(range(3), "gone"), 2)
    assert ranks == []
    assert words[-1] == "0 ranks instead of 2: there are no more slots"
