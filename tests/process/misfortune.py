"""A program for launch/run to which something happens: `python tests/process/misfortune.py WHAT FOLDER` (see `main`).

It counts its starts in a file, says that it has saved, waits until the others know, and then meets its fate, once.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import lb_mpi
from lb_mpi import signs
from lb_mpi.cli.run.host import MOVED_BYTES

SLOW_S = 4.0  # longer than ranks may hang


def save(folder):
    """The number of starts, this one among them, kept in a file."""
    file = folder / "starts"
    number = len(file.read_text()) + 1 if file.exists() else 1
    with file.open("a") as out:
        out.write("*")
    return number


def wait_for_signal(folder):
    """Say that one can save, and do it at the signal."""

    def stop(_number, _frame):
        (folder / "saved").touch()
        os._exit(signs.SAVED)

    signal.signal(signs.SAVE_SIGNAL, stop)
    signs.saves_at_signal(True)
    (folder / "ready").touch()
    while True:
        time.sleep(0.01)


def wait_together(comm, folder, then):
    """All ranks learn of the signal in the same step, save, and leave: with exit code 75, by Stopped, or as if complete."""
    with lb_mpi.asked_to_stop(comm) as asked:
        (folder / "ready").touch()
        while not asked():
            time.sleep(0.01)
        (folder / "saved").touch()
        if then == "exit":
            sys.exit(signs.SAVED)
        if then == "raise":
            raise lb_mpi.Stopped("on purpose")
        lb_mpi.save(comm, folder / "saves", 2, rows=np.ones(4))


def be_outside(what, comm):
    """Outside of lb_mpi: wait for what never comes, or be slow."""
    if what == "wait-outside":
        threading.Event().wait()
    if what == "receive-outside":
        comm.recv(source=0, tag=7)
    end = time.monotonic() + SLOW_S
    if what == "compute-outside":
        while time.monotonic() < end:
            sum(range(1000))
    if what == "read-outside":
        read_end, write_end = os.pipe()

        def write():
            while time.monotonic() < end:
                time.sleep(0.25)
                os.write(write_end, bytes(MOVED_BYTES))
            os.close(write_end)

        threading.Thread(target=write).start()
        while os.read(read_end, MOVED_BYTES):
            pass


def main(what, folder):
    """Kill (rank 0, or the last), fail, hang, leave, stop, or wait for a signal or a file; at the first start only."""
    comm = MPI.COMM_WORLD
    number = save(folder) if comm.rank == 0 else 0
    number = comm.bcast(number)
    if comm.rank == 0 and what != "kill-unsaved":
        signs.saved(number)
    comm.Barrier()
    last = comm.rank == comm.size - 1
    if number == 1 and what == "kill-root" and comm.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if number <= (2 if what == "kill-unsaved" else 1) and what.startswith("kill") and what != "kill-root" and last:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 1 and what == "raise" and last:
        raise RuntimeError("this program is wrong")
    if number == 1 and what == "watcher" and last:
        os.kill(os.getppid(), signal.SIGKILL)
    if number == 1 and what == "wait" and comm.rank == 0:
        wait_for_signal(folder)
    if number == 1 and what.startswith("wait-together"):
        wait_together(comm, folder, what.rpartition("-")[2])
        return

    if number == 1 and what == "end":
        balancer = lb_mpi.Balancer(comm)  # is not closed: that would tell the others
        if last:
            return
        balancer.map_rows(np.sqrt, np.ones(8))
    if number == 1 and what == "interrupted":
        if last:
            raise KeyboardInterrupt  # before its first call of lb_mpi; at its end, MPI_Finalize waits for the others
        lb_mpi.load(comm, folder / "saves")
    if what == "linger" and comm.rank == 0:
        (folder / "ready").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)

    def task(item):
        if number == 1 and what in ("stop", "leave"):  # until the last rank has got a task, too
            if last:
                (folder / "met").touch()
            while not (folder / "met").exists():
                time.sleep(0.01)
        if number == 1 and what == "stop" and last:
            os.kill(os.getpid(), signal.SIGSTOP)
        if number == 1 and what == "sleep-inside" and item == 0:
            time.sleep(SLOW_S)
        if number == 1 and (what == "leave-together" or (what == "leave" and last)):
            os._exit(0)
        return item

    with lb_mpi.Pool(comm) as pool:
        comm.Barrier()
        if number == 1 and last:
            be_outside(what, comm)
        done = pool.map(task, 4 * comm.size, chunksize=1)
    if comm.rank == 0:
        print(f"start {number}, {comm.size} ranks: {sum(done)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
