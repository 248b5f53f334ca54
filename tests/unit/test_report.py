"""The report of recorded runs: what it says, and that it says something of records that are no good."""

import html.parser
import json
import re
import struct
import xml.etree.ElementTree
import zlib
from pathlib import Path

import numpy as np
import pytest

from apps.maps import SPECTRAL, parts, placed, places, shares, size, spectral
from lb_mpi.__main__ import main
from lb_mpi.graph import Graph
from lb_mpi.graph import parse as parse_graph
from lb_mpi.record.events import Clock, Driver, Event, Mark, Move, Phase, Step, Way
from lb_mpi.record.launches import DEATH, END, FILE, RESTART, START, Happened, folder_of, line, parse
from lb_mpi.record.record import MAP, VERSION, About, Record, header, place, snapshot
from lb_mpi.report.page import (
    COLOURS,
    COLUMNS,
    NOTHING,
    RANK_COLOURS,
    encode,
    flows,
    layout,
    map_of,
    page,
    square,
    strip,
    strip_pixels,
)
from lb_mpi.report.run import SKEW_S, assemble, drafts, headline, matrix, owners, steps, timeline

MOST_BYTES = 500_000


def about(rank: int, size: int, host: str = "host", **fields: object) -> About:
    return About(rank, size, host, 77 + rank, 100.0, 1e9, "Python 3", "/tmp/program.py --x <b>")._replace(**fields)


def whole(record: Record, now: float, what: About, *, ended: bool = True) -> bytes:
    return header(what).ljust(place(0, what.size), b"\0") + snapshot(record, now, 0, ended=ended)


def ranks(size: int, calls: int = 3, hosts: int = 1) -> list[tuple[str, bytes]]:
    """Each rank works for 1 s and waits for 1 s, `calls` times; in each call it lends 5 rows to the next."""
    files = []
    for rank in range(size):
        record = Record(100.0)
        for call in range(calls):
            at = 100.0 + 2.0 * call
            record.enter(Phase.OWN, at)
            record.enter(Phase.WAITING, at + 1.0)
            record.move(Move(Way.LOAN, (rank + 1) % size, at, at + 0.5, 5.0, 40.0))
            record.know(at, lambda: np.arange(1.0, 51.0))
            reason = record.reason("the plan <stays>")
            record.step(Step(Driver.ROWS, at, at + 2.0, 1.0, 50.0, 1.0, 0.5, 0.1, 5.0 * size, call % 2, reason))
        what = about(rank, size, f"node{rank * hosts // size}")
        files.append((f"rank{rank:06d}.lbrec", whole(record, 100.0 + 2.0 * calls, what)))
    return files


def folder_of_files(path: Path, files: list[tuple[str, bytes]]) -> Path:
    path.mkdir()
    for name, data in files:
        (path / name).write_bytes(data)
    return path


def folder_of_run(path: Path, starts: list[list[tuple[str, bytes]]], told: list[Happened]) -> Path:
    """The folder of a run with restarts."""
    for start, files in enumerate(starts):
        folder_of_files(path / folder_of(start), files)
    (path / FILE).write_text("".join(map(line, told)))
    return path


def test_numbers() -> None:
    run = assemble(ranks(4))
    told = headline(run)
    assert (told.seconds, told.inside_s) == pytest.approx((6.0, 6.0))
    assert told.bound_s == pytest.approx(3.0)
    assert told.ratio == pytest.approx(2.0)
    assert (told.parallel, told.balance, told.communication) == pytest.approx((0.5, 1.0, 0.5))
    assert told.words.startswith("Biggest loss: waiting, 50.0% of all ranks' time")
    assert matrix(run, Way.LOAN) == pytest.approx(15 * np.roll(np.eye(4), 1, axis=1))
    assert drafts(run) is None
    assert run.notes == []
    assert run.clock == "one host, so one clock"
    assert len(steps(run)) == 4


def test_the_lower_bound_counts_speeds() -> None:
    files = []
    for rank, speed in enumerate((1.0, 0.25)):
        record = Record(100.0)
        record.enter(Phase.OWN, 100.0)
        record.step(Step(Driver.TASKS, 100.0, 102.0, 2.0 if rank == 0 else 1.0, 10.0, speed))
        files.append((str(rank), whole(record, 102.0, about(rank, 2))))
    assert headline(assemble(files)).bound_s == pytest.approx((2.0 + 0.25) / 1.25)


