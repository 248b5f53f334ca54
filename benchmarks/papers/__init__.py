"""All printed tables and figures of the papers that lb_mpi stands on, beside what is computed here: see `__main__`."""

import os

# Before numpy comes: on many small matrices the threads of LAPACK only wait for each other, for ten times as long.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
