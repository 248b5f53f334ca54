"""lb_mpi.Balancer and lb_mpi.diffuse on MPI."""
