"""Files with mistakes at random: they are read as a graph (machine, ...), or a ValueError says where the mistake is."""

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
