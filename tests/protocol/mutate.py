"""Known-wrong variants (mutants): a function does something else while a test looks for what that breaks.

    with mutated(drafting, "Drafting.take", "self.seq += 1", "pass"):
        ...                               # whoever calls the function calls the mutant

    test_known_wrong_variants_are_caught = rejects(find_fault, MUTANTS)

A mutant is a function or a constant, by its qualified name, and a piece of its text that occurs there once.  Only the
code of the function is replaced: classes stay the same, so the mutant's messages are those of everybody else.
"""

import ast
import contextlib
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lb_mpi.errors import ProtocolError

Mutant = tuple[types.ModuleType, str, str, str]  # the arguments of `mutated`


def rejects(
    find_fault: Callable[[], object],
    mutants: Sequence[Mutant | list[Mutant]],
    *others: type[BaseException],
    right: bool = True,
) -> Callable[[int | None], None]:
    """Return a test: `find_fault` raises AssertionError, ProtocolError or one of `others` for each mutant, else nothing.

    A list of mutants is one of several changes.
    Not `right`: it isn't run without a mutant, since other tests do the same.
    """

    @pytest.mark.parametrize("number", [*range(len(mutants)), *[None] * right])
    def test(number: int | None) -> None:
        if number is None:
            find_fault()
            return
        changes = mutants[number]
        with contextlib.ExitStack() as stack:
            for change in changes if isinstance(changes, list) else [changes]:
                stack.enter_context(mutated(*change))
            with pytest.raises((AssertionError, ProtocolError, pytest.fail.Exception, *others)):
                find_fault()

    return test


@contextmanager
def mutated(module: types.ModuleType, name: str, before: str, after: str) -> Iterator[None]:
    """Say `after` instead of `before` in the function, or at the constant, of this qualified name in `module`."""
    owner, attribute, value = mutant(module, name, before, after)
    real = getattr(owner, attribute)
    setattr(owner, attribute, value)
    try:
        yield
    finally:
        setattr(owner, attribute, real)


def mutant(module: types.ModuleType, name: str, before: str, after: str) -> tuple[Any, str, Any]:
    """Return what has to be set for this: an object, the name of its attribute, and the value."""
    source = Path(inspect.getfile(module)).read_text()
    begin, end = _span(ast.parse(source), name)
    lines = source.splitlines(keepends=True)
    text = "".join(lines[begin:end])
    assert text.count(before) == 1, f"{module.__name__}.{name} has {text.count(before)} such places: {before!r}"
    changed = "".join([*lines[:begin], text.replace(before, after), *lines[end:]])
    compiled = compile(changed, f"mutant of {name}", "exec", dont_inherit=True)
    if (code := _code(compiled, name)) is None:  # a constant
        assert not lines[begin].startswith("class "), f"{name} is a class: expected a function of it"
        return module, name, eval(text.replace(before, after).partition(" = ")[2])
    return _function(module, name), "__code__", code


def _span(tree: ast.Module, name: str) -> tuple[int, int]:
    """Lines of a definition, from the first to the one after the last, counted from 0."""
    first, _, rest = name.partition(".")
    for node in tree.body:
        named = [ast.unparse(target) for target in node.targets] if isinstance(node, ast.Assign) else []
        if first in (*named, getattr(node, "name", None)):
            if rest:
                assert isinstance(node, ast.ClassDef)
                return _span(ast.Module(node.body, []), rest)
            assert node.end_lineno is not None
            return node.lineno - 1, node.end_lineno
    raise AssertionError(f"no {name}")


def _code(compiled: types.CodeType, name: str) -> types.CodeType | None:
    """Find the code of a function in that of its module."""
    for inner in compiled.co_consts:
        if isinstance(inner, types.CodeType):
            if inner.co_qualname == name:
                return inner
            if name.startswith(f"{inner.co_qualname}.") and (found := _code(inner, name)) is not None:
                return found
    return None


def _function(module: types.ModuleType, name: str) -> Any:
    """Find a function without what its decorators have made of it."""
    found: Any = module
    for part in name.split("."):
        found = vars(found)[part]
    if isinstance(found, property):
        found = found.fget
    found = getattr(found, "__func__", found)  # of a static method
    return inspect.unwrap(found)
