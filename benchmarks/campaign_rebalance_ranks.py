"""Random rebalances on these ranks, each checked.  Run by `benchmarks.campaign_calls`.

    mpiexec -n 4 python -m mpi4py -m benchmarks.campaign_rebalance_ranks SEED REBALANCES

A case is a random graph (meshes, paths, complete and random graphs; isolated vertices, several components, vertices without
work), random owners (also ranks without vertices; now and then contiguous ranges, by method="slabs"), and none, one or many
values: arrays of any dtype and shape, structured ones too, CSR matrices with unsorted rows, objects with pack and unpack.
Then vertices move up to five times, or there are up to 60 steps, in most of which nothing is decided: by random costs, many
of them 0, speeds and options.  Now and then a pack or unpack fails on one rank, or costs are wrong or an option is another
one there.  Arrays that were replaced are overwritten.

After each rebalance, the plan must be that of a fresh distribution with the same owners, array for array; the values must
be those of their vertices, and the checksum of all values is the same as at first.  After an error that is meant, all ranks
must have the old plan and the old values.  Rank 0 prints what came of all cases as a JSON object; they end with the first
that is wrong.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.lib.recfunctions import repack_fields
from scipy import sparse

import lb_mpi
from benchmarks.measuring import Meant, spin
from lb_mpi.balancing.deciding import BalanceReason
from lb_mpi.graph import Graph, Ints, parse

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
MOST_REBALANCES = 5  # of a plan
MOST_STEPS = 60  # of a long case, in most of which nothing is decided
DTYPES: list[Any] = [
    "i1", "u2", ">i4", "f4", ">f8", "c16", "?", "U3", "S5", "M8[s]", "V5",
    [("id", "i8"), ("on", "?"), ("at", "f4", (2,))], np.dtype([("a", "i1"), ("b", "f8")], align=True),
]  # fmt: skip
SHAPES = ((), (1,), (3,), (2, 2), (0,))
ARRAYS = ("vertices", "ghosts", "indptr", "indices", "weights", "vertex_weights")  # of a plan


class Value(NamedTuple):
    """A value of the vertices: what it is for any of them, as an array, a matrix or a list."""

    kind: str
    of: Callable[[Ints], Any]


# --- what is drawn ------------------------------------------------------------------------------------------------------


def draw_graph(rng: np.random.Generator) -> Graph:
    """Draw a mesh, a path, a complete graph, one without edges, or a random one: often with isolated vertices and pieces."""
    kind = str(rng.choice(["mesh", "torus", "path", "complete", "no edges", "one vertex", "sparse", "random", "pieces"]))
    if kind in ("mesh", "torus"):
        return parse(f"{kind}:{rng.integers(3, 20)}x{rng.integers(3, 20)}")
    if kind in ("path", "complete"):
        return parse(f"mesh:1x{rng.integers(2, 80)}" if kind == "path" else f"complete:{rng.integers(2, 30)}")
    n = 1 if kind == "one vertex" else int(rng.integers(2, 250))
    n_edges = {"no edges": 0, "one vertex": 0, "sparse": n // 2, "random": 3 * n, "pieces": n}[kind]
    n_pairs = n * (n - 1) // 2
    tails, heads = np.stack(np.triu_indices(n, 1))[:, rng.choice(n_pairs, min(n_edges, n_pairs), replace=False)]
    if kind == "pieces":  # no edge joins the two halves
        within = (tails < n // 2) == (heads < n // 2)
        tails, heads = tails[within], heads[within]
    weights = rng.integers(0, 9, len(tails)).astype(float) if rng.random() < 0.5 else None
    return Graph.from_edges(n, tails, heads, weights, rng.integers(0, 9, n).astype(float) if rng.random() < 0.5 else None)


def draw_parts(rng: np.random.Generator, n: int) -> Ints:
    """Draw owners: at random, blocks, all on one rank, or on some ranks only."""
    kind = rng.choice(["random", "blocks", "one rank", "some ranks"])
    if kind == "blocks":
        return np.sort(rng.integers(0, SIZE, n))
    if kind == "one rank":
        return np.full(n, rng.integers(SIZE))
    return rng.choice(SIZE if kind == "random" else rng.permutation(SIZE)[: max(1, SIZE // 2)], n)


def draw_value(rng: np.random.Generator, n: int) -> Value:
    """Draw an array of any dtype and shape, a CSR matrix, or a list of objects."""
    salt = int(rng.integers(1, 1 << 20))
    kind = str(rng.choice(["array", "array", "array", "csr", "objects"]))
    if kind == "array":
        dtype, shape = np.dtype(DTYPES[rng.integers(len(DTYPES))]), SHAPES[rng.integers(len(SHAPES))]
        return Value(f"{dtype} {shape}", lambda vertices: array_of(vertices, salt, dtype, shape))
    if kind == "csr":
        of, dtype = (sparse.csr_array, sparse.csr_matrix)[rng.integers(2)], str(rng.choice(["f8", "f4", "c16", "i4"]))
        return Value(f"csr {dtype}", lambda vertices: matrix_of(vertices, salt, n, of, dtype))
    return Value("objects", lambda vertices: [{"vertex": v, "text": "x" * (v * salt % 7)} for v in vertices.tolist()])


def array_of(vertices: Ints, salt: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Make an array whose bytes tell the vertices; 0 or 1 in each byte is valid for every dtype."""
    found = np.zeros((len(vertices), *shape), dtype)
    n_bytes = int(np.prod(shape, dtype=int)) * dtype.itemsize
    bits = (vertices[:, None] * salt + np.arange(n_bytes) * 7919) // 3 % 2
    if len(vertices) and n_bytes:
        found.view(np.uint8).reshape(len(vertices), n_bytes)[...] = bits
    return found


