"""Every call that all ranks make: a rank that waits for long names the late one, obeys Ctrl-C, and goes on when it comes."""

import contextlib
import copy
import functools
import gc
import math
import os
import pickle
import re
import signal
import sys
import threading
import time
import warnings
import weakref
from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

import lb_mpi
from lb_mpi import compiling, signs
from lb_mpi.balancing.decider import RootPlanner
from lb_mpi.graph import parse
from lb_mpi.mpi.common import calls, collective, communicator, failure, late, saves
from lb_mpi.mpi.common.calls import call as in_call
from lb_mpi.mpi.common.late import Answer, awaited
from lb_mpi.mpi.common.tags import MOST, Tag
from tests.mpi import doors
from tests.mpi.doors import DOORS, ROWS, USES, on_root
from tests.pile import Pile

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
LATE = SIZE - 1
TAG = 9
GIVE_UP_S = 60.0
pytestmark = [pytest.mark.mpi, pytest.mark.skipif(SIZE != 3, reason="waits take time: once is enough")]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(late, "ANSWER_S", 0.1)
    monkeypatch.setattr(communicator, "EVERY_S", 0.05)
    monkeypatch.setattr(communicator, "PATIENCE_S", 0.1)


# --- a late rank ------------------------------------------------------------------------------------------------------


@contextmanager
def warned(on_warning, says=""):
    """Collect the warnings of lb_mpi on this rank; outside of this block there are none.

    `says`: in the warning that counts; before it, the answer of a rank on a busy machine may be late.
    """
    lines = []
    phases = []  # what launch/run sees then
    files = set()  # with the program's lines that are shown

    def warn(text, kind, stacklevel):
        assert kind is RuntimeWarning
        files.add(sys._getframe(stacklevel).f_code.co_filename)
        lines.append(text)
        phases.append(signs.read(bytes(signs._page.bytes)).phase)
        if says in text:
            on_warning()
        else:
            late.Questions._warned_in = 0  # it warns again

    COMM.Barrier()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warnings, "warn", warn)
        patch.setenv("LB_MPI_HANG_S", "0.1")
        yield lines
    assert all(phase and f" s in {phase}: " in text for phase, text in zip(phases, lines, strict=True)), (phases, lines)
    assert files <= {__file__, doors.__file__}


def check_named(text, call, late_rank=LATE, lowest=0):
    """The lowest rank that waits says who does not answer; on a busy machine others may answer late."""
    assert text.startswith(f"rank {lowest} has waited for ")
    assert re.search(rf" s in {re.escape(call)}: ranks? (\d, )*{late_rank}(, \d)* do(es)? not answer", text), text


def release(late_rank=LATE):
    """Let the late rank come, when the lowest of the others has warned: another one may be first on a busy machine."""
    if int(late_rank == 0) == RANK:
        COMM.Send(b"", late_rank, TAG)


def interrupt():
    """Ctrl-C on the lowest rank."""
    if RANK == 0:
        os.kill(os.getpid(), signal.SIGINT)


def until_released():
    """Wait for another rank's word, deaf to all questions."""
    deadline = time.monotonic() + GIVE_UP_S
    while not COMM.Iprobe(MPI.ANY_SOURCE, TAG):
        assert time.monotonic() < deadline, "no rank has warned"
        time.sleep(0.01)


def receive_all():
    """Receive what nobody has waited for."""
    COMM.Barrier()
    while COMM.Iprobe(MPI.ANY_SOURCE, TAG):
        COMM.Recv(bytearray(), MPI.ANY_SOURCE, TAG)


def used():
    """A new communicator on which a call of lb_mpi has been made before, so that ranks can ask each other."""
    comm = COMM.Dup()
    communicator.duplicate(comm).Free()
    return comm


def reordered(comm):
    lb_mpi.reorder_ranks(comm, f"mesh:1x{SIZE}", [1.0] * SIZE).Free()


class Alarm(Exception):
    """Of a handler of signals."""


def handler(*_):
    raise Alarm


def test_a_rank_that_compiles_kernels_says_so(folder, monkeypatch):
    monkeypatch.setattr(compiling, "EVERY_S", 0.05)
    _, made = DOORS["Balancer"]
    with made(used(), folder) as call, warned(release, f"rank {LATE} is compiling kernels (first run only)"):
        if RANK == LATE:
            compiling.compilation.begin("kernel")
            until_released()
            compiling.compilation.end()
        call()
    receive_all()


