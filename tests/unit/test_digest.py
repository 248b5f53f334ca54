"""The digest of a function and its tasks: the same in each run of a program, another for other functions or items."""

import copy
import datetime
import decimal
import functools
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import pytest

from lb_mpi.pooling.checkpoint import digest
from tests.misbehaviour import NotForPickling
from tools.environment import ROOT

WORDS = ["north", "south", "east", "west", "up", "down"]


def of(function: Callable[..., Any], items: Any = (1, 2, 3), *, star: bool = False, key: str | None = None) -> bytes:
    return digest(function, items, star=star, key=key)


def enclosing(value: Any) -> Callable[[Any], Any]:
    return lambda k: (k, value)


class Bag(set):
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
        of(functools.partial(max, words)),
        of(Model(words=words).run),
        of(Model(words=words).run, np.array([words, None], dtype=object)),
    ]


def test_the_seed_of_hashes_does_not_count():
    script = "from tests.unit.test_digest import all_kinds; print(*(each.hex() for each in all_kinds()))"
    printed = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        printed.add(subprocess.check_output([sys.executable, "-c", script], cwd=ROOT, env=environment, text=True))
    assert len(printed) == 1
    assert len(set(printed.pop().split())) == len(all_kinds())


def test_equal_items_have_equal_digests():
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


def parts() -> dict[str, Any]:
    """New objects that are equal each time, of all kinds."""
    day = datetime.datetime(2026, 11, 28, 12, tzinfo=datetime.UTC)
    return {
        "text": "".join(["nor", "th"]), "bytes": bytes([1, 2]) * 50, "short bytes": bytes([1, 2]), "date": day,
        "tuple": tuple(iter([1, 2.5, "three"])), "named": inspect.FullArgSpec([], "a", None, None, [], None, {}),
        "list": [1, [2]], "dict": {"a": (1, 2), "b": day}, "array": np.arange(6.0).reshape(2, 3), "complex": complex(1, 2),
        "objects": np.array([day, "x"], dtype=object), "number": np.float64(0.5), "padded": padded(3), "path": Path("a"),
        "model": Model(x=(1, 2)), "decimal": decimal.Decimal("1.5"), "integer": 10**30, "dtype": np.dtype([("a", "i4")]),
        "set": {(1, 2), ("x", 3)},
    }  # fmt: skip


@pytest.mark.parametrize("name", parts())
def test_it_does_not_count_which_equal_parts_are_one_object(name):
    one = parts()[name]
    shared, apart = [one, (one, one), {"a": one}], [parts()[name] for _ in range(4)]
    items = [shared, [apart[0], (apart[1], apart[2]), {"a": apart[3]}]]
    assert of(len, items[0]) == of(len, items[1])
    assert of(functools.partial(max, items[0])) == of(functools.partial(max, items[1]))
    copies: list[Any] = [copy.deepcopy(shared), pickle.loads(pickle.dumps(items))[1]]  # results of this rank, and of another
    assert of(len, copies[0]) == of(len, copies[1]) == of(len, shared)
    assert len({of(len, other) for other in ([one], [one, one], [[one]], [one, [one]], [(one, one)], [])}) == 6


def test_values_that_hold_a_part_many_times_or_themselves_have_digests():
    many: Any = [1]
    for _ in range(200):  # 2**200 parts
        many = [many, many]
    assert of(len, [many]) == of(len, [copy.deepcopy(many)])
    itself: list[Any] = [1]
    itself.append(itself)
    assert of(len, [itself]) == of(len, [copy.deepcopy(itself)]) != of(len, [[1, [1]]])


def test_functions_of_other_modules_or_names_or_that_hold_other_values_have_other_digests():
    partials = [functools.partial(max, 1), functools.partial(max, 2), functools.partial(max, key=len)]
    functions = [max, min, np.max, enclosing, *partials, Model(x=1).run, Model(x=2).run, Model]
    assert len({of(function) for function in functions}) == len(functions)
    assert of(enclosing) == of(enclosing)


def test_functions_of_another_program_with_the_same_names_have_other_digests(monkeypatch):
    """A second script whose function and items had the names of the first one's got the first one's results."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec("import functools\ndef f(k): return k\nclass Point: pass\n@functools.cache\ndef g(k): return k", main.__dict__)
    calls = [(main.f, 3), (main.g, 3), (functools.partial(main.f, 1), 3), (main.Point().__init__, 3), (len, [main.Point()])]
    found = list[list[bytes]]()
    packages = ["a/__main__.py", "/moved/a/__main__.py", "b/__main__.py"]
    for path in ("one.py", "/moved/one.py", "one.pyc", "two.py", *packages, None):
        main.__file__ = path
        found.append([of(*call) for call in calls])
    one, moved, compiled, two, a, a_moved, b, notebook = found
    assert one == moved == compiled
    assert a == a_moved
    assert len({each for some in (one, two, a, b, notebook) for each in some}) == 5 * len(calls)
    main.__dict__["f"] = lambda k: k
    with pytest.raises(TypeError, match="or key= with"):
        of(main.__dict__["f"])


def test_a_function_without_a_name_needs_a_key():
    unnamed = [lambda k: k, enclosing(1), functools.partial(max, key=lambda k: k), Model(x=enclosing(1)).run]
    for function in unnamed:
        with pytest.raises(TypeError, match=r"^function = .*: expected a function that its module has .*, or key= with"):
            of(function)
    assert of(unnamed[0], key="a") == of(unnamed[1], key="a") == of(max, key="a")
    assert len({of(max), of(max, key="a"), of(max, key="max"), of(max, (1, 2), key="a"), of(max, star=True, key="a")}) == 5


def test_items_that_give_other_results_have_other_digests():
    items: list[Any] = [
        [1, 2], [1, 2.0], [True, 2], [2, 1], range(2), range(1, 3), [np.int64(1), 2], np.array([1, 2]), np.array([1.0, 2.0]),
        [[1, 2]], [(1, 2)], [{1, 2}], [frozenset({1, 2})], [Bag({1, 2})], [{1: 2}], [{1: 2, 3: 4}], [{3: 4, 1: 2}],
        ["1"], [b"1"], np.array([[1, 2]]), padded(0), padded(0)[:1], padded(0).astype([("a", "i1"), ("c", "f8")]),
        ["\ud800"], [None], [len],
    ]  # fmt: skip
    assert len({of(len, each) for each in items}) == len(items)


def test_items_that_cannot_be_identified_are_refused():
    for item, why in ((MappingProxyType({}), "TypeError: cannot"), (NotForPickling(), "Zero.*: no"), (enclosing(1), "")):
        with pytest.raises(TypeError, match=rf"^items = .*: expected values that a checkpoint can identify \(.*{why}"):
            of(len, [item])
