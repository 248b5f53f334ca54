"""The arguments of a map: what users pass, checked, and the items as they are sent.

Items are sent in the order of their positions in the map, in pickled blocks, of which a rank reads only those that it needs.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import pickle
import struct
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Sized
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi import checks
from lb_mpi.checks import show
from lb_mpi.columns import all_axes, check_column, copied, order_of
from lb_mpi.metrics import check_loads
from lb_mpi.mpi.pool.messages import EXACT, Call, are_unchanging, pickled
from lb_mpi.pooling.deal import Floats
from lb_mpi.pooling.intervals import MOST
from lb_mpi.status import StatusLine

Progress = Callable[[int, int], None]
SAMPLED, SAMPLED_BYTES = 32, 1 << 20  # items, and their bytes, by which a map is known to have the same ones as the last


class MapOptions(TypedDict, total=False):
    """The arguments of a map other than function and items; see `lb_mpi.Pool.map`."""

    costs: ArrayLike | None
    to: str
    chunksize: int | None
    progress: Progress | bool | None
    return_exceptions: bool
    checkpoint: str | os.PathLike[str] | None
    key: str | None
    callback: Callable[[Any], object] | None
    buffersize: int | None
    retries: int
    retry_pause: float
    timeout: float | None


class CheckedOptions(NamedTuple):
    """The options of a map, after their check; all but the call are for its root only."""

    call: Call
    costs: Any
    to_all: bool
    chunksize: int  # 0: adaptive
    progress: Progress | None
    checkpoint: Any  # a path
    key: str | None
    callback: Callable[[Any], object] | None
    buffersize: int  # 0: none is given


def check_options(function: Any, options: MapOptions, *, star: bool, lazy: bool, alone: bool) -> CheckedOptions:
    """Check the arguments that all ranks pass to a map: `lazy` if its items may be read while tasks run.

    `alone`: the other ranks serve.
    """
    to = options.get("to", "root")
    if alone and to == "all":
        raise ValueError("to = 'all': expected 'root' in a pool whose other ranks serve")
    if unknown := options.keys() - MapOptions.__annotations__.keys():
        hint = checks.meant(min(unknown), [*MapOptions.__annotations__])
        raise TypeError(f"a map got an unexpected keyword argument {min(unknown)!r}{hint}")
    if not lazy and "buffersize" in options:
        raise TypeError("a map got an unexpected keyword argument 'buffersize': expected it with imap")
    callback = checks.function("callback", options.get("callback"), optional=True)
    checks.function("function", function)
    checks.choice("to", to, ("root", "all"))
    if (chunksize := options.get("chunksize")) is not None:
        chunksize = min(MOST, checks.integer("chunksize", chunksize, least=1))  # more are all
    if (key := options.get("key")) is not None and (not isinstance(key, str) or not key):
        raise TypeError(f"key = {show(key)}: expected a text that identifies the function in its checkpoint")
    retries = checks.integer("retries", options.get("retries", 0), least=0, most=MOST)
    pause = checks.number("retry_pause", options.get("retry_pause", 0.0), least=0.0, most=1e8, unit="seconds")
    if (timeout := options.get("timeout")) is not None:
        timeout = checks.number("timeout", timeout, least=1e-3, most=1e8, unit="seconds")
        if threading.current_thread() is not threading.main_thread():
            where = "expected the main thread, the only one that can be stopped"
            raise ValueError(f"timeout = {show(options['timeout'])} in a thread: {where}")
    if (buffersize := options.get("buffersize")) is not None:
        buffersize = checks.integer("buffersize", buffersize, least=1)
    if isinstance(progress := options.get("progress"), bool):
        progress = _progress_line() if progress else None
    checks.function("progress", progress, optional=True)
    call = Call(function, star, bool(options.get("return_exceptions")), retries, timeout or 0.0, pause)
    costs, checkpoint = options.get("costs"), options.get("checkpoint")
    return CheckedOptions(call, costs, to == "all", chunksize or 0, progress, checkpoint, key, callback, buffersize or 0)


def _progress_line() -> Progress:
    """Return a callback that shows "123 of 2,000 tasks, 12 s, about 180 s left"."""
    line, began = StatusLine(), time.perf_counter()

    def show(done: int, of: int) -> None:
        spent = time.perf_counter() - began
        left = f", about {spent / done * (of - done):,.0f} s left" if 0 < done < of else ""
        line.show(f"{done:,} of {of:,} tasks, {spent:,.0f} s{left}", last=done == of)

    return show


def check_items(given: Sequence[Any], *, ordered: bool) -> Any:
    """Check the user's items, or several iterables of arguments; return a range, an array or a list.

    `ordered`: they must have the same order in each run.
    """
    if ordered and (sets := [one for one in given if isinstance(one, set | frozenset)]):
        raise TypeError(f"items = {show(sets[0])}: expected items in a fixed order, such as sorted(items)")
    items = _check_iterable(given[0] if given else None)
    if len(given) > 1:
        items = zip(*map(_check_iterable, given), strict=False)
    if isinstance(items, range) and items:  # its integers may be too large for len()
        n = (items[-1] - items[0]) // items.step + 1
    else:
        items = items if isinstance(items, range | np.ndarray) else list(items)
        n = len(items)
    if n > MOST:
        raise ValueError(f"{n:,} items: expected at most {MOST:,}" if n < 1 << 63 else f"items: expected at most {MOST:,}")
    return items


def _check_iterable(items: Any) -> Any:
    if isinstance(items, bool | str | bytes) or not isinstance(items, int | np.integer | Iterable):
        expected = "an iterable, such as a list, an array or a range, or an integer n for range(n)"
        raise TypeError(f"items = {show(items)}: expected {expected}")
    if isinstance(items, int | np.integer):
        if items < 0:
            raise ValueError(f"items = {items}: expected an integer >= 0")
        return range(int(items))
    if isinstance(items, np.ndarray):
        # Also of a file in memory, so that items are arrays of the same type on all ranks.
        return np.asarray(check_column("items", items, " or a list", objects=True))
    return items


NEED_ALL = ("costs", "checkpoint", "progress")  # options of a map that need all its items before it begins


def reads_lazily(given: Sequence[Any], options: CheckedOptions) -> bool:
    """Return whether items are read while tasks run: with buffersize=, or if their number is not known.

    ValueError for buffersize= with an option that needs all items.
    """
    needs = [name for name in NEED_ALL if getattr(options, name) is not None]
    if options.buffersize:
        if needs:
            raise ValueError(f"buffersize = {options.buffersize}: expected None with {needs[0]}=, which needs all items")
        return True
    return not needs and any(isinstance(one, Iterable) and not isinstance(one, Sized) for one in given)


def iterate(given: Sequence[Any]) -> Iterator[Any]:
    """Return an iterator of the user's items, or of tuples from several iterables."""
    first, *more = map(_check_iterable, given or [None])
    return zip(first, *more, strict=False) if more else iter(first)


