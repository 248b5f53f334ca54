"""The page's second implementation: it agrees with lb_mpi, and with no mutant of it."""

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from apps import maze_search
from benchmarks.papers import second
from benchmarks.papers.page import DIFFERS, SAME, Item
from lb_mpi import graph
from lb_mpi.arranging import arrange as arranging
from lb_mpi.diffusion import diffusion, setup
from lb_mpi.distributing import allocation
from lb_mpi.errors import ProtocolError
from lb_mpi.partitioning import quality, spectral
from lb_mpi.partitioning.coarsen import csr
from tests.protocol import mutate
from tests.unit.papers_mutants import OF_DRAFTING, OF_METHODS, OF_NEIGHBOURS

LINES: dict[str, Callable[[], list[Item]]] = {
    "diffusion": lambda: second.diffusion_lines(("mesh:3x4", "ring:7"), 2),
    "arrangement": lambda: second.arrangement_lines(("mesh:2x3", "mesh:3x3"), 2),
    "allocation": lambda: second.allocation_lines(60),
    "drafting": lambda: second.drafting_lines((6, 10), 4),
    "partition": lambda: second.partition_lines(("mesh:3x4", "mesh:2x7")),
    "neighbours": lambda: second.neighbours_lines(("mesh:3x4", "ring:7"), 2),
    "rules": lambda: second.rules_lines((2, 4, 7), 6),
}
Patch = Callable[[Any, str, Any], None]
MUTANTS: dict[str, tuple[str, Callable[[Patch], None]]] = {}


def mutant(lines: str, name: str) -> Callable[[Callable[[Patch], None]], None]:
    """Add a mutant that some lines have to notice."""

    def add(function: Callable[[Patch], None]) -> None:
        MUTANTS[name] = lines, function

    return add


@pytest.mark.parametrize("lines", LINES)
def test_both_implementations_agree(lines):
    assert {one.name: one.outcome for one in LINES[lines]() if one.outcome != SAME} == {}


# --- Diffusion --------------------------------------------------------------------------------------------------------


@mutant("diffusion", "tau halved")
def _(patch):
    paper_tau = setup.paper_tau
    patch(setup, "paper_tau", lambda *args: 0.5 * paper_tau(*args))


@mutant("diffusion", "cg forgets its direction")
def _(patch):
    step = setup.ConjugateGradient.step

    def changed(self: Any) -> None:
        self._squared = 0.0
        step(self)

    patch(setup.ConjugateGradient, "step", changed)


# --- Arrangement ------------------------------------------------------------------------------------------------------


@mutant("arrangement", "p changed")
def _(patch):
    ratio = arranging._ratio
    patch(arranging, "_ratio", lambda spectrum: 1.001 * ratio(spectrum))


# --- Allocation -------------------------------------------------------------------------------------------------------


@mutant("allocation", "exact := the paper's")
def _(patch):
    patch(allocation, "_exact", allocation._paper)


# --- Drafting and partition -------------------------------------------------------------------------------------------


@mutant("drafting", "one direction for half of them")
def _(patch):
    divide = maze_search.kernel.divide
    patch(maze_search.kernel, "divide", lambda maze, stack, half, looks: divide(maze, stack, False, looks))


@mutant("partition", "v_3 for v_2")
def _(patch):
    def changed(laplacian: Any) -> Any:
        return np.ascontiguousarray(np.linalg.eigh(laplacian.toarray())[1][:, 2])

    patch(spectral, "_second", changed)


@mutant("partition", "each edge of the cut twice")
def _(patch):
    cut = quality.cut
    patch(quality, "cut", lambda *args: 2 * cut(*args))


# --- What runs on real ranks: neighbours that plan, and the rules of drafting; a mutant is a change of the source --------


def source_mutant(lines: str, module: types.ModuleType, name: str, before: str, after: str) -> None:
    """Add a mutant of a function or constant of a module."""
    mutant(lines, f"{lines}: {before.strip()} -> {after.strip()}")(
        lambda patch: patch(*mutate.mutant(module, name, before, after))
    )


for changes in OF_NEIGHBOURS:
    source_mutant("neighbours", *changes)
for changes in OF_DRAFTING:
    source_mutant("rules", *changes)


@pytest.mark.filterwarnings("ignore:invalid value|divide by zero:RuntimeWarning")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_noticed(name, monkeypatch):
    lines, break_it = MUTANTS[name]
    break_it(monkeypatch.setattr)
    try:
        assert DIFFERS in {one.outcome for one in LINES[lines]()}
    except (ProtocolError, IndexError, ValueError):
        assert lines in ("neighbours", "rules")  # ranks that wait for ever, or a message that must not come


# --- What a second implementation does not show: drawn instances hardly meet it -----------------------------------------


def find_fault() -> None:
    """Look at single instances of each method."""
    # Two nodes can be past their peaks, and only the one that is filled later can take all that is missing.
    found = allocation.allocate(18, [2.0, 1.3], edge_probability=1.0, exchange=[3.6, 0.2], cap=[18, 15])
    assert (found.counts.tolist(), found.makespan) == ([18, 0], 36.0)
    # After one step of cg all times are within 1 % of the mean or below it, one of them below 0.
    speeds, loads = np.array([55.9, 0.0273, 28.4, 0.0389]), np.array([1.98, 0.0157, 15.6, 0.116])
    steps = diffusion.Diffusion(setup.prepare(graph.parse("ring:4"), speeds, "cg"), loads)
    steps.step()
    assert steps.imbalance < 0.5
    assert steps.times.min() < 0.0
    assert not steps.converged(0.5)
    assert not setup.Theorem4(0.0, True, -1.0, 1.0).converges
    with pytest.MonkeyPatch.context() as patch:
        # The upper end of a spectrum by Lanczos is not below the true one, here 8e-5 above what Lanczos finds.
        patch.setattr(setup, "DENSE", 100)
        ring, speeds = graph.parse("ring:500"), np.ones(500)
        tau = setup.paper_tau(ring, speeds)
        assert setup.spectrum(ring, speeds, tau).high >= setup.eigenvalues(ring, speeds, tau)[-1]
        # Half of the vertices at the mean of v_2 go to each side.
        path = graph.mesh(1, 9)
        vector = np.array([-1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0])
        patch.setattr(spectral, "fiedler", lambda _: spectral.Fiedler(1.0, vector))
        assert spectral.spectral_bisection(path, threshold="mean").tolist() == [0, 0, 0, 1, 0, 1, 0, 1, 1]
    # All virtual edges together are lighter than the lightest real one.
    pieces = graph.Graph.from_edges(80, np.arange(0, 80, 2), np.arange(1, 80, 2), np.where(np.arange(40) == 7, 0.5, 100.0))
    joined = spectral.connected(csr(pieces)).weights
    assert joined[joined < 0.5].sum() / 2 <= spectral.FAINT * 0.5
    assert (joined >= 0.5).sum() == 80


test_single_instances_notice_mutants = mutate.rejects(find_fault, OF_METHODS)
