"""Other packages' pools and executors on lb_mpi's: adapters that use the public `lb_mpi.Pool` and `lb_mpi.Executor` only."""
