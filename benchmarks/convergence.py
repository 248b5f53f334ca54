"""How soon diffusion converges: the experiments of Jin & Wang, what came after them, on real ranks, and at scale.

    python -m benchmarks.convergence [--out out] [--seeds 20] [--no-plots]

prints the table of steps (medians over seeds, beside those of reference where there are any) and where schemes that only
know their neighbours overtake the one that gathers all loads; and draws, with the extra `plot` installed:

    diffusion_5x5.png        as the paper's figure 2: times, speeds and net flow on a 5x5 mesh, before and after
    diffusion_curves.png     as the paper's figure 3: imbalance against steps, meshes of 16 to 1024 nodes
    diffusion_schemes.png    imbalance against steps for every scheme on the 16x16 mesh

    mpiexec -n 25 python -m benchmarks.convergence --real [--seeds 3] [--exchange paper]

compares the steps on real ranks, more of them than cores if need be, with those in simulation, and measures which scheme is
balanced first, with the exchange of the paper beside the MPI's collective.

Speeds are uniform in 4..16 and drawn before the times, which are uniform in 5..15.

    python -m benchmarks.convergence --large [GRAPHS]

up to a hundred thousand ranks.  For each process graph and scheme: the steps to an imbalance of 5 %, for loads of 20 rows
with lognormal costs each, and for a warm region (up to five times the load, once round all ranks); the CPU seconds that the
root takes to prepare the scheme (its spectrum) whenever speeds have changed, and of `direct` to solve; and what the decision
takes then, in milliseconds, by a simple model: a step costs a latency of 5 us, a sum over all ranks log2 P of them (cg: one
in each step), direct a gather and a scatter, with 1 GB/s at the root.  Speeds are uniform in 1..4.  Loads are drawn with one
seed; CPU seconds are noisy.

    python -m benchmarks.convergence --hosts

a torus of all ranks beside process graphs that follow the hosts (`lb_mpi.graph.host_graph`), hosts of 16.  A step takes
5 us, and 1 us more for each message that a host sends to others.
"""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.measuring import command, pyplot
from lb_mpi.diffusion.diffusion import MAX_STEPS, Balance, Diffusion, balance, prepare
from lb_mpi.diffusion.setup import Setup, usual_scheme
from lb_mpi.graph import Floats, Graph, host_graph, most_square_mesh, parse

if TYPE_CHECKING:
    from mpi4py import MPI  # only --real begins MPI

    from lb_mpi.mpi.rows.diffuse import Diffused, Diffuser

EXCHANGES = ("neighbourhood", "paper")  # as in lb_mpi.mpi.rows.process_graph, which takes MPI to import
MESHES = ("mesh:5x5", "mesh:8x8", "mesh:16x16", "mesh:32x32")
LATENCY_S, BANDWIDTH = 5e-6, 1e10  # of the model: seconds, bytes per second


# --- drawn problems, and the steps that are wanted --------------------------------------------------------------------

TOLERANCES = (0.05, 0.01, 1e-6)
# Medians that were found before this project, for 5x5 and 8x8, and are to be met; the paper prints one of them, 14.
REFERENCE: dict[tuple[str, str], dict[str, tuple[int, int, int]]] = {
    ("fos", "paper"): {"mesh:5x5": (14, 38, 194), "mesh:8x8": (23, 80, 476)},
    ("fos", "scaled"): {"mesh:5x5": (10, 28, 130), "mesh:8x8": (22, 70, 344)},
    ("fos", "uniform"): {"mesh:5x5": (17, 38, 175), "mesh:8x8": (37, 104, 468)},
    ("sos", "paper"): {"mesh:5x5": (6, 11, 34), "mesh:8x8": (10, 17, 56)},
    ("chebyshev", "paper"): {"mesh:5x5": (7, 11, 32), "mesh:8x8": (12, 18, 54)},
    ("ops", "paper"): {},
    ("cg", "uniform"): {"mesh:5x5": (6, 9, 13), "mesh:8x8": (11, 15, 26)},
    ("cg", "paper"): {},
    ("dimension_exchange", "paper"): {},
    ("direct", "uniform"): {},
}