class Slow(Pile):
    """Rank 0 is busy with its first unit."""

    def work(self, units):
        if RANK == 0 and not self.done:
            until_released()
        return super().work(units)


def test_a_warning_raised_as_an_error_reaches_all_ranks(monkeypatch):
    def warn(text, kind, stacklevel):
        COMM.Send(b"", 0, TAG)
        raise kind(text)

    monkeypatch.setattr(late.warnings, "warn", warn)
    communicator.duplicate(COMM).Free()
    monkeypatch.setenv(late.VARIABLE, "1")
    with pytest.raises((lb_mpi.Error, RuntimeWarning), match=r"rank [12] has waited for "):  # or before rank 0 has come
        lb_mpi.search(COMM, Slow(3))
    receive_all()


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_time_that_is_none_is_an_error_on_all_ranks(monkeypatch, text):
    if RANK == LATE:
        monkeypatch.setenv(late.VARIABLE, text)
    for door in (lambda: lb_mpi.Pool(COMM), lambda: lb_mpi.Balancer(COMM), lambda: lb_mpi.search(COMM, Pile(3))):
        with pytest.raises(ValueError, match=f"LB_MPI_HANG_S = '{text}': expected seconds, 0 or more"):
            door()


@pytest.mark.parametrize("seconds", ["0", "60"])
def test_no_rank_asks_if_the_time_is_zero(monkeypatch, seconds):
    monkeypatch.setenv(late.VARIABLE, seconds)
    questions = late.Questions(MPI.COMM_SELF)
    with in_call("it"):
        questions.warn(0.0, 86_400.0)
    assert (questions._asked_at is None) == (seconds == "0")


def test_a_warning_says_what_the_other_ranks_do():
    kinds = late._Kind
    works, waits, runs_tasks = Answer(kinds.WORKS, "it"), Answer(kinds.WAITS, "it"), Answer(kinds.SERVES, "")
    silent = "does not answer (not in the call, computing, or stopped)"
    assert awaited(0, 3, "it", 60.2, {1: waits}) == f"rank 0 has waited for 60 s in it: rank 2 {silent}"
    assert awaited(1, 4, "it", 60.2, {0: works, 2: waits}).endswith(f": rank 3 {silent}; rank 0 is at work")
    assert awaited(0, 3, "it", 5.0, {1: works, 2: works}).endswith(": ranks 1, 2 are at work")
    assert awaited(0, 3, "it", 5.0, {1: waits, 2: runs_tasks}).endswith("of the same objects in the same order")
    elsewhere = Answer(kinds.WAITS, "another call")
    assert awaited(0, 3, "it", 5.0, {1: elsewhere, 2: waits}).endswith(" in it: rank 1 is in another call")
    assert awaited(0, 3, "it", 5.0, {1: elsewhere, 2: elsewhere}).endswith(": ranks 1, 2 are in another call")
    assert "ranks 1 to 19 do not" in awaited(0, 20, "it", 60.0, {})
    odd = awaited(0, 21, "it", 60.0, dict.fromkeys(range(2, 21, 2), waits))
    assert "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 2 more do not" in odd


def test_a_commit_ends_well_although_another_rank_fails_after_it_and_fails_with_one_that_fails_before_or_in_it():
    own = communicator.duplicate(used())
    presence = communicator.presence_of(own)
    with presence.committing():
        request = own.Ibarrier()
        presence.wait(lambda: (RANK == 0 or bool(presence._failures.ahead)) and request.Test(), name="")
    if RANK == 0:
        presence.send_failure(ValueError("after it"))
    with pytest.raises(lb_mpi.Error, match=r"after a failure .*after it.*: expected only"):
        presence.check()
    presence.close()
    for within in (False, True):
        own = communicator.duplicate(COMM)
        presence = communicator.presence_of(own)
        if RANK == 0 and not within:
            presence.send_failure(ValueError("it fails"))
        elif RANK == 0:
            with pytest.raises(MemoryError), presence.notifying(), presence.committing():
                raise MemoryError("it fails")
        else:
            with pytest.raises(lb_mpi.Error, match="it fails"), presence.committing():
                presence.wait(own.Ibarrier().Test, name="")
        presence.close()


PLANNING = doors.within(functools.partial(lb_mpi.Balancer, when="always"), lambda one: one.map_rows(np.sqrt, np.ones(9)))