def test_ranks_without_a_core_are_named() -> None:
    record = Record(100.0)
    record.enter(Phase.OWN, 100.0)
    record.step(Step(Driver.TASKS, 100.0, 104.0, 1.0, 10.0))
    told = headline(assemble([("0", whole(record, 104.0, about(0, 1)))]))
    assert told.words.startswith("Biggest loss: ranks were at work but had no core for 75.0% of the time")
    record.enter(Phase.OWN, 120.0)  # in a call that has not ended
    told = headline(assemble([("0", whole(record, 120.0, about(0, 1), ended=False))]))
    assert told.words.startswith("Biggest loss: waiting, 0.0%")


def test_the_page_begins_with_what_was_gained_and_what_to_do_next() -> None:
    run = assemble(ranks(4))
    assert headline(run).next_step.startswith("find out with python -m lb_mpi advise")
    assert headline(run, 0.8).next_step.startswith("do without balancing")
    text = page(run, 2.34)
    parts = ("<b>2.3</b><span>times as fast", "Biggest loss: ", "Next: find out")
    gained, cause, todo = (text.index(words) for words in parts)
    assert gained < cause < todo < text.index('<div class="cards">')
    assert "<b>-</b><span>times as fast" in page(run)


@pytest.mark.parametrize(
    ("works_s", "words"), [(0.2, "compute more between two exchanges"), (1.6, "find out with python -m")]
)
def test_exchanges_that_wait_for_messages_are_not_those_that_wait_for_a_rank(works_s: float, words: str) -> None:
    files = []
    for rank in range(2):
        record = Record(100.0)
        record.enter(Phase.OWN, 100.0)
        record.enter(Phase.WAITING, 100.0 + (0.1 if rank else works_s))
        record.step(Step(Driver.EXCHANGE, 100.0, 102.0, 0.1 if rank else works_s, 5.0))
        files.append((str(rank), whole(record, 102.0, about(rank, 2))))
    run = assemble(files)
    assert headline(run).next_step.startswith(words)
    text = page(run)
    assert "<th>done" in text
    empty = ("moved", "without lending", "decision", "got", "gave")
    assert not any(f"<th>{name}" in text for name in empty)


def test_the_table_of_ranks_names_what_they_computed() -> None:
    text = page(assemble(ranks(4)))
    assert "<th>rows computed" in text
    assert "<td>150" in text
    assert "<td>1.00x" in text


def test_drafts_are_summed_up() -> None:
    record = Record(100.0)
    for other, amount, took in ((-1, 0.0, 1.0), (1, 1.0, 0.5), (1, 1.0, 0.7), (1, 0.0, 2.0)):
        record.move(Move(Way.DRAFT, other, 100.0, 100.0 + took, amount, 8.0 * amount))
    run = assemble([("0", whole(record, 102.0, about(0, 2))), ("1", whole(Record(100.0), 102.0, about(1, 2)))])
    told = drafts(run)
    assert told is not None
    assert (told.n, told.unanswered, told.nothing, told.work, told.bytes) == (4, 1, 1, 2, 16.0)
    assert told.median_s == pytest.approx(0.6)
    assert matrix(run, Way.DRAFT)[1, 0] == 2.0


def test_timeline_holds_each_second_once() -> None:
    run = assemble(ranks(3))
    parts = timeline(run, 60)
    assert parts.sum(axis=2) == pytest.approx(np.ones((3, 60)), abs=1e-3)
    assert parts[:, :9, Phase.OWN] == pytest.approx(np.ones((3, 9)), abs=1e-3)
    pixels, each = strip_pixels(parts)
    assert each == 1
    assert set(np.unique(pixels)) == {Phase.OWN, Phase.WAITING, NOTHING}


