"""How much work to do between two looks for messages.   (pure)"""

from __future__ import annotations

from lb_mpi.checks import integer

MOST_UNITS = 1 << 40


class Quantum:
    """An adaptive work quantum: long enough that polling costs less than `overhead` of the work (a fraction), but not much
    longer, because a message that arrives waits for its end.

    `units` is the quantum in units of the problem.  A fixed quantum (`fixed` units) never changes.
    """

    def __init__(self, fixed: int | None = None, *, overhead: float = 0.02, longest_s: float = 5e-3) -> None:
        self.units = 1
        if fixed is not None:
            self.units = min(integer("quantum", fixed, 1, unit="units of work; None: adaptive"), MOST_UNITS)
        self._fixed = fixed is not None
        self._overhead, self._longest_s = overhead, longest_s
        self._poll_s = 0.0

    def observe(self, done: int, work_s: float, poll_s: float) -> None:
        """A quantum of `done` units took `work_s` seconds, and the look for messages before it `poll_s`."""
        if self._fixed or done < 1:
            return
        # The median, found by small steps: a mean would follow the few polls in which the rank was off the processor.
        self._poll_s = poll_s if not self._poll_s else self._poll_s * (1.05 if poll_s > self._poll_s else 0.95)
        target_s = min(1.5 * self._poll_s / self._overhead, self._longest_s)
        wanted = done * target_s / max(work_s, 1e-9)
        self.units = max(1, int(min(max(wanted, 0.5 * self.units), 2.0 * self.units)))
