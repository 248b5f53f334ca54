"""What others take of the machine while a benchmark runs."""

import math
import re
from pathlib import Path

import pytest

from benchmarks.__main__ import benchmarks
from tools import others

STAT = "cpu  100 20 30 4000 500 6 7 8 90 9\ncpu0 1 2 3 4 5 6 7 8 9 10\n"


def test_busy_time_excludes_idling_and_counts_guests_once() -> None:
    assert others.busy_s(STAT, 100.0) == pytest.approx((100 + 20 + 30 + 6 + 7 + 8) / 100.0)
    for text in ("", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8"):
        with pytest.raises(ValueError, match="expected cpu and 8 numbers"):
            others.busy_s(text, 100.0)


def test_other_programs_used_what_is_left_of_the_busy_time() -> None:
    assert others.share(15.0, 12.0, 10.0, 2) == pytest.approx(0.15)
    assert others.share(11.9, 12.0, 10.0, 2) == 0.0  # ticks of 10 ms
    assert others.share(99.0, 0.0, 10.0, 2) == 1.0
    assert math.isnan(others.share(0.0, 0.0, 0.0, 2))
    assert math.isnan(others.share(math.nan, 1.0, 10.0, 2))


def test_a_watch_asks_from_one_time_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, wall = [0.0], [0.0]
    monkeypatch.setattr(others, "STAT", tmp_path / "stat")
    monkeypatch.setattr(others.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(others.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(others.time, "perf_counter", lambda: wall[0])
    (tmp_path / "stat").write_text(STAT)
    watch = others.Watch(lambda: own[0])
    own[0], wall[0] = 5.0, 10.0
    (tmp_path / "stat").write_text(STAT.replace("100", "1000"))  # 9 s more
    assert watch.others() == pytest.approx((9.0 - 5.0) / 20.0)
    own[0], wall[0] = 6.0, 20.0
    assert watch.others() == 0.0
    (tmp_path / "stat").unlink()
    assert math.isnan(watch.others())


def test_the_list_names_each_benchmark_that_the_documents_name() -> None:
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"\bbenchmarks\.([a-z_]+)", page.read_text())}
    listed = benchmarks()
    assert named <= set(listed)
    assert len(named) > 10
    assert all(listed.values())
