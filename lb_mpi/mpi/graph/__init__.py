"""lb_mpi.distribute and lb_mpi.measure on MPI."""
