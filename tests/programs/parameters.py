"""A parameter sweep: rank 0 hands out parameters as pickles, the others work on them; work is emulated by sleeping.

`stamps` is what this rank has timed by hand: seconds of working, and of waiting for the next parameter or answer.
"""

import time

from mpi4py import MPI

comm = MPI.COMM_WORLD
stamps = {"computing": 0.0, "waiting": 0.0}


def receive(source, status=None):
    """Receive, with the time taken."""
    posted = time.perf_counter()
    message = comm.recv(source=source, status=status)
    stamps["waiting"] += time.perf_counter() - posted
    return message


def solve(parameter):
    """Work on one parameter: the later ones take longer, and rank 1 takes twice as long."""
    began = time.perf_counter()
    time.sleep((0.005 + 0.001 * parameter) * (2 if comm.rank == 1 else 1))
    stamps["computing"] += time.perf_counter() - began
    return parameter**2


def manage(parameters):
    """Hand out parameters, the next one to whoever has answered; the results in their order."""
    status, found, left = MPI.Status(), {}, list(parameters)
    for _ in range(len(left) + comm.size - 1):
        answer = receive(MPI.ANY_SOURCE, status)
        if answer is not None:
            found[answer[0]] = answer[1]
        comm.send(left.pop(0) if left else None, dest=status.source)
    return [found[parameter] for parameter in parameters]


def work():
    """Work until there is nothing left."""
    answer = None
    while True:
        comm.send(answer, dest=0)
        parameter = receive(0)
        if parameter is None:
            return
        answer = parameter, solve(parameter)


if comm.size == 1:
    print("results", [solve(parameter) for parameter in range(30)])
elif comm.rank == 0:
    print("results", manage(range(30)))
else:
    work()
