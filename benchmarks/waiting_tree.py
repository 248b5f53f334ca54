"""The tree of `benchmarks.scale`, whose nodes wait instead of computing."""

from __future__ import annotations

import time

from benchmarks.scale import Case
from lb_mpi.searching.uts import PUBLISHED as PUBLISHED
from lb_mpi.searching.uts import TREES, UnbalancedTreeSearch


class WaitingTreeSearch(UnbalancedTreeSearch):
    """A tree search in which a node takes `node_s` seconds, all of them asleep but for the counting."""

    def __init__(self, node_s: float) -> None:
        """Make a rank's part."""
        super().__init__(TREES[Case.TREE])
        self._node_s = node_s

    def load_kernels(self) -> None:
        """Work a little, so that the compiled code is in memory before the clock starts."""
        self.start()
        self.work(10)

    def work(self, units: int) -> int:
        """Count nodes, and wait as long as they take on this rank."""
        until = time.perf_counter()
        done = super().work(units)
        until += done * self._node_s
        if (rest_s := until - time.perf_counter()) > 0.0:
            time.sleep(rest_s)
        return done