@pytest.mark.parametrize(("of", "name", "door"), [
    (RootPlanner, "plan", PLANNING), (communicator.Presence, "committing", DOORS["load"][1]),
    (saves, "noted", DOORS["asked"][1]),
])  # fmt: skip
def test_a_rank_that_fails_between_two_steps_of_a_call_ends_the_call_of_all(folder, monkeypatch, of, name, door):
    def no_room(_self):
        raise MemoryError("no room")

    if RANK == LATE:
        monkeypatch.setattr(of, name, no_room)
    with pytest.raises(MemoryError if RANK == LATE else lb_mpi.Error, match="no room"), door(COMM, folder) as call:
        [call() for _ in range(4)]


@pytest.mark.parametrize(("by_late", "by_others", "closes"), [
    ("of all", "of all", True), ("of all", "", True), ("own", "of all", False), ("own", "", False),
])  # fmt: skip
def test_a_rank_that_closes_by_an_error_of_its_own_ends_the_close_of_all_and_by_one_of_all_it_closes_with_them(
    by_late, by_others, closes
):
    """Others would wait for it in their next call, or a failure in transit would be received on a later communicator."""
    own = communicator.duplicate(used())
    presence = communicator.presence_of(own)
    errors = {"of all": presence.on_all(ValueError("of all")), "own": ValueError("it fails"), "": None}
    failed = pytest.raises(lb_mpi.Error, match=f"rank {LATE}: ValueError: it fails")
    with contextlib.nullcontext() if closes or by_others or RANK == LATE else failed:
        presence.close(error=errors[by_late if RANK == LATE else by_others])
    assert (own == MPI.COMM_NULL) == closes


@pytest.mark.parametrize(("door", "late_rank"), [*[(one, LATE) for one in DOORS], ("Pool.map", 0), ("Balancer.map_rows", 0)])
def test_a_late_rank_is_named_once_and_when_it_comes_all_go_on(folder, door, late_rank):
    (name, made), lowest = DOORS[door], int(late_rank == 0)
    comm = used()
    with made(comm, folder) as call, warned(lambda: release(late_rank)) as lines:
        if late_rank == RANK:
            until_released()
            time.sleep(0.2 * (door == "save"))  # in which another warning would come
        call()
    reported = COMM.allgather(lines)
    said, *more = reported[lowest]  # it waits for sure, and none that waits is below it
    check_named(said, name, late_rank, lowest)
    assert not any(f" s in {name}: " in text for text in more), more  # on a busy machine it may wait in the next call
    receive_all()
    comm.Free()


# One of each way to wait: in the loop of a protocol, a reduction, messages of neighbours, a collective call, at an end.
WAITS = ("Pool.map", "Pool.close", "Balancer.map_rows", "Balancer.migrate", "Balancer.report", "search", "distribute",
         "plan.exchange", "plan.rebalance", "save", "asked")  # fmt: skip


@pytest.mark.parametrize("door", WAITS)
def test_ctrl_c_ends_the_wait_for_a_late_rank(folder, door):
    _, made = DOORS[door]
    comm = used()
    seen = None
    try:
        with made(comm, folder) as call, warned(interrupt):
            if RANK == LATE:
                until_released()
            try:
                call()
            except KeyboardInterrupt as error:
                seen = error
                raise
    except (KeyboardInterrupt, lb_mpi.Error) as error:
        seen = seen or error
    release()
    check_ended(seen)
    comm.Free()


def check_ended(seen):
    """Rank 0 was interrupted, and all others know it."""
    if RANK == 0:
        assert isinstance(seen, KeyboardInterrupt), seen
    else:
        assert isinstance(seen, lb_mpi.Error), seen
        assert "rank 0: KeyboardInterrupt" in str(seen), seen  # a rank that has it from another one names both
    receive_all()


def test_at_the_first_call_on_a_communicator_nobody_can_be_named(folder):
    comm = COMM.Dup()
    with warned(release) as lines:
        if RANK == LATE:
            until_released()
        lb_mpi.save(comm, folder, 1, rows=ROWS)
    said, *more = COMM.bcast(lines)
    assert said.endswith(" s in lb_mpi.save: some rank has not called it, as all must")
    assert not more
    receive_all()
    comm.Free()