class Case(NamedTuple):
    """One drawn problem."""

    graph: Graph
    speeds: Floats  # (P,)
    times: Floats  # (P,)

    def balance(self, scheme: str, tau: str, tolerance: float) -> Balance:
        """Balance it."""
        loads = self.speeds * self.times
        return balance(self.graph, loads, self.speeds, scheme=scheme, tau=tau, tolerance=tolerance, max_steps=1_000_000)


def draw(name: str, seed: int) -> Case:
    """Draw speeds, then times."""
    graph, rng = parse(name), np.random.default_rng(seed)
    return Case(graph, rng.uniform(4, 16, graph.n), rng.uniform(5, 15, graph.n))


def steps_to(imbalance: list[float], tolerance: float) -> int:
    """The first step with an imbalance within the tolerance."""
    return int((np.array(imbalance) <= tolerance).argmax())


# --- tables ----------------------------------------------------------------------------------------------------------


def median_steps(name: str, scheme: str, tau: str, seeds: int) -> list[float]:
    """Medians over the seeds, for each of TOLERANCES."""
    curves = [draw(name, seed).balance(scheme, tau, TOLERANCES[-1]).imbalance for seed in range(seeds)]
    steps = [[steps_to(curve, tolerance) for tolerance in TOLERANCES] for curve in curves]
    return [float(median) for median in np.median(steps, axis=0)]


def table_of_steps(seeds: int) -> tuple[list[str], dict[tuple[str, str, str], list[float]]]:
    """Lines of Markdown; and the medians by scheme, tau and mesh."""
    lines = [
        f"Neighbour-exchange steps to an imbalance of 5 % / 1 % / 1e-6, medians of {seeds} seeds (reference in brackets)",
        "",
        "| scheme, tau | " + " | ".join(MESHES) + " |",
        "|---" * (len(MESHES) + 1) + "|",
    ]
    medians: dict[tuple[str, str, str], list[float]] = {}
    for (scheme, tau), reference in REFERENCE.items():
        cells = []
        for name in MESHES:
            medians[scheme, tau, name] = median_steps(name, scheme, tau, seeds)
            cell = "/".join(f"{median:g}" for median in medians[scheme, tau, name])
            cells.append(cell + (f" ({'/'.join(map(str, reference[name]))})" if name in reference else ""))
        title = scheme if scheme == "dimension_exchange" else f"{scheme}, {tau}"
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return lines, medians


def table_of_cost(medians: dict[tuple[str, str, str], list[float]]) -> list[str]:
    """Where schemes that know only their neighbours win: microseconds to 5 % in a simple model of a network.

    A step costs one latency and the stopping test is overlapped (cg: its sums can't be); direct costs an allgather
    and a scatter (each latency times log2 P, and 8 bytes for each load or flow), and solving, which is measured here.
    """
    lines = [
        f"Microseconds to 5 % at {LATENCY_S * 1e6:g} us latency and {BANDWIDTH / 1e9:g} GB/s",
        "",
        "| mesh | fos, paper | sos, paper | cg, uniform | direct |",
        "|---" * 5 + "|",
    ]
    for name in MESHES:
        case = draw(name, 0)
        setup, loads = prepare(case.graph, case.speeds, "direct"), case.speeds * case.times
        begin = time.perf_counter()
        for _ in range(20):
            Diffusion(setup, loads).step()
        solving_s = (time.perf_counter() - begin) / 20
        rounds = math.ceil(math.log2(case.graph.n))
        fos, sos = (LATENCY_S * medians[scheme, "paper", name][0] for scheme in ("fos", "sos"))
        cg = LATENCY_S * (1 + rounds) * medians["cg", "uniform", name][0]
        direct = 2 * LATENCY_S * rounds + 8 * (case.graph.n + 2 * case.graph.n_edges) / BANDWIDTH + solving_s
        cells = " | ".join(f"{seconds * 1e6:.0f}" for seconds in (fos, sos, cg, direct))
        lines.append(f"| {name} | {cells} |")
    return lines


