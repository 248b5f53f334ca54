"""Files with mistakes, named ones and at random: they are read, or a ValueError says where the mistake is."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.maze_search import read_maze
from lb_mpi.cli.run.hosts import read_hosts
from lb_mpi.graph import Graph
from lb_mpi.graph_files import as_graph
from lb_mpi.machine import Machine, read_machine

METIS = b"% a comment\n4 4 011\n3 2 5 4 1\n1 1 5 3 2\n1 2 2 4 7\n2 1 1 3 7\n"
MATRIX = b"%%MatrixMarket matrix coordinate real symmetric\n% c\n4 4 5\n2 1 1.5\n3 2 2\n4 3 0.5\n4 1 1\n2 2 -3\n"
GENERAL = b"%%MatrixMarket matrix coordinate integer general\n3 3 4\n1 2 1\n2 1 1\n2 3 4\n3 2 4\n"
MACHINE = b"""{"format": "lb_mpi machine", "version": 1, "hosts": ["a", "b"], "speeds": [3, 1],
"latency_s": [[0, 0.5], [0.5, 0]], "s_per_byte": [[0, 0.25], [0.25, 0]]}"""
MAZE = b"222222\n200112\n201012\n210002\n200102\n222222\n"
HOSTS = b"# our lab\nfast slots=4 speed=2.5\nslow:2\nold speed=1e-1\n"

FILES: dict[str, tuple[list[bytes], Callable[[Path], Any], type, str]] = {
    "a.graph": ([METIS], as_graph, Graph, r"(:\d+)?: "),
    "a.mtx": ([MATRIX, GENERAL], as_graph, Graph, r"(:\d+)?: "),
    "machine.json": ([MACHINE], read_machine, Machine, r"(:\d+)?: "),
    "hosts": ([HOSTS], read_hosts, list, r":\d+: "),
    "maze.txt": ([MAZE], read_maze, np.ndarray, r":\d+: "),
}
PIECES = [*(b'0 1 -1 2 9 1.5 nan inf 1e999 1_0 % # = : , [ ] { } " true null'.split()), b" ", b"\n", b"\0", b"\xff"]
PIECES += [b"99999999999999999999", b"1" * 5000, b"[" * 2000, "\u0663".encode()]


def broken(text: bytes, rng: random.Random) -> bytes:
    """One to three mistakes: bytes lost or doubled, pieces put in, lines swapped."""
    for _ in range(rng.randint(1, 3)):
        k, n = rng.randrange(len(text) + 1), rng.choice((1, 1, 2, 8))
        kind = rng.randrange(4)
        if kind == 0:
            text = text[:k] + text[k + n :]
        elif kind == 1:
            text = text[:k] + text[k : k + n] + text[k:]
        elif kind == 2:
            text = text[:k] + rng.choice(PIECES) + text[k + rng.randint(0, 2) :]
        else:
            lines = text.split(b"\n")
            one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[one], lines[other] = lines[other], lines[one]
            text = b"\n".join(lines)
    return text


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_mistakes_is_read_or_its_line_is_named(name, tmp_path):
    originals, read, kind, where = FILES[name]
    path = tmp_path / name
    refused = 0
    for seed in range(400):
        rng = random.Random(seed)
        text = broken(rng.choice(originals), rng)
        path.write_bytes(text)
        try:
            found, says = read(path), ""
        except ValueError as error:
            found, says = None, str(error)
        assert isinstance(found, kind) or re.match(re.escape(str(path)) + where, says), (seed, text, says)
        refused += found is None
    assert 100 < refused < 400  # some mistakes are none


REAL, GIVEN = "%%MatrixMarket matrix coordinate real general\n", json.loads(MACHINE)
MALFORMED: dict[str, list[tuple[str, str, str]]] = {  # by file: what is in it, the line that is named, and what is said
    "a.graph": [
        ("", ":1", "expected a header"),
        ("1 2 3 4 5\n", ":1", "expected a header"),
        ("a b\n", ":1", "expected integers"),
        ("% c\n2 1 7\n2\n1\n", ":2", "fmt = 7"),
        ("2 1 1111\n2\n1\n", ":1", "fmt = 1111"),
        ("2 1 010 2\n1 1 2\n1 1 1\n", ":1", "ncon = 2"),
        ("0 0\n", ":1", "n = 0"),
        ("2 -1\n2\n1\n", ":1", "m = -1"),
        ("999999999999 1\n2\n1\n", ":1", "more than fits"),
        ("2 999999999999\n2\n1\n", ":1", "more than fits"),
        ("2 1\n2\n", ":2", "ends after 1 vertices"),
        ("2 1\n2\n1\n1\n", ":4", "after the last"),
        ("2 2\n2\n1\n    \n", ":1", "m = 2 edges, .* have 1"),
        ("2 1\n3\n1\n", ":2", "neighbour 3: expected 1..2"),
        ("2 1\n0\n1\n", ":2", "neighbour 0"),
        ("3 2\n2\n1\n2\n", "", r"edge 2-1 is one-sided.*\(vertices from 0\)"),
        ("2 1 1\n2 -5\n1 -5\n", ":2", "weight -5"),
        ("2 1 1\n2 99999999999999999999999\n1 1\n", ":2", "weight 9999"),
        ("2 1 1\n2\n1 1\n", ":2", "1 numbers"),
        ("2 1 10\n\n1 1\n", ":2", "0 numbers"),
        ("2 1\n2\n1_0\n", ":3", "expected integers"),
    ],
    "a.mtx": [
        ("", ":1", "Not a Matrix Market file"),
        ("%%MatrixMarket matrix coordinate complex general\n2 2 0\n", "", "complex"),
        ("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n2 1 1\n", "", "skew-symmetric"),
        ("%%MatrixMarket matrix array real general\n1 1\n1\n", "", "array"),
        (REAL + "% c\n2 -2 1\n", ":3", "negative"),
        (REAL + "2 3 0\n", "", r"\(2, 3\): expected a square one"),
        (REAL + "999999999 999999999 1\n1 2 1\n", "", "more than fits"),
        (REAL + "2 2 999999999\n1 2 1\n", "", "more than fits"),
        (REAL + "2 2 2\n1 2 1\n3 1 1\n", ":4", "out of bounds"),
        (REAL + "2 2 2\n1 2 -1\n2 1 -1\n", "", r"edge 0-1 of weight -1.0: .*\(vertices from 0\)"),
        (REAL + "2 2 2\n1 2 1\n2 1 x", ":4", "floating-point"),  # without the last line end, it once crashed scipy
        (REAL + "2 2 2\n1 2 1\n2\0 1 1\n", "", "a byte that is 0"),
        (REAL + "2 2 4\n1 2 1e308\n2 1 1e308\n1 2 1e308\n2 1 1e308\n", "", "edge 0-1 of weight inf"),
        ("%%MatrixMarket matrix coordinate integer symmetric\n2 2 1\n2 1 " + "9" * 400 + "\n", ":3", "out of range"),
    ],
    "machine.json": [
        ("", ":1", ""),
        ('{"format":\n "lb', ":2", ""),
        ("[1, 2]", "", 'expected a JSON object with "format"'),
        ("\xff\xfe", "", "expected JSON"),
        ("[" * 100_000, "", "expected JSON"),
        *((json.dumps({**GIVEN, name: value}), "", says) for name, value, says in (
            ("format", "other", 'with "format"'), ("version", 2, "version = 2: expected 1"),
            ("version", True, "version = True: expected 1"), ("speeds", [True, 1], "speeds: expected numbers"),
            ("speeds", ["1", 1], "speeds: expected numbers"), ("speeds", [10**400, 1], ""),
            ("latency_s", 10**400, "latency_s"),
        )),
        *(
            (json.dumps({key: one for key, one in GIVEN.items() if key != name}), "", f"{name} is missing")
            for name in ("hosts", "speeds", "latency_s", "s_per_byte")
        ),
    ],
    "maze.txt": [
        ("", ":1", "empty"),
        ("\n\n", ":1", "empty"),
        ("222\n232\n222\n", ":2", "'3'"),
        ("222\n2 2\n222\n", ":2", "' '"),
        ("2222\n2002\n202\n2222\n", ":3", "3 cells"),
        ("222\n\n202\n222\n", ":2", "0 cells"),
        ("2222\n2002\n2222\n", ":3", "square"),
        ("22\n22\n", ":2", "3 x 3"),
        ("212\n202\n222\n", ":1", "wall is broken"),
        ("222\n202\n220\n", ":3", "wall is broken"),
        ("222\n201\n222\n", ":2", "wall is broken"),
        ("2222\n2022\n2002\n2222\n", ":2", "inside"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "line", "says"), [(key, *one) for key, rows in MALFORMED.items() for one in rows])
def test_a_malformed_file_is_refused_with_its_line(tmp_path, name, text, line, says):
    path = tmp_path / name
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}{line}: .*{says}"):
        FILES[name][1](path)