@pytest.mark.parametrize("within", ["check_launcher", "_idup", "Presence.wait", "arrange", "deferred"])
def test_a_handler_that_raises_in_the_first_call_on_a_communicator_ends_it_on_all_ranks(monkeypatch, within):
    """Before a duplicate is begun, while all make it, also of one with a topology, in an import, before a blocking call."""
    comm = COMM.Create_cart([SIZE]) if within == "Presence.wait" else COMM.Dup()
    if RANK == 0 and within == "arrange":
        monkeypatch.setitem(sys.modules, "lb_mpi.arranging.arrange", None)
    elif RANK == 0:
        monkeypatch.setattr(f"lb_mpi.mpi.common.communicator.{within}", handler)
    with pytest.raises(lb_mpi.Error if RANK else (Alarm, ImportError), match="rank 0: (Alarm|Module)" if RANK else None):
        reordered(comm)
    monkeypatch.undo()
    reordered(comm)
    comm.Free()


def mapped(comm):
    """Send large data, and then more, so that the memory for them is made again."""
    with lb_mpi.Pool(comm, root=1) as pool:
        for n_bytes in (1 << 17, 1 << 21) if pool else ():
            pool.map(len, [bytes(n_bytes)] * SIZE)


@pytest.mark.parametrize(
    ("call", "name", "rank"),
    [
        *((reordered, "Intracomm.Split", rank) for rank in (0, LATE)),
        *((mapped, f"Intracomm.{method}", rank) for rank, method in enumerate(["Split", "allgather", "Split_type"])),
        *((mapped, f"Win.{method}", rank) for rank, method in enumerate(["Allocate_shared", "Free"])),
    ],
)
def test_a_handler_that_raises_beside_a_call_that_blocks_in_mpi_ends_it_on_all_ranks(monkeypatch, call, name, rank):
    """Just before or after each of the calls by this name, from the first to the last."""

    def interrupted(*args, **kwargs):
        n_calls[0] += 1
        now = n_calls[0] == at and rank == RANK
        if now and rank == 0:
            signal.raise_signal(signal.SIGUSR2)
        result = plain(*args, **kwargs)
        if now and rank > 0:
            signal.raise_signal(signal.SIGUSR2)
        return result

    kind, method = name.split(".")
    plain = getattr(getattr(MPI, kind), method)
    methods = {method: staticmethod(interrupted) if method == "Allocate_shared" else interrupted}
    made, before = type(kind, (getattr(MPI, kind),), methods), signal.signal(signal.SIGUSR2, handler)
    monkeypatch.setattr(MPI, kind, made)
    at, n_calls, seen = 0, [0], [""]
    while COMM.bcast(n_calls[0] >= at, rank):
        at, n_calls = at + 1, [0]
        comm = COMM.Create_cart([SIZE])  # with a topology: its duplicate is split
        error = None
        try:
            call(MPI.Intracomm(comm))
        except (Alarm, lb_mpi.Error) as caught:
            error = caught
        seen = COMM.allgather("" if error is None else failure.describe(error))
        reached = COMM.bcast(n_calls[0] >= at, rank)
        for each, text in enumerate(seen):
            expected = "Alarm" if each == rank else f"Error: rank {rank}: Alarm ("
            assert text.startswith(expected) if reached else not text, (at, seen)
        comm.Free()
        assert stray_tags() == []
    signal.signal(signal.SIGUSR2, before)
    assert at > 1


@pytest.mark.parametrize("when", ["in free", "in the second barrier", "after the second barrier", "late"])
def test_a_rank_that_is_late_or_fails_as_all_close_sends_nothing_to_later_communicators(when, monkeypatch):
    """MPICH gives the number of a freed communicator to the next one, which received the failure."""

    def free():
        if when == "in free" and RANK == LATE:
            handler()

    def barrier():
        n_calls[0] += 1
        done = plain()

        def interrupted():
            found = done()
            if n_calls[0] == 2 and RANK == LATE and (found or when == "in the second barrier"):
                signal.raise_signal(signal.SIGUSR2)
            return found

        return interrupted

    presence, n_calls = communicator.presence_of(communicator.duplicate(COMM)), [0]
    plain, presence._barrier = presence._barrier, barrier  # type: ignore[method-assign]
    before = signal.signal(signal.SIGUSR2, handler if when.startswith(("in the", "after")) else signal.SIG_IGN)
    error = None
    monkeypatch.setattr(communicator, "OTHER_AFTER_S", math.inf if RANK == LATE else 0.02)
    time.sleep(0.1 * (when == "late" and RANK == LATE))  # meanwhile, the others say in which call they wait
    try:
        presence.close(free)
    except (Alarm, lb_mpi.Error) as caught:
        error = caught
    signal.signal(signal.SIGUSR2, before)
    others = lb_mpi.Error if when == "in free" else type(None)
    assert isinstance(error, Alarm if RANK == LATE and when != "late" else others)
    assert stray_tags() == []