def matrix_of(vertices: Ints, salt: int, n: int, of: Any, dtype: str) -> Any:
    """Make a matrix: each row has 0 to 3 entries, unsorted and with repetitions."""
    lengths = (vertices * salt) % 4
    owner = np.repeat(vertices, lengths)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    indices = (owner * salt + 5 * (3 - place)) % n
    return of((owner.astype(dtype), indices, np.append(0, np.cumsum(lengths))), shape=(len(vertices), n))


# --- what must be true --------------------------------------------------------------------------------------------------


def same(given: Any, expected: Any) -> bool:
    """Tell whether two values are equal, array for array, with their types."""
    if sparse.issparse(expected):
        pairs = [(getattr(given, name), getattr(expected, name)) for name in ("data", "indices", "indptr")]
        return type(given) is type(expected) and given.shape == expected.shape and all(
            a.dtype.kind == b.dtype.kind and np.array_equal(a, b) for a, b in pairs
        )  # fmt: skip
    if isinstance(expected, np.ndarray):
        like = given.dtype == expected.dtype and given.shape == expected.shape
        return bool(like and bytes_of(given) == bytes_of(expected))
    return bool(type(given) is type(expected) and given == expected)


def bytes_of(array: np.ndarray) -> bytes:
    """Return the bytes of an array, without those between the fields of a record, which mean nothing."""
    packed: np.ndarray = repack_fields(array, recurse=True) if array.dtype.names else array
    return packed.tobytes()


def checksum(values: tuple[Any, ...]) -> int:
    """Add up a checksum of each vertex with its values over all ranks: it does not depend on who has which vertex."""
    total = 0
    for value in values:
        for k in range(value.shape[0] if sparse.issparse(value) else len(value)):
            if sparse.issparse(value):
                entries = slice(value.indptr[k], value.indptr[k + 1])
                data = value.indices[entries].astype(np.int64).tobytes() + value.data[entries].tobytes()
            else:
                data = bytes_of(value[k : k + 1]) if isinstance(value, np.ndarray) else pickle.dumps(value[k])
            total += zlib.crc32(data)
    return int(COMM.allreduce(total))


