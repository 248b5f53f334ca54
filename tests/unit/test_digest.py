"""The digest of a function and its tasks: the same in each run of a program, another for whatever gives other results."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from lb_mpi.pooling.checkpoint import digest
from tests.misbehaviour import NotForPickling

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["north", "south", "east", "west", "up", "down"]


def of(function: Callable[..., Any], items: Any = (1, 2, 3), *, star: bool = False) -> bytes:
    return digest(function, items, star=star)


def enclosing(value: Any) -> Callable[[Any], Any]:
    return lambda k: (k, value)


class Bag(set):  # type: ignore[type-arg]
    pass


class Model:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def run(self, k: Any) -> Any:
        return k, self


PADDED = np.dtype([("a", "i1"), ("b", "f8")], align=True)


def padded(garbage: int) -> np.ndarray[Any, Any]:
    """Two numbers with `garbage` between them."""
    array = np.full(2 * PADDED.itemsize, garbage, np.uint8).view(PADDED)
    array["a"], array["b"] = [1, 2], [0.5, 0.7]
    return array


def all_kinds() -> list[bytes]:
    """Digests of what has sets somewhere."""
    words = set(WORDS)
    return [
        of(len, [words, frozenset(words), {frozenset({word}) for word in words}]),
        of(len, [Bag(words)]),
        of(enclosing(words)),
        of(lambda k: k in {"north", "south", "east", "west", "up", "down"}),
        of(functools.partial(max, key=enclosing(words))),
        of(Model(words=words).run),
        of(Model(words=words).run, np.array([words, None], dtype=object)),
    ]


def test_the_seed_of_hashes_does_not_count() -> None:
    script = "from tests.unit.test_digest import all_kinds; print(*(each.hex() for each in all_kinds()))"
    told = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        told.add(subprocess.check_output([sys.executable, "-c", script], cwd=ROOT, env=environment, text=True))
    assert len(told) == 1
    assert len(set(told.pop().split())) == len(all_kinds())


def test_a_map_is_no_starmap() -> None:
    assert of(max, [(1, 2)], star=True) != of(max, [(1, 2)])


def test_what_gives_the_same_results_is_the_same() -> None:
    lines = [lambda k: k + 1,

             lambda k: k + 1]  # fmt: skip  (on another line)
    assert of(lines[0]) == of(lines[1])
    two = "no" + "".join(["r", "th"])
    assert of(len, ["north", "north"]) == of(len, ["north", two])
    rows = np.arange(12.0).reshape(4, 3)
    fixed = rows.copy()
    fixed.flags.writeable = False
    assert of(len, rows) == of(len, np.asfortranarray(rows)) == of(len, np.repeat(rows, 2, axis=0)[::2])
    assert of(len, [rows]) == of(len, [fixed]) == of(len, [np.repeat(rows, 2, axis=1)[:, ::2]])
    assert of(len, padded(0)) == of(len, padded(255))
    assert of(len, [padded(0), padded(0)[0]]) == of(len, [padded(255), padded(255)[0]])
    assert of(Model(rows=padded(0)).run) == of(Model(rows=padded(255)).run)


def recursive(step: int) -> Callable[[int], int]:
    def down(k: int) -> int:
        return k if k < 0 else down(k - step)

    return down


def undefined() -> Callable[[int], int]:
    def late(k: int) -> int:
        return k + offset

    if len(WORDS) < 1:
        offset = 1
    return late


def keyword(*, factor: int) -> Callable[..., int]:
    def times(k: int, *, by: int = factor) -> int:
        return k * by

    return times


DIFFERENT: dict[str, list[Callable[..., Any]]] = {
    "what is enclosed": [enclosing(1), enclosing(2), enclosing(1.0), enclosing(True), enclosing("1"), enclosing(b"1")],
    "arrays enclosed": [enclosing(np.ones(2)), enclosing(np.ones((1, 2))), enclosing(np.ones(2, "f4"))],
    "functions enclosed": [enclosing(enclosing(1)), enclosing(enclosing(2)), enclosing(len), enclosing(max), enclosing(np)],
    "defaults": [lambda k, by=1: by, lambda k, by=2: by, keyword(factor=1), keyword(factor=2)],
    "arguments": [lambda a: a, lambda *a: a, lambda a, b=None: a],
    "constants": [lambda k: 0.0, lambda k: -0.0, lambda k: 0, lambda k: False, lambda k: k in {1}, lambda k: k in {1, 2}],
    "names": [lambda k: k.real, lambda k: k.imag],
    "nested code": [lambda k: (lambda: 1)(), lambda k: (lambda: 2)()],
    "partial": [functools.partial(max, 1), functools.partial(max, 2), functools.partial(max, key=len), max],
    "methods": [Model(x=1).run, Model(x=2).run],
    "itself": [recursive(1), recursive(2)],
    "not yet there": [undefined(), enclosing(0)],
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_functions_that_give_other_results_are_told_apart(name: str) -> None:
    functions = DIFFERENT[name]
    assert len({of(function) for function in functions}) == len(functions)


def test_items_that_give_other_results_are_told_apart() -> None:
    items: list[Any] = [
        [1, 2], [1, 2.0], [True, 2], [2, 1], range(2), range(1, 3), [np.int64(1), 2], np.array([1, 2]), np.array([1.0, 2.0]),
        [[1, 2]], [(1, 2)], [{1, 2}], [frozenset({1, 2})], [Bag({1, 2})], [{1: 2}], [{1: 2, 3: 4}], [{3: 4, 1: 2}],
        ["1"], [b"1"], np.array([[1, 2]]), padded(0), padded(0)[:1], padded(0).astype([("a", "i1"), ("c", "f8")]),
        ["\ud800"], [None], [len], [np],
    ]  # fmt: skip
    assert len({of(len, each) for each in items}) == len(items)


def test_what_a_checkpoint_cannot_tell_from_others_is_refused() -> None:
    for function in (enclosing(NotForPickling()), Model(x=NotForPickling()).run, functools.partial(max, NotForPickling())):
        with pytest.raises(TypeError, match=r"^function = .*: expected a value that a checkpoint can .*\(Zero.*: no pickle"):
            of(function)
    with pytest.raises(TypeError, match=r"^items = .*: expected a value that a checkpoint can .*\(TypeError: cannot pickle"):
        of(len, [MappingProxyType({})])
