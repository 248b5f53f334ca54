"""The entrance of a search: options, the work quantum, and a guard around the user's problem.   (pure)

The protocol calls the problem through a `Guard`, which checks each returned value against the `Problem` protocol.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

import numpy as np

from lb_mpi.checks import boolean, choice, integer, number, returned, seed, show
from lb_mpi.errors import SearchError
from lb_mpi.searching.problem import Problem, Savable, TreeSearch, outgoing, shares

N = TypeVar("N", int, float)
MOST_ON_RING = 32  # ranks of one host for which the ring is the default route: a round of it has as many hops
MOST_UNITS = 1 << 40  # in one quantum
NO_BLOCK = nullcontext()
METHODS = ("absorb", "load", "merge", "result", "split", "start", "work")


class Options(NamedTuple):
    """The settings of a search; times in seconds, loads in the unit of `problem.load()`."""

    threshold: float = 0.125  # J of the paper: only a load above it is split
    pause_s: tuple[float, float] = (1e-4, 1e-2)  # shortest and longest pause before drafting again
    balance: bool = True  # False: each rank gets one initial share, and nothing moves afterwards
    seed: int = 0  # of the jitter of the pauses
    route: str | None = None  # of drafts: "ring" or "random"; None: the ring on up to 32 ranks of one host
    save_every_s: float | None = None  # between two saves; inf: only on request; None: no saves
    limit_s: float = math.inf  # time after which the search ends; inf: none

    def route_on(self, size: int, n_hosts: int = 1) -> str:
        """Return the route of drafts on `size` ranks of `n_hosts`."""
        return self.route or ("ring" if size <= MOST_ON_RING and n_hosts == 1 else "random")

    def checked(self) -> Options:
        """Return itself with Python's own numbers; ValueError with name, value and expectation."""
        saves = self.save_every_s
        return self._replace(
            threshold=number("threshold", self.threshold, least=0.0, unit="J, as problem.load()"),
            balance=boolean("balance", self.balance),
            seed=seed(self.seed),
            route=None if self.route is None else choice("route", self.route, ("ring", "random")),
            save_every_s=None if saves is None else _seconds("save_every_s", saves),
            limit_s=_seconds("limit_s", self.limit_s),
        )


def _seconds(name: str, value: object) -> float:
    """Return a time above 0, possibly infinity."""
    if isinstance(value, float | np.floating) and value == math.inf:
        return math.inf
    return number(name, value, above=0.0, unit="seconds")


class Quantum:
    """An adaptive work quantum: long enough that polling costs less than `OVERHEAD` of the work (a fraction), but not much
    longer, because an arriving message waits for its end.

    `units` is the quantum in units of the problem.  A fixed quantum (`fixed` units) never changes.
    """

    OVERHEAD, LONGEST_S = 0.02, 10e-3

    def __init__(self, fixed: int | None = None) -> None:
        self.units = 1
        if fixed is not None:
            self.units = min(integer("quantum", fixed, 1, unit="units of work; None: adaptive"), MOST_UNITS)
        self._fixed = fixed is not None
        self._poll_s = 0.0

    def observe(self, done: int, work_s: float, poll_s: float) -> None:
        """Observe a quantum of `done` units and `work_s` seconds, and the `poll_s` seconds of polling before it."""
        if self._fixed or done < 1:
            return
        # The median, found by small steps: a mean would follow the few polls in which the rank was off the processor.
        self._poll_s = poll_s if not self._poll_s else self._poll_s * (1.05 if poll_s > self._poll_s else 0.95)
        target_s = min(1.5 * self._poll_s / self.OVERHEAD, self.LONGEST_S)
        wanted = done * target_s / max(work_s, 1e-9)
        self.units = max(1, int(min(max(wanted, 0.5 * self.units), 2.0 * self.units)))


# --- the problem ------------------------------------------------------------------------------------------------------


def check_problem(problem: object) -> None:
    """TypeError that names what `problem` lacks (methods inherited from `Problem` don't count), or a callable `found`."""
    if isinstance(problem, type):
        raise TypeError(f"problem = {show(problem)}: expected an instance, not the class")
    missing = [name for name in METHODS if _lacks(problem, name)]
    found = inspect.getattr_static(problem, "found", None)
    if found is None and not hasattr(problem, "found"):
        missing.append("found (True or False, an attribute or a property)")
    faults = [f"it lacks {', '.join(missing)}"] if missing else []
    if callable(found):
        faults.append("its found is a method: make it an attribute or a property that is True or False")
    if faults and callable(problem):
        faults = ["for a function from a node to its children, pass lb_mpi.TreeSearch(root, children)"]
    if faults:
        raise TypeError(f"problem = {show(problem)}: expected an lb_mpi.Problem; {'; '.join(faults)}")


_searched: dict[int, weakref.ref[Any]] = {}  # by id: problems and bounds, as long as they live


def check_new(name: str, one: object) -> None:
    """Raise ValueError for a problem or a bound that still has the work or the values of an earlier search."""
    earlier = _searched.get(id(one))
    if earlier is not None and earlier() is one and not isinstance(one, TreeSearch):
        raise ValueError(f"{name} = {show(one)} has been searched with already: expected a new one for each search")


