"""Functions as they travel: each once, found again by the digest of its pickled form."""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from lb_mpi.checks import show

KEPT = 4  # functions, on each rank
_EXPECTED = "expected a function of a module, a pool whose ranks all call its methods"


class Sent(NamedTuple):
    """A function as bytes."""

    digest: bytes  # 16 of them
    data: bytes


def pickled(function: Callable[..., Any]) -> Sent:
    """Pickle a function, with cloudpickle where that is needed and installed; TypeError where it can't be done."""
    data = dumps(function, f"function = {show(function)}")
    return Sent(hashlib.sha256(data).digest()[:16], data)  # quicker than others where the processor helps


def dumps(value: Any, what: str) -> bytes:
    """Pickle what has functions in it; TypeError, about `what`, where it can't be done."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        try:
            import cloudpickle
        except ImportError:
            why = f"{type(error).__name__}: {error}"
            raise TypeError(f"{what} can't be pickled ({why}): {_EXPECTED}, or cloudpickle to be installed") from error
    try:
        return bytes(cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise TypeError(f"{what} can't be pickled, not with cloudpickle either ({why}): {_EXPECTED}") from error


class Functions:
    """The last functions, by digest; sender and receivers forget the same ones."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Callable[..., Any]] = OrderedDict()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._known

    def keep(self, digest: bytes, function: Callable[..., Any]) -> None:
        """Know it from now on, and forget the oldest beyond `KEPT`."""
        self._known[digest] = function
        if len(self._known) > KEPT:
            self._known.popitem(last=False)

    def __getitem__(self, digest: bytes) -> Callable[..., Any]:
        return self._known[digest]