def test_ctrl_c_in_a_block_that_nothing_interrupts_ends_the_call_after_it():
    """The block is a commit, and the rest of the call is none."""
    presence = communicator.presence_of(communicator.duplicate(COMM))
    with in_call("a call") as interrupts:
        with presence.uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
    presence.close()


def stray_tags():
    """Tags of the messages that new communicators have received: those to a freed one, with the same number."""
    found, status = [], MPI.Status()
    for alone in range(-1, SIZE):  # -1: nobody; a rank that has not freed it does not use its number again
        part = COMM.Split(alone == RANK)
        leader = alone if alone != RANK else int(alone == 0)
        made = [part, *(part.Dup() if alone < 0 else part.Create_intercomm(0, COMM, leader, 0) for _ in range(12))]
        COMM.Barrier()
        found += [status.Get_tag() for comm in made if comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)]
        for comm in made:
            comm.Free()
    return [tag for tags in COMM.allgather(found) for tag in tags]


def test_buffers_of_an_operation_are_kept_if_a_handler_raises_before_its_wait(monkeypatch):
    """MPI still writes to them: a rank once crashed, calls later."""
    begun = []

    def wait(_comm, _request, buffers):
        begun.extend(map(weakref.ref, buffers))
        raise ZeroDivisionError

    if RANK == 0:
        monkeypatch.setattr(collective, "wait", wait)
    with pytest.raises(ZeroDivisionError if RANK == 0 else lb_mpi.Error):
        reordered(COMM)
    gc.collect()
    assert (len(begun) == 2) == (RANK == 0)
    assert all(buffer() is not None for buffer in begun)


def n_used():
    """Communicators that there are, as far as they can be counted: what MPICH has left, or the first free one's number."""
    if "MPICH" not in MPI.Get_library_version():
        first = COMM.Dup()
        number = first.py2f()
        first.Free()
        return number
    MPI.COMM_SELF.Set_errhandler(MPI.ERRORS_RETURN)
    made = []
    with contextlib.suppress(MPI.Exception):
        while True:
            made.append(MPI.COMM_SELF.Dup())  # of the same stock, and without messages
    for each in made:
        each.Free()
    return -len(made)


def test_ranks_answer_although_the_user_has_freed_the_communicator(folder):
    part = used()
    with lb_mpi.Balancer(part) as balancer:
        part.Free()
        used().Free()  # a call on another communicator frees what is not needed any more
        with warned(release) as lines:
            if RANK == LATE:
                until_released()
            balancer.map_rows(np.copy, ROWS)
        receive_all()
    check_named(COMM.bcast(lines)[0], "lb_mpi.Balancer.map_rows")
    used().Free()


def test_an_error_of_mpi_for_want_of_communicators_says_what_is_open(monkeypatch):
    def none(_test, *_):
        raise MPI.Exception(MPI.ERR_OTHER)

    comm = used()
    with lb_mpi.Balancer(comm) as balancer:
        presence = communicator.presence_of(balancer._presence.comm)
        monkeypatch.setattr(communicator.Presence, "wait", none)
        with pytest.raises(lb_mpi.Error, match=r"no other communicator, where lb_mpi has [1-9]\d* open: expected close"):
            communicator._idup(COMM, presence, [])
        monkeypatch.undo()
    comm.Free()


def test_no_call_leaves_a_communicator_and_those_of_users_may_come_and_go(folder):
    comm = used()

    def call_all():
        for _, made in DOORS.values():
            with made(comm, folder) as call, contextlib.suppress(ValueError):  # a second save of the same step
                call()
        for wrong in range(3):
            with pytest.raises(ValueError, match="method"):
                lb_mpi.distribute(comm, on_root(parse("mesh:4x6")), method="wrong" if RANK == 0 else "block")
            with pytest.raises(ValueError, match="graph of"):
                lb_mpi.Balancer(comm, graph="mesh:2x2" if wrong == RANK else None)

    call_all()
    before = n_used()
    for _ in range(2):
        call_all()
    for _ in range(20):
        used().Free()
    assert n_used() - before <= 1  # the last anchor goes when the next one is made
    comm.Free()


