"""A pool or an executor on another rank: an object that a task's function keeps, and that no task may use."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

from lb_mpi.errors import Error

METHODS = {"map", "starmap", "imap", "imap_unordered", "imap_indexed", "submit"}


class PoolWithinTask:
    """Stands for a pool that was pickled with the function of a task, as in `self.pool.map(self.cost, points)`."""

    def __init__(self, name: str) -> None:
        self._name = name  # of its class

    def __reduce__(self) -> Any:
        """Return what makes another one."""
        return PoolWithinTask, (self._name,)

    def __repr__(self) -> str:
        """Show what it stands for."""
        return f"<lb_mpi.{self._name} within a task, where it can't be used>"

    def __getattr__(self, name: str) -> Any:
        """Raise an error, or return a function that does: a program may keep `pool.map` itself, as lmfit does."""
        if name.startswith("__"):
            raise AttributeError(name)
        return partial(_refuse, self._name, name) if name in METHODS else _refuse(self._name, name)


def _refuse(pool: str, name: str, *_: Any, **__: Any) -> NoReturn:
    """Raise an error: the ranks are busy with this task."""
    why = "its ranks run the tasks of the map that called the task"
    raise Error(f"a pool within a task: {name} of lb_mpi.{pool} can't be used there, since {why}")
