"""What a user's function may do that it shouldn't: the rows of the tables of misbehaviour in tests/mpi."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


class Unspeakable(Exception):
    """An exception that can't be turned into text, nor into a pickle, and is neither true nor false."""

    def __str__(self) -> str:
        raise ZeroDivisionError("no text")

    __repr__ = __bool__ = __str__

    def __reduce__(self) -> NoReturn:
        raise KeyboardInterrupt


class NotForPickling:
    """What no other rank can be sent."""

    def __reduce__(self) -> NoReturn:
        raise ZeroDivisionError("no pickle")


def _raiser(make: Callable[[], BaseException]) -> Callable[..., NoReturn]:
    def misbehave(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise make()

    return misbehave


RAISES: dict[str, Callable[..., NoReturn]] = {
    "ValueError": _raiser(lambda: ValueError("misbehaving")),
    "SystemExit": _raiser(lambda: SystemExit(0)),
    "KeyboardInterrupt": _raiser(KeyboardInterrupt),
    "MemoryError": _raiser(MemoryError),
    "Unspeakable": _raiser(Unspeakable),
}
RETURNS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "NaN": lambda: float("nan"),
    "str": lambda: "words",
    "list": lambda: [1, 2],
    "int": lambda: 7,
    "negative": lambda: -1.0,
    "generator": lambda: (k for k in range(3)),
    "unpicklable": NotForPickling,
}
