"""The record of one rank: what it adds up, how large it gets, and what can be read of a file that is no good."""

import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lb_mpi.distributing.recorded import Halos
from lb_mpi.files import FRAME_BYTES
from lb_mpi.record.events import Clock, Driver, Phase, Step, Way, merged
from lb_mpi.record.record import (
    BINS,
    COSTS,
    HEADER_BYTES,
    OFF,
    REASONS,
    STEPS,
    TASKS,
    About,
    Record,
    header,
    read,
    slot_bytes,
    snapshot,
    snapshot_offset,
)
from lb_mpi.record.report import RankWork, Report
from lb_mpi.searching.drafting import Kind, Message
from lb_mpi.searching.guard import Options
from lb_mpi.searching.searcher import DraftRecord

ABOUT = About(1, 3, "host", 77, 5.0, 1e9, "Python", "program")


def file_of(record: Record, *times: float, about: About = ABOUT) -> bytes:
    """The file, with a snapshot at each time."""
    data = bytearray(header(about))
    for number, at in enumerate(times):
        frame = snapshot(record, at, number)
        assert len(frame) <= slot_bytes(about.size)
        begin = snapshot_offset(number, about.size)
        data[len(data) :] = bytes(max(0, begin + len(frame) - len(data)))
        data[begin : begin + len(frame)] = frame
    return bytes(data)


def step(k: int, **fields: float) -> Step:
    return Step(Driver.ROWS, float(k), k + 1.0, 0.5, 10.0)._replace(**fields)


def file_of_step(**fields: float) -> bytes:
    record = Record(5.0)
    record.step(step(6, **fields))
    return file_of(record, 7.0)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(Phase), st.floats(0.0, 3.0) | st.floats(0.0, 2e-3)), max_size=30))
def test_each_second_lies_in_one_phase(parts):
    record, now, expected = Record(5.0), 5.0, [0.0] * len(Phase)
    for phase, seconds in parts:
        record.enter(phase, now)
        expected[phase] += seconds
        now += seconds
    record.enter(Phase.OUTSIDE, now)
    assert record.seconds() == pytest.approx(expected, abs=1e-9)
    stored = read(file_of(record, now))
    assert stored.seconds.sum(axis=0) == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert len(stored.seconds) <= BINS
    whole = stored.seconds[:-1].sum(axis=1)
    assert whole == pytest.approx(np.full(len(whole), stored.width_s), rel=1e-4)


def test_a_week_needs_no_more_room_than_a_minute():
    record = Record(0.0)
    for k in range(4_000):
        record.enter(Phase(k % 6), 150.0 * k)
        record.step(step(k, acted=k % 2, moved=3.0, before=0.5, reason=record.reason(f"reason {k}")))
        record.move(Way.LOAN, k % 3, 2.0)
        record.know(float(k), lambda: np.arange(5000.0))
    data = file_of(record, 600_000.0, 600_001.0)
    assert len(data) <= HEADER_BYTES + 2 * slot_bytes(ABOUT.size)
    stored = read(data)
    assert stored.seconds.sum() == pytest.approx(600_001.0, rel=1e-4)
    assert len(stored.steps) <= STEPS
    assert stored.steps["n"].sum() == 4_000
    assert stored.steps["moved"].sum() == pytest.approx(12_000)
    assert stored.steps["acted"].sum() == 2_000
    assert stored.steps["before"] == pytest.approx(0.5)
    assert (np.diff(stored.steps["began"]) > 0).all()
    assert stored.flows["amount"].sum() == 8_000
    assert len(stored.reasons) == REASONS
    assert len(stored.costs) == COSTS
    assert stored.costs.mean() == pytest.approx(2499.5, rel=1e-3)


def test_tasks_are_bounded_and_their_sums_are_exact():
    record = Record(0.0)
    for k in range(5 * TASKS):
        record.task(3 * k, 3, 0.125)
    tasks = read(file_of(record, 1.0)).tasks
    assert len(tasks) <= TASKS
    assert (tasks["n"].sum(), tasks["seconds"].sum()) == (15 * TASKS, pytest.approx(5 * TASKS / 8))
    assert (np.diff(tasks["first"].astype(int)) > 0).all()
    record.begin_tasks()
    assert len(read(file_of(record, 2.0)).tasks) == 0


