"""The door to what the user has written: what is missing is named, what breaks the law is a SearchError."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lb_mpi
from lb_mpi.cli.simulate import search as simulate
from lb_mpi.searching.guard import METHODS, Guard, check_problem
from tests.misbehaviour import NotForPickling
from tests.pile import Heap, Pile


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_is_still_problems_own_is_lacking(name):
    misspelt = type("Misspelt", (Pile,), {name: getattr(lb_mpi.Problem, name), name + "e": getattr(Pile, name)})
    with pytest.raises(TypeError, match=rf"problem = .*it lacks {name}$"):
        check_problem(misspelt(3))
    with pytest.raises(TypeError, match=f"it lacks {name}$"):
        simulate.search([misspelt(3), misspelt(3)])


def test_all_that_is_missing_is_named_once():
    class Empty(lb_mpi.Problem):
        work = None

    for problem in (Empty(), "not a problem"):
        words = r"expected an lb_mpi.Problem; it lacks absorb, load, merge, result, (split, )?start, work, found \(True or F"
        with pytest.raises(TypeError, match=words):
            check_problem(problem)
    with pytest.raises(TypeError, match="expected an instance"):
        check_problem(Pile)


def duck(**found: object) -> lb_mpi.Problem:
    methods = dict.fromkeys(("absorb", "load", "merge", "result", "split", "start", "work"), len)
    return type("Duck", (lb_mpi.Problem,), methods | found)()


def test_found_is_a_property_or_an_attribute_of_class_or_instance():
    (of_instance := duck()).found = np.True_
    for one in (of_instance, duck(found=True), duck(found=property(lambda _: True))):
        check_problem(one)
        assert Guard(one).found is True
    method = duck(found=lambda _: False)
    with pytest.raises(lb_mpi.SearchError, match=r"Duck\.found = .*: expected True or False"):
        assert not Guard(method).found
    with pytest.raises(TypeError, match=r"expected an lb_mpi\.Problem; its found is a method: make it an attribute"):
        check_problem(method)
    with pytest.raises(TypeError, match=r"expected an lb_mpi\.Problem; it lacks found \(True or False, an attribute or "):
        check_problem(duck())


LAW: dict[str, tuple[list[object], Callable[[Any], object], str]] = {  # of each method: what is wrong, a call, what it says
    "load": (
        [math.nan, -1.0, math.inf, "words", True, [1.0], NotForPickling(), 10**400],
        lambda pile: simulate.search([pile, Pile(3)]), "a finite number >= 0",
    ),
    "work": ([None, -1, 6, 2.0, "words", math.nan, True], lambda pile: Guard(pile).work(5), "an integer, 0 to 5"),
    "split": (["words", 3, [1], bytearray(3)], lambda pile: Guard(pile).split(), "bytes, or None"),
    "shares": (
        [b"", None, (b"a",), [None], ["a"], [b"a", b"b", b"c"], NotForPickling()],
        lambda pile: Guard(pile).shares([1, 1, 1]), "a list of bytes, 2 or fewer",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("method", "value"), [(method, value) for method, (wrong, *_) in LAW.items() for value in wrong])
def test_what_a_method_returns_against_the_law_is_named_with_its_place(method, value):
    _, call, expected = LAW[method]
    pile = Heap(3)
    setattr(pile, method, lambda *_: value)
    with pytest.raises(lb_mpi.SearchError, match=rf"returned .*: expected {expected} \(.*test_guard.py:\d+\)$"):
        call(pile)


def test_a_load_of_another_rank_is_checked_too():
    pile = Pile(3)
    pile.load = lambda: None
    with pytest.raises(lb_mpi.SearchError, match="returned None: expected a finite number"):
        simulate.search([Pile(3), pile])


def test_a_problem_without_shares_is_split_in_halves():
    pile = Pile(100)
    pile.items = list(range(8))
    assert [len(part) // 4 for part in Guard(pile).shares([1, 1, 1])] == [4, 2]
    assert [len(part) // 4 for part in Guard(pile).shares([1, 1, 1])] == [1]


def test_numpys_numbers_are_as_good():
    pile = Pile(3)
    pile.load, pile.work = lambda: np.float32(2.0), lambda units: np.int16(units)
    assert (Guard(pile).load(), Guard(pile).work(3)) == (2.0, 3)
    assert (type(Guard(pile).load()), type(Guard(pile).work(3))) == (float, int)
