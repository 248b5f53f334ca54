"""lb_mpi.save and lb_mpi.load on MPI."""
