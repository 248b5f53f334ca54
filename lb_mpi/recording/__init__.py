"""A run as it was: what each rank did when, what moved, what was decided; and the profile of any program with mpi4py."""
