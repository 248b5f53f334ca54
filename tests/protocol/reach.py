"""All states that can be reached, the law held against each, and a way to an end from each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeVar

S = TypeVar("S")


class Reached(NamedTuple):
    """What there is."""

    states: int
    ends: int
    came_from: list[list[int]]  # for each state, by its number, those from which it was reached


def reach(
    starts: Iterable[S],
    successors: Callable[[S], Iterable[S | None]],
    *,
    key: Callable[[S], Hashable],
    look: Callable[[S], bool],
    most_states: int = 200_000,
) -> Reached:
    """Go through all states, breadth first.

    `look` holds the law against a state, and says if it is an end.  A successor that is None is beyond the bounds of the
    exploration: what leads there has a way out.  AssertionError for a state from which neither can be reached.
    """
    seen: dict[Hashable, int] = {}
    queue: deque[tuple[int, S]] = deque()
    came_from: list[list[int]] = []

    def number_of(state: S) -> int:
        found = seen.setdefault(key(state), len(seen))
        if found == len(came_from):
            came_from.append([])
            queue.append((found, state))
            assert len(seen) <= most_states, f"more than {most_states} states: choose smaller bounds"
        return found

    for start in starts:
        number_of(start)
    way_out, ends = [], 0
    while queue:
        number, state = queue.popleft()
        if look(state):
            ends += 1
            way_out.append(number)
            continue
        for new in successors(state):
            if new is None:
                way_out.append(number)
            else:
                came_from[number_of(new)].append(number)
    saved = set(way_out)
    while way_out:
        for number in came_from[way_out.pop()]:
            if number not in saved:
                saved.add(number)
                way_out.append(number)
    assert len(saved) == len(seen), f"{len(seen) - len(saved)} states from which it never ends"
    return Reached(len(seen), ends, came_from)
