"""Speeds of the ranks of a communicator, and message costs between them: measured in wall-clock seconds.

CPU time would not do: a rank that is sometimes stopped, by an emulated slow machine or by other work on its host, is
slower for its user, and only the wall clock shows it.  So all ranks compute at the same time, as in the run, and for
the same time, or slow ranks would finish alone.  Chance is removed in three ways: the median of several rounds counts;
the time waiting for a core (as reported by Linux) is divided among the ranks of a host; and nearly equal cores of a
host count as equal (`lb_mpi.machine.speeds_of`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from lb_mpi import checks
from lb_mpi.checks import function, integer, number
from lb_mpi.emulate import throttle
from lb_mpi.graph import Floats
from lb_mpi.knowledge import WEAK, KnownSpeeds
from lb_mpi.machine import Machine, differ, fit_message, pairings, speeds_of
from lb_mpi.metrics import usual_arithmetic
from lb_mpi.mpi.common.collective import agree, agree_on, allgather, barrier, opened
from lb_mpi.mpi.common.communicator import blocking, presence_of
from lb_mpi.mpi.common.speeds import known_speeds
from lb_mpi.mpi.common.tags import Tag
from lb_mpi.mpi.common.waiting import Clocks, without_core_s

Kernel = Callable[[int], object]

CHUNK_S = 2e-3  # for one call of the kernel: short compared with a round, long compared with the call's overhead
MOST_UNITS = 1 << 40  # in one call; a kernel that does them in no time does nothing
MOST_ROUNDS = 1000
MOST_TIMES = 3  # that speeds are measured, when cores of a host seem to differ
MESSAGE_BYTES = (1, 1 << 12, 1 << 16, 1 << 20)
LEAST_REPEATS, MOST_REPEATS, REPEATS_S = 4, 200, 10e-3  # of a message of each size


@usual_arithmetic
def measure(
    comm: MPI.Intracomm,
    kernel: Kernel | None = None,
    *,
    messages: bool = True,
    rounds: int = 5,
    round_s: float = 0.15,
    emulated_speed: float = 1.0,
) -> Machine:
    """Measure speeds and costs of messages of the ranks of `comm`; return a `Machine`, the same on all ranks.

    Collective.  Works on a duplicate of `comm`.  The speeds need about rounds * round_s seconds; if the cores of a host
    seem to differ, up to three times as long, to find out whether the difference lasts.  The messages need about 0.05 s
    per rank, in P - 1 rounds of disjoint pairs.  Ranks waiting for their turn sleep.

    Later pools and plans on `comm` begin from these speeds, if `rounds` is above 1.  But without a kernel, speeds that were
    known from the user's work are kept if they are less than a factor of two off.

    Parameters
    ----------
    comm : an mpi4py intracommunicator of P ranks.
    kernel : kernel(n) does n units of typical work, and must not communicate; speeds are in these units per second.
        Given on all ranks or on none.  None: passes over a vector that stays in the cache; speeds are in millions of
        multiplications and additions per second.
    messages : False: the costs of messages and waits are not measured, and are 0 in the result.
    rounds : integer >= 1; the speed of a rank is the median of this number of measurements.
    round_s : seconds of each measurement, above 0 and at most 60.
    emulated_speed : makes this rank as slow as a machine of this relative speed, above 0 and at most 1 (see
        `lb_mpi.throttle`); may differ by rank.

    For the probability of a wait and its mean time, the pairs exchange small messages between pieces of work.  The
    latency and the time per byte are fitted to the shortest times of messages of 1 B to 1 MiB, since a disturbance can
    only make a message slower.  Pairs that exchange at the same time may share a network link, as in a real run.

    Raises ValueError or TypeError on every rank if an argument is wrong on any rank, or if an argument other than
    `kernel` and `emulated_speed` differs between ranks.  If the kernel raises an exception on one rank, the others
    raise an error that names this rank: of the same type for ValueError, TypeError and OSError, otherwise
    `lb_mpi.Error`.
    """
    with opened(comm, "lb_mpi.measure") as own:
        agree(own, lambda: function("kernel", kernel, optional=True))
        slow = agree(own, lambda: throttle(checks.emulated_speed(emulated_speed)))
        n = agree(own, lambda: integer("rounds", rounds, 1, MOST_ROUNDS))
        seconds = agree(own, lambda: number("round_s", round_s, above=0.0, most=60.0, unit="seconds"))
        given = None if kernel is None else "a function"
        agree_on(own, kernel=given, messages=bool(messages), rounds=n, round_s=seconds)
        hosts = tuple(allgather(own, MPI.Get_processor_name()))
        known = known_speeds(own, slow.speed)
        speeds = _speeds(own, hosts, lambda: _speed(own, kernel or multiply_add, slow, n, seconds))
        if n > 1 and (kernel is not None or known is None or not known.agrees(speeds.tolist())):
            learned = KnownSpeeds(tuple(speeds.tolist()), (WEAK,) * own.size)
            presence_of(own).speeds.add(lambda: learned)
        latency_s, s_per_byte = _messages(own) if messages else np.zeros((2, own.size, own.size))
        waits = _waits(own, slow) if messages else (0.0, 0.0)
        return Machine(hosts, speeds, latency_s, s_per_byte, *np.array(allgather(own, waits)).T)


CHECK_S = 0.05  # of a measurement that only confirms what is known


def confirmed(comm: MPI.Intracomm, known: KnownSpeeds, hosts: tuple[str, ...], slow: throttle) -> bool:
    """Collective: measure for a short time; return whether these speeds of all ranks are known, and have hardly changed."""
    if not known.complete:
        return False
    speeds = _speeds(comm, hosts, lambda: _speed(comm, multiply_add, slow, 1, CHECK_S)).tolist()
    return known.agrees(speeds)


# --- speeds -----------------------------------------------------------------------------------------------------------


_vector = np.linspace(0.0, 1.0, 4096)  # 32 KiB


def multiply_add(n: int) -> None:
    """Do `n` units of work: a million multiplications and additions each, on one vector."""
    _pass(n * (1_000_000 // (2 * len(_vector))))


def _pass(times: int) -> None:
    vector = _vector
    for _ in range(times):
        vector *= 0.999
        vector += 0.001  # converges to 1: no overflow, no denormal numbers


def _speeds(comm: MPI.Intracomm, hosts: tuple[str, ...], measure_one: Callable[[], Floats]) -> Floats:
    """(P,) speeds, the same on all ranks.  If cores of a host seem to differ, they are measured again."""
    usual = np.empty((0, 3, comm.size))
    while len(usual) < MOST_TIMES:
        measured = np.array(allgather(comm, measure_one())).T
        usual = np.concatenate([usual, measured[None]])
        rates = usual[:, 0].max(axis=0)
        if not differ(hosts, rates):
            break
    return speeds_of(hosts, rates, *np.median(usual[:, 1:], axis=0))


def _speed(comm: MPI.Intracomm, kernel: Kernel, slow: throttle, rounds: int, round_s: float) -> Floats:
    """Measure this rank in a median round, while all ranks compute: the three numbers of `_round`."""
    units = agree(comm, lambda: _calibrate(kernel))
    found = []
    for _ in range(rounds):
        barrier(comm)
        found.append(agree(comm, lambda: _round(kernel, units, slow, round_s)))
    return np.asarray(np.median(found, axis=0))


def _round(kernel: Kernel, units: int, slow: throttle, round_s: float) -> tuple[float, float, float]:
    """Measure one round, as `lb_mpi.machine.speeds_of` needs it.

    Returns the units per second of time with a core; the fraction of the time in which this rank would have had one
    without ever queueing; and the fraction in which it had one.
    """
    done, slow.cpu_s, clocks = 0, 0.0, Clocks()
    clocks.begin()
    try:
        began = now = clocks.read()
        while now.wall_s - began.wall_s < round_s:
            with slow:
                kernel(units)
            done += units
            now = clocks.read()
    finally:
        clocks.end()
    seconds = now.wall_s - began.wall_s
    # The throttle counts queueing as rest, so the rest without queueing is computed here.
    alone_s = max(seconds - without_core_s(began, now), slow.cpu_s / slow.speed)
    cpu_s = max(slow.cpu_s, 1e-9)  # a kernel may leave the work to another device
    return done / cpu_s, cpu_s / alone_s, cpu_s / seconds


def _calibrate(kernel: Kernel) -> int:
    """Return the number of units that take about CHUNK_S, but at least one."""
    kernel(1)  # warm-up, possibly compiling
    units = 1
    while True:
        began = time.perf_counter()
        kernel(units)
        seconds = time.perf_counter() - began
        if seconds >= CHUNK_S / 2:
            return max(1, round(units * CHUNK_S / seconds))
        if units >= MOST_UNITS:
            raise ValueError(f"kernel({units}) took {seconds:g} s: expected some work")
        units *= 2


# --- messages ---------------------------------------------------------------------------------------------------------


def _messages(comm: MPI.Intracomm) -> tuple[Floats, Floats]:
    """(P, P) latency_s and s_per_byte, the same on all ranks."""
    buffer = np.zeros(max(MESSAGE_BYTES), dtype=np.uint8)
    taken: dict[tuple[int, int], list[float]] = {}
    for pairs in pairings(comm.size):
        with blocking(comm):
            for first, second in pairs:
                if comm.rank == first:
                    taken[first, second] = [_ping(comm, second, buffer[:n]) for n in MESSAGE_BYTES]
                elif comm.rank == second:
                    for n in MESSAGE_BYTES:
                        _pong(comm, first, buffer[:n])
    found = agree(comm, lambda: {pair: fit_message(MESSAGE_BYTES, seconds) for pair, seconds in taken.items()})
    latency_s, s_per_byte = np.zeros((2, comm.size, comm.size))
    for theirs in allgather(comm, found):
        for (first, second), (latency, per_byte) in theirs.items():
            latency_s[first, second] = latency_s[second, first] = latency
            s_per_byte[first, second] = s_per_byte[second, first] = per_byte
    return latency_s, s_per_byte


def _ping(comm: MPI.Intracomm, other: int, message: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> float:
    """The shortest time of a message to the other rank: half a round trip.  Its first byte is 1 if another follows."""
    shortest, began = float("inf"), time.perf_counter()
    message[0] = n = 1
    while message[0]:
        sent = time.perf_counter()
        message[0] = n < LEAST_REPEATS or (n < MOST_REPEATS and sent - began < REPEATS_S)
        comm.Send(message, other, Tag.PING)
        comm.Recv(message, other, Tag.PING)
        shortest = min(shortest, (time.perf_counter() - sent) / 2)
        n += 1
    return shortest


def _pong(comm: MPI.Intracomm, other: int, message: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
    message[0] = 1
    while message[0]:
        comm.Recv(message, other, Tag.PING)
        comm.Send(message, other, Tag.PING)


# --- waits ------------------------------------------------------------------------------------------------------------

EXCHANGES = 50  # of each pair
PASSES = 10  # over the vector, between two exchanges: some tens of microseconds


def _waits(comm: MPI.Intracomm, slow: throttle) -> tuple[float, float]:
    """Return the part of the exchanges in which this rank waited for the other one, and the mean seconds of such a wait.

    Collective.  Both ranks of a pair compute, send, and need what the other sends.
    """
    made, waits_s = 0, list[float]()
    mine, theirs = np.zeros(MESSAGE_BYTES[1], dtype=np.uint8), np.zeros(MESSAGE_BYTES[1], dtype=np.uint8)
    for pairs in pairings(comm.size):
        others = [sum(pair) - comm.rank for pair in pairs if comm.rank in pair]
        with blocking(comm):
            for other in others * EXCHANGES:
                with slow:
                    _pass(PASSES)
                sent, request = comm.Isend(mine, other, Tag.PING), comm.Irecv(theirs, other, Tag.PING)
                began = time.perf_counter()
                if not request.Test():
                    request.Wait()
                    waits_s.append(time.perf_counter() - began)
                sent.Wait()
                made += 1
    return (len(waits_s) / made, float(np.mean(waits_s))) if waits_s else (0.0, 0.0)