def test_time_between_calls_that_are_added_up_is_known():
    record = Record(0.0)
    for k in range(4 * STEPS + 3):
        record.step(Step(Driver.ROWS, 1.0 * k, k + 0.75, 0.5, 10.0, home_s=0.5))
    steps = read(file_of(record, 1.0)).steps
    assert len(steps) <= STEPS
    assert steps["n"].sum() == 4 * STEPS + 3
    assert steps["home_s"].sum() == pytest.approx(0.5 * (4 * STEPS + 3))
    inside = steps["ended"] - steps["began"] - steps["between_s"]
    assert inside == pytest.approx(0.75 * steps["n"])
    one, other = step(0, home=3.0), step(5, home=4.0)
    both = merged(merged(one, other), step(9, home=5.0))
    assert (both.n, both.seconds, both.between_s, both.home) == (3, 3.0, 7.0, 5.0)


def test_means_leave_out_what_is_not_known():
    record = Record(0.0)
    record.steps.each = 2
    record.step(step(0))
    record.step(step(1, before=0.25, reason=record.reason("why")))
    (entry,) = record.steps.all
    assert entry["before"] == 0.25
    assert math.isnan(entry["after"])
    assert (entry["n"], entry["reason"], entry["ended"]) == (2, 0, 2.0)


def test_the_first_clock_and_the_last_are_kept():
    record = Record(0.0)
    for at in (1.0, 2.0, 3.0):
        record.clock(Clock(at, 0, 0.125, 1e-5))
    assert [clock.at for clock in read(file_of(record, 4.0)).clocks] == [1.0, 3.0]


def test_the_call_under_way_is_stored_until_it_is_over():
    record = Record(0.0)
    record.doing(7.0, 20.0)
    record.bounded(3.0, 2.4e18)  # a load has any unit: leaves below a node of a tour through 20 cities
    known = read(file_of(record, 1.0))
    assert (known.under_way, known.of, known.best, known.open) == (7.0, 20.0, 3.0, 2.4e18)
    record.step(step(0))
    known = read(file_of(record, 2.0))
    assert (known.under_way, known.of) == (0.0, 0.0)


def test_nothing_is_recorded_when_nobody_records():
    OFF.enter(Phase.OWN, 1.0)
    OFF.step(step(0))
    OFF.move(Way.STEAL, 0, 1.0)
    OFF.clock(Clock(1.0, 0, 0.0, 0.0))
    OFF.know(1.0, lambda: np.ones(3))
    assert OFF.reason("balanced") == -1
    assert vars(OFF) == {"phase": Phase.OUTSIDE}
    stores = {name for name, value in vars(Record).items() if callable(value) and not name.startswith("_")} - {"seconds"}
    assert stores <= {*vars(type(OFF))}


def test_a_part_is_recorded_by_the_rank_that_asked_for_it():
    record = Record(0.0)
    drafts = DraftRecord(record, 1, [10, 11, 12], Options())
    drafts.arrived([(0, Message(Kind.DRAFTING, 1, 1))])  # home, nobody has volunteered
    drafts.arrived([(0, Message(Kind.DRAFTING, 0, 9)), (2, Message(Kind.NOWORK, 1, 3))])
    drafts.arrived([(0, Message(Kind.WORK, 1, 2, payload=b"12345"))])
    drafts.arrived([(0, Message(Kind.WORK, 1, 4, payload=b"1")), (2, Message(Kind.WORK, 0, 4, payload=b"1"))])
    assert record.flows.tolist() == [(Way.DRAFT, 10, 2.0)]


