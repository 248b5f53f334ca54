"""Programs that use other packages, each before and after a change to lb_mpi."""
