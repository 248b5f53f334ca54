"""The door between the protocol and what the user has written: nothing that breaks `Problem`'s law gets through.   (pure)"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from lb_mpi.checks import integer, number, show
from lb_mpi.errors import SearchError
from lb_mpi.searching.options import Options
from lb_mpi.searching.problem import Problem, Savable, outgoing, shares

METHODS = ("absorb", "load", "merge", "result", "split", "start", "work")


def check_problem(problem: object) -> None:
    """TypeError that names, once each, what `problem` lacks; a method that is still `Problem`'s own is lacking, too.

    `found` is no method, and the error says so.
    """

    missing = [name for name in METHODS if _lacks(problem, name)]
    found = inspect.getattr_static(problem, "found", None)
    if isinstance(problem, type):
        raise TypeError(f"problem = {show(problem)}: expected an instance, not the class")
    faults = [f"it lacks {', '.join(missing)}"] if missing else []
    if found is None and not hasattr(problem, "found"):
        faults.append("it lacks found, an attribute or a property that is True or False")
    elif callable(found):
        faults.append("its found is a method: make it an attribute or a property that is True or False")
    if faults:
        expected = "expected start, work, load, split, ... (see lb_mpi.Problem)"
        raise TypeError(f"problem = {show(problem)}: {expected}; {'; '.join(faults)}")


def check_savable(problem: object) -> None:
    """TypeError that names what a problem lacks to be saved."""
    missing = [name for name in ("save", "resume") if _lacks(problem, name)]
    if missing:
        expected = "expected save() and resume(states, mine) of a search that is saved (see lb_mpi.Savable)"
        raise TypeError(f"problem = {show(problem)}: {expected}; it lacks {', '.join(missing)}")


def check_route(problem: object, options: Options) -> Options:
    """Return the options with the route on which work that belongs to certain ranks can travel, if there is any.

    ValueError for another route; TypeError for a problem that can send such work, and not take it in.
    """
    if not callable(getattr(problem, "outgoing", None)):
        return options
    if not callable(getattr(problem, "incoming", None)):
        raise TypeError(f"problem = {show(problem)}: expected incoming(payload), as it has outgoing()")
    if options.route == "ring":
        raise ValueError("route = 'ring': expected 'random' for a problem with outgoing()")
    return options._replace(route="random")


class Guard(Savable):
    """A user's problem as the protocol meets it: what it returns is as `Problem` says, or a SearchError.

    Each call into what the user has written runs within `around()`.
    """

    def __init__(self, problem: Problem, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self.problem, self._around = problem, around
        self._owning = hasattr(problem, "outgoing")

    def start(self) -> None:
        """Take the whole problem in hand."""
        with self._around():
            self.problem.start()

    def work(self, units: int) -> int:
        """Do at most `units` units of work; SearchError unless the number done is from 0 to `units`."""
        with self._around():
            done = self.problem.work(units)
        return done if type(done) is int and 0 <= done <= units else _held(integer, f"work({units})", done, units)

    def load(self) -> float:
        """Value the work in hand; SearchError unless it is a finite number >= 0."""
        with self._around():
            load = self.problem.load()
        return load if type(load) is float and 0.0 <= load < math.inf else _held(number, "load()", load)

    def split(self) -> bytes | None:
        """Give away work; SearchError unless it is bytes or None."""
        with self._around():
            part = self.problem.split()
        if part is not None and not isinstance(part, bytes):
            raise SearchError(f"split() = {show(part)}: expected bytes, or None")
        return part

    def shares(self, weights: Sequence[int]) -> list[bytes]:
        """Give work to several; SearchError unless it is a list of bytes, at most one for each."""
        with self._around():
            parts = shares(self.problem, weights)
        n = len(weights) - 1
        if not isinstance(parts, list) or len(parts) > n or not all(isinstance(part, bytes) for part in parts):
            raise SearchError(f"shares({show(list(weights))}) = {show(parts)}: expected a list of bytes, {n} or fewer")
        return parts

    def absorb(self, payload: bytes) -> None:
        """Take in a part."""
        with self._around():
            self.problem.absorb(payload)

    def outgoing(self) -> list[tuple[int, bytes]]:
        """Give away what belongs to others; SearchError unless it is a list of ranks with bytes."""
        if not self._owning:
            return []
        with self._around():
            sends: object = outgoing(self.problem)
        if not isinstance(sends, list) or not all(map(_is_send, sends)):
            raise SearchError(f"outgoing() = {show(sends)}: expected a list of (rank, bytes)")
        return sends

    def incoming(self, payload: bytes) -> None:
        """Take in what belongs to this rank."""
        with self._around():
            self.problem.incoming(payload)  # type: ignore[attr-defined]

    @property
    def found(self) -> bool:
        """Say that there is an answer; SearchError unless it is True or False (a method would always be true)."""
        with self._around():
            found: object = self.problem.found
        if found is True or found is False:
            return found
        if not isinstance(found, bool | np.bool_):
            raise SearchError(f"found = {show(found)}: expected True or False")
        return bool(found)

    def save(self) -> bytes:
        """Pack what is left and what was found; SearchError unless it is bytes."""
        with self._around():
            state: object = self.problem.save()  # type: ignore[attr-defined]
        if not isinstance(state, bytes):
            raise SearchError(f"save() = {show(state)}: expected bytes")
        return state

    def resume(self, states: Sequence[bytes], mine: Sequence[int]) -> None:
        """Take in hand what was saved."""
        with self._around():
            self.problem.resume(states, mine)  # type: ignore[attr-defined]

    def result(self) -> Any:
        """Return this rank's partial result."""
        with self._around():
            return self.problem.result()

    def merge(self, one: Any, other: Any) -> Any:
        """Combine two partial results."""
        with self._around():
            return self.problem.merge(one, other)


def _is_send(send: object) -> bool:
    return isinstance(send, tuple) and len(send) == 2 and type(send[0]) is int and isinstance(send[1], bytes)


def _lacks(problem: object, name: str) -> bool:
    own = getattr(type(problem), name, None) is not getattr(Savable, name)
    return not (own and callable(getattr(problem, name, None)))


def _held(check: Callable[..., Any], name: str, value: object, most: int | None = None) -> Any:
    """Return the value as a number of Python's own, at least 0; SearchError when it isn't one."""
    try:
        return check(name, value, least=0, most=most)
    except ValueError as error:
        raise SearchError(str(error)) from None