def test_exchanges_and_what_is_computed_between_them():
    record = Record(0.0)
    halos = Halos(record, 0.5)
    halos.close(0.5, 0.1)  # there was none
    for at in (1.0, 2.0, 3.0):
        halos.begin(at, at, 0.1 * at)
        halos.end(at + 0.25, at + 0.25, 0.1 * at + 0.05)
    assert halos.queued_s == pytest.approx(0.1)  # not what it queued for in exchanges
    rank = halos.rank(7, 2, 1)
    assert (rank.rank, rank.owned, rank.received, rank.busy_s, rank.seconds, rank.speed) == (7, 2, 1, 1.5, 2.25, 0.5)
    assert rank.idle == pytest.approx(1 / 3)
    halos.close(4.0, 4.0)
    (step,) = record.steps.all
    assert (step["began"], step["ended"], step["useful_s"], step["units"], step["speed"]) == (1.0, 4.0, 2.25, 3.0, 0.5)
    record.enter(Phase.OUTSIDE, 5.0)
    spent = record.seconds()
    assert (spent[Phase.WAITING], spent[Phase.OWN], spent[Phase.OUTSIDE]) == pytest.approx((0.75, 2.25, 2.0))


def test_exchanges_within_a_wait_count_nothing():
    record = Record(0.0)
    halos = Halos(record)
    halos.begin(1.0, 1.0)
    halos.end(1.5, 1.5)
    halos.begin(2.0, 2.0, 0.5)  # of the wait: after it, nothing is computed
    for at in (3.0, 4.0):
        halos.begin(at, at, 0.5)
        halos.end(at + 0.25, at + 0.25, 0.5)
    halos.go_on(5.0, 5.0, 0.5)
    halos.begin(6.0, 6.0, 0.75)
    assert (halos.own_s, halos.queued_s) == (1.5, 0.75)
    record.enter(Phase.OUTSIDE, 6.0)
    assert (record.seconds()[Phase.WAITING], record.seconds()[Phase.OWN]) == pytest.approx((3.5, 1.5))


def test_a_rebalancing_is_a_step_between_those_of_exchanges():
    """Its time is no computing; a speed of the moment is asked for each time."""
    record, speeds = Record(0.0), iter([1.0, 1.0, 0.5, 0.5, 1.0])
    halos = Halos(record, cpu_share=lambda: next(speeds))
    for at in (1.0, 2.0):
        halos.begin(at, at)
        halos.end(at + 0.25, at + 0.25)
    halos.begin(3.0, 3.0)  # of the rebalancing
    halos.moved(3.0, 3.5, Step(Driver.REBALANCE, 3.0, 3.5, 0.0, 0.0, moved=7.0, acted=1))
    halos.go_on(3.5, 3.5)
    halos.begin(4.5, 3.75)  # a quarter of a second of CPU time at half the speed
    halos.end(5.0, 3.75)
    assert halos.own_s == 0.75 + 0.75 + 0.5
    halos.close(6.0, 4.75)
    names = ["began", "ended", "useful_s", "units", "moved"]
    steps = [(int(one["driver"]), *one[names].tolist()) for one in record.steps.all]
    assert steps == [
        (Driver.EXCHANGE, 1.0, 3.0, 1.5, 2.0, 0.0),
        (Driver.REBALANCE, 3.0, 3.5, 0.0, 0.0, 7.0),
        (Driver.EXCHANGE, 3.5, 6.0, 1.5, 1.0, 0.0),
    ]
    rank = halos.rank(0, 2, 1)
    assert (rank.busy_s, rank.seconds) == (3.0, 0.0)


def test_the_lower_bound_of_exchanges_counts_speeds():
    # equal parts at speeds 1.5 and 0.5: work 3 / speeds 2
    ranks = [(1.0, 1.5), (3.0, 0.5)]  # seconds at work, and speed
    report = Report(
        Driver.EXCHANGE,
        9,
        tuple(RankWork(k, 4, busy_s=s, useful_s=s, speed=speed, seconds=3.0) for k, (s, speed) in enumerate(ranks)),
    )
    assert report.lower_bound_s == 1.5
    assert [one.idle for one in report.ranks] == [1.0 - 1.0 / 3.0, 0.0]
    assert str(report).endswith("9 exchanges in 3.000 s; 1.500 s if each rank had always had work and a core")


