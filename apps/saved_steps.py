"""Steps of an app that are saved: --save FOLDER --save-every STEPS, and the same command again goes on from there."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

from mpi4py import MPI

import lb_mpi
from lb_mpi.checks import integer
from lb_mpi.graph import Ints
from lb_mpi.mpi.common.recorder import recorder
from lb_mpi.saving.rows import Arrays

EVERY = 10


def add_save_options(parser: argparse.ArgumentParser) -> None:
    """Add --save and --save-every."""
    group = parser.add_argument_group("saving")
    group.add_argument(
        "--save",
        metavar="FOLDER",
        help="save in FOLDER at the end, and when SIGTERM or SIGUSR1 comes; the same command continues the run later, "
        "on any number of ranks, and with the same or a larger --steps",
    )
    group.add_argument(
        "--save-every", type=int, default=EVERY, metavar="STEPS",
            help="also save after every STEPS steps; 0: never (default: %(default)s)"
    )


class SavedSteps:
    """Steps from the last one that is saved (`first`; 0: none) to `last`; without a folder, from 0, and nothing is saved.

    `options` are those that matter: another run's saves are refused with a ValueError on all ranks.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        folder: str | None,
        every: int,
        last: int,
        *,
        index: Ints,
        options: dict[str, Any],
    ) -> None:
        integer("--save-every", every, 0)
        self._comm, self._folder, self._every = comm, folder, every
        self._how: dict[str, Any] = {"index": index, "options": options}
        found = lb_mpi.load(comm, folder, **self._how) if folder is not None else None
        self.record = recorder(comm)  # of this process; one that does nothing when nobody records
        self.first, self.last = (found[0] if found is not None else 0), last
        self.arrays: Arrays | None = found[1] if found is not None else None
        if self.first > last:
            raise ValueError(f"steps = {last}: expected at least {self.first}, the step that is saved in {folder}")

    def __call__(self, arrays: Callable[[], Arrays]) -> Iterator[int]:
        """Give the numbers of the steps, and save what `arrays` gives; raise lb_mpi.Stopped when it has been asked for.

        The record knows how far it is.
        """
        for step in self._steps(arrays):
            self._report(step)
            yield step
        self._report(self.last)

    def _report(self, done: int) -> None:
        now = time.perf_counter()
        self.record.stepped(now, done, self.last)
        self.record.enter(self.record.phase, now)  # a time to write it

    def _steps(self, arrays: Callable[[], Arrays]) -> Iterator[int]:
        if self._folder is None:
            yield from range(self.last)
            return
        done, stop = self.first, None
        with lb_mpi.asked_to_stop(self._comm) as asked:
            while done < self.last and stop is None:
                yield done
                done, stop = done + 1, asked()
                if stop or done == self.last or (self._every and done % self._every == 0):
                    lb_mpi.save(self._comm, self._folder, done, **{**self._how, **arrays()})
        if stop is not None and done < self.last:
            raise lb_mpi.Stopped(f"saved at step {done}, stopped by {stop.name}: run the same command to go on")

    @property
    def words(self) -> list[str]:
        """For people: from where it went on."""
        return [f"went on from step {self.first}, saved in {self._folder}"] if self.first else []