def test_a_call_that_is_about_to_end_ends_although_another_rank_has_failed_after_it():
    """A busy rank once raised, out of one call, what another rank had failed with in the next."""
    with collective.opened(COMM, "first") as own:
        here = communicator.presence_of(own)
        if RANK == LATE:
            here._notify("in the second call")
        looks, begun = [0], time.perf_counter()

        def done():  # a moment after the failure has come
            too_late = time.perf_counter() > begun + 2 * communicator.FAILED_AFTER_S
            looks[0] += too_late and (RANK == LATE or own.Iprobe(LATE, Tag.FAILURE))
            return looks[0] > 2

        here.wait(done, name="")
        if RANK != LATE:
            with pytest.raises(lb_mpi.Error, match="in the second call"):
                here.wait(lambda: False, name="")


def bad(_rows):
    raise ZeroDivisionError("on purpose")


def error_of_all():
    with lb_mpi.Balancer(COMM) as balancer, pytest.raises(lb_mpi.BalanceError) as caught:
        balancer.map_rows(bad, np.zeros((3, 2)))
    return caught.value


BLOCKS = ("Balancer.map_rows", "plan.exchange", "Pool.map", "asked")


@pytest.mark.parametrize("leaver", [0, LATE])
@pytest.mark.parametrize("name", BLOCKS)
def test_leaving_a_block_by_an_exception_is_an_error_on_all_ranks(name, leaver):
    """The one raises its own, and waits for nobody; the others hear of it in their call, and make no more."""
    made, call = USES[name]

    def leave():
        with made(COMM) as block:
            call(block)
            if leaver == RANK:
                raise ZeroDivisionError("this rank can't go on")
            COMM.recv(source=leaver)  # it has left
            try:
                call(block)
            finally:
                with pytest.raises((lb_mpi.Error, ValueError), match="after a failure"):
                    call(block)

    with pytest.raises(ZeroDivisionError if leaver == RANK else lb_mpi.Error) as caught:
        leave()
    for rank in {*range(SIZE)} - {RANK} if leaver == RANK else ():
        COMM.send(None, rank)
    assert leaver == RANK or f"rank {leaver}: ZeroDivisionError: this rank can't go on (" in str(caught.value)
    COMM.Barrier()


def test_an_error_that_is_passed_on_names_the_rank_where_it_was_raised():
    pair = COMM.Split(RANK < 2)

    def leave():
        with lb_mpi.Balancer(COMM) as outer:
            if RANK < 2:
                with contextlib.suppress(ZeroDivisionError), lb_mpi.Balancer(pair) as inner:
                    if RANK == 0:
                        raise ZeroDivisionError("this rank can't go on")
                    inner.map_rows(np.copy, np.ones(3))
            outer.map_rows(np.copy, np.ones(3))

    with pytest.raises(lb_mpi.Error) as caught:
        leave()
    assert str(caught.value).startswith("rank 0: ZeroDivisionError: this rank can't go on (")
    pair.Free()


@pytest.mark.parametrize("name", BLOCKS)
def test_an_error_of_all_ranks_that_one_raises_again_notifies_the_others(name):
    """It raises it alone, and later: the others have caught it, and wait for this rank in the next call."""
    (made, call), kept = USES[name], error_of_all()
    with pytest.raises((lb_mpi.Error, ValueError)) as caught, made(COMM) as block:  # noqa: PT012
        if RANK == LATE:
            raise kept
        call(block)
    if name != "Pool.map":  # where ranks compare what they call
        assert (caught.value is kept) == (RANK == LATE)
        assert "ZeroDivisionError: on purpose" in str(caught.value)


@pytest.mark.parametrize("name", BLOCKS)
def test_ranks_that_leave_together_or_at_the_end_close_together(name):
    made, kept = USES[name][0], error_of_all()
    with contextlib.suppress(lb_mpi.BalanceError if name != "asked" else lb_mpi.Error), made(COMM):  # reductions are pending
        if RANK == LATE:
            raise kept
    assert COMM.allreduce(1) == SIZE
    with pytest.raises(lb_mpi.BalanceError) as caught, made(COMM):
        raise kept
    assert caught.value is kept


