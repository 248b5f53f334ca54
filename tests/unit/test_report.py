"""The report of recorded runs: what it says, and that it says something of records that are no good."""

import json
import re
import struct
import xml.etree.ElementTree
import zlib

import numpy as np
import pytest
from scipy.sparse import coo_array

from lb_mpi.cli.report.page import (
    COLOURS,
    COLUMNS,
    NOTHING,
    ceiling,
    encode,
    page,
    square,
    squares,
    strip,
    strip_pixels,
    ticks,
)
from lb_mpi.cli.report.run import NAMES, NO_CORE, assemble, headline, matrix, spent, steps, timeline
from lb_mpi.cli.report.trace import trace
from lb_mpi.record.events import Clock, Driver, Phase, Step, Way
from lb_mpi.record.record import MOST_RANKS, VERSION, Record, header, snapshot
from tests.unit.records import Files, about, of_version, torn, whole, written

MOST_BYTES = 500_000


def ranks(size: int, calls: int = 3, hosts: int = 1) -> Files:
    """Each rank works for 1 s and waits for 1 s, `calls` times; in each call it lends 5 rows to the next."""
    files = []
    for rank in range(size):
        record = Record(100.0)
        for call in range(calls):
            at = 100.0 + 2.0 * call
            record.enter(Phase.OWN, at)
            record.enter(Phase.WAITING, at + 1.0)
            record.move(Way.LOAN, (rank + 1) % size, 5.0)
            record.know(at, lambda: np.arange(1.0, 51.0))
            reason = record.reason("the plan <stays>")
            record.step(Step(Driver.ROWS, at, at + 2.0, 1.0, 50.0, 1.0, 0.5, 0.1, 5.0 * size, call % 2, reason))
        files.append(whole(record, 100.0 + 2.0 * calls, about(rank, size, f"node{rank * hosts // size}")))
    return files


@pytest.fixture
def report(command, tmp_path):
    """Runs the command on records; what it prints, and the file of its page."""

    def run(files, *more, code=0):
        page = tmp_path / "report.html"
        return command("report", written(tmp_path / "record", files), "-o", page, *more, code=code), page

    return run


def test_the_headline_has_the_known_numbers():
    run = assemble(ranks(4))
    head = headline(run)
    assert (head.seconds, head.inside_s, head.bound_s, head.ratio) == pytest.approx((6.0, 6.0, 3.0, 2.0))
    assert (head.parallel, head.balance, head.communication) == pytest.approx((0.5, 1.0, 0.5))
    assert head.words.startswith("Biggest loss: waiting, 50.0% of all ranks' time")
    assert matrix(run, Way.LOAN).toarray() == pytest.approx(15 * np.roll(np.eye(4), 1, axis=1))
    assert run.notes == []
    assert run.clock == "one host, so one clock"
    assert len(steps(run)) == 4


def test_the_lower_bound_counts_speeds():
    files = []
    for rank, speed in enumerate((1.0, 0.25)):
        record = Record(100.0)
        record.enter(Phase.OWN, 100.0)
        record.step(Step(Driver.TASKS, 100.0, 102.0, 2.0 if rank == 0 else 1.0, 10.0, speed))
        files.append(whole(record, 102.0, about(rank, 2)))
    assert headline(assemble(files)).bound_s == pytest.approx((2.0 + 0.25) / 1.25)


def test_the_parts_of_the_time_add_up_and_the_sentence_has_the_number_of_the_bar():
    record = Record(100.0)
    for phase, at in ((Phase.OWN, 100.0), (Phase.FOREIGN, 106.0), (Phase.WAITING, 108.0), (Phase.OUTSIDE, 109.0)):
        record.enter(phase, at)
    record.step(Step(Driver.TASKS, 100.0, 109.0, 4.0, 10.0))
    run = assemble([whole(record, 110.0, about(0, 1))])
    parts = {name: part for name, part in spent(run).items() if part}
    fractions = {Phase.OWN: 0.3, Phase.FOREIGN: 0.1, Phase.WAITING: 0.1, Phase.OUTSIDE: 0.1}
    assert parts == pytest.approx({NO_CORE: 0.4} | {NAMES[phase]: part for phase, part in fractions.items()})
    assert f"{NO_CORE} 40.0%" in page(run)
    assert "had no core, 40.0% of all ranks' time" in headline(run).words


