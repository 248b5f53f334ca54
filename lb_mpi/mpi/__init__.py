"""Drivers: they carry the pure parts on real MPI.  Only modules below this one (and the apps) import mpi4py."""
