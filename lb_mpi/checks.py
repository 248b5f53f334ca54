"""One validator for each kind of argument, used by all public functions.   (pure)

Each receives the name and value of an argument, returns the value with its proper type, and raises a ValueError with name,
value and expectation.  numpy's scalars count as numbers; True and False don't.

Only the standard library is imported, since these also run before anything is installed.
"""

from __future__ import annotations

import difflib
import math
import numbers
import operator
import os
import re
from collections.abc import Callable, Sequence
from typing import Any


def show(value: object) -> str:
    """Return repr(value) in one line, shortened; something else if that raises."""
    try:
        text = re.sub(r"\s*\n\s*", " ", repr(value))
    except Exception:
        text = f"<{type(value).__name__}>"
    return shortened(text)


def shortened(text: str) -> str:
    """Return a text of at most 120 characters, or the first hundred, and how many there are."""
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"


def returned(function: Callable[..., Any], found: str, expected: str) -> str:
    """Return the text of an error: "physics returned None: expected an array (weather.py:12)", where it is defined."""
    function = getattr(function, "func", function)  # of functools.partial
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(function, "__code__", None)
    location = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return f"{name} returned {found}: expected {expected}{location}"


def path_text(name: str, value: object, noun: str) -> str:
    """Return a path as text; `noun`: what it leads to."""
    text: object = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(text, str):
        raise TypeError(f"{name} = {show(value)}: expected the name of a {noun}")
    if not text or "\0" in text:
        raise ValueError(f"{name} = {show(value)}: expected the name of a {noun}")
    return text


def integer(name: str, value: object, least: int | None = None, most: int | None = None, *, unit: str = "") -> int:
    """Return an integer from `least` to `most`."""
    number: int | None = None
    if not _is_bool(value) and hasattr(value, "__index__"):
        try:
            number = operator.index(value)
        except TypeError:  # an array of several numbers
            number = None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        span = "" if least is None else f" >= {least}" if most is None else f", {least} to {most}"
        raise ValueError(f"{name} = {show(value)}: expected an integer{span}{f' ({unit})' if unit else ''}")
    return number


def number(
    name: str,
    value: object,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    unit: str = "",
) -> float:
    """Return a finite number that is at least `least`, above `above`, at most `most`."""
    found = math.nan
    if isinstance(value, numbers.Real) and not _is_bool(value):
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
    low = (least is None or found >= least) and (above is None or found > above)
    if not (math.isfinite(found) and low and (most is None or found <= most)):
        bounds = (("above", above), (">=", least), ("at most", most))
        parts = [f"{words} {bound:g}" for words, bound in bounds if bound is not None]
        span = f" {' and '.join(parts)}" if parts else ""
        raise ValueError(f"{name} = {show(value)}: expected a finite number{span}{f' ({unit})' if unit else ''}")
    return found


def virtual_s(name: str, value: object) -> float:
    """Return seconds of a simulation, within bounds that keep sums and quotients finite and above 0."""
    return number(name, value, least=1e-15, most=1e12, unit="seconds")


def bandwidth(name: str, value: object) -> float:
    """Return the bytes per second of a simulated link."""
    return number(name, value, least=1e-3, unit="bytes per second")


def emulated_speed(value: object, name: str = "emulated_speed") -> float:
    """Return the relative speed that a rank emulates, above 0 and at most 1."""
    return number(name, value, above=0.0, most=1.0, unit="1: full speed")


def seed(value: object, name: str = "seed") -> int:
    """Return the seed of random numbers."""
    return integer(name, value, 0)


def boolean(name: str, value: object) -> bool:
    """Return True or False."""
    if not _is_bool(value):
        raise ValueError(f"{name} = {show(value)}: expected True or False")
    return bool(value)


def choice(name: str, value: object, allowed: Sequence[str]) -> str:
    """Return one of the `allowed` words."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} = {show(value)}: expected one of {', '.join(allowed)}{meant(value, allowed)}")
    return value


def meant(value: object, allowed: Sequence[str]) -> str:
    """Return "; did you mean ...?" if `value` is a word that resembles one of those that are allowed; otherwise ""."""
    found = difflib.get_close_matches(value, allowed, 1, 0.7) if isinstance(value, str) else []
    return f"; did you mean {found[0]}?" if found else ""


def function(name: str, value: object, *, optional: bool = False) -> Any:
    """Return a function (or None, if optional)."""
    if not (callable(value) or (optional and value is None)):
        raise TypeError(f"{name} = {show(value)}: expected a function{', or None' if optional else ''}")
    return value


def comma_list(name: str, text: str, size: int | None = None) -> list[float]:
    """Return the numbers in "1,2,..." (`size` of them)."""
    try:
        if "_" in text:  # float() accepts 1_000
            raise ValueError
        found = [float(word) for word in text.split(",")]
    except ValueError:
        expected = "a number" if size == 1 else "numbers with commas between them"
        raise ValueError(f"{name} = {show(text)}: expected {expected}") from None
    if size is not None and len(found) != size:
        raise ValueError(f"{name} has {len(found)} number{'s' * (len(found) > 1)}: expected {size}")
    return found


def emulated_speeds(text: str | None, size: int, names: Sequence[str] = ()) -> list[float]:
    """Return the `size` speeds of --speeds "0.8,0.4", which ranks (or the hosts `names`) emulate; None: full speed."""
    found = [1.0] * size if text is None else comma_list("--speeds", text, size)
    return [emulated_speed(one, f"--speeds: {names[k] if names else f'rank {k}'}") for k, one in enumerate(found)]


def _is_bool(value: object) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")