def test_one_of_a_thing_is_singular():
    record = Record(100.0)
    for at, driver in ((100.0, Driver.TASKS), (101.0, Driver.REBALANCE)):
        record.enter(Phase.OWN, at)
        record.step(Step(driver, at, at + 1.0, 1.0, 1.0, moved=1.0))
    text = page(assemble([whole(record, 102.0, about(0, 1))]))
    for words in ("1 task", "1 steal", "1 rebalancing", "1 vertex"):
        assert f"<td>{words}<" in text


def test_many_short_calls_are_drawn_and_listed_as_means():
    record = Record(100.0)
    reasons = [record.reason(words) for words in ("kept", "changed")]
    record.enter(Phase.OWN, 100.0)
    for k in range(400):
        at = 100.0 + 1e-3 * k
        record.step(Step(Driver.ROWS, at, at + 1e-3, 1e-3, 10.0, before=0.5, after=0.1, reason=reasons[k % 3 == 0]))
    run = assemble([whole(record, 100.4, about(0, 1))])
    text = page(run)
    assert "call (means of 4)" in text
    assert "kept (13 of 20)" in text
    assert text.count("<td class=\"t\">map_rows") == 20
    assert "time of a call" in text
    assert "200 time slices" in text


def test_the_trace_has_each_second_of_each_rank_and_its_calls():
    run = assemble(ranks(4, hosts=2))
    found = trace(run)
    json.dumps(found)
    events = [event for event in found["traceEvents"] if event["ph"] == "X"]
    for one, offset_s in zip(run.ranks, run.offsets_s, strict=True):
        rank = one.about.rank
        phases = [event for event in events if event["tid"] == 2 * rank]
        ends = [event["ts"] + event["dur"] for event in phases]
        assert ends[:-1] == pytest.approx([event["ts"] for event in phases[1:]])
        for phase in Phase:
            dur = sum(event["dur"] for event in phases if event["name"] == NAMES[phase])
            assert dur == pytest.approx(1e6 * one.seconds[:, phase].sum(), abs=1.0)
        calls = [event for event in events if event["tid"] == 2 * rank + 1]
        assert [event["ts"] for event in calls] == pytest.approx((1e6 * (one.steps["began"] + offset_s)).tolist())
        assert {event["name"] for event in calls} == {"map_rows"}
    assert len({event["pid"] for event in events}) == 2
    named = {event["tid"]: event["args"]["name"] for event in found["traceEvents"] if event["name"] == "thread_name"}
    assert [named[number] for number in range(4)] == ["rank 0", "rank 0: calls", "rank 1", "rank 1: calls"]


def test_the_page_begins_with_what_was_gained_and_what_to_do_next():
    run = assemble(ranks(4))
    assert headline(run).next_step == "nothing is known that would help."
    assert headline(run, 0.8).next_step.startswith("do without balancing: that is predicted to take 0.80 times as long")
    assert "predicts nothing: the model is off." in headline(run, doubt="the model is off").next_step
    text = page(run, headline(run, 2.34, advice="scheme fos: 1.2 times as fast."))
    parts = ("<b>2.3</b><span>times as fast", "Biggest loss: ", "Next: scheme fos: 1.2 times as fast.")
    gained, cause, todo = (text.index(words) for words in parts)
    assert gained < cause < todo < text.index('<div class="cards">')
    assert '<div class="card gain"><b>6.00 s</b><span>from start to end' in page(run)


@pytest.mark.parametrize(("works_s", "words"), [(0.2, "compute more between two exchanges"), (1.6, "nothing is known")])
def test_exchanges_that_wait_for_messages_are_not_those_that_wait_for_a_rank(works_s, words):
    files = []
    for rank in range(2):
        record = Record(100.0)
        record.enter(Phase.OWN, 100.0)
        record.enter(Phase.WAITING, 100.0 + (0.1 if rank else works_s))
        record.step(Step(Driver.EXCHANGE, 100.0, 102.0, 0.1 if rank else works_s, 5.0))
        files.append(whole(record, 102.0, about(rank, 2)))
    run = assemble(files)
    assert headline(run).next_step.startswith(words)
    text = page(run)
    assert "<td>5 exchanges" in text  # of the plan, not of all ranks together
    empty = ("moved", "without lending", "decision", "got", "gave")
    assert not any(f"<th>{name}" in text for name in empty)


