"""lb_mpi.Balancer and lb_mpi.reorder_ranks on MPI."""