def searched(one: object) -> None:
    """Note that a search with it begins; a TreeSearch forgets the one before."""
    if isinstance(one, TreeSearch):
        one.forget()
    with contextlib.suppress(TypeError):  # a class with slots and without weak references
        key = id(one)
        _searched[key] = weakref.ref(one, lambda _: _searched.pop(key, None))


def check_savable(problem: object) -> None:
    """TypeError that names the methods that a problem needs to be saved."""
    missing = [name for name in ("save", "resume") if _lacks(problem, name)]
    if missing:
        expected = "expected an lb_mpi.Savable, since the search is saved"
        raise TypeError(f"problem = {show(problem)}: {expected}; it lacks {', '.join(missing)}")


def check_route(problem: object, options: Options) -> Options:
    """Return the options with a route on which work can reach its owner, if the problem has such work.

    ValueError for another route; TypeError for a problem that can send such work but not receive it.
    """
    if not callable(getattr(problem, "outgoing", None)):
        return options
    if not callable(getattr(problem, "incoming", None)):
        raise TypeError(f"problem = {show(problem)}: expected incoming(payload), as it has outgoing()")
    if options.route == "ring":
        raise ValueError("route = 'ring': expected 'random' for a problem with outgoing()")
    return options._replace(route="random")


def _method(name: str, kind: Any = object, expected: str = "") -> Any:
    """Return a method of `Guard` that calls the problem's; SearchError unless it returns a `kind`."""

    def method(self: Guard, *arguments: Any) -> Any:
        with self._around:
            value = getattr(self.problem, name)(*arguments)
        if not isinstance(value, kind):
            raise self._wrong(name, value, expected)
        return value

    return method


class Guard(Savable):
    """A user's problem as seen by the protocol: values that violate `Problem` raise a SearchError.

    Each call into the user's code runs within `around`.
    """

    start, absorb, incoming, resume, result, merge = map(
        _method, ("start", "absorb", "incoming", "resume", "result", "merge")
    )
    split = _method("split", bytes | None, "bytes, or None")
    save = _method("save", bytes, "bytes")

    def __init__(self, problem: Problem, around: AbstractContextManager[None] = NO_BLOCK) -> None:
        self.problem, self._around = problem, around
        self._owning = hasattr(problem, "outgoing")

    def work(self, units: int) -> int:
        """Do at most `units` units of work; SearchError unless the returned number is from 0 to `units`."""
        with self._around:
            done = self.problem.work(units)
        if type(done) is int and 0 <= done <= units:
            return done
        return self._held(integer, "work", done, f"an integer, 0 to {units}", units)

    def load(self) -> float:
        """Return the load; SearchError unless it is a finite number >= 0."""
        with self._around:
            load = self.problem.load()
        if type(load) is float and 0.0 <= load < math.inf:
            return load
        return self._held(number, "load", load, "a finite number >= 0")

    def shares(self, weights: Sequence[int]) -> list[bytes]:
        """Give work to several ranks; SearchError unless it is a list of bytes, at most one for each."""
        with self._around:
            parts = shares(self.problem, weights)
        n = len(weights) - 1
        if not isinstance(parts, list) or len(parts) > n or not all(isinstance(part, bytes) for part in parts):
            raise self._wrong("shares", parts, f"a list of bytes, {n} or fewer")
        return parts

    def outgoing(self) -> list[tuple[int, bytes]]:
        """Give away work that belongs to other ranks; SearchError unless it is a list of ranks with bytes."""
        if not self._owning:
            return []
        with self._around:
            sends: object = outgoing(self.problem)
        if not isinstance(sends, list) or not all(map(_is_send, sends)):
            raise self._wrong("outgoing", sends, "a list of (rank, bytes)")
        return sends

    @property
    def found(self) -> bool:
        """Return whether there is an answer; SearchError unless it is True or False (a method would always be true)."""
        with self._around:
            found: object = self.problem.found
        if found is True or found is False:
            return found
        if not isinstance(found, bool | np.bool_):
            raise SearchError(f"{type(self.problem).__qualname__}.found = {show(found)}: expected True or False")
        return bool(found)

    def _held(self, check: Callable[..., N], method: str, value: object, expected: str, most: int | None = None) -> N:
        """Return the value as Python's own number, at least 0; SearchError if it isn't one."""
        try:
            return check(method, value, least=0, most=most)
        except ValueError:
            raise self._wrong(method, value, expected) from None

    def _wrong(self, method: str, value: object, expected: str) -> SearchError:
        return SearchError(returned(getattr(self.problem, method), show(value), expected))


def _is_send(send: object) -> bool:
    return isinstance(send, tuple) and len(send) == 2 and type(send[0]) is int and isinstance(send[1], bytes)


def _lacks(problem: object, name: str) -> bool:
    own = getattr(type(problem), name, None) is not getattr(Savable, name)
    return not (own and callable(getattr(problem, name, None)))
