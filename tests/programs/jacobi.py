"""Jacobi's method, rows dealt out unevenly: the last rank has five times as many; blocking halos, an Allreduce each sweep.

`stamps` is what this rank has timed by hand: seconds of computing, of waiting in Sendrecv, and when it came to and left
each Allreduce.
"""

import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
n, rows = 400, 500 if comm.rank == comm.size - 1 else 100
grid = np.zeros((rows + 2, n))
grid[:, 0] = 1.0 + comm.rank
above, below = comm.rank - 1, comm.rank + 1
above, below = above if above >= 0 else MPI.PROC_NULL, below if below < comm.size else MPI.PROC_NULL
stamps = {"computing": 0.0, "waiting": 0.0, "came": [], "left": []}
change = np.zeros(1)

for _sweep in range(60):
    posted = time.perf_counter()
    comm.Sendrecv(grid[1], above, 0, grid[-1], below, 0)
    comm.Sendrecv(grid[-2], below, 1, recvbuf=grid[0], source=above, recvtag=1)
    began = time.perf_counter()
    new = grid.copy()
    new[1:-1, 1:-1] = 0.25 * (grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:])
    mine = np.array([np.square(new - grid).sum()])
    grid = new
    came = time.perf_counter()
    comm.Allreduce(mine, change)
    stamps["computing"] += came - began
    stamps["waiting"] += began - posted
    stamps["came"].append(came)
    stamps["left"].append(time.perf_counter())

total = comm.reduce(float(grid.sum()), root=0)
if comm.rank == 0:
    print("change", float(change[0]), "total", total)
