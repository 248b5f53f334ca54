"""Measurements of all claims: each script prints ratios to a peer or a bound, which runs in turn with lb_mpi in one call."""