def test_drafts_that_brought_work_are_in_the_matrix():
    record = Record(100.0)
    for other in (1, 1, -1, 2):  # a damaged record may name ranks that there are not
        record.move(Way.DRAFT, other, 1.0)
    run = assemble([whole(record, 102.0, about(0, 2)), whole(Record(100.0), 102.0, about(1, 2))])
    assert matrix(run, Way.DRAFT)[1, 0] == 2.0


def test_timeline_holds_each_second_once():
    run = assemble(ranks(3))
    parts = timeline(run, 60)
    assert parts.sum(axis=2) == pytest.approx(np.ones((3, 60)), abs=1e-3)
    assert parts[:, :9, Phase.OWN] == pytest.approx(np.ones((3, 9)), abs=1e-3)
    pixels, each = strip_pixels(parts)
    assert each == 1
    assert set(np.unique(pixels)) == {Phase.OWN, Phase.WAITING, NOTHING}


def test_clocks_of_hosts_are_aligned():
    files = []
    for rank, ahead in enumerate((0.0, 50.0)):
        record = Record(100.0 + ahead)
        record.enter(Phase.OWN, 100.0 + ahead)
        record.clock(Clock(100.0 + ahead, 0, -ahead, 2e-6))
        what = about(rank, 2, f"node{rank}", clock_s=100.0 + ahead)
        files.append(whole(record, 101.0 + ahead, what))
    run = assemble(files)
    assert run.seconds == pytest.approx(1.0)
    assert run.clock.startswith("compared between hosts: within 2 us")
    assert len(assemble([*files, *files]).hosts) == 2


def test_without_a_comparison_the_hosts_own_clocks_count():
    whats = [about(rank, 2, f"node{rank}", clock_s=5.0 * rank) for rank in range(2)]
    run = assemble([whole(Record(what.clock_s), what.clock_s + 1.0, what) for what in whats])
    assert run.clock.startswith("not compared")
    assert run.seconds == pytest.approx(1.0)


