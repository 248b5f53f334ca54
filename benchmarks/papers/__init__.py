"""All printed tables and figures of the papers that lb_mpi stands on, beside what is computed here: see `__main__`."""
