"""The commands of `python -m lb_mpi`, one in a file."""