def decoded(png: bytes) -> tuple[int, int, bytes]:
    """Width, height, and the pixels' bytes; each chunk's CRC is checked."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(png):
        (n,) = struct.unpack(">I", png[at : at + 4])
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + n]
        assert struct.unpack(">I", png[at + 8 + n : at + 12 + n])[0] == zlib.crc32(kind + data)
        chunks[kind], at = data, at + 12 + n
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    return width, height, zlib.decompress(chunks[b"IDAT"])


def test_pictures_are_png():
    width, height, pixels = decoded(encode(np.array([[0, 1, 2], [7, 0, 0]], dtype=np.uint8), [*COLOURS.values()]))
    assert (width, height, pixels) == (3, 2, b"\x00\x01\x20\x00\x70\x00")
    assert decoded(square(np.zeros((2, 2))).png)[2] == b"\x00\xff\x00\xff"
    many = square(np.ones((600, 600)))
    assert (many.width, many.each) == (200, 3)


def test_the_calls_of_an_axis_are_round_numbers_and_it_ends_near_the_largest_value():
    assert [ticks(last) for last in (1, 4, 10, 20)] == [[1], [1, 2, 3, 4], [1, 5, 10], [1, 5, 10, 15, 20]]
    assert [ticks(last) for last in (60, 100)] == [[1, 20, 40, 60], [1, 50, 100]]
    assert [ceiling(value) for value in (0.0, 0.05, 1.0, 2.1, 4.18, 6.1, 8.5)] == [0.01, 0.06, 1.0, 4.0, 6.0, 8.0, 10.0]


@pytest.mark.parametrize(("most", "expected"), [
    (1, ["1", "0.25", "0"]), (2, ["2", "0.5", "0"]), (13_626_000, ["13,626,000", "3,406,500", "0"]),
])  # fmt: skip
def test_a_matrix_has_a_scale_and_the_numbers_that_fit_into_its_cells(most, expected):
    moved = coo_array([[0, most], [1, 0]])
    text = squares(square(moved), moved, "rows")
    assert re.findall(r"<span>([\d.,]+)</span>", text) == expected
    assert f'style="grid-area:1/2" title="from 0 to 1: {most:,} rows">{most:,}</i>' in text
    for n, shown in ((20, "{0}"), (40, "{0}"), (60, "")):
        many = squares(square(moved), coo_array(([most], ([0], [1])), shape=(n, n)), "rows")
        shown = shown.format(f"{most:,}") if most < 10 else ""
        assert f"rows\">{shown}</i>" in many
        assert ("desk" in many) == (most > 10 or n > 32), "a phone has no room for it"


def test_the_page_stands_alone_and_has_what_each_rank_has_computed_and_lent():
    text = page(assemble(ranks(4, hosts=2)))
    assert all(link.startswith(("data:", "#")) for link in re.findall(r'\s(?:src|href)="([^"]*)"', text))
    assert not re.search(r"https?://", text.replace("https://pop-coe.eu", ""))
    for rank in range(4):
        assert f'title="from {rank} to {(rank + 1) % 4}: 15 rows">15</i>' in text
        assert f">rank {rank}</span>" in text
    assert [text.count(f'<div class="chart {kind}') for kind in ("strips", "curve", "matrix")] == [1, 1, 1]
    assert all(words in text for words in ("<th>rows computed", "<td>150", "<td>1.00x"))
    assert "<b>program" not in text
    assert "program.py --x &lt;b&gt;" in text
    assert "the plan &lt;stays&gt;" in text


def test_a_page_of_a_thousand_ranks_is_small():
    rng = np.random.default_rng(0)
    frames = []
    for _ in range(64):
        record, at = Record(100.0), 100.0
        for _ in range(100):
            record.enter(Phase(int(rng.integers(7))), at)
            at += float(rng.exponential(0.1))
        for _ in range(20):
            record.move(Way.DRAFT, int(rng.integers(1024)), 1.0)
        frames.append(snapshot(record, at, 0, ended=True))
    files = [
        (f"rank{rank:06d}.lbrec", header(about(rank, 1024, f"node{rank // 32}")) + frames[rank * 37 % 64])
        for rank in range(1024)
    ]
    run = assemble(files)
    assert strip(timeline(run, COLUMNS)).height == 1024
    assert len(page(run).encode()) <= MOST_BYTES
    few = assemble([("rank000000.lbrec", header(about(0, MOST_RANKS)) + frames[0])])
    assert "Parts of work, by drafts: 20, " in page(few)  # a dense matrix would need terabytes


def test_the_command_writes_the_page_and_prints_its_size(report):
    said, page = report(ranks(4), "--json")
    assert said.json["ratio"] == pytest.approx(2.0)
    assert len(page.read_bytes()) <= MOST_BYTES
    assert said.json["file"] == str(page)
    for drawn in re.findall("<svg.*?</svg>", page.read_text()):
        assert xml.etree.ElementTree.fromstring(drawn).tag == "svg"


def test_missing_and_damaged_records_are_named(report):
    files = ranks(4)
    torn(files, 1)
    of_version(files, 2, 9)
    killed = Record(100.0)
    killed.enter(Phase.OWN, 100.0)
    files[3] = whole(killed, 103.0, about(3, 4, "node0"), ended=False)
    said, page = report(files)
    for words in (
        "rank000001.lbrec: a snapshot is damaged: expected the checksum",
        f"rank000002.lbrec: format version 9: expected {VERSION}; record the run again",
        "no record of ranks 1, 2",
        "rank 3: the record breaks off",
    ):
        assert words in said.out
    assert "the record breaks off" in page.read_text()


def test_a_record_of_nothing_has_no_numbers(report):
    """That of a rank whose disk was full after the first snapshot, for example."""
    nothing = [whole(Record(100.0), 100.0, about(0, 1), ended=False)]
    answer = report(nothing, "--json")[0].json
    assert answer["ratio"] is answer["parallel"] is None
    said, page = report(nothing)
    assert "rank 0: the record breaks off: killed, still running, or unable to write (a full disk)" in said.out
    assert "Nothing was done" in page.read_text()
    for shown in (said.out, page.read_text()):
        assert not re.search(r"\bnan\b", shown, re.IGNORECASE)


def test_a_run_without_a_call_that_ended_has_no_ideal_time_and_no_advice(report):
    """That of a killed run, or of a plan of distribute that is never closed."""
    files = []
    for rank in range(2):
        record = Record(100.0)
        record.enter(Phase.WAITING, 100.0)
        record.enter(Phase.OWN, 101.0 - rank)
        record.doing(3)
        files.append(whole(record, 102.0, about(rank, 2)))
    said = report(files)[0].out
    assert "ideal time (lower bound) not known\n" in said
    assert "Next:" not in said
    assert "note: ranks 0, 1: the last call has not ended, or a plan of distribute was not closed" in said


@pytest.mark.parametrize(("files", "words"), [
    ([], "no record in this folder: expected files rank*.lbrec"),
    ([("rank000000.lbrec", b"no")], "rank000000.lbrec: begins with b'no': expected the record of a rank"),
])  # fmt: skip
def test_a_folder_without_a_record_is_an_error_in_one_line(report, files, words):
    said, page = report(files, code=2)
    assert words in said.err
    assert said.err.count("\n") == 1
    assert not page.exists()


def test_ranks_of_another_run_are_left_out():
    run = assemble([*ranks(4), whole(Record(100.0), 101.0, about(5, 8, wall_s=5e8))])
    assert len(run.ranks) == 4
    assert run.notes == ["left out 1 record of another run"]


def test_records_of_an_earlier_run_with_as_many_ranks_are_left_out():
    """All processes of a run begin before any record of it; clocks of hosts may differ by a minute."""

    def file(rank: int, host: str, began_s: float, wall_s: float) -> tuple[str, bytes]:
        return whole(Record(100.0), 101.0, about(rank, 4, host, wall_s=1e9 + wall_s, process_s=1e9 + began_s))

    found = [file(0, "a", 100.0, 101.0), file(1, "a", 100.5, 160.0), file(2, "a", 90.0, 99.0), file(3, "b", 50.0, 60.0)]
    run = assemble(found)
    assert sorted(one.about.rank for one in run.ranks) == [0, 1, 3]
    assert run.notes[:2] == ["left out 1 record of another run", "no record of rank 2"]
    found[3] = file(3, "b", 30.0, 39.0)
    assert len(assemble(found).ranks) == 2  # more than a minute before the others began


@pytest.mark.parametrize(("arguments", "driver", "way"), [
    ("search --tree T1 --ranks 4", Driver.SEARCH, Way.DRAFT),
    ("rows --graph ring:4 --calls 3 --costs hotspot --row-s 2e-3", Driver.ROWS, Way.LOAN),
    ("tasks --hosts 2,2 --tasks 80 --speeds 1,2,3,4", Driver.TASKS, Way.STEAL),
])  # fmt: skip
def test_simulators_write_the_same_records(tmp_path, command, arguments, driver, way):
    folder = written(tmp_path / "record", ranks(8))  # an earlier run, with more ranks
    answer = command("simulate", arguments, "--json --record", folder).json
    run = assemble((path.name, path.read_bytes()) for path in sorted(folder.iterdir()))
    assert len(run.ranks) == 4
    assert run.clock == "virtual: one clock for all ranks"
    all_steps = np.concatenate(steps(run))
    assert set(all_steps["driver"].tolist()) == {driver}
    headed = headline(run)
    moved = matrix(run, way)
    assert moved.nnz
    assert not moved.diagonal().any()
    total = answer.get("total", answer)
    assert headed.inside_s == pytest.approx(answer.get("virtual_seconds", total["seconds"]), rel=0.02)
    if driver is Driver.SEARCH:
        assert all_steps["units"].sum() == pytest.approx(answer["nodes"], rel=1e-5)
        assert moved.sum() == answer["balances"]
        assert headed.ratio == pytest.approx(1.0 / answer["efficiency"], rel=0.02)
    elif driver is Driver.ROWS:
        assert moved.sum() == total["rows_moved"] == sum(call["rows_moved"] for call in answer["calls"])
        assert 1.0 < answer["ratio_later"] < 1.2 < 2.0 < answer["ratio_without"]
        assert headed.ratio == pytest.approx(answer["ratio"], rel=0.02)
        assert all(len(one.costs) == 50 for one in run.ranks)
    else:
        assert all_steps["units"].sum() == 2 * 160
        assert all_steps["moved"].sum() == total["steals"]
    assert len(page(run)) < MOST_BYTES
