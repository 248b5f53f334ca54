"""The course on spectral load balancing: its example, and spectral bisection beside what refines it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import networkx as nx
import numpy as np

from benchmarks.papers.page import Item, Run, Section, claim, compare, left_out, table
from lb_mpi.graph import Graph, Ints, parse
from lb_mpi.partitioning.partition import partition
from lb_mpi.partitioning.quality import connected, cut
from lb_mpi.partitioning.spectral import fiedler, spectral_bisection

SOURCE = (
    "A laboratory course on spectral load balancing of multiprocessor systems (in Russian), which follows "
    "the multilevel graph "
    "method: coarsen, bisect recursively, restore. Here: `lb_mpi.partition`, `python -m lb_mpi partition`, "
    "`lb_mpi.distribute`."
)
EXAMPLE = "3,5/4,6/1,5,4/2,6,3/1,3/2,4"  # two triangles, 1 3 5 and 2 4 6, joined by the edge 3-4
EIGENVALUES = ("0", "0.4384", "3", "3", "3", "4.5616")
COMPONENTS = ("0.4647", "-0.4647", "0.2610", "-0.2610", "0.4647", "-0.4647")
METHODS: dict[str, Callable[[Graph, int], Ints]] = {
    "spectral": lambda graph, k: partition(graph, k, method="spectral"),
    **{name: partial(partition, method=name) for name in ("multilevel-spectral", "multilevel")},
}
PARTS = (2, 8)


def section(run: Run) -> Section:
    """The part of the page about the course."""
    conclusion = (
        "Every digit of the example comes out. On the small graphs below, the course's way, coarsen, halve by v_2, restore, "
        "cuts about as much as v_2 of the whole graph alone; `multilevel` cuts less where a graph is irregular."
    )
    result = Section("Partition: which tasks go to which node", SOURCE, conclusion)
    run.say("partition: the course's example, and bisection of some graphs")
    result.show("The example: two triangles joined by an edge", example())
    result.lines += _cuts(run)
    result.lines += run.draw("partition.png", "the example, and eight parts of a random geometric graph", plot)
    result.lines += left_out("partition")
    return result


def example() -> list[Item]:
    """The items of the course's example."""
    graph = parse(EXAMPLE)
    values = np.sort(nx.laplacian_spectrum(graph.to_networkx()))
    found = fiedler(graph)
    value, vector = found.value, found.vector
    items = [
        compare(f"eigenvalue {k}", printed, abs(float(one)) if k == 1 else float(one))
        for k, (printed, one) in enumerate(zip(EIGENVALUES, values, strict=True), 1)
    ]
    items.append(compare("lambda_2, of `lb_mpi`", EIGENVALUES[1], value))
    items += [
        compare(f"v_2 at vertex {k}", printed, float(one))
        for k, (printed, one) in enumerate(zip(COMPONENTS, vector, strict=True), 1)
    ]
    for name, part in (
        ("bisection", spectral_bisection(graph)),
        *((name, method(graph, 2)) for name, method in METHODS.items()),
    ):
        sides = _sides(part)
        items.append(claim(f"sides, {name}", "1 3 5, 2 4 6", ", ".join(sides), sides == ["1 3 5", "2 4 6"]))
        items.append(compare(f"cut, {name}", "1", cut(graph, part, 2)))
    return items


def _sides(part: Ints) -> list[str]:
    """The vertices of each side, counted from 1."""
    return sorted(" ".join(str(k + 1) for k in np.flatnonzero(part == side)) for side in range(2))


def _cuts(run: Run) -> list[str]:
    """Cuts of the methods on some graphs: no numbers of the course, which prints none."""
    size = 2 if run.full else 1
    some = {
        f"mesh {20 * size}x{30 * size}": parse(f"mesh:{20 * size}x{30 * size}"),
        "triangular lattice": Graph.from_networkx(nx.triangular_lattice_graph(20 * size, 40 * size)),
        "random geometric": geometric(600 * size**2)[0],
    }
    rows = []
    for name, graph in some.items():
        for k in PARTS:
            cells = []
            for method in METHODS.values():
                part = method(graph, k)
                whole = int(np.sum(connected(graph, part, k)))
                cells.append(f"{cut(graph, part, k):g} ({whole})")
            rows.append([name, graph.n, k, *cells])
    lines = ["", "### Cuts, and in brackets how many parts are in one piece", ""]
    lines += [
        "The course prints no cuts. `spectral` bisects the whole graph, by v_2 alone; `multilevel-spectral` is the "
        "course's way; `multilevel` is that of this library."
    ]
    return [*lines, *table(["graph", "vertices", "parts", *(f"`{method}`" for method in METHODS)], rows)]


def geometric(n: int) -> tuple[Graph, Any]:
    """The largest component of a random geometric graph of n vertices, and where they are."""
    drawn = nx.random_geometric_graph(n, 1.6 / n**0.5, seed=1)
    kept = nx.convert_node_labels_to_integers(drawn.subgraph(max(nx.connected_components(drawn), key=len)))
    return Graph.from_networkx(kept), nx.get_node_attributes(kept, "pos")


def plot(plt: Any) -> Any:
    """The example with v_2, and eight parts of a random geometric graph."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.6), layout="constrained")
    graph = parse(EXAMPLE)
    vector = fiedler(graph).vector
    spots = {0: (0, 1), 4: (0, -1), 2: (1, 0), 3: (2, 0), 1: (3, 1), 5: (3, -1)}
    labels = {k: f"{k + 1}\n{vector[k]:.4f}" for k in range(graph.n)}
    nx.draw_networkx(
        graph.to_networkx(),
        spots,
        ax=left,
        labels=labels,
        node_color=vector,
        cmap="coolwarm",
        vmin=-1.0,  # paler than the ends of the map, so that labels can be read
        vmax=1.0,
        node_size=1900,
        font_size=9,
    )
    left.set_title("the course's example: v_2")
    left.axis("off")
    left.margins(0.2)
    some, places = geometric(1500)
    nx.draw_networkx(
        some.to_networkx(),
        places,
        ax=right,
        with_labels=False,
        node_color=partition(some, PARTS[-1]),
        cmap="tab10",
        node_size=16,
        edge_color="0.75",
        width=0.6,
    )
    right.set_title(f"random geometric graph, {PARTS[-1]} parts by `multilevel`")
    right.axis("off")
    return figure