def wrong_with(plan: Any, graph: Graph, values: tuple[Any, ...], drawn: list[Value]) -> str:
    """Say what is wrong on this rank with a plan and its values; "": nothing.  Collective."""
    owners = COMM.bcast(plan.owners())
    if not np.array_equal(np.flatnonzero(owners == RANK), plan.vertices) or len(owners) != graph.n:
        return "owners and vertices differ"
    wrong = []
    with lb_mpi.distribute(COMM, graph if RANK == 0 else None, parts=owners if RANK == 0 else None) as fresh:
        for name in ARRAYS:
            mine, expected = getattr(plan, name), getattr(fresh, name)
            if mine.dtype != expected.dtype or not np.array_equal(mine, expected):
                wrong.append(f"{name} is not that of a fresh distribution")
        if abs(plan.cut - fresh.cut) > 1e-9 * max(1.0, fresh.cut) or plan.halo_bytes != fresh.halo_bytes:
            wrong.append(f"cut {plan.cut}, not {fresh.cut}; halo {plan.halo_bytes}, not {fresh.halo_bytes}")
    counts = COMM.allgather(len(plan.vertices))
    expected = sum(counts[:RANK]), sum(counts[: RANK + 1])
    if plan.range is not None and (plan.range != expected or (np.diff(owners) < 0).any()):
        wrong.append(f"range {plan.range} of vertices {plan.vertices}, of parts that are no slabs")
    if not np.array_equal(plan.exchange(plan.vertices), np.concatenate([plan.vertices, plan.ghosts])):
        wrong.append("an exchange brings other values")
    wrong += [
        f"value {one.kind} is another one"
        for given, one in zip(values, drawn, strict=True)
        if not same(given, one.of(plan.vertices))
    ]
    return "; ".join(wrong)


# --- a case -------------------------------------------------------------------------------------------------------------


def compute(speeds: np.ndarray, load: float) -> None:
    """Compute for as long as this rank's work takes, at its speed (of (P,))."""
    total = COMM.allreduce(load)
    spin((1e-5 + 1e-3 * load / (total or 1.0)) / speeds[RANK])


class Packing:
    """The pack and unpack of objects, which fail in one call on one rank, if that is drawn."""

    def __init__(self) -> None:
        """Do not fail."""
        self.fails = ""

    def draw(self, rng: np.random.Generator) -> bool:
        """Fail now and then; return whether any rank does, the same on all."""
        rank, how = int(rng.integers(SIZE)), str(rng.choice(["pack", "pack", "unpack", "exit"]))
        fails = rng.random() < 0.2
        self.fails = how if fails and rank == RANK else ""
        return bool(fails)

    def pack(self, one: Any) -> bytes:
        """Return an object as bytes."""
        if self.fails == "exit":
            raise SystemExit(3)
        if self.fails == "pack":
            raise Meant("pack")
        return json.dumps(one).encode()

    def unpack(self, data: bytes) -> Any:
        """Return the object."""
        if self.fails == "unpack":
            raise Meant("unpack")
        return json.loads(data)


def draw_costs(rng: np.random.Generator, n: int) -> np.ndarray | None:
    """Draw costs of all n vertices, many of them 0; or none."""
    if rng.random() < 0.3:
        return None
    return np.asarray(rng.exponential(size=n) * (rng.random(n) > rng.choice([0.0, 0.5, 0.95])))


