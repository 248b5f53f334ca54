"""Known-wrong variants that only a second implementation notices, and one of each kind: (module, function, what stands there, mutant)."""

from apps import maze_search
from lb_mpi.arranging import arrange
from lb_mpi.balancing import neighbours
from lb_mpi.cli import balance
from lb_mpi.diffusion import diffusion, setup
from lb_mpi.distributing import allocation
from lb_mpi.partitioning import quality, spectral
from lb_mpi.searching import drafting

_NEIGHBOURS = (
    (neighbours, "NeighbourPlanner._plan", "(np.maximum(degree, theirs[:, 1]) + 1.0)", "(np.maximum(degree, theirs[:, 1]) + 2.0)"),
    (neighbours, "NeighbourPlanner._plan", "(np.maximum(degree, theirs[:, 1]) + 1.0)", "(np.minimum(degree, theirs[:, 1]) + 1.0)"),
    (neighbours, "NeighbourPlanner._plan", "np.minimum(speed, theirs[:, 0])", "np.sqrt(speed * theirs[:, 0])"),
    (neighbours, "momentum", "2.0 / (1.0 + math.sqrt(1.0", "2.0 / (1.0 + (1.0"),
    (neighbours, "momentum", "1.0 / degrees).low)) ** 2", "1.0 / degrees).low))"),
    (neighbours, "momentum", "np.ones(graph.n), 1.0 / degrees", "np.ones(graph.n), 0.5 / degrees"),
    (neighbours, "momentum", 'if scheme == "fos":', 'if scheme == "sos":'),
    (neighbours, "NeighbourPlanner._plan", "repeat((self._omega, self._omega - 1.0))", "repeat((self._omega, 0.0))"),
    (neighbours, "NeighbourPlanner._plan", "repeat((self._omega, self._omega - 1.0))", "repeat((1.0, self._omega - 1.0))"),
    (neighbours, "NeighbourPlanner._plan", "chain([(1.0, 0.0)], repeat", "chain([], repeat"),
    (neighbours, "NeighbourPlanner._plan", "ThreeTerm(ends, load / speed, speed, mean", "ThreeTerm(ends, load / speed, mean, mean"),
    (neighbours, "NeighbourPlanner._plan", "ThreeTerm(ends, load / speed, speed, mean", "ThreeTerm(ends, load, speed, mean"),
    (neighbours, "NeighbourPlanner._plan", "work + late, float(near)", "work + late, float(near + 1)"),
    (neighbours, "NeighbourPlanner._plan", "EVEN * self.policy", "0.1 * EVEN * self.policy"),
    (neighbours, "NeighbourPlanner._plan", "for _ in range(period):", "for _ in range(period - 1):"),
    (neighbours, "NeighbourPlanner._plan", "np.array([scheme.potential])", "np.array([scheme.time])"),
    (neighbours, "NeighbourPlanner._plan", "self._pass_on(scheme.flow(), work", "self._pass_on(-scheme.flow(), work"),
)
OF_METHODS = (
    (allocation, "_exact", "candidates[gains(most, deadline).argmax()]", "candidates[nodes.full[candidates].argmin()]"),  # loses tasks
    (diffusion, "Diffusion.converged", " and float(self.times.min()) >= 0.0", ""),  # a rank gives more than it has
    (balance, "Theorem4.converges", "self.slowest < 1.0", "self.slowest <= 1.0"),
    (setup, "spectrum", "high *= 1.0 + tol", "high *= 1.0"),
    (spectral, "spectral_bisection", "[1::2]] = 1", "[0::1]] = 1"),
    (spectral, "connected", "FAINT * float(real.min()) / len(firsts)", "FAINT * float(real.max()) / len(firsts)"),
    (spectral, "connected", "FAINT * float(real.min()) / len(firsts)", "FAINT * float(real.min())"),
)
_RULES = (  # what tests/protocol/test_drafting.py does not notice, and one that it does
    (drafting, "Pause.next", "(0.5 + 0.5 * self._rng.random())", "1.0"),
    (drafting, "NOBODY", "NOBODY = -1", "NOBODY = 0"),
    (drafting, "PATIENCE", "PATIENCE = 4", "PATIENCE = 2"),
    (drafting, "Drafting._answered", "        self.terms.pause.reset()\n", ""),
)
OF_CLAIMS = {  # by the claims of benchmarks/papers/second.py that notice them
    "diffusion": (
        (setup, "paper_tau", "np.asarray(least / (", "np.asarray(0.5 * least / ("),
        (setup, "ConjugateGradient.step", "squared / self._squared if self._squared else 0.0", "0.0"),
    ),
    "arrangement": ((arrange, "_ratio", "spectrum.high / spectrum.low", "1.001 * spectrum.high / spectrum.low"),),
    "allocation": ((allocation, "allocate", 'best if method == "exact" else _paper(nodes)', "_paper(nodes)"),),
    "drafting": ((maze_search, "MazeSearch.split", "self._stack, half, BUDGET", "self._stack, False, BUDGET"),),
    "partition": (
        (spectral, "_second", "subset_by_index=[1, 1]", "subset_by_index=[2, 2]"),
        (quality, "cut", "return float(", "return 2.0 * float("),
    ),
    "neighbours": _NEIGHBOURS,
    "rules": _RULES,
}