def test_clocks_of_hosts_are_aligned() -> None:
    files = []
    for rank, ahead in enumerate((0.0, 50.0)):
        record = Record(100.0 + ahead)
        record.enter(Phase.OWN, 100.0 + ahead)
        record.clock(Clock(100.0 + ahead, 0, -ahead, 2e-6))
        what = about(rank, 2, f"node{rank}", clock_s=100.0 + ahead)
        files.append((str(rank), whole(record, 101.0 + ahead, what)))
    run = assemble(files)
    assert run.seconds == pytest.approx(1.0)
    assert run.clock.startswith("compared between hosts: within 2 us")
    for name, data in files[:]:
        files.append((name, data.replace(b"clocks", b"clocks")))
    assert len(assemble(files).hosts) == 2


def test_without_a_comparison_the_hosts_own_clocks_count() -> None:
    files = [
        (str(rank), whole(Record(5.0 * rank), 5.0 * rank + 1.0, about(rank, 2, f"node{rank}", clock_s=5.0 * rank)))
        for rank in range(2)
    ]
    run = assemble(files)
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


def test_pictures_are_png() -> None:
    width, height, pixels = decoded(encode(np.array([[0, 1, 2], [7, 0, 0]], dtype=np.uint8), [*COLOURS.values()]))
    assert (width, height, pixels) == (3, 2, b"\x00\x01\x20\x00\x70\x00")
    assert decoded(square(np.zeros((2, 2))).png)[2] == b"\x00\xff\x00\xff"
    many = square(np.ones((600, 600)))
    assert (many.width, many.each) == (200, 3)