def test_errors_can_be_pickled_copied_and_gathered():
    calls = [
        lambda: error_of_all().args[0] and bad(np.zeros(1)),
        lambda: lb_mpi.save(COMM, "/proc/no/such", 1, a=np.zeros(3)),
        lambda: lb_mpi.search(COMM, lb_mpi.TreeSearch(1, lambda node: 1 // 0)),
        lambda: lb_mpi.Balancer(COMM).map_rows(bad, np.zeros(3)),
    ]
    for call in calls:
        with pytest.raises(Exception) as caught:
            call()
        error = caught.value
        for copied in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error), *COMM.allgather(error)):
            assert isinstance(copied, type(error)) or RANK == 0 or isinstance(error, OSError)
            assert not failure.is_of_all(copied, getattr(error, failure._NOTE, failure._Note()).ranks)


def test_a_task_whose_own_call_fails_hands_on_that_kind_of_error():
    with lb_mpi.Pool(COMM) as pool:
        save = functools.partial(lb_mpi.save, MPI.COMM_SELF, "/proc/no/such", 1)
        results = pool.map(lambda k: save(a=np.zeros(k)), range(4), return_exceptions=True)
    assert RANK or all(isinstance(error, FileNotFoundError) for error in results)


def test_one_thread_at_a_time_looks_for_questions(monkeypatch):
    """Two that have found the same question would both receive, and one of them would wait for ever."""
    first = (communicator.presence_of(used()) for _ in range(2))
    ran, entered, go = [0], threading.Event(), threading.Event()

    def run_tasks(_questions, _waited_s):
        ran[0] += 1
        entered.set()
        go.wait(10.0)

    here, other = first
    here._answer_at = other._answer_at = 0.0
    monkeypatch.setattr(late.Questions, "serve", run_tasks)
    monkeypatch.setattr(communicator, "_anchors", communicator._anchors[:1])
    thread = threading.Thread(target=here.answer)
    thread.start()
    entered.wait(10.0)
    threading.Timer(1.0, go.set).start()
    other.answer()
    assert ran == [1]
    go.set()
    thread.join()


def test_a_signal_to_save_that_arrives_as_the_block_ends_is_ignored():
    for _ in range(2):
        with lb_mpi.asked_to_stop(COMM) as asked:
            assert asked() is None
            if RANK == 0:
                os.kill(os.getpid(), signal.SIGUSR1)
            found = [asked() for _ in range(3)]
            assert signal.SIGUSR1 in found
        if RANK == 0:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if RANK == 0:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_no_two_kinds_of_messages_have_the_same_tag():
    assert len({int(tag) for tag in Tag}) == len(Tag.__members__)
    assert max(Tag) == Tag.HALO <= MOST <= COMM.Get_attr(MPI.TAG_UB)


def test_a_rank_in_another_call_is_named_with_it():
    comm = used()
    with lb_mpi.Pool(comm) as pool, warned(release, f" s in a map of lb_mpi.Pool: rank {LATE} is in another call"):
        if RANK == LATE:
            deadline = time.monotonic() + GIVE_UP_S
            with in_call("another call"):
                while not COMM.Iprobe(MPI.ANY_SOURCE, TAG):
                    assert time.monotonic() < deadline, "no rank has warned"
                    communicator.presence_of(comm).answer()
                    time.sleep(0.01)
        pool.map(abs, 5)
    receive_all()
    comm.Free()


def test_ctrl_c_comes_through_in_a_function_within_a_function():
    """A driver that is called by a function that another one has called: what comes afterwards is interrupted at once."""
    comm = used()

    def task(_item):
        with lb_mpi.Pool(MPI.COMM_SELF) as own:
            own.map(abs, 2)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(GIVE_UP_S)
        raise ZeroDivisionError("not interrupted")

    with pytest.raises((KeyboardInterrupt, lb_mpi.TaskError), match=r"^$|KeyboardInterrupt"), lb_mpi.Pool(comm) as pool:
        pool.map(task, SIZE, chunksize=1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    comm.Free()


def test_a_call_ends_although_another_thread_has_bound_the_ranks_meanwhile():
    """An executor that another thread opens on rank 0; the others are in this call, and wait for its end."""
    with collective.opened(COMM, "lb_mpi.search"):
        ends = [calls.bind(COMM, "while the other ranks serve", here=False)] if RANK == 0 else []
    for end in ends:
        end()
