"""Start, watch, slow down, and end programs: the code of launch/run and launch/throttle."""