# --- plots -----------------------------------------------------------------------------------------------------------


def plot_mesh(plt: Any, path: Path, seeds: int) -> None:
    """Times, speeds, and net flow on a 5x5 mesh, before and after (the paper's figure 2), for a seed of median steps."""
    results = [draw("mesh:5x5", seed).balance("fos", "paper", 0.05) for seed in range(seeds)]
    seed = int(np.argsort([result.steps for result in results], kind="stable")[seeds // 2])
    case, result = draw("mesh:5x5", seed), results[seed]
    after = result.loads / case.speeds
    scale = plt.matplotlib.colors.Normalize(case.times.min(), case.times.max())
    figure, axes = plt.subplots(1, 2, figsize=(15, 7.6), layout="constrained")
    titles = (
        f"before (seed {seed}): imbalance {result.imbalance[0]:.1%}; arrows: work to be moved",
        f"after {result.steps} steps: imbalance {result.imbalance[-1]:.1%}",
    )
    rows, columns = np.divmod(np.arange(case.graph.n), 5)
    for axis, times, title in zip(axes, (case.times, after), titles, strict=True):
        axis.set_title(title)
        axis.scatter(
            columns, rows, s=100 + 130 * case.speeds, c=times, cmap="YlOrRd", norm=scale, edgecolors="black", zorder=3
        )
        for k in range(case.graph.n):
            text = f"{times[k]:.1f}\ns {case.speeds[k]:.1f}"
            colour = "white" if scale(times[k]) > 0.7 else "black"
            axis.text(columns[k], rows[k], text, color=colour, ha="center", va="center", fontsize=8, zorder=4)
        for tail, head, amount in zip(*case.graph.edges(), result.flow, strict=True):
            axis.plot(columns[[tail, head]], rows[[tail, head]], color="0.85", lw=1, zorder=1)
            if axis is axes[0]:
                source, target = (tail, head) if amount > 0 else (head, tail)
                middle = np.array([columns[[tail, head]].mean(), rows[[tail, head]].mean()])
                towards = np.array([columns[target] - columns[source], rows[target] - rows[source]])
                style = {"arrowstyle": "-|>", "color": "tab:blue", "lw": 0.6 + abs(amount) / 15, "mutation_scale": 12}
                axis.annotate("", xy=middle + 0.2 * towards, xytext=middle - 0.2 * towards, arrowprops=style, zorder=2)
                aside = 0.1 * np.array([abs(towards[1]) * 1.6, -abs(towards[0])])
                axis.text(
                    *(middle + aside), f"{abs(amount):.1f}", color="tab:blue", ha="center", va="center", fontsize=8
                )
        axis.set(xlim=(-0.5, 4.5), ylim=(4.5, -0.5), aspect="equal")
        axis.axis("off")
    mappable = plt.cm.ScalarMappable(scale, "YlOrRd")
    figure.colorbar(mappable, ax=axes, shrink=0.8, label="time l, seconds (upper number; s: speed, area of the circle)")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_curves(plt: Any, path: Path, seeds: int) -> None:
    """Imbalance against steps for meshes of 16 to 1024 nodes (the paper's figure 3)."""
    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    steps = 100
    for side in (4, 6, 8, 12, 16, 32):
        curves = np.empty((seeds, steps + 1))
        for seed in range(seeds):
            imbalance = draw(f"mesh:{side}x{side}", seed).balance("fos", "paper", 1e-3).imbalance[: steps + 1]
            curves[seed] = np.pad(imbalance, (0, steps + 1 - len(imbalance)), mode="edge")
        axis.plot(100 * np.median(curves, axis=0), label=f"{side * side} nodes")
    for percent in (5, 10):
        axis.axhline(percent, color="0.6", lw=0.8, ls="--")
    axis.set(
        title=f"fos, the paper's tau, meshes: median of {seeds} seeds",
        xlabel="steps",
        ylabel="imbalance, %",
        xlim=(0, steps),
        ylim=(0, None),
    )
    axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_schemes(plt: Any, path: Path, seed: int) -> None:
    """Imbalance against steps for every scheme, on a logarithmic scale."""
    name = "mesh:16x16"
    case = draw(name, seed)
    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    for scheme, tau in REFERENCE:
        imbalance = np.array(case.balance(scheme, tau, 1e-7).imbalance)
        label = scheme if scheme == "dimension_exchange" else f"{scheme}, {tau}"
        axis.semilogy(np.maximum(imbalance, 1e-8), label=label, ls=":" if scheme == "fos" else "-")
    axis.set(title=f"{name}, seed {seed}", xlabel="steps", ylabel="imbalance", xlim=(0, 250), ylim=(1e-7, 10))
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


# --- on real ranks, one for each node ---------------------------------------------------------------------------------

ROUNDS = 7


def diffuser(comm: MPI.Intracomm, name: str, scheme: str, tau: str, exchange: str, tolerance: float) -> Diffuser:
    """This rank's."""
    from lb_mpi.mpi.rows.diffuse import Diffuser

    return Diffuser(comm, parse(name), scheme=scheme, tau=tau, exchange=exchange, tolerance=tolerance)


def diffuse(rank: int, one: Diffuser, case: Case) -> Diffused:
    """Balance a drawn problem."""
    speed = float(case.speeds[rank])
    return one.diffuse(speed * float(case.times[rank]), speed)


def steps(comm: MPI.Intracomm, name: str, scheme: str, tau: str, seeds: int, exchange: str) -> tuple[Floats, Floats]:
    """Steps on real ranks and in simulation: (seeds, TOLERANCES) each; an error unless all are equal."""
    from lb_mpi.mpi.common.collective import barrier

    real, simulated = np.zeros((seeds, len(TOLERANCES))), np.zeros((seeds, len(TOLERANCES)))
    cases = [draw(name, seed) for seed in range(seeds)]
    for k, tolerance in enumerate(TOLERANCES):
        with diffuser(comm, name, scheme, tau, exchange, tolerance) as one:
            real[:, k] = [diffuse(comm.rank, one, case).steps for case in cases]
        if comm.rank == 0:
            simulated[:, k] = [case.balance(scheme, tau, tolerance).steps for case in cases]
    barrier(comm)
    comm.Bcast(simulated, 0)
    if not np.array_equal(real, simulated):
        raise AssertionError(f"{name}, {scheme}, {tau}: {real.tolist()} steps, but {simulated.tolist()} in simulation")
    return real, simulated


def milliseconds(comm: MPI.Intracomm, name: str) -> dict[tuple[str, str, str], float]:
    """From loads to a flow, by scheme, tau and exchange."""
    from mpi4py import MPI

    from lb_mpi.mpi.rows.process_graph import METHODS

    case = draw(name, 0)
    ready = {(*key, how): diffuser(comm, name, *key, how, TOLERANCES[1]) for key in REFERENCE for how in METHODS}
    taken: dict[tuple[str, str, str], list[float]] = {key: [] for key in ready}
    for _ in range(ROUNDS):
        for key, one in ready.items():
            diffuse(comm.rank, one, case)  # wake up
            comm.Barrier()
            began = time.perf_counter()
            diffuse(comm.rank, one, case)
            taken[key].append(comm.allreduce(1e3 * (time.perf_counter() - began), MPI.MAX))
    for one in ready.values():
        one.close()
    return {key: statistics.median(values) for key, values in taken.items()}


def _medians(counts: Floats) -> str:
    return "/".join(f"{n:g}" for n in np.median(counts, axis=0))


def table_of_ranks(seeds: int, exchange: str) -> None:
    """Print steps and milliseconds on real ranks, on rank 0."""
    from mpi4py import MPI

    from lb_mpi.mpi.rows.process_graph import METHODS

    comm = MPI.COMM_WORLD
    rows, columns = most_square_mesh(comm.size)
    name = f"mesh:{rows}x{columns}"
    tables = {key: steps(comm, name, *key, seeds, exchange) for key in REFERENCE}
    ms = milliseconds(comm, name)
    if comm.rank:
        return
    print(
        f"{name} on {comm.size} real ranks, exchange of the steps: {exchange}",
        f"steps to 5 % / 1 % / 1e-6, medians of {seeds} seeds; milliseconds to 1 % by each exchange\n",
        f"| scheme, tau | real | simulated | {' | '.join(f'ms, {how}' for how in METHODS)} |",
        "|---|---|---|---|---|",
        *(
            f"| {scheme}, {tau} | {_medians(real)} | {_medians(simulated)} "
            f"| {' | '.join(f'{ms[scheme, tau, how]:.3f}' for how in METHODS)} |"
            for (scheme, tau), (real, simulated) in tables.items()
        ),
        f"\nAll {seeds * len(TOLERANCES) * len(tables)} step counts are equal to those in simulation.",
        sep="\n",
        flush=True,
    )


# --- at scale ---------------------------------------------------------------------------------------------------------

AT_SCALE = ("fos", "sos", "chebyshev", "cg", "dimension_exchange", "direct")
LARGE = (
    "torus:16x16,torus:32x32,torus:100x100,hypercube:10,hypercube:13,regular:1000,regular:10000,ring:1000,ring:10000"
)
MOST_FILLED = 10_000  # ranks of a short graph: of more, the factors of `direct` fill the memory
BYTES_PER_S, MESSAGE_S = 1e9, 1e-6  # at the root; of each message of a host
PER_HOST = 16


class Found(NamedTuple):
    """One scheme on one graph and one kind of loads."""

    steps: int
    converged: bool
    root_s: float  # CPU seconds: to prepare, and of direct to solve
    decision_s: float  # root_s and the messages


def named(text: str) -> Graph:
    """A named graph, or "regular:N": two rings over random orders of all ranks, so four neighbours for nearly all."""
    kind, _, size = text.partition(":")
    if kind != "regular":
        return parse(text)
    rng, n = np.random.default_rng(1), int(size)
    tail = np.concatenate([rng.permutation(n) for _ in range(2)])
    head = np.concatenate([np.roll(tail[:n], 1), np.roll(tail[n:], 1)])
    once = np.unique(np.minimum(tail, head) * n + np.maximum(tail, head))
    return Graph.from_edges(n, once // n, once % n)


def drawn_loads(n: int) -> tuple[Floats, Floats, Floats]:
    """(n,) speeds; (n,) loads by chance; (n,) loads of a warm region."""
    rng = np.random.default_rng(0)
    speeds, loads = rng.uniform(1.0, 4.0, n), rng.lognormal(0.0, 1.0, (n, 20)).sum(axis=1)
    return speeds, loads, 20.0 + 80.0 * np.maximum(0.0, np.cos(2.0 * np.pi * np.arange(n) / n))


def until_level(setup: Setup, loads: Floats, prepare_s: float) -> Found:
    """Step to the tolerance, or MAX_STEPS times."""
    graph, began = setup.graph, time.process_time()
    diffusion = Diffusion(setup, loads)
    while not diffusion.converged(TOLERANCES[0]) and diffusion.steps < MAX_STEPS:
        diffusion.step()
    hops = math.ceil(math.log2(graph.n))
    if setup.scheme == "direct":
        root_s = prepare_s + time.process_time() - began
        messages_s = 2 * hops * LATENCY_S + 8 * (graph.n + 2 * graph.n_edges) / BYTES_PER_S
    else:
        root_s = prepare_s
        messages_s = diffusion.steps * LATENCY_S * (1 + (hops if setup.scheme == "cg" else 0))
    return Found(diffusion.steps, diffusion.converged(TOLERANCES[0]), root_s, root_s + messages_s)


def table_of_schemes(graphs: list[str]) -> None:
    """Print a line for each graph and scheme, as it is found."""
    print("| graph | ranks | hops | scheme | steps, by chance | warm region | root, CPU s | decision, ms |")
    print("|---" * 8 + "|")
    for name in graphs:
        graph = named(name)
        speeds, *kinds = drawn_loads(graph.n)
        usual = usual_scheme(graph)
        for scheme in AT_SCALE:
            if scheme == "direct" and usual == "fos" and graph.n > MOST_FILLED:
                continue
            began = time.process_time()
            setup = prepare(graph, speeds, scheme)
            prepare_s = time.process_time() - began if scheme in ("sos", "chebyshev") else 0.0
            found = [until_level(setup, loads, prepare_s) for loads in kinds]
            steps = [f"{one.steps:,}" if one.converged else f"> {one.steps:,}" for one in found]
            title = f"**{scheme}**" if scheme == usual else scheme
            decision = ", ".join(f"{1e3 * one.decision_s:,.2f}" for one in found)
            cells = (name, f"{graph.n:,}", graph.hops(), title, *steps, f"{found[0].root_s:.2f}", decision)
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def table_of_hosts(sizes: list[int]) -> None:
    """Print a line for each process graph on so many hosts, in a square."""
    print("| ranks | process graph | edges between hosts | of all | steps of cg | decision, ms | work between hosts |")
    print("|---" * 7 + "|")
    for side in sizes:
        n_hosts = side * side
        n = PER_HOST * n_hosts
        place = np.arange(n)
        rows = named(f"torus:{4 * side}x{4 * side}")
        tile = place // (4 * side) // 4 * side + place % (4 * side) // 4
        in_order = place // PER_HOST
        for title, graph, host in (
            ("torus, ranks in order", rows, in_order),
            ("torus, hosts are 4x4 tiles", rows, tile),
            ("follows the hosts", host_graph(in_order.tolist()), in_order),
        ):
            speeds, loads, _ = drawn_loads(n)
            diffusion = Diffusion(prepare(graph, speeds, "cg"), loads)
            while not diffusion.converged(TOLERANCES[0]):
                diffusion.step()
            tails, heads = graph.edges()
            between = host[tails] != host[heads]
            sent = np.bincount(host[tails[between]], minlength=n_hosts) + np.bincount(
                host[heads[between]], minlength=n_hosts
            )
            step_s = LATENCY_S * (1 + math.ceil(math.log2(n))) + MESSAGE_S * int(sent.max())
            moved = float(np.abs(diffusion.flow()[between]).sum() / loads.sum())
            cells = (
                f"{n:,}", title, f"{int(between.sum()):,}", f"{graph.n_edges:,}", diffusion.steps,
                f"{1e3 * diffusion.steps * step_s:.2f}", f"{moved:.1%}",
            )  # fmt: skip
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


# --- the command ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Run what is asked for."""
    parser = command("convergence", __doc__, seeds=(20, "of the tables and pictures"))
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--real", action="store_true", help="under mpiexec: steps and time on real ranks")
    what.add_argument("--large", nargs="?", const=LARGE, metavar="GRAPHS", help="up to a hundred thousand ranks")
    what.add_argument("--hosts", action="store_true", help="process graphs that follow the hosts")
    parser.add_argument("--exchange", choices=EXCHANGES, default=EXCHANGES[0], help="of --real (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the pictures (%(default)s)")
    parser.add_argument("--no-plots", action="store_true", help="tables only; needs no matplotlib")
    args = parser.parse_args()
    if args.real:
        table_of_ranks(args.seeds, args.exchange)
    elif args.large:
        table_of_schemes(args.large.split(","))
    elif args.hosts:
        table_of_hosts([4, 16, 32])
    else:
        plt = None if args.no_plots else pyplot(parser)
        lines, medians = table_of_steps(args.seeds)
        print("\n".join([*lines, "", *table_of_cost(medians)]), flush=True)
        if plt is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            plot_mesh(plt, args.out / "diffusion_5x5.png", args.seeds)
            plot_curves(plt, args.out / "diffusion_curves.png", args.seeds)
            plot_schemes(plt, args.out / "diffusion_schemes.png", seed=0)
            print(f"pictures: {args.out}/diffusion_5x5.png, diffusion_curves.png, diffusion_schemes.png")


if __name__ == "__main__":
    main()
