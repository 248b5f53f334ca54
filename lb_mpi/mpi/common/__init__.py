"""The parts that all drivers on MPI share: one carrier, one transport, one presence, one failure."""