def test_a_write_that_was_cut_short_leaves_the_one_before_it():
    record = Record(5.0)
    record.enter(Phase.OWN, 5.0)
    data = file_of(record, 6.0, 7.0, 8.0)
    assert read(data).until == 8.0
    at = snapshot_offset(2, ABOUT.size)
    torn = data[:at] + bytes(FRAME_BYTES) + data[at + FRAME_BYTES :]  # which is written last
    assert read(torn).until == 7.0
    assert read(data[: snapshot_offset(1, ABOUT.size)]).until == 8.0


def test_a_record_with_a_flipped_bit_is_not_believed_nor_an_older_part_of_it():
    record = Record(5.0)
    record.enter(Phase.OWN, 5.0)
    data = file_of(record, 6.0, 7.0)
    for number in (0, 1):
        for at in (0, FRAME_BYTES - 1, FRAME_BYTES + 7, 200):
            for bit in (1, 128):
                flipped = bytearray(data)
                flipped[snapshot_offset(number, ABOUT.size) + at] ^= bit
                with pytest.raises(ValueError, match="a snapshot is damaged: expected the checksum"):
                    read(flipped)


@settings(max_examples=40)
@given(st.integers(0, 300_000))
def test_torn_files_are_read_or_refused_in_words(n):
    record = Record(5.0)
    data = file_of(record, 6.0, 7.0)
    if n < len(file_of(record, 6.0)) or snapshot_offset(1, ABOUT.size) < n < len(data):
        with pytest.raises(ValueError, match="expected"):
            read(data[:n])
    else:
        assert read(data[:n]).until == (7.0 if n >= len(data) else 6.0)


@pytest.mark.parametrize(("data", "words"), [
    (b"", "expected the record of a rank"),
    (b"something else entirely", "expected the record of a rank"),
    (header(ABOUT)[:6] + b"\x09\x00" + header(ABOUT)[8:], "format version 9: expected 7; record the run again"),
    (header(ABOUT)[:30], "truncated or corrupt"),
    (header(ABOUT), "contains no complete snapshot"),
    (header(ABOUT._replace(rank=3)), "rank 3 of 3: expected 0 to 2"),
    (header(ABOUT._replace(host=5)), "truncated or corrupt"),
    (header(ABOUT._replace(rank=False)), "truncated or corrupt"),
    (header(ABOUT._replace(size=2**31)), "of 2147483648: expected 0 to 1048575"),
    (header(ABOUT._replace(wall_s=math.inf)), "expected finite seconds"),
    (file_of_step(ended=math.inf), "expected finite seconds and amounts"),
    (file_of_step(speed=math.nan), "expected finite seconds and amounts"),
    (file_of_step(driver=9), "driver.: expected 0 to 5"),
])  # fmt: skip
def test_files_that_are_not_records_are_refused(data, words):
    with pytest.raises(ValueError, match=words):
        read(data)


def test_arguments_that_are_no_unicode_are_recorded_as_far_as_they_go():
    about = About(0, 1, "host", 1, 0.0, 0.0, "versions", "program \udcff\ud800" + "x" * 500)
    data = bytearray(snapshot_offset(0, 1))
    data[:HEADER_BYTES] = header(about)
    found = read(bytes(data) + snapshot(Record(0.0), 1.0, 0)).about
    assert found.program.startswith("program \\udcff\\ud800xxx")


def test_another_thread_may_hold_the_phase():
    record = Record(0.0)
    entered = threading.Event()

    def compute() -> None:
        for k in range(2000):
            record.pin(Phase.OWN, k + 0.25)
            record.release(Phase.PROTOCOL, k + 0.75)
        entered.set()

    thread = threading.Thread(target=compute)
    thread.start()
    while not entered.is_set():
        record.enter(Phase.WAITING, 0.0)
    thread.join()
    record.pin(Phase.OWN, 2000.0)
    record.enter(Phase.WAITING, 2001.0)
    record.release(Phase.OUTSIDE, 2002.0)
    assert sum(record.seconds()) == pytest.approx(2002.0)
    assert record.seconds()[Phase.OWN] == pytest.approx(1002.0)
