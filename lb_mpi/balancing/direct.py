"""Plans that one rank makes alone, by scheme direct: exact, and without any message.   (pure)"""

from __future__ import annotations

import numpy as np

from lb_mpi.balancing.migrate import Plan, plan
from lb_mpi.diffusion.diffusion import Diffusion
from lb_mpi.diffusion.setup import Setup, assemble, find_eigen, tau_rule
from lb_mpi.graph import Floats, Graph

STALE = 0.01  # relative change of a speed after which the scheme is prepared anew


class Direct:
    """Makes plans on `graph`; `tau` as for `diffusion.setup.prepare`."""

    def __init__(self, graph: Graph, tau: str | None = None) -> None:
        self._graph, self._rule = graph, tau_rule("direct", tau)
        self._setup: Setup | None = None

    def plan(self, loads: Floats, speeds: Floats) -> Plan:
        """The transfers that level the (P,) loads at (P,) speeds."""
        setup = self._setup
        if setup is None or float(np.abs(speeds / setup.speeds - 1.0).max()) > STALE:
            eigen = find_eigen(self._graph, speeds, "direct", self._rule)
            setup = self._setup = assemble(self._graph, speeds, "direct", self._rule, eigen)
        diffusion = Diffusion(setup, loads)
        diffusion.step()
        return plan(self._graph, diffusion.flow(), loads, setup.speeds)