def wrong_costs(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw costs of n vertices that are wrong."""
    wrong = (np.nan, np.inf, -1.0, 1e200)[rng.integers(4)]
    return np.full(n + (rng.random() < 0.3 or not n), wrong)


def draw_options(rng: np.random.Generator, long: bool) -> dict[str, Any]:
    """Draw when vertices move, and how far."""
    usual, other = ("auto", "always") if long else ("always", "auto")
    when = (usual, usual, usual, other, 0.05)[rng.integers(5)]
    return {"when": when, "every": int(rng.choice([1, 1, 2])), "imbalance": float(rng.choice([0.03, 0.01, 0.3]))}


def case(seed: int, number: int, counts: Counter[str]) -> str:
    """Run one plan with some rebalances; return what is wrong on any rank, the same on all."""
    rng = np.random.default_rng([seed, number])  # the same on all ranks
    graph = draw_graph(rng)
    drawn = [draw_value(rng, graph.n) for _ in range(rng.choice([0, 1, 1, 2, 3, 9]))]
    parts, packing = draw_parts(rng, graph.n), Packing()
    method = "slabs" if rng.random() < 0.25 else "static"
    parts = np.sort(parts) if method == "slabs" else parts
    dealt: dict[str, Any] = {"parts": parts if RANK == 0 else None, "method": method}
    packs: dict[str, Any] = {"pack": packing.pack, "unpack": packing.unpack}
    with lb_mpi.distribute(COMM, graph if RANK == 0 else None, **dealt) as plan:
        values = tuple(one.of(plan.vertices) for one in drawn)
        total = checksum(values)
        values = plan.rebalance(*values, **packs)  # starts the clock
        later = -1  # a rank whose wrong costs of a call between two opportunities are still to be noticed
        long = rng.random() < 0.2
        n_steps = int(rng.integers(1, MOST_STEPS if long else MOST_REBALANCES + 1))
        for step in range(n_steps):
            if step == 0 or not long or rng.random() < 0.05:
                speeds, options = rng.uniform(0.2, 1.0, SIZE), draw_options(rng, long)
            costs, fails = draw_costs(rng, graph.n), packing.draw(rng)
            compute(speeds, float((plan.vertex_weights if costs is None else costs[plan.vertices]).sum()))
            guilty = int(rng.integers(SIZE)) if rng.random() < 0.05 else -1  # a rank whose costs are wrong
            odd = int(rng.integers(SIZE)) if SIZE > 1 and rng.random() < 0.03 else -1  # a rank with another option
            mine = None if costs is None else costs[plan.vertices]
            if guilty >= 0:
                wrong_ones = wrong_costs(np.random.default_rng(step), len(plan.vertices))
                mine = wrong_ones if guilty == RANK else np.full(len(plan.vertices), 1.0)
            elif mine is None:
                guilty = later
            before, given = plan.vertices, values
            other = {"imbalance": 0.5} if odd == RANK else {}
            try:
                values, ended = plan.rebalance(*values, costs=mine, **{**options, **other}, **packs), "ended"
            except (lb_mpi.BalanceError, TypeError, ValueError, SystemExit) as error:
                meant = isinstance(error, SystemExit) or any(
                    word in str(error) for word in ("Meant", "SystemExit", "costs", "imbalance")
                )
                ended = "failed as meant" if meant and (fails or guilty >= 0 or odd >= 0) else repr(error)
                if plan.vertices is not before:
                    ended = f"the plan has changed after {error!r}"
            if ended == "ended":
                ended = spoil(given, values) or "ended"
            ends, last = COMM.allgather(ended), plan.last
            between = ended == "ended" and last is not None and last.reason == BalanceReason.LATER.words
            noticed = ended == "failed as meant" or between or (guilty < 0 and odd < 0)
            if len(set(ends)) > 1 or ended not in ("ended", "failed as meant") or not noticed:
                return f"ranks have ended with {ends}; wrong costs on rank {guilty}, another option on rank {odd}"
            later = guilty if between else -1
            if len({repr(one) for one in COMM.allgather(last and dataclasses.replace(last, seconds=0.0))}) > 1:
                return f"ranks differ in what was decided: {last}"
            counts["rebalances"] += 1
            counts["between"] += between
            counts["failed as meant"] += ended == "failed as meant"
            counts["moved"] += ended == "ended" and last is not None and last.acted
            if between and step < n_steps - 1:
                continue
            wrong = wrong_with(plan, graph, values, drawn)
            if checksum(values) != total:
                wrong += "; the checksum of all values has changed"
            if wrongs := {rank: each for rank, each in enumerate(COMM.allgather(wrong)) if each}:
                return f"after {last}: {wrongs}"
    return ""


def spoil(given: tuple[Any, ...], found: tuple[Any, ...]) -> str:
    """Overwrite the arrays that a rebalance has replaced; say what is wrong with the memory of the new ones."""
    for old, new in zip(given, found, strict=True):
        if old is new:
            continue
        pairs = [(old, new)] if isinstance(old, np.ndarray) else []
        if sparse.issparse(old):
            pairs = [(getattr(old, name), getattr(new, name)) for name in ("data", "indices", "indptr")]
        for one, other in pairs:
            whole = other if other.base is None else other.base
            if not other.flags.writeable or np.shares_memory(one, other) or whole.nbytes > 2 * other.nbytes + 64:
                return f"an array of {other.nbytes} bytes in {whole.nbytes} others, flags {other.flags}"
            one[...] = np.zeros((), one.dtype)
    return ""


def main() -> None:
    """Run cases until there are so many rebalances."""
    seed, n_rebalances = (int(word) for word in sys.argv[1:3])
    counts = Counter[str](dict.fromkeys(("rebalances", "between", "moved", "failed as meant", "cases"), 0))
    wrong = ""
    while counts["rebalances"] < n_rebalances and not wrong:
        if found := case(seed, counts["cases"], counts):
            wrong = f"seed {seed}, case {counts['cases']} on {SIZE} ranks: {found}"
        counts["cases"] += 1
    if RANK == 0:
        print(json.dumps({**counts, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    main()
