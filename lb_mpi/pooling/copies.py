"""The copies of an executor's large arrays: which hosts have one, which ranks use it, and when it is freed.   (pure)

Law: a task runs on a rank only if its host has all arrays of the task; a copy is freed when all tasks that need it are done,
and each rank that may use it is asked to forget it, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class Copies:
    """The arrays of one executor, by key; they come from the rank `root` on the host `own`."""

    def __init__(self, own: int, root: int) -> None:
        self._own, self._root = own, root
        self._hosts: dict[str, dict[int, bool]] = {}  # by key: hosts that have it; False: it is on its way
        self._users: dict[str, set[int]] = {}  # by key: ranks other than the root that may have it
        self._needed = Counter[str]()  # by key: tasks that are not done
        self.ended = set[str]()  # keys of calls that have ended

    def __contains__(self, key: str) -> bool:
        return key in self._hosts

    def add(self, key: str) -> None:
        """Note a new array, which the root's host has."""
        self._hosts[key], self._users[key] = {self._own: True}, set()

    def need(self, key: str) -> None:
        """Note that a further task needs an array."""
        self._needed[key] += 1

    def done(self, keys: Iterable[str]) -> None:
        """Note that a task is done that needed these."""
        self._needed.subtract(keys)

    def end_call(self, keys: Iterable[str]) -> None:
        """Note the end of a call: no further task will need these arrays."""
        self.ended.update(keys)

    def missing(self, keys: Iterable[str], host: int) -> str | None:
        """Return an array that this host does not have; None if it has them all."""
        return next((key for key in sorted(keys) if not self._hosts[key].get(host)), None)

    def is_on_its_way(self, key: str, host: int) -> bool:
        """Return whether a rank of this host is about to store an array."""
        return host in self._hosts[key]

    def send(self, key: str, rank: int, host: int) -> None:
        """Note that an array is sent to a rank, which stores it for its host."""
        self._hosts[key][host] = False
        self._users[key].add(rank)

    def stored(self, key: str, host: int, *, well: bool) -> None:
        """Note that it was stored, or not (`well`), unless the array has been freed meanwhile."""
        if not well:
            self._hosts.get(key, {}).pop(host, None)
        elif key in self._hosts:
            self._hosts[key][host] = True

    def use(self, keys: Iterable[str], rank: int) -> None:
        """Note that a rank gets a task with these arrays."""
        if rank != self._root:
            for key in keys:
                self._users[key].add(rank)

    def free(self, *, all_calls: bool = False) -> tuple[list[str], dict[int, list[str]]]:
        """Forget the arrays that no task needs, of calls that have ended or of all.

        Return their keys, and by rank the keys of those that other ranks must forget.
        """
        freed = [*self._hosts] if all_calls else sorted(key for key in self.ended if self._needed[key] <= 0)
        by_rank: dict[int, list[str]] = {}
        for key in freed:
            del self._needed[key], self._hosts[key]
            for rank in sorted(self._users.pop(key)):
                by_rank.setdefault(rank, []).append(key)
        self.ended.difference_update(freed)
        return freed, by_rank
