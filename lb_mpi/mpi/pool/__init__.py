"""lb_mpi.Pool on MPI."""
