"""Profiles of any mpi4py program: which rank waits for which, in which call."""
