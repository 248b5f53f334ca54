"""The rival of our stealing counts exactly, loses no work and ends, whatever the size, the speeds and the order of messages.

So what the table of `benchmarks.rivals` says of it is true of what was implemented; and it behaves as its paper says.
"""

import itertools
import random

from benchmarks import rivals
from lb_mpi.errors import Error
from lb_mpi.searching.uts import Tree
from lb_mpi.virtual import Network
from tests.counting import plain_count
from tests.protocol.mutate import rejects

TREES = [Tree("geometric", "fixed", depth=5, branching=4, seed=3), Tree("binomial", branching=50, q=0.12, m=8, seed=5)]
COUNTS = [plain_count(tree) for tree in TREES]


def find_fault() -> None:
    for seed in range(16):
        rng, events = random.Random(seed), itertools.count()

        def check(_simulation: object, events: itertools.count = events) -> None:
            assert next(events) < 200_000, "it never ends"

        which, ranks = rng.randrange(2), rng.choice([1, 2, 3, 4, 5, 8, 13, 16])
        speeds = rng.choice([[1.0], [1.0, 0.5, 0.25, 0.25], [0.1, 1.0]])
        options = {"network": rng.choice([Network(), Network((1e-6, 1e-4))]), "quantum_s": rng.choice([2e-6, 10e-6])}
        found = rivals.run("glb", TREES[which], ranks, speeds, seed, check=check, **options)
        assert found.value == COUNTS[which], seed
        assert found.efficiency <= 1.0 + 1e-9
        assert sum(found.units) == found.value.nodes


test_it_counts_exactly_and_ends_and_known_wrong_variants_are_caught = rejects(
    find_fault,
    [
        # work that came while a rank had some is forgotten
        (rivals, "Lifelines.turn", "sends += self._seek()", "self.kept.clear(); sends += self._seek()"),
        (rivals, "Lifelines._give", "self.termination.sent()", "pass"),  # work that is sent is not counted
    ],
    Error,
)


def test_lifelines_keep_the_sleepers_silent():
    """GLB: far fewer requests than a thief makes that asks again and again; nobody asks once all work is away."""
    found = rivals.run("glb", Tree("geometric", "fixed", depth=7, branching=4, seed=19), 32, [1.0])
    assert found.efficiency > 0.6
    assert found.drafts / 32 < 40
