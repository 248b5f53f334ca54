"""A toy problem whose every unit of work has a name, so that nothing can be lost or doubled unseen."""

import struct
from collections.abc import Sequence
from typing import Any

from lb_mpi.searching.bound import Bound
from lb_mpi.searching.problem import Problem


def children(item: int, limit: int) -> list[int]:
    """A fixed tree over 1 .. limit: item k has the children 3k-1, 3k, 3k+1 (each number has one parent)."""
    return [child for child in (3 * item - 1, 3 * item, 3 * item + 1) if child <= limit]


def value_of(item: int) -> float:
    """What an item is worth to a bound: neither ordered nor all different."""
    return float(item * 37 % 101 // 2)


class Broken(Exception):
    """What a broken method raises."""


class Pile(Problem):
    """Depth-first over the tree above; load = number of items in hand.  The method `broken` raises, load from 3 items on;
    what else a method does first, a subclass says in `on_call`.

    With a `bound`, each item that is done tells it its value; nothing is left out because of it.
    """

    found = False

    def __init__(self, limit: int, *, wanted: int = 0, broken: str = "", bound: Bound | None = None) -> None:
        self.limit, self.wanted, self.broken, self.bound = limit, wanted, broken, bound
        self.items: list[int] = []
        self.done: list[int] = []

    def on_call(self, method: str) -> None:
        if method == self.broken and (method != "load" or len(self.items) >= 3):
            raise Broken(method)

    def start(self) -> None:
        self.on_call("start")
        self.items.append(1)

    def work(self, units: int) -> int:
        self.on_call("work")
        count = 0
        while self.items and count < units and not self.found:
            item = self.items.pop()
            self.done.append(item)
            self.items += children(item, self.limit)
            self.found = item == self.wanted
            if self.bound is not None:
                self.bound.update(value_of(item))
            count += 1
        return count

    def load(self) -> float:
        self.on_call("load")
        return float(len(self.items))

    def split(self) -> bytes | None:
        self.on_call("split")
        half = len(self.items) // 2
        if half == 0:
            return None
        part, self.items = self.items[:half], self.items[half:]
        return struct.pack(f"<{half}i", *part)

    def absorb(self, payload: bytes) -> None:
        self.on_call("absorb")
        assert not self.items
        self.items = unpack(payload)

    def save(self) -> bytes:
        self.on_call("save")
        return struct.pack(f"<i{len(self.items) + len(self.done)}i", len(self.items), *self.items, *self.done)

    def resume(self, states: Sequence[bytes], mine: Sequence[int]) -> None:
        self.on_call("resume")
        for index in mine:
            items, done = saved_by(states[index])
            self.items += items
            self.done += done
        self.found = self.wanted in self.done

    def result(self) -> list[int]:
        self.on_call("result")
        return self.done

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        self.on_call("merge")
        return one + other


def saved_by(state: bytes) -> tuple[list[int], list[int]]:
    """Items in hand and done, as `Pile.save` has packed them."""
    n, *both = unpack(state)
    return both[:n], both[n:]


class Heap(Pile):
    """A pile that is split into several shares: items are dealt in turns, whatever the weights."""

    def shares(self, weights: Sequence[int]) -> list[bytes]:
        self.on_call("split")
        n = min(len(weights), len(self.items))
        parts = [self.items[first::n] for first in range(n)]
        self.items = parts[0] if parts else []
        return [struct.pack(f"<{len(part)}i", *part) for part in parts[1:]]


class Post(Heap):
    """A heap in which item k belongs to rank k // 2 % size if k is even, to whoever has it otherwise.

    What belongs to others is held back until this rank has nothing else, or `holds` is False.
    """

    rank, size, holds = 0, 1, True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.out: list[int] = []

    def work(self, units: int) -> int:
        count = super().work(units)
        elsewhere = {item for item in self.items if item % 2 == 0 and item // 2 % self.size != self.rank}
        self.out += [item for item in self.items if item in elsewhere]
        self.items = [item for item in self.items if item not in elsewhere]
        return count

    def outgoing(self) -> list[tuple[int, bytes]]:
        if self.items and self.holds:
            return []
        out, self.out = self.out, []
        return [(item // 2 % self.size, struct.pack("<i", item)) for item in out]

    def incoming(self, payload: bytes) -> None:
        self.items += unpack(payload)

    def save(self) -> bytes:
        self.items, items = self.items + self.out, self.items
        state = super().save()
        self.items = items
        return state


def unpack(payload: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(payload) // 4}i", payload))
