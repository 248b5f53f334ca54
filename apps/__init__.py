"""Programs that use lb_mpi: each one is run as `mpiexec -n 4 python -m apps.NAME`, and says more with --help."""
