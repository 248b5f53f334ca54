"""What walking drafts reach on many virtual ranks; virtual time, so each figure is exact for its seed."""

from lb_mpi.cli.simulate import search as simulate
from lb_mpi.searching.guard import Options
from lb_mpi.searching.uts import PUBLISHED, TREES, UnbalancedTreeSearch
from lb_mpi.virtual import Network
from tests.pile import Pile


def count(tree: str, ranks: int, **options: object) -> simulate.SimulatedSearch:
    """Count a tree at 5 us a message, 1 us a node, 50 us between two looks for messages."""
    problems = [UnbalancedTreeSearch(TREES[tree]) for _ in range(ranks)]
    result = simulate.search(problems, options=Options(threshold=4.0), **options)
    assert result.value == PUBLISHED[tree]
    return result


def test_t1_on_256_unequal_ranks():
    speeds = [1.0, 0.5, 0.25, 0.25] * 64
    result = count("T1", 256, speeds=speeds)
    assert result.efficiency >= 0.95
    assert result.messages <= 120 * 256
    assert result.most_messages <= 200
    assert result.detection_s < 0.2e-3
    total = sum(result.units)
    for units, speed in zip(result.units, speeds, strict=True):
        assert 0.5 < units / total * sum(speeds) / speed < 2.0


def test_one_seed_gives_one_search():
    def run(seed: int) -> list[object]:
        found = simulate.search([Pile(500) for _ in range(8)], network=Network((1e-6, 9e-6), (1e-6, 9e-6)), seed=seed)
        return [found.virtual_seconds, found.messages, *found.units]

    assert run(3) == run(3) != run(4)
