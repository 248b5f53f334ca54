"""The measured machine: the ranks' hosts and speeds, and the cost of messages.   (pure, except for its file)

A message of b bytes from rank k to rank l takes `latency_s[k, l] + s_per_byte[k, l] * b` seconds.  A machine is stored in a
JSON file, so that it is measured once and used in many runs; the last two fields may be missing:

    {"format": "lb_mpi machine", "version": 1, "hosts": ["a", "a"], "speeds": [9.1, 9.0],
     "latency_s": [[0, 4e-7], [4e-7, 0]], "s_per_byte": [[0, 1e-10], [1e-10, 0]],
     "wait_probability": [0.3, 0.4], "wait_s": [2e-6, 1e-6]}
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lb_mpi.files import write_whole
from lb_mpi.graph import Floats
from lb_mpi.graph_files import PathLike
from lb_mpi.metrics import check_loads, check_speeds, first_true

FORMAT, VERSION = "lb_mpi machine", 1
FIELDS = ("hosts", "speeds", "latency_s", "s_per_byte")
WAITS = ("wait_probability", "wait_s")  # fields of later machines
ALIKE = 1.5  # cores of one host whose speeds differ by a smaller factor are of one kind


@dataclass(frozen=True, eq=False)
class Machine:
    """The hosts, the speeds and the costs of messages of P ranks.  The arrays are copies, and read-only.

    Raises ValueError, which names the field and the rank, for speeds that are not finite and > 0, for costs that are
    not finite and >= 0, or not 0 on the diagonal (a rank sends no messages to itself), for probabilities above 1, for hosts
    that are not names, and for wrong shapes.
    """

    hosts: tuple[str, ...]  # (P,) name of the host of each rank
    speeds: Floats  # (P,) units of work per second, in the unit of the kernel that was measured
    latency_s: Floats  # (P, P) seconds for the shortest message between two ranks
    s_per_byte: Floats  # (P, P) seconds for each further byte
    # Of an exchange between two ranks that compute (q and Q of `lb_mpi.allocate`); empty: zeros
    wait_probability: Floats = field(default_factory=lambda: np.zeros(0))  # (P,) that a rank has to wait for the other
    wait_s: Floats = field(default_factory=lambda: np.zeros(0))  # (P,) mean seconds of such a wait

    def __post_init__(self) -> None:
        hosts = self.hosts
        if not isinstance(hosts, list | tuple) or not all(isinstance(host, str) and host for host in hosts):
            raise ValueError(f"hosts = {hosts!r}: expected a name for each rank")
        object.__setattr__(self, "hosts", tuple(hosts))
        object.__setattr__(self, "speeds", check_speeds(self.speeds, len(hosts)))
        for name in ("latency_s", "s_per_byte"):
            object.__setattr__(self, name, _check_costs(getattr(self, name), len(hosts), name))
        for name in WAITS:
            given = getattr(self, name)
            values = check_loads(given, len(hosts), name=name) if len(given) else np.zeros(len(hosts))
            object.__setattr__(self, name, values)
        if (k := first_true(self.wait_probability > 1.0)) is not None:
            raise ValueError(f"wait_probability[{k}] = {self.wait_probability[k]}: expected 0 to 1")
        for name in (*FIELDS[1:], *WAITS):
            getattr(self, name).flags.writeable = False

    @property
    def size(self) -> int:
        """The number of ranks P."""
        return len(self.hosts)

    def between(self, one: str, other: str) -> tuple[float, float] | None:
        """Return the medians of latency_s and s_per_byte from ranks on host `one` to ranks on host `other`; None without
        any."""
        hosts = np.array(self.hosts)
        pairs = (hosts[:, None] == one) & (hosts[None, :] == other) & ~np.eye(self.size, dtype=bool)
        if not pairs.any():
            return None
        return float(np.median(self.latency_s[pairs])), float(np.median(self.s_per_byte[pairs]))


def _check_costs(values: ArrayLike, size: int, name: str) -> Floats:
    try:
        array = np.array(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}: expected {size} lists of {size} numbers") from None
    if array.shape != (size, size):
        raise ValueError(f"{name} of shape {array.shape}: expected {(size, size)}, a number for each pair of ranks")
    own = np.diag(np.diag(array))
    for bad, expected in ((~(np.isfinite(array) & (array >= 0)), "a finite number >= 0"), (own != 0, "0")):
        if (index := first_true(bad)) is not None:
            k, other = divmod(index, size)
            raise ValueError(f"{name}[{k}][{other}] = {array[k, other]}: expected {expected}")
    return array


def read_machine(path: PathLike) -> Machine:
    """Read a `Machine` from a file; raises ValueError, beginning with the name of the file, if the file is invalid."""
    where = os.fspath(path)
    with open(path, encoding="utf-8") as file:
        try:
            given = json.load(file)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}:{error.lineno}: {error.msg}: expected JSON") from None
        except (ValueError, RecursionError):  # no UTF-8; a number with too many digits; too deeply nested
            raise ValueError(f"{where}: expected JSON") from None
    if not isinstance(given, dict) or given.get("format") != FORMAT:
        raise ValueError(f'{where}: expected a JSON object with "format": "{FORMAT}"')
    if given.get("version") != VERSION or isinstance(given["version"], bool):
        raise ValueError(f"{where}: version = {given.get('version')!r}: expected {VERSION}")
    for name in (*FIELDS, *WAITS):
        if name not in given and name in FIELDS:
            raise ValueError(f"{where}: {name} is missing")
        if any(isinstance(number, bool | str) for number in _leaves(given.get(name))) and name != "hosts":
            raise ValueError(f"{where}: {name}: expected numbers")
    try:
        return Machine(**{name: given[name] for name in (*FIELDS, *WAITS) if name in given})
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{where}: {error}") from None


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def as_json(machine: Machine) -> dict[str, Any]:
    """Return the machine as stored in its file."""
    arrays = {name: getattr(machine, name).tolist() for name in (*FIELDS[1:], *WAITS)}
    return {"format": FORMAT, "version": VERSION, "hosts": list(machine.hosts), **arrays}


def write_machine(machine: Machine, path: PathLike) -> None:
    """Write a `Machine` to a file, completely or not at all (see `lb_mpi.files`)."""
    write_whole(path, json.dumps(as_json(machine), indent=1) + "\n")


# --- from measurements ------------------------------------------------------------------------------------------------


def fit_message(sizes: ArrayLike, seconds: ArrayLike) -> tuple[float, float]:
    """Return (latency_s, s_per_byte) of messages of (K,) `sizes` in bytes that took (K,) `seconds`: both >= 0.

    Least squares of the relative errors, so that a microsecond matters for a message of one byte, but not of a million.
    """
    from scipy.optimize import nnls  # its import is slow, and rarely needed

    size, time = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    largest = float(size.max(initial=1.0))  # gives both columns the same order of magnitude
    (latency, per_largest), _ = nnls(np.stack([1.0 / time, size / largest / time], axis=1), np.ones(len(time)))
    return float(latency), float(per_largest) / largest


def speeds_of(hosts: Sequence[str], rates: ArrayLike, wanted: ArrayLike, got: ArrayLike) -> Floats:
    """Return (P,) units per second when all ranks compute, without random effects.

    rates (P,): units per second while a rank has a core; wanted (P,): the fraction of the time for which it would have one
    without waiting (below 1: it is stopped at times, or rests); got (P,): the fraction for which it had one.

    The speed of a rank that never waits is rate * wanted.  Who waits for a core is random, and will differ in the next
    second.  A scheduler is fair in the long run: it cuts down the ranks that want most.  So each rank of a host counts as
    having min(wanted, share), with the share for which these add up to sum got.  Similar rates are averaged (`even_out`).
    """
    on, speeds = np.array(hosts), even_out(hosts, rates)
    asks, has = check_speeds(wanted, len(hosts), name="wanted"), check_speeds(got, len(hosts), name="got")
    for host in np.unique(on):
        ranks = on == host
        speeds[ranks] *= np.minimum(asks[ranks], fair_share(asks[ranks], float(has[ranks].sum())))
    return speeds


def fair_share(wanted: Floats, available: float) -> float:
    """Return the share for which the (n,) min(wanted, share) add up to `available`, or else the greatest `wanted`."""
    left = available
    for n_left, one in zip(range(len(wanted), 0, -1), np.sort(wanted).tolist(), strict=True):
        if one * n_left >= left:
            return left / n_left
        left -= one
    return float(wanted.max())


def differ(hosts: Sequence[str], rates: ArrayLike) -> bool:
    """Return whether some host has cores of several kinds, by the (P,) rates of its ranks (see `even_out`)."""
    rate, on = check_speeds(rates, len(hosts), name="rates"), np.array(hosts)
    return any(rate[on == host].max() >= ALIKE * rate[on == host].min() for host in np.unique(on))


def even_out(hosts: Sequence[str], rates: ArrayLike) -> Floats:
    """Return (P,) rates in which similar ranks of one host (within a factor of 1.5) have their mean rate.

    A machine has few kinds of cores; small differences come from other load.  Groups start with a host's fastest ranks.
    """
    even, on = check_speeds(rates, len(hosts), name="rates"), np.array(hosts)
    for host in np.unique(on):
        ranks = np.flatnonzero(on == host)
        ranks = ranks[np.argsort(-even[ranks], kind="stable")]
        while len(ranks):
            n_alike = int(np.count_nonzero(even[ranks] * ALIKE >= even[ranks[0]]))
            even[ranks[:n_alike]] = math.fsum(even[ranks[:n_alike]]) / n_alike
            ranks = ranks[n_alike:]
    return even


def pairings(size: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs (k, l), k < l, in which any two of `size` ranks meet once: at most `size` rounds.

    A round-robin tournament: all but the first sit around a table, and move by one seat per round.
    """
    seats = list(range(size + size % 2))  # with an odd number, one rank has no partner
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        opposite = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(min(pair), max(pair)) for pair in opposite if max(pair) < size])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return [pairs for pairs in rounds if pairs]
