"""Profiles of any program with mpi4py: which rank waits for which, at which call."""
