"""A pool or an executor on another rank: an object that a task's function keeps, and that no task may use."""

from __future__ import annotations

from typing import Any, NoReturn

from lb_mpi.errors import Error


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

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an error: its ranks are busy with this task."""
        if name.startswith("__"):
            raise AttributeError(name)
        why = "its ranks run the tasks of the map that called the task"
        raise Error(f"a pool within a task: {name} of lb_mpi.{self._name} can't be used there, since {why}")