def check_costs(costs: Any, n: int) -> Floats | None:
    """Return the costs of n items relative to the largest, so that sums are finite in any unit; or raise ValueError."""
    if costs is None:
        return None
    values = check_loads(costs, n, name="costs")
    most = values.max(initial=0.0)
    with np.errstate(under="ignore"):  # also where the program makes errors of all
        return values / most if most else values


def name_of(function: Callable[..., Any], *args: Any) -> Hashable:
    """Return what identifies a function in the next map, where the same lambda is a new object; `args`: it may call some."""
    if isinstance(function, partial):
        return name_of(function.func, *function.args, *args)
    if called := [*filter(callable, args)]:
        return name_of(function), *map(name_of, called)
    kind: type = type(function)
    if isinstance(function, FunctionType | MethodType | BuiltinFunctionType):
        return getattr(function, "__code__", None) or getattr(function, "__qualname__", kind)
    return function if kind is type else kind


def sample_of(items: Any) -> bytes:
    """Return a digest of some items; b"" if they can't be pickled."""
    digest = hashlib.sha256()
    n_bytes = 0
    try:
        for k in range(0, len(items), max(1, len(items) // SAMPLED)):
            data = pickle.dumps(items[k], pickle.HIGHEST_PROTOCOL)
            digest.update(data)
            if (n_bytes := n_bytes + len(data)) > SAMPLED_BYTES:
                break
    except Exception:  # the map itself says what is wrong with items that can't be pickled
        return b""
    return digest.digest()


# --- items, as they are sent ------------------------------------------------------------------------------------------

BLOCK, SMALL_BYTES = 256, 4096  # items in a block, at most; blocks of about so many bytes are not divided further
BLOCKS_A_RANK = 8  # at least, if there are enough items
_BLOCKS = struct.Struct("<qq")  # items in a block, blocks; their ends follow, and then the blocks


def encode(items: Any, order: Sequence[int], size: int) -> list[bytes]:
    """Encode a range, an array, or a list by position, for `size` ranks; TypeError, naming the item, if pickling fails."""
    blocks: list[bytes] = []
    n_block, lo = 1, 0  # the first item alone says how long a block may be
    while lo < len(order):
        indices = order[lo : lo + n_block]
        some = _some(items, indices)
        try:
            plain = isinstance(some, range) or (isinstance(some, list) and are_unchanging(some))
            block = pickled(pickle, some, None if plain else EXACT)  # a pickler with reducers costs 10 us
        except Exception:
            _name_unpicklable(items, indices)
            raise
        if not blocks and n_block == 1:
            n_block = max(1, min(BLOCK, max(len(order) // (size * BLOCKS_A_RANK), SMALL_BYTES // len(block))))
            if n_block > 1:
                continue
        blocks.append(block)
        lo += n_block
    ends = [0, *itertools.accumulate(map(len, blocks))]
    return [_BLOCKS.pack(n_block, len(blocks)), struct.pack(f"<{len(ends)}q", *ends), *blocks]


def _some(items: Any, indices: Sequence[int]) -> Any:
    if isinstance(items, np.ndarray):
        inner = [axis for axis in all_axes(order_of(items), items.ndim) if axis not in (0, ~0)]
        return copied(items[np.asarray(indices)], (0, *inner))
    if isinstance(indices, range):
        return items[indices.start : indices.stop]
    return [items[k] for k in indices]


def _name_unpicklable(items: Any, indices: Sequence[int]) -> None:
    for k in indices:
        try:
            pickle.dumps(items[k], pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise TypeError(f"items[{k}] can't be pickled: {type(error).__name__}: {error}") from error


class ReceivedItems:
    """Items by position, as encoded by `encode`."""

    def __init__(self, data: memoryview) -> None:
        self._n_block, n = _BLOCKS.unpack_from(data)
        self._ends = data[_BLOCKS.size : _BLOCKS.size + 8 * (n + 1)].cast("q")
        self._data = data[_BLOCKS.size + self._ends.nbytes :]
        self._block: Any = []
        self._block_number = -1

    def some(self, lo: int, hi: int) -> Iterator[Any]:
        """Return an iterator of the items at positions lo..hi-1, each once: rows of an array belong to this rank's copy."""
        return itertools.chain.from_iterable(self._pieces(lo, hi))

    def _pieces(self, lo: int, hi: int) -> Iterator[Any]:
        while lo < hi:
            number, first = divmod(lo, self._n_block)
            if number != self._block_number:
                begin, end = self._ends[number : number + 2]
                self._block, self._block_number = unpickled(self._data[begin:end], self._n_block), number
            n = min(hi - lo, self._n_block - first)
            yield self._block[first : first + n]
            lo += n


class UnreadableError(Exception):
    """The cause has been raised as the next item was unpickled; `alone`: that item, not one that is pickled with it."""

    def __init__(self, alone: bool) -> None:
        super().__init__()
        self.alone = alone


def unpickled(data: bytes | memoryview, n: int = 1) -> Any:
    """Return an item, or a block of `n`; UnreadableError if that fails."""
    try:
        return pickle.loads(data)
    except Exception as error:
        raise UnreadableError(n == 1) from error
