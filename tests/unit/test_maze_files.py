"""Mazes: drawn ones, and the files that they are read from."""

import pathlib
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.maze_search import BLOCKED, FREE, WALL, random_maze, read_maze
from tests.unit.test_maze import component

PAPER = pathlib.Path(__file__).parents[1] / "data" / "maze16.txt"


@pytest.mark.parametrize("dim", [1, 2, 3, 50, 1500])
def test_a_drawn_maze_has_walls_and_depends_on_its_seed(dim):
    cells = random_maze(dim, 0.6, 7)
    check = np.concatenate([cells[0], cells[-1], cells[:, 0], cells[:, -1]])
    assert (check == WALL).all()
    assert np.isin(cells[1:-1, 1:-1], (FREE, BLOCKED)).all()
    assert cells[1, 1] == cells[-2, -2] == FREE
    assert np.array_equal(cells, random_maze(dim, 0.6, 7))
    if dim >= 50:
        assert (cells[1:-1, 1:-1] == FREE).mean() == pytest.approx(0.6, abs=0.05)
        assert not np.array_equal(cells, random_maze(dim, 0.6, 8))
        out = np.full((dim + 2, dim + 2), 9, np.uint8)
        assert random_maze(dim, 0.6, 7, out=out) is out
        assert np.array_equal(cells, out)


@pytest.mark.parametrize("dim", [3, 4, 20])
def test_walled_exit_cannot_be_reached(dim):
    cells = random_maze(dim, 1.0, 0, walled=True)
    assert component(cells).sum() == dim * dim - 4
    assert cells[-2, -2] == FREE


def test_missing_file_is_an_os_error_that_names_it(tmp_path):
    with pytest.raises(OSError, match=r"nowhere\.txt"):
        read_maze(tmp_path / "nowhere.txt")


@pytest.mark.parametrize(("text", "line", "message"), [
    ("", 1, "empty"),
    ("\n\n", 1, "empty"),
    ("222\n232\n222\n", 2, "'3'"),
    ("222\n2 2\n222\n", 2, "' '"),
    ("2222\n2002\n202\n2222\n", 3, "3 cells"),
    ("222\n\n202\n222\n", 2, "0 cells"),
    ("2222\n2002\n2222\n", 3, "square"),
    ("22\n22\n", 2, "3 x 3"),
    ("212\n202\n222\n", 1, "wall is broken"),
    ("222\n202\n220\n", 3, "wall is broken"),
    ("222\n201\n222\n", 2, "wall is broken"),
    ("2222\n2022\n2002\n2222\n", 2, "inside"),
])  # fmt: skip
def test_wrong_files_are_refused_with_their_line(tmp_path, text, line, message):
    path = tmp_path / "maze.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_maze(path)
    assert str(error.value).startswith(f"{path}:{line}: ")


def test_reads_other_line_ends(tmp_path):
    path = tmp_path / "maze.txt"
    path.write_bytes(b"222\r\n202\r\n222")
    assert read_maze(path).tolist() == [[2, 2, 2], [2, 0, 2], [2, 2, 2]]


@settings(deadline=None, max_examples=200)
@given(content=st.binary(max_size=60) | st.text("012\n", max_size=60).map(str.encode))
def test_any_file_is_a_maze_or_a_value_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("maze") / "maze.txt"
    path.write_bytes(content)
    rows = content.splitlines()
    while rows and not rows[-1]:
        rows.pop()
    n = len(rows)
    wall, inner = b"2{%d}" % n, b"2[01]{%d}2" % max(n - 2, 1)
    if n >= 3 and all(re.fullmatch(inner if 0 < i < n - 1 else wall, row) for i, row in enumerate(rows)):
        assert read_maze(path).shape == (n, n)
    else:
        with pytest.raises(ValueError) as error:
            read_maze(path)
        assert str(error.value).startswith(f"{path}:")
