"""lb_mpi.search on MPI."""