class Reader(html.parser.HTMLParser):
    """The figures, and whatever would need the network."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.views: list[dict[str, object]] = []
        self.outside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "data-view":
                self.views.append(json.loads(value or ""))
            if name in ("src", "href") and not (value or "").startswith("data:"):
                self.outside.append(f"{tag} {value}")


def test_the_page_stands_alone() -> None:
    text = page(assemble(ranks(4, hosts=2)))
    reader = Reader(text)
    assert reader.outside == []
    assert not re.search(r"https?://", text.replace("https://pop-coe.eu", ""))
    strip_of, loans = reader.views
    assert strip_of["hosts"] == [["node0", 0], ["node1", 2]]
    assert loans["values"] == (15 * np.roll(np.eye(4, dtype=int), 1, axis=1)).tolist()
    assert 'aria-label="costs of rows"' in text
    assert 'aria-label="imbalance of each call"' in text
    assert "<b>program" not in text
    assert "program.py --x &lt;b&gt;" in text
    assert "the plan &lt;stays&gt;" in text


# A rank dies 5 s after the first start, and all is over 20 s after it; records begin at 1e9.
TOLD = [
    Happened(START, 1e9 - 1.0, 0, -1, "4 ranks on a"),
    Happened(DEATH, 1e9 + 5.0, 0, 2, "rank 2 was <killed>"),
    Happened(RESTART, 1e9 + 6.0, 1, -1, "restart 1 of 1"),
    Happened(START, 1e9 + 7.0, 1, -1, "3 ranks on a"),
    Happened(END, 1e9 + 20.0, 1, -1, "exit code 0"),
]


def saved(rank: int, at: float) -> bytes:
    record = Record(100.0)
    record.enter(Phase.OWN, 100.0)
    record.mark(Mark(Event.SAVE, at, at + 0.5 + rank, 12))
    return whole(record, 106.0, about(rank, 2))


def test_saves_and_deaths_have_their_times() -> None:
    run = assemble([(str(rank), saved(rank, 103.0 - rank)) for rank in range(2)], TOLD[:2])
    assert [(it.what, it.rank) for it in run.happened] == [(START, -1), ("save", -1), (DEATH, 2)]
    save, death = run.happened[1:]
    assert (save.began_s, save.ended_s, save.words) == (pytest.approx(2.0), pytest.approx(3.5), "save 12")
    assert death.began_s == pytest.approx(5.0)
    strip_of = Reader(page(run)).views[0]
    assert strip_of["marks"] == [[2.0, 3.5, -1, "save", "save 12"], [5.0, 5.0, -1, "death", "rank 2 was <killed>"]]
    text = page(run)
    assert "rank 2 was &lt;killed&gt;" in text
    assert "Start 1" not in text


def test_lines_of_a_launch_that_make_no_sense_are_left_out() -> None:
    text = "".join(map(line, TOLD))
    assert parse(text) == TOLD
    assert parse(text[:-10] + "\n[1]\n{}\n" + line(TOLD[0]._replace(what="tea")) + line(TOLD[0])) == [*TOLD[:4], TOLD[0]]


def test_all_starts_of_a_run_are_on_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = folder_of_run(tmp_path / "record", [ranks(4), ranks(3, calls=2)], TOLD), tmp_path / "report.html"
    assert main(["report", str(folder), "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == 3
    text = out.read_text()
    first, second = (view for view in Reader(text).views if "time" in view)
    assert (first["rows"], second["rows"]) == (4, 3)
    assert first["marks"] == [[5.0, 5.0, 2, "death", "rank 2 was <killed>"]]
    assert second["marks"] == []
    assert "Start 2: 3 ranks" in text
    assert "restart 1 of 1" in text


def test_a_launch_before_this_run_is_not_told_of(tmp_path: Path) -> None:
    late = 1e9 - 2 * SKEW_S
    old = [it._replace(wall_s=late - 20.0 + it.wall_s - 1e9) for it in TOLD]
    folder, out = folder_of_run(tmp_path / "record", [ranks(4), ranks(3)], old), tmp_path / "report.html"
    assert main(["report", str(folder), "-o", str(out)]) == 0
    text = out.read_text()
    assert "Start 2" not in text
    assert "killed" not in text


def test_a_page_of_a_thousand_ranks_is_small() -> None:
    rng = np.random.default_rng(0)
    frames = []
    for _ in range(64):
        record, at = Record(100.0), 100.0
        for _ in range(100):
            record.enter(Phase(int(rng.integers(7))), at)
            at += float(rng.exponential(0.1))
        for _ in range(20):
            record.move(Move(Way.DRAFT, int(rng.integers(1024)), at, at, 1.0, 100.0))
        frames.append(snapshot(record, at, 0, ended=True))
    files = [
        (f"rank{rank:06d}.lbrec", header(about(rank, 1024, f"node{rank // 32}")) + frames[rank * 37 % 64])
        for rank in range(1024)
    ]
    run = assemble(files)
    assert strip(timeline(run, COLUMNS)).height == 1024
    assert len(page(run).encode()) <= MOST_BYTES


def test_a_run_in_which_nothing_happened_has_a_page() -> None:
    assert "Nothing was done" in page(assemble([("0", whole(Record(100.0), 100.0, about(0, 1)))]))


def test_maps_show_who_has_most_of_each_place() -> None:
    halves = [np.array([[1.0, 0.6], [0.0, 0.0]]), np.array([[0.0, 0.4], [1.0, 0.0]])]
    files = []
    for rank, half in enumerate(halves):
        record = Record(100.0)
        record.draw(half)
        files.append((str(rank), whole(record, 101.0, about(rank, 2))))
    run = assemble(files)
    assert owners(run).tolist() == [[0, 0], [1, -1]]
    assert "rank 0: 66.7%" in page(run)
    assert owners(assemble(ranks(2))).size == 0
    assert "The part of each rank" not in page(assemble(ranks(2)))
    drawn = map_of(np.array([[0, len(RANK_COLOURS)], [1, -1]]), 2)
    assert decoded(drawn.png)[2] == bytes([0, 0x00, 0, 0x10 | len(RANK_COLOURS)])


def test_shares_of_a_grid() -> None:
    rows, columns = np.divmod(np.arange(300 * 30), 30)
    some = rows < 150
    mine = shares(rows[some], columns[some], (300, 30))
    assert mine.shape == (MAP, round(0.1 * MAP))
    assert mine[: MAP // 2] == pytest.approx(np.ones((MAP // 2, mine.shape[1])))
    assert not mine[MAP // 2 :].any()
    assert shares(np.zeros(1, dtype=np.int64), np.arange(1), (1, 1000)).shape == (1, MAP)


def test_what_was_computed_again_and_again_is_counted() -> None:
    rows, columns = np.divmod(np.arange(300 * 30), 30)
    where, counts = places(rows, columns, (300, 30)), np.zeros(size((300, 30)), dtype=np.int64)
    np.add.at(counts, where[rows < 150], 1)
    np.add.at(counts, where, 1)
    half = shares(rows[rows < 150], columns[rows < 150], (300, 30))
    assert parts(counts / 2, (300, 30)) == pytest.approx(0.5 + 0.5 * half)


def test_vertices_without_coordinates_are_laid_out() -> None:
    graph = parse_graph("mesh:12x40")
    columns = np.arange(graph.n) % 40
    order = np.random.default_rng(0).permutation(graph.n)  # the numbers tell nothing
    tails, heads = (order[ends] for ends in graph.edges())
    along = spectral(Graph.from_edges(graph.n, tails, heads, np.ones(graph.n_edges)))[order]
    means = np.array([along[columns == column].mean(axis=0) for column in range(40)])
    assert any((np.diff(mean) > 0).all() or (np.diff(mean) < 0).all() for mean in means.T)  # one axis is the long side
    assert (along.min(), along.max()) == (0.0, 1.0)
    found = placed(graph)
    assert found is not None
    where, (height, width) = found
    assert (height, width) == (21, 21)
    assert 0 <= where.min() <= where.max() < height * width


@pytest.mark.parametrize("name", ["ring:2", "mesh:1x4"])
def test_small_graphs_are_not_laid_out(name: str) -> None:
    assert placed(parse_graph(name)) is None


def test_graphs_in_pieces_are_laid_out() -> None:
    tails = np.concatenate([np.arange(9), 10 + np.arange(9)])
    assert np.isfinite(spectral(Graph.from_edges(20, tails, tails + 1, np.ones(18)))).all()
    assert np.isfinite(spectral(Graph.from_edges(6, np.arange(2), np.arange(2) + 1, np.ones(2)))).all()


def test_the_page_says_that_it_was_laid_out() -> None:
    record = Record(100.0)
    record.draw(np.ones((2, 2)))
    assert "The domain in 2 x 2 places" in page(assemble([("0", whole(record, 101.0, about(0, 1)))]))
    record.use("map", {"layout": SPECTRAL})
    assert f"The graph, laid out {SPECTRAL}, in 2 x 2 places" in page(assemble([("0", whole(record, 101.0, about(0, 1)))]))


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("mesh:2x3", [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]),
        ("torus:3x3", [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)]),
    ],
)
def test_meshes_are_drawn_as_they_are(text: str, places: list[tuple[int, int]]) -> None:
    edges = np.stack(parse_graph(text).edges(), axis=1).astype(np.int32)
    assert layout(len(places), edges) == places


@pytest.mark.parametrize("text", ["ring:8", "hypercube:3", "complete:5", "2/1,3/2", "2/1/4/3"])
def test_ranks_of_any_graph_have_places_of_their_own(text: str) -> None:
    graph = parse_graph(text)
    places = np.array(layout(graph.n, np.stack(graph.edges(), axis=1).astype(np.int32)))
    apart = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1)) + 9.0 * np.eye(graph.n)
    assert apart.min() > 0.2


def test_arrows_stay_within_the_drawing() -> None:
    drawn = flows(np.ones((4, 4)), "rows", np.stack(parse_graph("mesh:2x2").edges(), axis=1).astype(np.int32))
    width, height = map(float, re.findall(r'viewBox="0 0 (\d+) (\d+)"', drawn)[0])
    curves = np.array(re.findall(r"M(-?\d+) (-?\d+)Q(-?\d+) (-?\d+) (-?\d+) (-?\d+)", drawn), dtype=float)
    assert len(curves) == 12
    assert curves.min() >= 0.0
    assert curves[:, 0::2].max() <= width
    assert curves[:, 1::2].max() <= height


def test_flows_are_drawn_on_the_process_graph() -> None:
    moved = np.zeros((20, 20))
    moved[3, 4] = 7.0
    edges = np.stack(parse_graph("mesh:4x5").edges(), axis=1).astype(np.int32)
    drawn = flows(moved, "rows", edges)
    assert drawn.count('class="grid"') == len(edges)
    assert drawn.count("<circle") == 20
    assert "3 to 4: 7 rows" in drawn
    assert flows(moved, "rows", edges[:0]) == ""  # too many for a ring
    assert flows(moved[:5, :5], "rows", edges[:0]).count("<circle") == 5


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = folder_of_files(tmp_path / "record", ranks(4)), tmp_path / "report.html"
    assert main(["report", str(folder), "-o", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ratio"] == pytest.approx(2.0)
    assert told["bytes"] == len(out.read_bytes()) <= MOST_BYTES
    assert told["file"] == str(out)
    for drawn in re.findall("<svg.*?</svg>", out.read_text()):
        assert xml.etree.ElementTree.fromstring(drawn).tag == "svg"


def test_what_is_missing_or_no_good_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ranks(4)
    files[1] = files[1][0], files[1][1][: place(0, 4) + 60]  # torn
    files[2] = files[2][0], files[2][1][:6] + b"\x09\x00" + files[2][1][8:]  # another version
    killed = Record(100.0)
    killed.enter(Phase.OWN, 100.0)
    files[3] = files[3][0], whole(killed, 103.0, about(3, 4, "node0"), ended=False)
    folder = folder_of_files(tmp_path / "record", files)
    assert main(["report", str(folder), "-o", str(tmp_path / "report.html")]) == 0
    said = capsys.readouterr().out
    for words in (
        "rank000001.lbrec: contains no complete snapshot",
        f"rank000002.lbrec: format version 9: expected {VERSION}; record the run again",
        "no record of ranks 1, 2",
        "rank 3: the record breaks off",
    ):
        assert words in said
    assert "the record breaks off" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "no record in this folder: expected files rank*.lbrec"),
        ([("rank000000.lbrec", b"no")], "rank000000.lbrec: begins with b'no': expected the record of a rank"),
    ],
)
def test_a_folder_without_a_record_is_an_error_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: list[tuple[str, bytes]], words: str
) -> None:
    folder = folder_of_files(tmp_path / "record", files)
    assert main(["report", str(folder), "-o", str(tmp_path / "report.html")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_ranks_of_another_run_are_left_out() -> None:
    old = whole(Record(100.0), 101.0, about(5, 8, wall_s=5e8))
    run = assemble([*ranks(4), ("rank000005.lbrec", old)])
    assert len(run.ranks) == 4
    assert run.notes == ["left out 1 record of another run"]


@pytest.mark.parametrize(
    ("arguments", "driver", "way"),
    [
        ("search --tree T1 --ranks 4", Driver.SEARCH, Way.DRAFT),
        ("rows --graph ring:4 --calls 3 --costs hotspot --row-s 2e-3", Driver.ROWS, Way.LOAN),
        ("tasks --hosts 2,2 --tasks 40 --maps 2 --speeds 1,2,3,4", Driver.TASKS, Way.STEAL),
    ],
)
def test_simulators_write_the_same_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, driver: Driver, way: Way
) -> None:
    folder = tmp_path / "record"
    assert main(["simulate", *arguments.split(), "--json", "--record", str(folder)]) == 0
    told = json.loads(capsys.readouterr().out)
    run = assemble((path.name, path.read_bytes()) for path in sorted(folder.iterdir()))
    assert len(run.ranks) == 4
    assert run.clock == "virtual: one clock for all ranks"
    all_steps = np.concatenate(steps(run))
    assert set(all_steps["driver"].tolist()) == {driver}
    headed = headline(run)
    moved = matrix(run, way)
    assert moved.any()
    assert not moved.diagonal().any()
    total = told.get("total", {})
    assert headed.inside_s == pytest.approx(total.get("seconds", told.get("virtual_seconds")), rel=0.02)
    if driver is Driver.SEARCH:
        assert all_steps["units"].sum() == pytest.approx(told["nodes"], rel=1e-5)
        assert moved.sum() == told["balances"]
        assert headed.ratio == pytest.approx(1.0 / told["efficiency"], rel=0.02)
    elif driver is Driver.ROWS:
        assert moved.sum() == total["rows_moved"]
        assert headed.ratio == pytest.approx(told["ratio"], rel=0.02)
        assert all(len(one.costs) == 50 for one in run.ranks)
    else:
        assert all_steps["units"].sum() == 2 * 160
        assert all_steps["moved"].sum() == total["steals"]
    assert len(page(run)) < MOST_BYTES
