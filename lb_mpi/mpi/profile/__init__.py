"""Timed calls of any mpi4py program."""
